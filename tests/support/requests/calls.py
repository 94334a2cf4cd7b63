"""Requests of tests to a broker, in one call each, over a :class:`~tests.support.requests.raw_client.RawClient`."""

import itertools
from collections.abc import Iterable, Sequence
from uuid import UUID

from dualwrite.ids import NO_PRODUCER, ProducerIdentity
from dualwrite.records.batch import Record, build_batch, iterate_records
from dualwrite.records.control import Marker, read_marker
from dualwrite.records.header import BatchFields, iterate_batches
from dualwrite.wire.apis import (
    AddPartitionsToTxnRequest,
    ApiVersionsRequest,
    CreateTopicsRequest,
    DescribeProducersRequest,
    DescribeTransactionsRequest,
    EndTxnRequest,
    FetchRequest,
    InitProducerIdRequest,
    ListOffsetsRequest,
    Message,
    MetadataRequest,
    ProduceRequest,
)
from dualwrite.wire.error_codes import ErrorCode
from tests.support.requests.raw_client import RawClient

LATEST, EARLIEST, MAX_TIMESTAMP = -1, -2, -3
TWO_PHASE_TIMEOUT = 2147483647
LIBRDKAFKA_TWO_PHASE_TIMEOUT = 2147483547

_numbers = itertools.count()


def unique(kind: str) -> str:
    """A name that no other test uses."""
    return f"{kind}-{next(_numbers)}"


# --- topics


def wanted_topic(name: str, partitions: int = 1, replication: int = 1, **more: object) -> Message:
    """One topic of a CreateTopics request."""
    fields: dict[str, object] = {"assignments": [], "configs": [], **more}
    return CreateTopicsRequest.CreatableTopic(
        name=name, num_partitions=partitions, replication_factor=replication, **fields
    )


def configs(values: dict[str, str | None]) -> list[Message]:
    """The settings of a topic of a CreateTopics request."""
    entry = CreateTopicsRequest.CreatableTopic.CreatableTopicConfig
    return [entry(name=name, value=value) for name, value in values.items()]


def ask_for_topics(client: RawClient, *topics: Message, version: int = 7, validate_only: bool = False) -> list[Message]:
    """The results of a CreateTopics request."""
    request = CreateTopicsRequest(topics=list(topics), timeout_ms=1000, validate_only=validate_only)
    return list(client.ask(request, version).topics)


def new_topic(client: RawClient, partitions: int = 1, **settings: str) -> str:
    """Create a topic with a name of its own."""
    name = unique("topic")
    named = {key.replace("_", "."): value for key, value in settings.items()}
    (result,) = ask_for_topics(client, wanted_topic(name, partitions, configs=configs({**named})))
    assert result.error_code == ErrorCode.NONE, result.error_message
    return name


def metadata(client: RawClient, *names: str, version: int = 12, create: bool = False) -> Message:
    """The Metadata answer about ``names``."""
    topics = [MetadataRequest.MetadataRequestTopic(topic_id=None, name=name) for name in names]
    return client.ask(MetadataRequest(topics=topics, allow_auto_topic_creation=create), version)


def all_topics() -> Message:
    """A Metadata request for every topic."""
    return MetadataRequest(topics=None, allow_auto_topic_creation=False)


def topic_id(client: RawClient, name: str) -> UUID:
    """The id of the topic ``name``."""
    (topic,) = metadata(client, name).topics
    found: UUID = topic.topic_id
    return found


# --- writing


def batch(
    values: Iterable[bytes], producer: ProducerIdentity = NO_PRODUCER, sequence: int = -1, timestamp: int = 1000
) -> bytes:
    """A batch that is not transactional."""
    return _batch(values, BatchFields(producer, sequence), timestamp)


def tx_batch(values: Iterable[bytes], producer: ProducerIdentity, sequence: int = 0, timestamp: int = 1000) -> bytes:
    """A transactional batch."""
    return _batch(values, BatchFields(producer, sequence, transactional=True), timestamp)


def _batch(values: Iterable[bytes], fields: BatchFields, timestamp: int) -> bytes:
    return build_batch([Record(None, value, timestamp) for value in values], fields)


def produce_request(
    records: dict[tuple[str, int], bytes | None],
    transactional_id: str | None = None,
    acks: int = -1,
    ids: dict[str, UUID] | None = None,
) -> Message:
    """A Produce request of one batch for each (topic, partition); ``ids`` name the topics from v13 on."""
    topic_data, data = ProduceRequest.TopicProduceData, ProduceRequest.TopicProduceData.PartitionProduceData
    topics = [
        topic_data(
            name=topic,
            topic_id=(ids or {}).get(topic),
            partition_data=[
                data(index=index, records=content) for (owner, index), content in records.items() if owner == topic
            ],
        )
        for topic in dict.fromkeys(topic for topic, _ in records)
    ]
    return ProduceRequest(transactional_id=transactional_id, acks=acks, timeout_ms=1000, topic_data=topics)


def produce(
    client: RawClient,
    topic: str,
    records: bytes | None,
    transactional_id: str | None = None,
    *,
    partition: int = 0,
    version: int = 9,
    acks: int = -1,
) -> Message:
    """The answer of the one partition that ``records`` are sent to; ``version`` 9 is TV1, 12 TV2."""
    request = produce_request({(topic, partition): records}, transactional_id, acks)
    ((answer,),) = [topic.partition_responses for topic in client.ask(request, version).responses]
    return answer


# --- transactions


def init(
    client: RawClient,
    transactional_id: str | None,
    *,
    version: int = 6,
    timeout_ms: int = 60_000,
    two_phase: bool = False,
    keep: bool = False,
    expected: ProducerIdentity = NO_PRODUCER,
) -> Message:
    """The InitProducerId answer."""
    request = InitProducerIdRequest(
        transactional_id=transactional_id,
        transaction_timeout_ms=timeout_ms,
        producer_id=expected.producer_id,
        producer_epoch=expected.epoch,
        enable2_pc=two_phase,
        keep_prepared_txn=keep,
    )
    return client.ask(request, version)


def identity(answer: Message) -> ProducerIdentity:
    """The identity that an InitProducerId or EndTxn answer gives."""
    assert answer.error_code == ErrorCode.NONE, ErrorCode(answer.error_code)
    return ProducerIdentity(answer.producer_id, answer.producer_epoch)


def ongoing(answer: Message) -> ProducerIdentity:
    """The identity of the kept transaction in an InitProducerId answer."""
    return ProducerIdentity(answer.ongoing_txn_producer_id, answer.ongoing_txn_producer_epoch)


def new_producer(client: RawClient, transactional_id: str | None = None, **more: bool) -> ProducerIdentity:
    """A producer's identity, fresh from InitProducerId."""
    return identity(init(client, transactional_id, **more))


def added_topics(partitions: Sequence[tuple[str, int]]) -> list[Message]:
    """The topics of an AddPartitionsToTxn request."""
    entry = AddPartitionsToTxnRequest.AddPartitionsToTxnTransaction.AddPartitionsToTxnTopic
    return [
        entry(name=name, partitions=[index for owner, index in partitions if owner == name])
        for name in dict.fromkeys(name for name, _ in partitions)
    ]


def add(
    client: RawClient,
    transactional_id: str,
    producer: ProducerIdentity,
    *partitions: tuple[str, int],
    version: int = 3,
) -> dict[tuple[str, int], ErrorCode]:
    """What AddPartitionsToTxn (up to v3) answers for each partition."""
    request = AddPartitionsToTxnRequest(
        v3_and_below_transactional_id=transactional_id,
        v3_and_below_producer_id=producer.producer_id,
        v3_and_below_producer_epoch=producer.epoch,
        v3_and_below_topics=added_topics(partitions),
    )
    return partition_errors(client.ask(request, version).results_by_topic_v3_and_below)


def partition_errors(topics: Iterable[Message]) -> dict[tuple[str, int], ErrorCode]:
    """The errors of an AddPartitionsToTxn answer."""
    return {
        (topic.name, entry.partition_index): ErrorCode(entry.partition_error_code)
        for topic in topics
        for entry in topic.results_by_partition
    }


def end(
    client: RawClient, transactional_id: str, producer: ProducerIdentity, commit: bool = True, version: int = 5
) -> Message:
    """The EndTxn answer; ``version`` 5 is TV2."""
    request = EndTxnRequest(
        transactional_id=transactional_id,
        producer_id=producer.producer_id,
        producer_epoch=producer.epoch,
        committed=commit,
    )
    return client.ask(request, version)


def open_transaction(
    client: RawClient, transactional_id: str, producer: ProducerIdentity, values: dict[tuple[str, int], list[bytes]]
) -> None:
    """Write the first batch of a transaction to each partition, as a TV2 client does."""
    for (topic, partition), content in values.items():
        answer = produce(client, topic, tx_batch(content, producer), transactional_id, partition=partition, version=12)
        assert answer.error_code == ErrorCode.NONE, ErrorCode(answer.error_code)


# --- reading


def fetch_request(
    topic: str, offset: int = 0, *, partition: int = 0, committed: bool = False, by_id: UUID | None = None, **more: int
) -> Message:
    """A Fetch request for one partition that does not wait unless ``max_wait_ms`` says so."""
    entry = FetchRequest.FetchTopic
    bytes_there = more.pop("partition_max_bytes", 1 << 20)
    leader_epoch = more.pop("current_leader_epoch", -1)
    position = entry.FetchPartition(
        partition=partition,
        fetch_offset=offset,
        partition_max_bytes=bytes_there,
        current_leader_epoch=leader_epoch,
    )
    fields = {"max_wait_ms": 0, "min_bytes": 1, "max_bytes": 1 << 24, **more}
    return FetchRequest(
        isolation_level=int(committed),
        topics=[entry(topic=topic, topic_id=by_id, partitions=[position])],
        forgotten_topics_data=[],
        **fields,
    )


def fetch(client: RawClient, topic: str, offset: int = 0, *, version: int = 12, **more: object) -> Message:
    """The Fetch answer for one partition."""
    return only_partition(client.ask(fetch_request(topic, offset, **more), version))  # type: ignore[arg-type]


def only_partition(answer: Message) -> Message:
    """The one partition of a Fetch answer."""
    ((partition,),) = [topic.partitions for topic in answer.responses]
    return partition


def read_all(client: RawClient, topic: str, partition: int = 0, committed: bool = True) -> list[bytes | None]:
    """The values that a consumer of this isolation sees, from the beginning to where it can see."""
    values: list[bytes | None] = []
    offset = 0
    while True:
        part = fetch(client, topic, offset, partition=partition, committed=committed)
        assert part.error_code == ErrorCode.NONE, ErrorCode(part.error_code)
        if not part.records:
            return values
        values += consumed(part, offset)
        *_, (last, _) = iterate_batches(part.records)
        offset = last.next_offset


def consumed(part: Message, offset: int) -> list[bytes | None]:
    """The values that a consumer takes from a Fetch answer: without markers and what was aborted (KIP-98)."""
    values: list[bytes | None] = []
    pending = sorted((entry.first_offset, entry.producer_id) for entry in part.aborted_transactions or [])
    aborting: set[int] = set()
    for header, content in iterate_batches(part.records):
        while pending and pending[0][0] <= header.last_offset:
            aborting.add(pending.pop(0)[1])
        if header.is_control:
            if read_marker(content) is Marker.ABORT:
                aborting.discard(header.producer_id)
        elif not (header.is_transactional and header.producer_id in aborting):
            values += [record.value for record in iterate_records(content) if record.offset >= offset]
    return values


def list_offset(
    client: RawClient, topic: str, timestamp: int, *, partition: int = 0, committed: bool = False, version: int = 8
) -> Message:
    """The ListOffsets answer for one partition."""
    entry = ListOffsetsRequest.ListOffsetsTopic
    wanted = entry.ListOffsetsPartition(partition_index=partition, current_leader_epoch=-1, timestamp=timestamp)
    request = ListOffsetsRequest(
        replica_id=-1, isolation_level=int(committed), topics=[entry(name=topic, partitions=[wanted])]
    )
    ((answer,),) = [topic.partitions for topic in client.ask(request, version).topics]
    return answer


# --- describing


def describe(client: RawClient, transactional_id: str) -> Message:
    """What DescribeTransactions says about ``transactional_id``."""
    (state,) = client.ask(DescribeTransactionsRequest(transactional_ids=[transactional_id]), 0).transaction_states
    return state


def producers(client: RawClient, topic: str, partition: int = 0) -> dict[int, Message]:
    """What DescribeProducers says, by producer id."""
    entry = DescribeProducersRequest.TopicRequest(name=topic, partition_indexes=[partition])
    ((answer,),) = [topic.partitions for topic in client.ask(DescribeProducersRequest(topics=[entry]), 0).topics]
    assert answer.error_code == ErrorCode.NONE
    return {state.producer_id: state for state in answer.active_producers}


def is_served(client: RawClient) -> bool:
    """True if the broker answers ApiVersions."""
    return client.ask(ApiVersionsRequest(client_software_name="x", client_software_version="1"), 3).error_code == 0
