"""dw.seek_to_stored in each protocol of consumer groups, and in callbacks that fail."""

from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException
from sqlalchemy import Engine

from dualwrite.coordinator.dual_write import DualWrite
from dualwrite.coordinator.offsets import assigning
from dualwrite.errors import DatabaseNotReadyError, InvalidTransactionStateError, KafkaUnavailableError
from tests.support.coordinator.fake_consumer import FakeConsumer, FakeGroup, positions
from tests.support.coordinator.offset_units import P, Q, assigned, use, used, without_the_table


def test_a_cooperative_group_is_assigned_to_incrementally(lite: DualWrite) -> None:
    group = FakeGroup()
    group.is_cooperative = True
    consumer = assigned(lite, group, P)
    use(lite, consumer, P, 3)
    lite.seek_to_stored(consumer, positions(Q))
    assert consumer.calls == ["incremental_assign", "incremental_assign"]
    assert consumer.refused == ["assign"]  # once: the protocol is remembered
    assert consumer.next == {P: 3, Q: 0}
    use(lite, consumer, Q, 1)
    use(lite, consumer, P, 1)


def test_an_assignment_in_another_group_is_of_all_partitions(lite: DualWrite, sqlite_engine: Engine) -> None:
    """Every record is read again that a failed unit of work has not used; and what was taken away is not known."""
    consumer = assigned(lite, FakeGroup(), P, Q)
    with pytest.raises(KeyError):
        use(lite, consumer, P, 2, fail=True)
    lite.seek_to_stored(consumer, positions(P))
    use(lite, consumer, P, 3)
    consumer.next[Q] = 0
    with pytest.raises(InvalidTransactionStateError, match="in-1: this consumer was not set to the offset"):
        use(lite, consumer, Q, 1)
    assert used(sqlite_engine) == ["in-0@0", "in-0@1", "in-0@2"]


def test_the_protocols_of_a_few_consumers_are_remembered(lite: DualWrite, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(assigning, "MOST_CONSUMERS", 1)
    group = FakeGroup()
    group.is_cooperative = True
    consumer = assigned(lite, group, P)
    assigned(lite, group, Q, member="other")
    lite.seek_to_stored(consumer, positions(Q))
    assert consumer.refused == ["assign", "assign"]


@pytest.mark.parametrize("is_assigned", [False, True])
def test_no_call_of_the_other_protocol_is_tried_in_a_consumer_group(lite: DualWrite, is_assigned: bool) -> None:
    group = FakeGroup()
    group.is_cooperative = True
    consumer = FakeConsumer(group, "AVbKQhQ5T0+6xL/1n9qk0g")
    if is_assigned:
        consumer.next, consumer.is_fetching = {P: 40}, False
    lite.seek_to_stored(consumer, None if is_assigned else positions(P))
    assert consumer.calls[-1] == "incremental_assign"
    assert consumer.refused == []


@pytest.mark.parametrize("is_assigned", [False, True])
def test_a_member_id_that_looks_like_one_of_a_consumer_group_misleads_nothing_but_the_log(
    lite: DualWrite, is_assigned: bool
) -> None:
    consumer = FakeConsumer(FakeGroup(), "AVbKQhQ5T0+6xL/1n9qk0g")
    if is_assigned:
        consumer.next, consumer.is_fetching = {P: 40}, False
    lite.seek_to_stored(consumer, None if is_assigned else positions(P))
    assert consumer.calls[-1] == "assign"
    assert consumer.next == {P: 0}
    use(lite, consumer, P, 1)


def test_a_consumer_goes_back_wherever_it_is(lite: DualWrite, sqlite_engine: Engine) -> None:
    consumer = assigned(lite, FakeGroup(), P, Q)
    use(lite, consumer, P, 2)
    with pytest.raises(KeyError):
        use(lite, consumer, P, 2, fail=True)
    consumer.next[Q] = 7  # the application has sought it there, and has read nothing yet
    lite.seek_to_stored(consumer)
    assert consumer.next == {P: 2, Q: 0}
    use(lite, consumer, P, 1)
    use(lite, consumer, Q, 1)
    assert used(sqlite_engine) == ["in-0@0", "in-0@1", "in-0@2", "in-1@0"]


@pytest.mark.parametrize("is_cooperative", [False, True])
def test_partitions_that_are_not_fetched_yet_are_assigned_again(lite: DualWrite, is_cooperative: bool) -> None:
    group = FakeGroup()
    group.is_cooperative = is_cooperative
    consumer = FakeConsumer(group)
    consumer.next = {P: 40, Q: 40}  # assigned by hand
    consumer.is_fetching = False
    lite.seek_to_stored(consumer)
    assert consumer.next == {P: 0, Q: 0}
    use(lite, consumer, P, 1)


def test_an_unexpected_seek_error_is_raised(lite: DualWrite) -> None:
    consumer = assigned(lite, FakeGroup(), P)
    consumer.poll(P, 3)

    def refuse(partition: Any) -> None:
        raise KafkaException(KafkaError(KafkaError._UNKNOWN_PARTITION))

    consumer.seek = refuse  # type: ignore[method-assign]
    with pytest.raises(KafkaException):
        lite.seek_to_stored(consumer)


def test_an_unanswered_offset_request_raises_kafka_unavailable_error(lite: DualWrite) -> None:
    consumer = FakeConsumer(FakeGroup())

    def nothing(partitions: Any, timeout: float) -> list[Any]:
        raise KafkaException(KafkaError(KafkaError._TIMED_OUT))

    consumer.committed = nothing  # type: ignore[method-assign]
    with pytest.raises(KafkaUnavailableError, match="offsets of in-0"):
        lite.seek_to_stored(consumer, positions(P))


def test_a_callback_that_was_interrupted_leaves_nothing_that_could_be_stored(
    lite: DualWrite, sqlite_engine: Engine
) -> None:
    """librdkafka goes on from an offset of its own, and the records before it would count as used."""
    consumer = assigned(lite, FakeGroup(), P)

    def interrupted(_: list[Any]) -> None:
        raise KeyboardInterrupt

    consumer.assign = interrupted  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        lite.seek_to_stored(consumer, positions(P))
    consumer.next = {P: 7}
    with pytest.raises(InvalidTransactionStateError, match="on_assign"):
        use(lite, consumer, P, 1)
    assert used(sqlite_engine) == []


def test_a_callback_that_failed_leaves_nothing_that_could_be_stored(lite: DualWrite, sqlite_engine: Engine) -> None:
    consumer = assigned(lite, FakeGroup(), P)
    use(lite, consumer, P, 3)
    with pytest.raises(DatabaseNotReadyError):
        without_the_table(sqlite_engine, lambda: lite.seek_to_stored(consumer, positions(P)))
    consumer.next = {P: 0}  # as librdkafka, which then assigns by itself
    with pytest.raises(InvalidTransactionStateError, match="on_assign"):
        use(lite, consumer, P, 9)
    lite.seek_to_stored(consumer)
    use(lite, consumer, P, 1)
    assert used(sqlite_engine) == [f"in-0@{record}" for record in range(4)]
