"""Recovery: what it decides, its order, and what happens when two recover at the same time.

Each interleaving has its negative control: recovery with one step out of order loses the write.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

from dualwrite.coordinator.ports.kafka import KafkaParticipant
from dualwrite.coordinator.recovery.sequence import recover, was_committed
from dualwrite.coordinator.rules.lease import Lease
from dualwrite.coordinator.rules.recovery_decision import Outcome
from dualwrite.errors import DatabaseBusyError, FencedError, KafkaUnavailableError
from dualwrite.ids import Anchor, OngoingTransaction, PreparedTxnState, ProducerIdentity
from dualwrite.records.outgoing import OutgoingRecord
from tests.support.coordinator.fake_kafka import FakeKafka, FakeParticipant, Fault

Recover = Callable[["LosableStore", Lease, Callable[[], KafkaParticipant], Callable[[str], None]], Any]
ID = "orders-0"


@dataclass
class LosableStore:
    """A DecisionStore whose row lock can be held, found taken, and lost."""

    token: int = 0
    state: PreparedTxnState = field(default_factory=PreparedTxnState)
    holder: object | None = None
    recorded: list[Outcome] = field(default_factory=list)

    def in_thread(self, act: Callable[[], Any]) -> Any:
        return act()

    def take_over(self, transactional_id: str, owner: str) -> Lease:
        self._wait_for_lock()
        self.token += 1
        return Lease(transactional_id, self.token)

    @contextmanager
    def locked(self, lease: Lease) -> Iterator["LosableHeld"]:
        self._wait_for_lock()
        self.check(lease)
        self.holder = held = LosableHeld(self, lease, self.state)
        try:
            yield held
        finally:
            if self.holder is held:
                self.holder = None

    def store(self, connection: Any, lease: Lease, state: PreparedTxnState) -> None:
        self._wait_for_lock()
        self.check(lease)
        self.state = state

    def record(self, lease: Lease, outcome: Outcome) -> None:
        self._wait_for_lock()
        self.check(lease)
        self.recorded.append(outcome)
        self.state = PreparedTxnState()

    def lose_lock(self) -> None:
        """The holder's connection dies, and the database releases its lock."""
        self.holder = None

    def _wait_for_lock(self) -> None:
        if self.holder is not None:
            raise DatabaseBusyError("the row is locked")

    def check(self, lease: Lease) -> None:
        if lease.fencing_token != self.token:
            raise FencedError("taken over")


@dataclass
class LosableHeld:
    store: LosableStore
    lease: Lease
    state: PreparedTxnState

    def verify(self) -> None:
        self.store.check(self.lease)


class RecoveryWorld:
    """One transactional id on both sides, and processes that recover and write."""

    def __init__(self) -> None:
        self.kafka = FakeKafka()
        self.store = LosableStore()
        self.rows: list[str] = []

    def take_over(self, owner: str) -> Lease:
        return self.store.take_over(ID, owner)

    def recover(self, lease: Lease, how: Recover = recover) -> tuple[FakeParticipant, Outcome]:
        participant, outcome = how(self.store, lease, self.kafka.participant, lambda step: None)
        assert isinstance(participant, FakeParticipant)
        return participant, outcome

    def prepare(self, participant: FakeParticipant, value: str) -> PreparedTxnState:
        participant.begin_transaction()
        participant.produce(OutgoingRecord("events", value))
        return participant.prepare_transaction()

    def commit_in_database(self, participant: FakeParticipant, lease: Lease, value: str) -> None:
        """A unit of work up to its database COMMIT, and no further: then the process is killed."""
        self.store.store(None, lease, self.prepare(participant, value))
        self.rows.append(value)

    def successor_takes_over_and_writes(self, value: str) -> None:
        """Another process, from its start until it is killed between the two commits."""
        lease = self.take_over("successor")
        participant, _ = self.recover(lease)
        self.commit_in_database(participant, lease, value)

    def both_sides_are_equal(self) -> bool:
        """After a last recovery, by whoever comes next. What is lost is found by it, and nothing else is."""
        self.store.lose_lock()
        self.recover(self.take_over("auditor"))
        are_equal = self.kafka.committed == self.rows and self.kafka.ongoing is None
        assert self.store.recorded == ([] if are_equal else [Outcome.HEURISTIC_ABORT])
        return are_equal


@pytest.fixture
def world() -> RecoveryWorld:
    return RecoveryWorld()


def test_a_committed_unit_is_committed_in_kafka(world: RecoveryWorld) -> None:
    lease = world.take_over("a")
    participant, _ = world.recover(lease)
    world.commit_in_database(participant, lease, "one")
    _, outcome = world.recover(world.take_over("b"))
    assert outcome is Outcome.COMMITTED
    assert world.kafka.committed == ["one"]


def test_a_unit_that_never_reached_the_database_is_aborted(world: RecoveryWorld) -> None:
    participant, _ = world.recover(world.take_over("a"))
    world.prepare(participant, "one")
    _, outcome = world.recover(world.take_over("b"))
    assert outcome is Outcome.ABORTED
    assert world.kafka.aborted == ["one"]


def test_nothing_open_is_success(world: RecoveryWorld) -> None:
    assert world.recover(world.take_over("a"))[1] is Outcome.NOTHING
    assert world.kafka.requests == ["init-keep", "complete", "init"]


def test_recovery_again_and_again_changes_nothing(world: RecoveryWorld) -> None:
    lease = world.take_over("a")
    participant, _ = world.recover(lease)
    world.commit_in_database(participant, lease, "one")
    outcomes = [world.recover(lease)[1] for _ in range(3)]
    assert outcomes == [Outcome.COMMITTED, Outcome.NOTHING, Outcome.NOTHING]
    assert world.kafka.committed == ["one"]


def test_the_recovered_participant_can_write(world: RecoveryWorld) -> None:
    lease = world.take_over("a")
    participant, _ = world.recover(lease)
    world.commit_in_database(participant, lease, "one")
    participant, _ = world.recover(lease)
    world.commit_in_database(participant, lease, "two")
    participant.commit_transaction()
    assert world.kafka.committed == ["one", "two"]


def next_of_the_same_session(world: RecoveryWorld) -> Outcome:
    """Transaction N is in both; N+1, of the same id and epoch, dies before its database COMMIT. What becomes of it?"""
    lease = world.take_over("a")
    participant, _ = world.recover(lease)
    world.commit_in_database(participant, lease, "N")
    participant.commit_transaction()
    following = world.prepare(participant, "N+1")
    assert following.producer == world.store.state.producer, "one epoch for a whole session, as librdkafka has it"
    return world.recover(world.take_over("b"))[1]


def test_transaction_n_plus_1_is_not_committed_in_the_name_of_n(world: RecoveryWorld) -> None:
    assert next_of_the_same_session(world) is Outcome.ABORTED
    assert world.kafka.committed == world.rows == ["N"]


def test_without_the_anchor_n_plus_1_would_be_committed(world: RecoveryWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    def same_producer(self: PreparedTxnState, ongoing: OngoingTransaction) -> bool:
        return bool(self) and self.producer == ongoing.producer

    monkeypatch.setattr(PreparedTxnState, "identifies", same_producer)
    assert next_of_the_same_session(world) is Outcome.COMMITTED
    assert world.kafka.committed == ["N", "N+1"] != world.rows


@pytest.mark.parametrize("request_name", ["init-keep", "complete", "init"])
@pytest.mark.parametrize("fault", [Fault.BEFORE, Fault.AFTER])
def test_an_unreachable_kafka_leaves_the_lock_free_and_the_decision_to_the_next_try(
    world: RecoveryWorld, request_name: str, fault: Fault
) -> None:
    lease = world.take_over("a")
    participant, _ = world.recover(lease)
    world.commit_in_database(participant, lease, "one")
    participant.close()
    world.kafka.fault = lambda request: fault if request == request_name else Fault.NONE
    with pytest.raises(KafkaUnavailableError):
        world.recover(lease)
    assert world.store.holder is None
    world.kafka.fault = lambda request: Fault.NONE
    assert world.kafka.participants[-1].closed
    world.recover(lease)
    assert world.kafka.committed == ["one"]


def test_an_interrupt_closes_the_participant(world: RecoveryWorld) -> None:
    def interrupt(request: str) -> None:
        raise KeyboardInterrupt

    lease = world.take_over("a")
    world.kafka.before_effect = interrupt
    with pytest.raises(KeyboardInterrupt):
        world.recover(lease)
    assert world.kafka.open_participants() == 0


def test_a_fenced_recovery_sends_nothing_to_kafka(world: RecoveryWorld) -> None:
    lease = world.take_over("a")
    world.take_over("b")
    with pytest.raises(FencedError):
        world.recover(lease)
    assert world.kafka.requests == []


def test_after_two_takeovers_only_the_second_process_owns_the_slot(world: RecoveryWorld) -> None:
    first, second = world.take_over("a"), world.take_over("b")
    participant, _ = world.recover(second)
    with pytest.raises(FencedError):
        world.recover(first)
    world.commit_in_database(participant, second, "one")
    assert world.both_sides_are_equal()


def test_whether_a_commit_happened_is_read_from_the_row_under_the_lease(world: RecoveryWorld) -> None:
    lease = world.take_over("a")
    participant, _ = world.recover(lease)
    before = world.prepare(participant, "one")
    assert not was_committed(world.store, lease, before)
    world.store.store(None, lease, before)
    assert was_committed(world.store, lease, before)
    world.take_over("b")
    with pytest.raises(FencedError):
        was_committed(world.store, lease, before)


def test_a_state_with_another_start_time_belongs_to_another_unit(world: RecoveryWorld) -> None:
    """A topic that was made anew between two units of a session gives the anchor's offset again."""
    lease = world.take_over("a")
    anchor = Anchor("t", 0, 0)
    first, second, undated = (PreparedTxnState(ProducerIdentity(1, 2), anchor, started_ms=at) for at in (5, 9, -1))
    world.store.store(None, lease, first)
    assert was_committed(world.store, lease, first)
    assert was_committed(world.store, lease, undated)
    assert not was_committed(world.store, lease, second)


# Interleavings: A recovers slowly; at one of its requests a successor does its whole life in between.


def read_without_holding(store: LosableStore, lease: Lease, factory: Any, observe: Any) -> Any:
    """Broken: the row is read under the lock, and the lock given back before Kafka is asked."""
    with store.locked(lease) as held:
        state = held.state
    participant = factory()
    participant.init_transactions(keep_prepared_txn=True)
    outcome = participant.complete_transaction(state)
    participant.init_transactions()
    return participant, outcome


def init_after_release(store: LosableStore, lease: Lease, factory: Any, observe: Any) -> Any:
    """Broken: the plain init comes after the lock is given back."""
    with store.locked(lease) as held:
        participant = factory()
        participant.init_transactions(keep_prepared_txn=True)
        outcome = participant.complete_transaction(held.state)
    participant.init_transactions()
    return participant, outcome


def complete_unverified(store: LosableStore, lease: Lease, factory: Any, observe: Any) -> Any:
    """Broken: the token is not read again once Kafka is fenced."""
    with store.locked(lease) as held:
        participant = factory()
        participant.init_transactions(keep_prepared_txn=True)
        outcome = participant.complete_transaction(held.state)
        held.verify()
        participant.init_transactions()
    return participant, outcome


def init_unverified(store: LosableStore, lease: Lease, factory: Any, observe: Any) -> Any:
    """Broken: the token is not read again before the plain init."""
    with store.locked(lease) as held:
        participant = factory()
        participant.init_transactions(keep_prepared_txn=True)
        held.verify()
        outcome = participant.complete_transaction(held.state)
        participant.init_transactions()
    return participant, outcome


def interleave(world: RecoveryWorld, moment: str, how: Recover, *, lock_lost: bool = False) -> None:
    """A recovers by ``how``; at ``moment`` ("before complete") a successor tries to live its life in between."""
    lease = world.take_over("a")
    world.commit_in_database(world.recover(lease)[0], lease, "zero")
    lease = world.take_over("a again")
    when, at = moment.split()

    def successor(request: str) -> None:
        if request != at:
            return
        world.kafka.before_effect = world.kafka.after_effect = lambda request: None
        if lock_lost:
            world.store.lose_lock()
        try:
            world.successor_takes_over_and_writes("successor's")
        except DatabaseBusyError:
            assert not lock_lost, "only a held lock keeps the successor out"

    setattr(world.kafka, f"{when}_effect", successor)
    try:
        world.recover(lease, how)
    except FencedError:
        assert lock_lost, "nobody can fence the holder of the lock"


EVERY_MOMENT = [f"{when} {request}" for request in ("init-keep", "complete", "init") for when in ("before", "after")]


@pytest.mark.parametrize("moment", EVERY_MOMENT)
def test_a_successor_cannot_come_in_while_recovery_holds_the_row(world: RecoveryWorld, moment: str) -> None:
    interleave(world, moment, recover)
    assert "successor's" not in world.rows
    assert world.both_sides_are_equal()


@pytest.mark.parametrize(
    ("moment", "broken"), [("before init-keep", read_without_holding), ("before init", init_after_release)]
)
def test_without_the_lock_around_kafka_a_write_would_be_lost(
    world: RecoveryWorld, moment: str, broken: Recover
) -> None:
    interleave(world, moment, broken)
    assert "successor's" in world.rows
    assert not world.both_sides_are_equal()


@pytest.mark.parametrize("moment", [moment for moment in EVERY_MOMENT if moment != "before init"])
def test_a_lock_lost_during_recovery_loses_no_write(world: RecoveryWorld, moment: str) -> None:
    interleave(world, moment, recover, lock_lost=True)
    assert "successor's" in world.rows
    assert world.both_sides_are_equal()


@pytest.mark.parametrize(
    ("moment", "broken"), [("before init-keep", complete_unverified), ("after complete", init_unverified)]
)
def test_without_reading_the_token_again_a_lost_lock_would_lose_a_write(
    world: RecoveryWorld, moment: str, broken: Recover
) -> None:
    interleave(world, moment, broken, lock_lost=True)
    assert "successor's" in world.rows
    assert not world.both_sides_are_equal()


def test_a_lock_lost_right_before_the_plain_init_is_the_remaining_gap(world: RecoveryWorld) -> None:
    interleave(world, "before init", recover, lock_lost=True)
    assert not world.both_sides_are_equal(), "if this holds now, recovery's docstring should no longer warn of it"
