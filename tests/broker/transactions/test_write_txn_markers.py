"""WriteTxnMarkers: an operator ends a transaction that hangs in a partition, and no other transaction."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from dualwrite.broker.embedded import EmbeddedBroker
from dualwrite.ids import ProducerIdentity
from dualwrite.wire.apis import WriteTxnMarkersRequest
from dualwrite.wire.error_codes import ErrorCode
from tests.support.forked import ForkedBroker
from tests.support.requests.calls import (
    LATEST,
    add,
    batch,
    describe,
    end,
    identity,
    init,
    list_offset,
    new_producer,
    new_topic,
    open_transaction,
    produce,
    producers,
    read_all,
    tx_batch,
    unique,
)
from tests.support.requests.marker_calls import marker, write
from tests.support.requests.raw_client import RawClient

VERSIONS = (1, 2)


@pytest.fixture
def careless(tmp_path: Path) -> Iterator[EmbeddedBroker]:
    """A broker that does not verify what clients of the older protocol write: only there can a transaction hang."""
    with ForkedBroker(tmp_path, config={"transaction.partition.verification.enable": "false"}) as running:
        yield running


def start_of(client: RawClient, topic: str, producer: ProducerIdentity) -> int:
    found: int = producers(client, topic)[producer.producer_id].current_txn_start_offset
    return found


@pytest.mark.slow_cases
@pytest.mark.parametrize("version", VERSIONS)
def test_a_hanging_transaction_is_found_and_aborted(careless: EmbeddedBroker, version: int) -> None:
    """A record arrives behind the marker of its transaction, and holds the last stable offset back for ever."""
    with RawClient(careless.bootstrap_servers) as client:
        topic, transactional_id = new_topic(client), unique("tx")
        producer = new_producer(client, transactional_id)
        add(client, transactional_id, producer, (topic, 0))
        produce(client, topic, tx_batch([b"in time"], producer), transactional_id)
        end(client, transactional_id, producer, version=1)
        produce(client, topic, tx_batch([b"late"], producer, sequence=1), transactional_id)
        produce(client, topic, batch([b"behind it"]))
        assert describe(client, transactional_id).transaction_state == "CompleteCommit", "the coordinator knows nothing"
        state = producers(client, topic)[producer.producer_id]
        assert state.current_txn_start_offset == 2
        assert read_all(client, topic) == [b"in time"]

        found = ProducerIdentity(state.producer_id, state.producer_epoch)
        answer = write(client, marker(found, (topic, 0), epoch=state.coordinator_epoch), version=version)

        assert answer == {(producer.producer_id, topic, 0): ErrorCode.NONE}
        assert start_of(client, topic, producer) == -1
        assert read_all(client, topic) == [b"in time", b"behind it"]
        assert list_offset(client, topic, LATEST, committed=True).offset == 5
    careless.kill()
    careless.start()
    with RawClient(careless.bootstrap_servers) as client:
        assert read_all(client, topic) == [b"in time", b"behind it"]


def test_with_verification_the_same_late_record_is_refused(client: RawClient) -> None:
    topic, transactional_id = new_topic(client), unique("tx")
    producer = new_producer(client, transactional_id)
    add(client, transactional_id, producer, (topic, 0))
    produce(client, topic, tx_batch([b"in time"], producer), transactional_id)
    end(client, transactional_id, producer, version=1)
    late = produce(client, topic, tx_batch([b"late"], producer, sequence=1), transactional_id)
    assert late.error_code == ErrorCode.INVALID_TXN_STATE
    assert start_of(client, topic, producer) == -1


@pytest.mark.parametrize("partition", [0, 1])
def test_without_verification_a_zombie_still_adds_nothing_to_a_kept_transaction(
    careless: EmbeddedBroker, partition: int
) -> None:
    """KIP-939: what was prepared is committed as it was prepared."""
    with RawClient(careless.bootstrap_servers) as client:
        topic, transactional_id = new_topic(client, partitions=2), unique("tx")
        zombie = new_producer(client, transactional_id)
        open_transaction(client, transactional_id, zombie, {(topic, 0): [b"prepared"]})
        heir = identity(init(client, transactional_id, keep=True))
        sequence = 1 if partition == 0 else 0
        late = tx_batch([b"late"], zombie, sequence=sequence)
        answer = produce(client, topic, late, transactional_id, partition=partition)
        assert answer.error_code == ErrorCode.INVALID_PRODUCER_EPOCH
        end(client, transactional_id, heir)
        assert read_all(client, topic) == [b"prepared"]
        assert list_offset(client, topic, LATEST, partition=1).offset == 0


def test_without_verification_the_newer_protocol_is_still_checked(careless: EmbeddedBroker) -> None:
    with RawClient(careless.bootstrap_servers) as client:
        topic, transactional_id = new_topic(client), unique("tx")
        producer = new_producer(client, transactional_id)
        open_transaction(client, transactional_id, producer, {(topic, 0): [b"v"]})
        end(client, transactional_id, producer)
        late = produce(client, topic, tx_batch([b"late"], producer, sequence=1), transactional_id, version=12)
        assert late.error_code == ErrorCode.INVALID_PRODUCER_EPOCH


@pytest.mark.parametrize("version", VERSIONS)
def test_a_marker_of_an_older_epoch_ends_nothing(client: RawClient, version: int) -> None:
    topic, transactional_id = new_topic(client), unique("tx")
    old = new_producer(client, transactional_id)
    producer = new_producer(client, transactional_id)
    open_transaction(client, transactional_id, producer, {(topic, 0): [b"v"]})
    answer = write(client, marker(old, (topic, 0)), version=version)
    assert answer == {(old.producer_id, topic, 0): ErrorCode.INVALID_PRODUCER_EPOCH}
    assert start_of(client, topic, producer) == 0


def test_a_marker_of_the_newer_protocol_has_the_epoch_after_its_records(client: RawClient) -> None:
    topic, transactional_id = new_topic(client), unique("tx")
    producer = new_producer(client, transactional_id)
    after = ProducerIdentity(producer.producer_id, producer.epoch + 1)
    open_transaction(client, transactional_id, producer, {(topic, 0): [b"v"]})
    key = (producer.producer_id, topic, 0)
    assert write(client, marker(producer, (topic, 0), version=2)) == {key: ErrorCode.INVALID_PRODUCER_EPOCH}
    assert write(client, marker(after, (topic, 0), version=2)) == {key: ErrorCode.NONE}
    assert write(client, marker(after, (topic, 0), version=2)) == {key: ErrorCode.NONE}, "it came again"
    assert read_all(client, topic) == []


@pytest.mark.slow
def test_a_marker_of_an_older_coordinator_is_fenced_also_after_a_kill(broker: EmbeddedBroker) -> None:
    with RawClient(broker.bootstrap_servers) as client:
        topic, producer = new_topic(client), new_producer(client)
        key = (producer.producer_id, topic, 0)
        assert write(client, marker(producer, (topic, 0), epoch=5)) == {key: ErrorCode.NONE}
    broker.kill()
    broker.start()
    with RawClient(broker.bootstrap_servers) as client:
        assert producers(client, topic)[producer.producer_id].coordinator_epoch == 5
        older = write(client, marker(producer, (topic, 0), epoch=4))
        assert older == {key: ErrorCode.TRANSACTION_COORDINATOR_FENCED}


def test_a_coordinator_that_comes_too_late_leaves_the_partition_alone(client: RawClient) -> None:
    """An operator has aborted in one partition with a later epoch; the commit reaches the others all the same."""
    topic, transactional_id = new_topic(client, partitions=1), unique("tx")
    other = new_topic(client)
    producer = new_producer(client, transactional_id)
    for name in (topic, other):
        add(client, transactional_id, producer, (name, 0))
        produce(client, name, tx_batch([b"v"], producer), transactional_id)
    later = ProducerIdentity(producer.producer_id, producer.epoch + 5)
    write(client, marker(later, (topic, 0)))
    assert end(client, transactional_id, producer, version=1).error_code == ErrorCode.NONE
    assert [read_all(client, name) for name in (topic, other)] == [[], [b"v"]]
    assert producers(client, topic)[producer.producer_id].producer_epoch == later.epoch


@pytest.mark.parametrize("commit", [True, False])
@pytest.mark.parametrize("version", [1, 2])
def test_no_marker_ends_a_transaction_of_two_phase_commit(client: RawClient, version: int, commit: bool) -> None:
    """It would be torn out of the partition, while its owner commits the rest of it and its rows."""
    topic, name = new_topic(client), unique("tx")
    producer = new_producer(client, name, two_phase=True)
    open_transaction(client, name, producer, {(topic, 0): [b"v"]})
    tv2 = version == 2
    later = ProducerIdentity(producer.producer_id, producer.epoch + 1) if tv2 else producer
    answer = write(client, marker(later, (topic, 0), commit=commit, version=2 if tv2 else 0), version=version)
    assert set(answer.values()) == {ErrorCode.INVALID_TXN_STATE}
    assert end(client, name, producer).error_code == ErrorCode.NONE
    assert read_all(client, topic) == [b"v"]


def test_markers_of_one_producer_are_answered_together_and_each_partition_by_itself(client: RawClient) -> None:
    first, second = new_topic(client), new_topic(client)
    one, two = new_producer(client), new_producer(client)
    answer = client.ask(
        WriteTxnMarkersRequest(
            markers=[marker(one, (first, 0)), marker(two, (first, 0), ("missing", 0)), marker(one, (second, 0))]
        ),
        2,
    )
    assert [result.producer_id for result in answer.markers] == [one.producer_id, two.producer_id]
    errors = [
        [(topic.name, entry.error_code) for topic in result.topics for entry in topic.partitions]
        for result in answer.markers
    ]
    assert errors == [
        [(first, ErrorCode.NONE), (second, ErrorCode.NONE)],
        [(first, ErrorCode.NONE), ("missing", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)],
    ]


@pytest.mark.parametrize("producer", [ProducerIdentity(-1, 0), ProducerIdentity(1, -1)])
def test_a_marker_without_a_producer_is_refused(client: RawClient, producer: ProducerIdentity) -> None:
    topic = new_topic(client)
    assert set(write(client, marker(producer, (topic, 0))).values()) == {ErrorCode.INVALID_REQUEST}
    assert list_offset(client, topic, LATEST).offset == 0


def test_no_markers_are_answered_with_none(client: RawClient) -> None:
    assert write(client) == {}
