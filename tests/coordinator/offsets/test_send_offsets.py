"""tx.send_offsets and dw.seek_to_committed over a Kafka that can fail at every call: what is sent, and what is not."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException
from sqlalchemy import Engine
from sqlalchemy.exc import OperationalError

from dualwrite.client.protocol.requests import GroupMember
from dualwrite.coordinator.aio.awaited_slot import AwaitedParticipant
from dualwrite.coordinator.dual_write import DualWrite
from dualwrite.coordinator.unit.transaction import Transaction
from dualwrite.coordinator.unit.unit_transaction import UnitTransaction
from dualwrite.errors import (
    InDoubtError,
    InvalidTransactionStateError,
    KafkaRefusedError,
    KafkaUnavailableError,
    RebalancedError,
)
from dualwrite.ids import TopicPartition
from dualwrite.wire.error_codes import ErrorCode
from tests.support.coordinator.event_table import stored_values
from tests.support.coordinator.fake_consumer import FakeConsumer, FakeGroup, Position, positions
from tests.support.coordinator.fake_kafka import FakeKafka
from tests.support.coordinator.usual_unit import fail_at, recovered, write

P, Q = TopicPartition("in", 0), TopicPartition("in", 1)
MEMBER = GroupMember("group", 1, "member")


def reading(*places: TopicPartition) -> FakeConsumer:
    consumer = FakeConsumer(FakeGroup())
    consumer.next = dict.fromkeys(places, 0)
    return consumer


def use(dw: DualWrite, consumer: FakeConsumer, value: str = "", *, is_caught: bool = False) -> None:
    """A unit of work with what was polled."""
    with dw.transaction() as tx:
        if value:
            write(tx, value)
        send(tx, consumer, is_caught=is_caught)


def send(tx: Transaction, consumer: FakeConsumer, *, is_caught: bool) -> None:
    try:
        tx.send_offsets(consumer)
    except Exception:
        if not is_caught:
            raise


def test_the_offsets_are_part_of_the_kafka_transaction(
    dual_write: DualWrite, sqlite_engine: Engine, kafka: FakeKafka
) -> None:
    consumer = reading(P, Q)
    consumer.poll(P, 3)
    use(dual_write, consumer, "one")
    assert kafka.committed == ["one", (MEMBER, {P: 3})]
    assert stored_values(sqlite_engine) == ["one"]


def test_a_unit_of_offsets_alone_is_a_unit(dual_write: DualWrite, kafka: FakeKafka) -> None:
    consumer = reading(P)
    consumer.poll(P, 2)
    use(dual_write, consumer)
    assert kafka.committed == [(MEMBER, {P: 2})]


def test_without_a_record_read_kafka_is_not_asked(dual_write: DualWrite, kafka: FakeKafka) -> None:
    dual_write.recover()
    before = list(kafka.requests)
    use(dual_write, reading(P))
    assert kafka.requests == before


def test_after_the_unit_even_no_offsets_are_refused(dual_write: DualWrite) -> None:
    with dual_write.transaction() as tx:
        pass
    with pytest.raises(InvalidTransactionStateError, match="has ended"):
        tx.send_offsets(reading(P))


def test_explicit_offsets_may_be_given(dual_write: DualWrite, kafka: FakeKafka) -> None:
    with dual_write.transaction() as tx:
        tx.send_offsets(reading(P), [Position("in", 0, 7), Position("in", 1, -1001)])
    assert kafka.committed == [(MEMBER, {P: 7})]


@pytest.mark.parametrize("is_caught", [False, True])
@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.ILLEGAL_GENERATION,
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.FENCED_INSTANCE_ID,
        ErrorCode.REBALANCE_IN_PROGRESS,
    ],
)
def test_a_member_whose_generation_is_over_commits_nothing(
    dual_write: DualWrite, sqlite_engine: Engine, kafka: FakeKafka, code: ErrorCode, is_caught: bool
) -> None:
    consumer = reading(P)
    consumer.poll(P, 3)

    def refuse(request: str) -> None:
        if request == "offsets":
            raise KafkaRefusedError("TxnOffsetCommit", code, code.name)

    kafka.before_effect = refuse
    with pytest.raises(RebalancedError, match=rf"'group' has given .* \({code.name}\).*seek_to_committed") as raised:
        use(dual_write, consumer, "one", is_caught=is_caught)
    assert not raised.value.retriable
    assert (kafka.committed, stored_values(sqlite_engine)) == ([], [])


@pytest.mark.parametrize("is_caught", [False, True])
@pytest.mark.parametrize("member", [GroupMember("group"), GroupMember("group", -1, "left"), GroupMember("group", 4)])
def test_a_consumer_that_is_not_a_member_commits_nothing(
    dual_write: DualWrite, sqlite_engine: Engine, kafka: FakeKafka, member: GroupMember, is_caught: bool
) -> None:
    consumer = reading(P)
    consumer.poll(P, 3)
    consumer.member = member
    with pytest.raises(RebalancedError, match="not, or no longer, a member of group 'group'"):
        use(dual_write, consumer, "one", is_caught=is_caught)
    assert (kafka.committed, stored_values(sqlite_engine)) == ([], [])


@pytest.mark.parametrize("is_caught", [False, True])
def test_an_authorization_error_of_the_group_is_raised_unchanged(
    dual_write: DualWrite, kafka: FakeKafka, is_caught: bool
) -> None:
    consumer = reading(P)
    consumer.poll(P, 3)

    def refuse(request: str) -> None:
        if request == "offsets":
            raise KafkaRefusedError("TxnOffsetCommit", 30, "GROUP_AUTHORIZATION_FAILED")

    kafka.before_effect = refuse
    with pytest.raises(KafkaRefusedError, match="GROUP_AUTHORIZATION_FAILED"):
        use(dual_write, consumer, "one", is_caught=is_caught)
    assert kafka.committed == []


@pytest.mark.parametrize("is_caught", [False, True])
def test_offsets_that_kafka_does_not_accept_roll_the_unit_back(
    dual_write: DualWrite, sqlite_engine: Engine, kafka: FakeKafka, is_caught: bool
) -> None:
    consumer = reading(P)
    consumer.poll(P, 3)
    fail_at(kafka, "offsets")
    with pytest.raises(KafkaUnavailableError):
        use(dual_write, consumer, "one", is_caught=is_caught)
    assert (kafka.committed, stored_values(sqlite_engine)) == ([], [])
    consumer.group.committed[P] = 0
    dual_write.seek_to_committed(consumer)
    consumer.poll(P, 3)
    use(dual_write, consumer, "one")
    assert kafka.committed == ["one", (MEMBER, {P: 3})]


def test_a_participant_that_is_awaited_passes_them_on(kafka: FakeKafka) -> None:
    with ThreadPoolExecutor(1) as threads:
        participant = AwaitedParticipant(kafka.participant(), threads)
        participant.init_transactions()
        participant.begin_transaction()
        participant.send_offsets_to_transaction([Position("in", 0, 7)], MEMBER)
        participant.prepare_transaction()
        participant.commit_transaction()
    assert kafka.committed == [(MEMBER, {P: 7})]


# Going back.


def test_a_consumer_that_reads_on_after_a_failure_sends_nothing(dual_write: DualWrite, kafka: FakeKafka) -> None:
    consumer = reading(P)
    consumer.poll(P, 3)
    fail_at(kafka, "prepare")
    with pytest.raises(KafkaUnavailableError):
        use(dual_write, consumer, "one")
    consumer.poll(P, 1)
    with pytest.raises(InvalidTransactionStateError, match=r"seek_to_committed\(consumer\)"):
        use(dual_write, consumer, "two")
    assert kafka.committed == []
    dual_write.seek_to_committed(consumer)
    assert consumer.next == {P: 0}
    consumer.poll(P, 4)
    use(dual_write, consumer, "three")
    assert kafka.committed == ["three", (MEMBER, {P: 4})]


def test_a_failure_counts_in_a_thread_other_than_the_one_that_polls(dual_write: DualWrite, kafka: FakeKafka) -> None:
    """The callback runs where the consumer is polled, and the unit fails before it names the consumer."""
    consumer = reading()
    dual_write.seek_to_committed(consumer, positions(P))

    def fail_early() -> None:
        with dual_write.transaction():
            raise KeyError

    with ThreadPoolExecutor(1) as units:
        consumer.poll(P, 3)
        with pytest.raises(KeyError):
            units.submit(fail_early).result()
        consumer.poll(P, 1)
        with pytest.raises(InvalidTransactionStateError, match=r"seek_to_committed\(consumer\)"):
            units.submit(use, dual_write, consumer, "next").result()
    assert kafka.committed == []


def test_the_records_in_hand_may_be_sent_again(dual_write: DualWrite, kafka: FakeKafka) -> None:
    consumer = reading(P)
    consumer.poll(P, 3)
    fail_at(kafka, "prepare")
    with pytest.raises(KafkaUnavailableError):
        use(dual_write, consumer, "one")
    use(dual_write, consumer, "one")
    consumer.poll(P, 1)
    use(dual_write, consumer)
    assert kafka.committed == ["one", (MEMBER, {P: 3}), (MEMBER, {P: 4})]


def test_a_consumer_is_not_rewound_behind_a_decided_unit(dual_write: DualWrite, kafka: FakeKafka) -> None:
    consumer = reading(P)
    consumer.poll(P, 3)
    fail_at(kafka, "commit")
    use(dual_write, consumer, "one")  # the cluster does not know of it yet: its group has committed nothing
    consumer.poll(P, 2)
    with pytest.raises(KeyError), dual_write.transaction():
        raise KeyError
    dual_write.seek_to_committed(consumer)
    assert consumer.next == {P: 3}
    assert recovered(dual_write)
    assert kafka.committed == ["one", (MEMBER, {P: 3})]


def test_a_seek_that_kafka_did_not_answer_is_not_rewound_behind_a_decided_unit_either(
    dual_write: DualWrite, kafka: FakeKafka
) -> None:
    consumer = reading(P)
    consumer.poll(P, 3)
    fail_at(kafka, "commit")
    use(dual_write, consumer, "one")  # the cluster does not know of it yet
    consumer.poll(P, 2)
    consumer.group.refusals[P] = KafkaError._TIMED_OUT
    with pytest.raises(KafkaUnavailableError):
        dual_write.seek_to_committed(consumer)
    consumer.group.refusals.clear()
    dual_write.seek_to_committed(consumer)
    assert consumer.next == {P: 3}


@pytest.mark.parametrize(("reset", "begin"), [("earliest", 7), ("latest", 50)])
def test_without_a_committed_offset_the_consumer_starts_at_the_beginning(
    dual_write: DualWrite, reset: Any, begin: int
) -> None:
    consumer = reading(P)
    consumer.group.watermarks = (7, 50)
    consumer.poll(P, 20)
    dual_write.seek_to_committed(consumer, auto_offset_reset=reset)
    assert consumer.next == {P: begin}


@pytest.mark.parametrize("reset", ["earliest", "latest"])
@pytest.mark.parametrize("is_callback", [False, True])
def test_a_group_without_a_committed_offset_gets_the_records_of_a_failed_unit_again(
    dual_write: DualWrite, kafka: FakeKafka, reset: Any, is_callback: bool
) -> None:
    """The topic has grown meanwhile: its end is behind the records that were read and not used."""
    consumer = FakeConsumer(FakeGroup())
    consumer.group.watermarks = (0, 50)
    dual_write.seek_to_committed(consumer, positions(P), auto_offset_reset=reset)
    (begin,) = consumer.next.values()
    consumer.poll(P, 20)
    consumer.group.watermarks = (0, 90)
    with pytest.raises(KeyError), dual_write.transaction():
        raise KeyError
    partitions = positions(P) if is_callback else None
    dual_write.seek_to_committed(consumer, partitions, auto_offset_reset=reset)
    assert consumer.next == {P: begin}
    consumer.poll(P, 20)
    use(dual_write, consumer, "one")
    assert kafka.committed == ["one", (MEMBER, {P: begin + 20})]


@pytest.mark.parametrize("reset", ["earliest", "latest"])
def test_records_that_are_gone_are_not_sought(dual_write: DualWrite, reset: Any) -> None:
    consumer = FakeConsumer(FakeGroup())
    consumer.group.watermarks = (0, 50)
    dual_write.seek_to_committed(consumer, positions(P), auto_offset_reset=reset)
    consumer.group.watermarks = (70, 90)
    dual_write.seek_to_committed(consumer, auto_offset_reset=reset)
    assert consumer.next == {P: 70}


@pytest.mark.parametrize(("reset", "begin"), [("earliest", 0), ("latest", 5)])
def test_a_topic_that_was_made_anew_is_not_read_from_the_offset_of_the_one_before(
    dual_write: DualWrite, kafka: FakeKafka, reset: Any, begin: int
) -> None:
    """With it went the group's offset. A cooperative group keeps its other partitions meanwhile."""
    consumer = FakeConsumer(FakeGroup())
    consumer.group.is_cooperative = True
    dual_write.seek_to_committed(consumer, positions(P, Q))
    consumer.poll(P, 20)
    use(dual_write, consumer, "one")
    consumer.incremental_unassign(positions(P))
    consumer.group.watermarks = (0, 5)
    dual_write.seek_to_committed(consumer, positions(P), auto_offset_reset=reset)
    assert consumer.next == {P: begin, Q: 0}


# After an assignment.


@pytest.mark.parametrize("is_cooperative", [False, True])
def test_an_assigned_consumer_is_positioned_at_its_groups_offset(
    dual_write: DualWrite, kafka: FakeKafka, caplog: pytest.LogCaptureFixture, is_cooperative: bool
) -> None:
    consumer = FakeConsumer(FakeGroup())
    consumer.group.is_cooperative = is_cooperative
    consumer.group.committed[P] = 3
    consumer.group.watermarks = (7, 50)
    dual_write.seek_to_committed(consumer, positions(P, Q))
    assert consumer.next == {P: 3, Q: 7}
    consumer.poll(P, 2)
    use(dual_write, consumer, "one")
    assert kafka.committed == ["one", (MEMBER, {P: 5})]
    assert not caplog.messages


def test_a_new_assignment_starts_no_earlier_than_the_decided_offsets(dual_write: DualWrite, kafka: FakeKafka) -> None:
    consumer = FakeConsumer(FakeGroup())
    dual_write.seek_to_committed(consumer, positions(P))
    consumer.poll(P, 3)
    fail_at(kafka, "commit")
    use(dual_write, consumer, "one")  # the cluster does not know of it yet
    dual_write.seek_to_committed(consumer, positions(P, Q))
    assert consumer.next == {P: 3, Q: 0}


def test_a_consumer_positioned_by_librdkafka_is_warned_about_once(
    dual_write: DualWrite, kafka: FakeKafka, caplog: pytest.LogCaptureFixture
) -> None:
    for consumer in (reading(P), reading(Q)):
        for place in consumer.next:
            consumer.poll(place, 1)
        use(dual_write, consumer)
    assert len(kafka.committed) == 2
    assert [text for text in caplog.messages if "without on_assign=dw.seek_to_committed" in text] == caplog.messages
    assert len(caplog.messages) == 1


def test_a_consumer_that_could_not_be_positioned_counts_as_unpositioned(
    dual_write: DualWrite, caplog: pytest.LogCaptureFixture
) -> None:
    class Silent(FakeConsumer):
        def committed(self, partitions: list[Any], timeout: float) -> list[Position]:
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT))

    consumer = FakeConsumer(FakeGroup())
    dual_write.seek_to_committed(consumer, positions(P))
    consumer.__class__ = Silent
    with pytest.raises(KafkaUnavailableError, match="committed offsets of in-0, in-1"):
        dual_write.seek_to_committed(consumer, positions(P, Q))
    consumer.poll(P, 1)
    use(dual_write, consumer)
    assert any("librdkafka may hand out" in text for text in caplog.messages)


def test_seek_is_refused_inside_a_unit(dual_write: DualWrite) -> None:
    with dual_write.transaction(), pytest.raises(InvalidTransactionStateError, match="a unit of work is open"):
        dual_write.seek_to_committed(reading(P))


@pytest.mark.parametrize("consumer", [None, "group", object(), FakeGroup()], ids=lambda given: type(given).__name__)
def test_an_invalid_consumer_is_refused_by_its_type_and_the_unit_continues(
    dual_write: DualWrite, sqlite_engine: Engine, kafka: FakeKafka, consumer: Any
) -> None:
    message = f"a consumer of type {type(consumer).__name__}: give a confluent_kafka.Consumer"
    with dual_write.transaction() as tx:
        write(tx, "one")
        for method in (tx.send_offsets, tx.store_offsets):
            with pytest.raises(TypeError, match=message):
                method(consumer)
    for seek in (dual_write.seek_to_committed, dual_write.seek_to_stored):
        with pytest.raises(TypeError, match=message):
            seek(consumer)
    assert kafka.committed == stored_values(sqlite_engine) == ["one"]


def test_offsets_are_sent_inside_the_block_only(dual_write: DualWrite) -> None:
    consumer = reading(P)
    consumer.poll(P, 1)
    with dual_write.transaction() as tx:
        pass
    for method in (tx.send_offsets, tx.store_offsets):
        with pytest.raises(InvalidTransactionStateError, match="only inside its own block"):
            method(consumer)


# Offsets that were committed past the units of work.


def fail(dw: DualWrite, consumer: FakeConsumer, kafka: FakeKafka, request: str = "prepare") -> None:
    """Poll three records, of which a unit of work is rolled back."""
    consumer.poll(P, 3)
    fail_at(kafka, request)
    with pytest.raises(KafkaUnavailableError):
        use(dw, consumer, "failed")


def test_an_offset_of_the_consumers_own_auto_commit_is_warned_of(
    dual_write: DualWrite, kafka: FakeKafka, caplog: pytest.LogCaptureFixture
) -> None:
    """No more than that: a member that was paused sees the same when another one has its partitions."""
    consumer = reading()
    dual_write.seek_to_committed(consumer, positions(P))
    fail(dual_write, consumer, kafka)
    consumer.group.committed[P] = 3  # with enable.auto.commit=true, the default, librdkafka commits what was polled
    dual_write.seek_to_committed(consumer)
    (warning,) = [record.getMessage() for record in caplog.records if "enable.auto.commit" in record.getMessage()]
    assert warning.startswith(
        "in-0: the group's committed offset is 3, and this consumer's units of work have committed 0"
    )
    assert consumer.next == {P: 3}


def test_offsets_of_another_member_are_accepted_after_a_rebalance_and_back(
    dual_write: DualWrite, kafka: FakeKafka
) -> None:
    consumer = reading()
    dual_write.seek_to_committed(consumer, positions(P))
    fail(dual_write, consumer, kafka)
    consumer.member, consumer.group.committed[P] = MEMBER._replace(generation_id=2), 3
    dual_write.seek_to_committed(consumer)
    assert consumer.next == {P: 3}


def test_the_offsets_of_a_unit_in_doubt_are_accepted_when_recovery_has_committed_it(
    dual_write: DualWrite, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    consumer = reading()
    dual_write.seek_to_committed(consumer, positions(P))
    consumer.poll(P, 3)
    with monkeypatch.context() as silent:
        lost = OperationalError("", {}, Exception("lost"))
        silent.setattr(UnitTransaction, "commit", lambda *_: (_ for _ in ()).throw(lost))
        silent.setattr("dualwrite.coordinator.steps.driver.was_committed", lambda *_: (_ for _ in ()).throw(lost))
        with pytest.raises(InDoubtError):
            use(dual_write, consumer, "one")
    consumer.group.committed[P] = 3
    dual_write.seek_to_committed(consumer)
    assert consumer.next == {P: 3}
    assert not any("enable.auto.commit" in message for message in caplog.messages)
