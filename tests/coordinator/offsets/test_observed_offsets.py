"""Observers of units of work that also want consumers' offsets: which offsets they are given, and when."""

from collections.abc import Mapping

import pytest

from dualwrite.coordinator.dual_write import DualWrite
from dualwrite.coordinator.steps.observers import OffsetsObserver
from dualwrite.errors import InvalidTransactionStateError, KafkaRefusedError, RebalancedError
from dualwrite.ids import TopicPartition
from dualwrite.wire.error_codes import ErrorCode
from tests.support.coordinator.fake_consumer import FakeConsumer, FakeGroup, Position
from tests.support.coordinator.fake_kafka import FakeKafka
from tests.support.coordinator.recorder import Recorder, write

P, Q = TopicPartition("in", 0), TopicPartition("in", 1)


class OffsetsRecorder(Recorder):
    """Records consumers' offsets, too."""

    def unit_began(self) -> "OffsetsRecorder":
        super().unit_began()
        return self

    def offsets_added(self, group_id: str, offsets: Mapping[TopicPartition, int], in_database: bool) -> None:
        self.note((group_id, dict(offsets), in_database))

    def offsets(self) -> list[tuple[object, ...]]:
        return [entry for entry in self.told if isinstance(entry, tuple) and isinstance(entry[0], str)]


class FailingOffsetsRecorder(OffsetsRecorder):
    """Raises once it has recorded offsets."""

    def offsets_added(self, group_id: str, offsets: Mapping[TopicPartition, int], in_database: bool) -> None:
        super().offsets_added(group_id, offsets, in_database)
        raise ValueError("of the observer")


@pytest.fixture
def observer(dual_write: DualWrite) -> OffsetsRecorder:
    made = OffsetsRecorder()
    dual_write.add_observer(made)
    return made


def reading(count: int) -> FakeConsumer:
    """A consumer that has read ``count`` records of P, and none of Q."""
    consumer = FakeConsumer(FakeGroup())
    consumer.next = {P: 0, Q: 0}
    consumer.poll(P, count)
    return consumer


def test_offsets_in_the_kafka_transaction_are_reported_once_they_are_added(
    dual_write: DualWrite, observer: OffsetsRecorder
) -> None:
    with dual_write.transaction() as tx:
        assert observer.offsets() == []
        tx.send_offsets(reading(3))
        assert observer.offsets() == [("group", {P: 3}, False)]
        tx.send_offsets(reading(0), [Position("in", 1, 7)])
    assert observer.offsets() == [("group", {P: 3}, False), ("group", {Q: 7}, False)]
    places = [observer.told.index(entry) for entry in ("/BEGIN_KAFKA", ("group", {P: 3}, False), "PREPARE_KAFKA")]
    assert places == sorted(places)


def test_offsets_in_the_database_are_reported_as_such(dual_write: DualWrite, observer: OffsetsRecorder) -> None:
    consumer = FakeConsumer(FakeGroup())
    dual_write.seek_to_stored(consumer, [Position("in", 0)])
    consumer.poll(P, 2)
    with dual_write.transaction() as tx:
        tx.store_offsets(consumer)
    assert observer.offsets() == [("group", {P: 2}, True)]


def test_without_a_record_read_nothing_is_reported(dual_write: DualWrite, observer: OffsetsRecorder) -> None:
    consumer = FakeConsumer(FakeGroup())
    consumer.next = {P: 0}
    with dual_write.transaction() as tx:
        tx.send_offsets(consumer)
        tx.store_offsets(consumer)
    assert observer.offsets() == []


def test_offsets_that_are_refused_are_not_reported(
    dual_write: DualWrite, observer: OffsetsRecorder, kafka: FakeKafka
) -> None:
    def refuse(request: str) -> None:
        if request == "offsets":
            raise KafkaRefusedError("TxnOffsetCommit", ErrorCode.ILLEGAL_GENERATION, "ILLEGAL_GENERATION")

    kafka.before_effect = refuse
    with pytest.raises(RebalancedError), dual_write.transaction() as tx:
        tx.send_offsets(reading(3))
    with pytest.raises(InvalidTransactionStateError), dual_write.transaction() as tx:
        tx.store_offsets(reading(3))
    assert observer.offsets() == []


def test_an_observer_without_the_method_is_called_for_everything_else(dual_write: DualWrite) -> None:
    plain = Recorder()
    assert not isinstance(plain, OffsetsObserver)
    dual_write.add_observer(plain)
    with dual_write.transaction() as tx:
        tx.send_offsets(reading(3))
    assert "/COMMIT_KAFKA" in plain.told


def test_an_observer_that_fails_makes_no_unit_fail(dual_write: DualWrite, kafka: FakeKafka) -> None:
    observer = FailingOffsetsRecorder()
    dual_write.add_observer(observer)
    with dual_write.transaction() as tx:
        tx.send_offsets(reading(3))
    assert observer.offsets() == [("group", {P: 3}, False)]
    assert [offsets for _, offsets in kafka.committed] == [{P: 3}]
    write(dual_write, "one")
    assert kafka.committed[-1] == "one"
