"""How a transaction ended, read from the bundled broker's log; the coordinator is not asked, and may have forgotten."""

from collections.abc import Iterator

import pytest

from dualwrite.broker.embedded import EmbeddedBroker
from dualwrite.client.admin.control_plane import ControlPlane
from dualwrite.client.fate import transaction_fate as anchors
from dualwrite.client.fate.transaction_fate import ended_transaction
from dualwrite.coordinator.kafka.librdkafka import LibrdkafkaProducer
from dualwrite.coordinator.kafka.native import NativeProducer
from dualwrite.ids import Anchor, EndedTransaction, Ending, PreparedTxnState, ProducerIdentity
from dualwrite.records.outgoing import OutgoingRecord
from dualwrite.wire.apis import DeleteRecordsRequest
from tests.support.peer_clients.kafka_helpers import create_topic, fresh_name
from tests.support.requests.raw_client import RawClient

SOMEBODY = ProducerIdentity(7, 0)
Producer = LibrdkafkaProducer | NativeProducer


class EndingLog:
    """A topic of one partition, and producers that write to it."""

    def __init__(self, broker: EmbeddedBroker) -> None:
        self.topic = fresh_name()
        self.config = {"bootstrap.servers": broker.bootstrap_servers}
        self.control = ControlPlane(self.config, timeout=10)
        self.opened: list[Producer] = []
        create_topic(broker.bootstrap_servers, self.topic, 1)

    def producer(self, kind: type[Producer], name: str = "") -> Producer:
        made = kind({**self.config, "transactional.id": name or fresh_name()})
        made.init_transactions()
        self.opened.append(made)
        return made

    def write(self, producer: Producer, *values: bytes) -> PreparedTxnState:
        """A transaction, as far as it is prepared."""
        producer.begin_transaction()
        for value in values or (b"a",):
            producer.produce(OutgoingRecord(self.topic, value, partition=0))
        return producer.prepare_transaction()

    def ending(self, state: PreparedTxnState) -> EndedTransaction:
        return ended_transaction(self.control, state)

    def close(self) -> None:
        for producer in self.opened:
            producer.close()
        self.control.close()


@pytest.fixture
def log(shared_broker: EmbeddedBroker) -> Iterator[EndingLog]:
    made = EndingLog(shared_broker)
    yield made
    made.close()


@pytest.fixture(params=[NativeProducer, LibrdkafkaProducer], ids=["native", "librdkafka"])
def kind(request: pytest.FixtureRequest) -> type[Producer]:
    made: type[Producer] = request.param
    return made


def test_the_log_shows_a_committed_transaction(log: EndingLog, kind: type[Producer]) -> None:
    producer = log.producer(kind)
    state = log.write(producer, b"a", b"b")
    assert log.ending(state).ending is Ending.OPEN
    producer.commit_transaction()
    assert log.ending(state) == EndedTransaction(Ending.COMMITTED)


def test_the_log_shows_an_aborted_transaction(log: EndingLog, kind: type[Producer]) -> None:
    producer = log.producer(kind)
    state = log.write(producer, b"a", b"b")
    producer.abort_transaction()
    assert log.ending(state) == EndedTransaction(Ending.ABORTED)


def test_the_log_shows_a_forced_abort(log: EndingLog, kind: type[Producer]) -> None:
    name = fresh_name()
    state = log.write(log.producer(kind, name))
    log.control.init_producer_id(name, two_phase_commit=True, keep_prepared_txn=False)
    assert log.ending(state) == EndedTransaction(Ending.ABORTED)


def test_each_transaction_of_a_session_has_its_own_ending(log: EndingLog, kind: type[Producer]) -> None:
    producer = log.producer(kind)
    states = []
    for commits in (False, True, False):
        states.append(log.write(producer))
        (producer.commit_transaction if commits else producer.abort_transaction)()
    endings = [log.ending(state) for state in states]
    assert [ending.ending for ending in endings] == [Ending.ABORTED, Ending.COMMITTED, Ending.ABORTED]
    assert [each.was_overtaken for each in endings] == [True, False, False]


def test_another_producers_transaction_does_not_count_as_overtaking(log: EndingLog, kind: type[Producer]) -> None:
    producer, other = log.producer(kind), log.producer(kind)
    state = log.write(producer)
    producer.commit_transaction()
    log.write(other)
    other.commit_transaction()
    assert log.ending(state) == EndedTransaction(Ending.COMMITTED)


@pytest.mark.parametrize("commits", [True, False])
def test_an_ending_is_found_behind_another_producers_open_transaction(
    log: EndingLog, kind: type[Producer], commits: bool
) -> None:
    holding, producer = log.producer(kind), log.producer(kind)
    log.write(holding)  # readers see nothing behind it
    state = log.write(producer)
    (producer.commit_transaction if commits else producer.abort_transaction)()
    assert log.ending(state).ending is (Ending.COMMITTED if commits else Ending.ABORTED)
    holding.abort_transaction()


@pytest.mark.slow_cases
@pytest.mark.parametrize("is_hidden", [False, True], ids=["before it", "behind it"])
def test_a_later_commit_is_found_behind_another_producers_open_transaction(
    log: EndingLog, kind: type[Producer], is_hidden: bool
) -> None:
    """Readers see the first transaction, or not even that."""
    holding, producer = log.producer(kind), log.producer(kind)
    if is_hidden:
        log.write(holding)
    state = log.write(producer)
    producer.commit_transaction()
    if not is_hidden:
        log.write(holding)
    assert log.ending(state) == EndedTransaction(Ending.COMMITTED)
    log.write(producer)
    assert log.ending(state) == EndedTransaction(Ending.COMMITTED), "it is open"
    producer.commit_transaction()
    assert log.ending(state) == EndedTransaction(Ending.COMMITTED, was_overtaken=True)
    holding.abort_transaction()


def test_a_marker_is_found_beyond_a_single_fetch(log: EndingLog) -> None:
    holding, producer, other = (log.producer(NativeProducer) for _ in range(3))
    log.write(holding)
    state = log.write(producer)
    log.write(other, *[b"x" * 90_000] * 5)
    producer.abort_transaction()
    assert log.ending(state).ending is Ending.ABORTED
    holding.abort_transaction()
    other.abort_transaction()


def test_a_search_for_a_marker_stops_at_its_timeout_only(log: EndingLog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(anchors, "FARTHEST", 200_000)
    holding, producer, other = (log.producer(NativeProducer) for _ in range(3))
    log.write(holding)
    state = log.write(producer)
    log.write(other, *[b"x" * 90_000] * 5)
    producer.abort_transaction()
    assert ended_transaction(log.control, state, timeout=10).ending is Ending.UNKNOWN
    assert ended_transaction(log.control, state).ending is Ending.ABORTED
    holding.abort_transaction()
    other.abort_transaction()


def test_an_open_transaction_behind_another_is_open(log: EndingLog, kind: type[Producer]) -> None:
    log.write(log.producer(kind))
    assert log.ending(log.write(log.producer(kind))).ending is Ending.OPEN


def state_at(log: EndingLog, offset: int, producer: ProducerIdentity = SOMEBODY) -> PreparedTxnState:
    return PreparedTxnState(producer, Anchor(log.topic, 0, offset))


def test_a_log_that_ends_before_the_transaction_has_lost_it(log: EndingLog, kind: type[Producer]) -> None:
    producer = log.producer(kind)
    log.write(producer)
    producer.commit_transaction()
    assert log.ending(state_at(log, 2)).ending is Ending.LOST  # the end of the log itself
    assert log.ending(state_at(log, 7)).ending is Ending.LOST


def test_another_producers_record_at_the_anchor_means_that_it_is_lost(log: EndingLog, kind: type[Producer]) -> None:
    producer = log.producer(kind)
    state = log.write(producer)
    producer.commit_transaction()
    another = ProducerIdentity(state.producer.producer_id, state.producer.epoch + 1)
    assert log.ending(state_at(log, 0, another)).ending is Ending.LOST
    assert log.ending(state_at(log, 1, state.producer)).ending is Ending.LOST, "a marker is no record"


def test_records_that_were_deleted_tell_nothing(
    log: EndingLog, kind: type[Producer], shared_broker: EmbeddedBroker
) -> None:
    producer = log.producer(kind)
    state = log.write(producer)
    producer.commit_transaction()
    with RawClient(shared_broker.bootstrap_servers) as client:
        entry = DeleteRecordsRequest.DeleteRecordsTopic
        wanted = entry.DeleteRecordsPartition(partition_index=0, offset=2)
        client.ask(DeleteRecordsRequest(topics=[entry(name=log.topic, partitions=[wanted])], timeout_ms=1000), 2)
    assert log.ending(state) == EndedTransaction(Ending.UNKNOWN)


@pytest.mark.parametrize("anchor", [Anchor("never-made", 0, 0), Anchor("a" * 165 + "~" + "0" * 32, 0, 0)])
def test_a_deleted_topic_leaves_the_ending_unknown(log: EndingLog, anchor: Anchor) -> None:
    assert log.ending(PreparedTxnState(ProducerIdentity(7, 0), anchor)).ending is Ending.UNKNOWN


def test_a_missing_partition_leaves_the_ending_unknown(log: EndingLog) -> None:
    assert log.ending(PreparedTxnState(ProducerIdentity(7, 0), Anchor(log.topic, 9, 0))).ending is Ending.UNKNOWN


def test_a_state_without_an_anchor_has_an_unknown_ending(log: EndingLog) -> None:
    assert log.ending(PreparedTxnState(ProducerIdentity(7, 0))) == EndedTransaction(Ending.UNKNOWN)
    assert log.ending(PreparedTxnState()) == EndedTransaction(Ending.UNKNOWN)


def test_a_topic_whose_name_is_shortened_in_the_state_is_found(log: EndingLog, shared_broker: EmbeddedBroker) -> None:
    log.topic = fresh_name() + "x" * 200
    create_topic(shared_broker.bootstrap_servers, log.topic, 1)
    producer = log.producer(NativeProducer)
    state = log.write(producer)
    assert state.first_record is not None
    assert state.first_record.topic != log.topic
    producer.abort_transaction()
    assert log.ending(state).ending is Ending.ABORTED
