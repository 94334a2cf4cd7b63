"""The broker's own topics: every client may read them as any other topic, and only the broker writes to them."""

import random
from pathlib import Path

import pytest
from confluent_kafka import Producer

from dualwrite.broker.embedded import EmbeddedBroker
from dualwrite.broker.facts import offsets as offset_facts
from dualwrite.broker.facts import transaction_log
from dualwrite.broker.facts.transactions import TransactionForgotten, TransactionRecorded, TransactionStatus
from dualwrite.broker.log.journal import Journal
from dualwrite.broker.runtime.flusher import Flusher
from dualwrite.broker.runtime.internal_topics import InternalTopic
from dualwrite.errors import CorruptLogError
from dualwrite.ids import ProducerIdentity, TopicPartition
from dualwrite.records.batch import Record, iterate_records
from dualwrite.records.control import Marker, place_marker
from dualwrite.records.header import BatchFields, BatchHeader, iterate_batches
from dualwrite.records.rewriting import empty_batch
from dualwrite.testing.files import MemoryFiles
from dualwrite.wire.apis import DescribeProducersRequest, ListOffsetsRequest, MetadataRequest
from dualwrite.wire.error_codes import ErrorCode
from tests.support.broker.logs import content_of, flipped, rewrite
from tests.support.broker.simulated import DATA_DIR, Rooms, read_log, run
from tests.support.peer_clients.consumers import consume
from tests.support.requests.calls import add as add_partitions
from tests.support.requests.calls import (
    ask_for_topics,
    batch,
    end,
    fetch,
    fetch_request,
    metadata,
    new_producer,
    new_topic,
    only_partition,
    open_transaction,
    produce,
    read_all,
    topic_id,
    tx_batch,
    unique,
    wanted_topic,
)
from tests.support.requests.offset_calls import commit
from tests.support.requests.raw_client import RawClient
from tests.support.waiting import eventually

INTERNAL = ["__consumer_offsets", "__transaction_state"]
OFFSETS = TopicPartition("__consumer_offsets", 0)
OTHER = Path("/another directory, for records of another kind")


def nothing(*_: object) -> None:
    """For records of which nothing follows."""


def test_internal_topics_are_listed_with_one_partition_and_a_stable_id(broker: EmbeddedBroker) -> None:
    def listed() -> dict[str, object]:
        with RawClient(broker.bootstrap_servers) as client:
            topics = client.ask(MetadataRequest(topics=None), 12).topics
            assert all(len(topic.partitions) == 1 for topic in topics)
            assert {topic.name for topic in topics if topic.is_internal} == set(INTERNAL)
            return {topic.name: topic.topic_id for topic in topics}

    with RawClient(broker.bootstrap_servers) as client:
        own = new_topic(client)
    before = listed()
    assert set(before) == {own, *INTERNAL}
    assert len(set(before.values())) == 3
    broker.stop()
    broker.start()
    assert listed() == before


def test_a_topic_of_another_cluster_has_another_id() -> None:
    async def main() -> None:
        ids = set()
        for seed in range(2):
            cluster = Rooms(MemoryFiles(), rng=random.Random(seed)).cluster
            topic = cluster.topic("__transaction_state")
            assert topic is not None
            assert cluster.topic_name(topic.topic_id) == topic.name
            assert cluster.config(topic.name).compacts
            ids.add(topic.topic_id)
        assert len(ids) == 2

    run(main())


@pytest.mark.parametrize("name", INTERNAL)
def test_clients_may_not_write_to_them(client: RawClient, name: str) -> None:
    answer = produce(client, name, batch([b"v"]))
    assert answer.error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
    transactional_id = unique("txn")
    producer = new_producer(client, transactional_id)
    answer = produce(client, name, tx_batch([b"v"], producer), transactional_id, version=12)
    assert answer.error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
    topic = new_topic(client)
    errors = add_partitions(client, transactional_id, producer, (name, 0), (topic, 0))
    assert errors == {
        (name, 0): ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        (topic, 0): ErrorCode.OPERATION_NOT_ATTEMPTED,
    }
    (result,) = ask_for_topics(client, wanted_topic(name))
    assert result.error_code == ErrorCode.TOPIC_ALREADY_EXISTS


def test_librdkafka_may_not_write_to_them_either(shared_broker: EmbeddedBroker) -> None:
    told: list[str] = []
    producer = Producer({"bootstrap.servers": shared_broker.bootstrap_servers})
    producer.produce(OFFSETS.topic, b"v", on_delivery=lambda error, message: told.append(error.name()))
    assert producer.flush(20) == 0
    assert told == ["TOPIC_EXCEPTION"]


def test_the_brokers_records_are_fetched_by_name_and_by_id_in_kafkas_form(client: RawClient) -> None:
    topic, group = new_topic(client), unique("group")
    assert commit(client, group, {(topic, 0): 42}) == [ErrorCode.NONE]
    by_name = fetch(client, OFFSETS.topic, committed=True)
    wanted = fetch_request("", by_id=topic_id(client, OFFSETS.topic))
    by_id = only_partition(client.ask(wanted, 16))
    for part in (by_name, by_id):
        records = [record for _, each in iterate_batches(part.records) for record in iterate_records(each)]
        facts = [offset_facts.decode_fact(record.key, record.value) for record in records]
        assert (group, TopicPartition(topic, 0), 42) in [(fact.group, fact.partition, fact.offset) for fact in facts]


def test_a_released_consumer_reads_the_transactions(shared_broker: EmbeddedBroker, client: RawClient) -> None:
    transactional_id = unique("txn")
    producer = new_producer(client, transactional_id)
    (values,) = consume(shared_broker.bootstrap_servers, "__transaction_state").values()
    key = transaction_log.encode_fact(TransactionForgotten(transactional_id))[0]
    facts = [transaction_log.decode_fact(key, value) for value in values]
    assert producer in [fact.producer for fact in facts if isinstance(fact, TransactionRecorded)]


def test_the_end_of_a_transaction_becomes_readable_without_a_waiting_request(client: RawClient) -> None:
    topic, transactional_id = new_topic(client), unique("txn")
    producer = new_producer(client, transactional_id)
    open_transaction(client, transactional_id, producer, {(topic, 0): [b"v"]})
    end(client, transactional_id, producer)
    key = transaction_log.encode_fact(TransactionForgotten(transactional_id))[0]

    def last() -> TransactionStatus:
        fact = transaction_log.decode_fact(key, read_all(client, "__transaction_state")[-1])
        assert isinstance(fact, TransactionRecorded)
        return fact.status

    assert eventually(last, lambda status: status is TransactionStatus.COMPLETE_COMMIT)
    assert last() is TransactionStatus.COMPLETE_COMMIT


def test_offsets_and_producers_of_internal_topics_can_be_queried(client: RawClient) -> None:
    topic = new_topic(client)
    commit(client, unique("group"), {(topic, 0): 1})
    entry = ListOffsetsRequest.ListOffsetsTopic
    latest = entry.ListOffsetsPartition(partition_index=0, timestamp=-1)
    request = ListOffsetsRequest(replica_id=-1, topics=[entry(name=OFFSETS.topic, partitions=[latest])])
    ((answer,),) = [each.partitions for each in client.ask(request, 5).topics]
    assert answer.error_code == ErrorCode.NONE
    assert answer.offset == fetch(client, OFFSETS.topic).high_watermark > 0
    wanted = DescribeProducersRequest.TopicRequest(name=OFFSETS.topic, partition_indexes=[0])
    ((described,),) = [each.partitions for each in client.ask(DescribeProducersRequest(topics=[wanted]), 0).topics]
    assert described.error_code == ErrorCode.NONE


def test_a_topic_that_is_missing_is_not_internal(client: RawClient) -> None:
    (topic,) = metadata(client, unique("missing")).topics
    assert not topic.is_internal


def test_records_and_markers_come_back_in_their_order_and_readers_wait_for_the_marker() -> None:
    """A transaction in an internal topic: what a coordinator sees now is what it sees after a restart."""
    seen: list[object] = []

    def on_record(record: Record, header: BatchHeader) -> None:
        seen.append((record.value, header.producer if header.is_transactional else None))

    def on_marker(header: BatchHeader, marker: Marker) -> None:
        seen.append((marker, header.producer, header.base_offset))

    def opened(files: MemoryFiles) -> tuple[InternalTopic, Flusher]:
        rooms = Rooms(files)
        topic = InternalTopic.open(OFFSETS.topic, files, OTHER, rooms.cluster, rooms.flusher, on_record, on_marker)
        return topic, rooms.flusher

    async def main() -> None:
        files, producer = MemoryFiles(), ProducerIdentity(7, 3)
        topic, flusher = opened(files)
        assert topic.append([Record(b"k", b"plain")]) == 0
        fields = BatchFields(producer, 0, transactional=True)
        assert topic.append([Record(b"k", b"in txn"), Record(b"k", b"in txn too")], fields) == 1
        await flusher.barrier()
        assert topic.partition.visible_before(committed_only=True) == 1
        topic.partition.append_marker(Marker.COMMIT, producer, 5)
        assert seen == [(Marker.COMMIT, producer, 3)], "a marker is reported when it is appended"
        await flusher.barrier()
        assert topic.partition.visible_before(committed_only=True) == 4
        seen.clear()
        again, _ = opened(files.power_cut(random.Random(1)))
        assert seen == [
            (b"plain", None),
            (b"in txn", producer),
            (b"in txn too", producer),
            (Marker.COMMIT, producer, 3),
        ]
        assert again.partition.visible_before(committed_only=True) == 4
        assert len(read_log(again.partition)) == 4

    run(main())


def test_a_marker_that_compaction_has_emptied_is_passed_over_at_a_start() -> None:
    async def main() -> None:
        files = MemoryFiles()
        rooms = Rooms(files)
        wiring = (OFFSETS.topic, files, OTHER, rooms.cluster, rooms.flusher, nothing)
        topic = InternalTopic.open(*wiring)
        header, _ = place_marker(0, Marker.ABORT, ProducerIdentity(7, 3), 0, 1000)
        topic.partition.log.append(empty_batch(header))
        again = InternalTopic.open(*wiring, lambda *_: pytest.fail("it is no marker any more"))
        assert again.partition.end_offset == 1

    run(main())


def test_a_damaged_batch_below_the_recovery_point_of_an_internal_topic_is_named() -> None:
    async def main() -> None:
        files = MemoryFiles()
        rooms = Rooms(files)
        wiring = (OFFSETS.topic, files, OTHER, rooms.cluster, rooms.flusher, nothing)
        topic = InternalTopic.open(*wiring, segment_bytes=20_000)
        for _ in range(6):
            topic.append([Record(b"k", bytes(5000))])
        topic.partition.checkpoint()
        first = OTHER / f"{OFFSETS}" / "00000000000000000000.log"
        rewrite(files, first, flipped(content_of(files, first), 8 * 100))
        with pytest.raises(CorruptLogError, match="consumer_offsets-0: batch at offset 0"):
            InternalTopic.open(*wiring)

    run(main())


def test_a_journal_of_an_earlier_release_is_read_on() -> None:
    """It was written as a log and nothing more."""

    async def main() -> None:
        files = MemoryFiles()
        fact = TransactionRecorded("txn", ProducerIdentity(5, 1), TransactionStatus.EMPTY, 1000, 77)
        journal = Journal.open(files, DATA_DIR / "__transaction_state-0", lambda record: None)
        journal.append([Record(*transaction_log.encode_fact(fact))])
        rooms = Rooms(files)
        assert rooms.coordinator.table.entries == {"txn": fact}
        partition = rooms.cluster.partition(TopicPartition("__transaction_state", 0))
        assert partition is not None
        assert partition.state.high_watermark == partition.end_offset == 1

    run(main())
