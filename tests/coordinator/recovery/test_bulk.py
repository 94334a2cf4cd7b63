"""Many slots recovered under the locks of one transaction: the order that makes it right, and what trouble costs."""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
from sqlalchemy import Engine, select, text, update
from sqlalchemy.exc import OperationalError

from dualwrite.coordinator.process.this_process import THIS_PROCESS
from dualwrite.coordinator.recovery.bulk import THREADS, BulkRecovery
from dualwrite.coordinator.recovery.prepared_predecessor import EndingNotCheckedError
from dualwrite.coordinator.recovery.sequence import RecoveryParticipant
from dualwrite.coordinator.rules.lease import Lease, LeaseLostError
from dualwrite.coordinator.rules.recovery_decision import Outcome
from dualwrite.coordinator.sql.tables import kafka_transaction_state as table
from dualwrite.errors import ConfigurationError, DatabaseBusyError, KafkaRefusedError, KafkaUnavailableError
from dualwrite.ids import PreparedTxnState, ProducerIdentity
from tests.support.coordinator.event_table import TakingStore, expire_leases, ready_engine
from tests.support.servers.databases import SERVERS

pytestmark = pytest.mark.slow_cases("mariadb")

MANY = 3 * THREADS + 1


class RecoveryJournal:
    """What was done, in order, by whichever thread; ``on`` says what to raise, and where."""

    def __init__(self) -> None:
        self.done: list[tuple[str, str]] = []
        self.on: dict[tuple[str, str], BaseException] = {}
        self.shared: list[str] = []
        """Recoverers that two threads used at the same time."""

    def add(self, what: str, name: str = "") -> None:
        self.done.append((what, name))
        if (what, name) in self.on:
            raise self.on[what, name]

    def names(self, what: str) -> list[str]:
        return sorted(name for done, name in self.done if done == what)


class Recording:
    """A RecoveryParticipant that writes down what it is told."""

    def __init__(self, journal: RecoveryJournal, name: str, users: list[int]) -> None:
        self._journal, self.name, self._users = journal, name, users

    def init_transactions(self, keep_prepared_txn: bool = False) -> None:
        assert keep_prepared_txn
        self._used("fence")

    def complete_transaction(self, state: PreparedTxnState) -> Outcome:
        self._used("commit" if state else "abort")
        return Outcome.COMMITTED if state else Outcome.ABORTED

    def close(self) -> None:
        self._journal.done.append(("close", self.name))

    def _used(self, what: str) -> None:
        self._users.append(threading.get_ident())
        try:
            self._journal.add(what, self.name)
            if len(set(self._users)) > 1:
                self._journal.shared.append(self.name)
        finally:
            self._users.pop()


class Watched(TakingStore):
    """A store that writes down its locks and looks."""

    def __init__(self, engine: Engine, journal: RecoveryJournal) -> None:
        super().__init__(engine, lock_timeout=20)
        self._journal = journal

    @contextmanager
    def locked(self, lease: Lease) -> Iterator[Any]:
        with super().locked(lease) as held:
            self._journal.add("wait", lease.transactional_id)
            yield held

    @contextmanager
    def locked_at_once(self, leases: Sequence[Lease]) -> Iterator[Any]:
        with super().locked_at_once(leases) as held:
            for lease, decision in held.items():
                self._journal.add("lock", lease.transactional_id)
                decision.verify = self._watched(lease, decision.verify)
            yield held
            self._journal.add("unlock")

    def _watched(self, lease: Lease, verify: Callable[[], None]) -> Callable[[], None]:
        def watched() -> None:
            self._journal.add("verify", lease.transactional_id)
            verify()

        return watched


class BulkWorld:
    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.journal = RecoveryJournal()
        self.store = Watched(engine, self.journal)
        self.is_stopped = False
        self.recoverers = 0

    @contextmanager
    def recoverer(self) -> Iterator[Callable[[str], RecoveryParticipant]]:
        self.recoverers += 1
        users: list[int] = []
        yield lambda name: Recording(self.journal, name, users)
        self.recoverers -= 1

    def leases(self, count: int) -> list[Lease]:
        """Of dead owners; every other one has a decision in its row."""
        leases = [self.store.take_over(f"a-{number}", "dead") for number in range(count)]
        for lease in leases[::2]:
            self.store.mark_recovered(lease, PreparedTxnState())
        with self.engine.begin() as connection:
            for number, lease in enumerate(leases[::2]):
                self.store.store(connection, lease, PreparedTxnState(f"{number + 1}:0"))
        expire_leases(self.engine)
        return leases

    def settling(self) -> BulkRecovery:
        return BulkRecovery(THIS_PROCESS, self.store, self.recoverer, lambda: self.is_stopped, lambda step: None)

    def recover_without_producer(self, leases: Sequence[Lease]) -> BulkRecovery:
        with self.settling() as settling:
            settling.recover_without_producer(leases)
        assert self.recoverers == 0
        assert self.journal.shared == []
        return settling


@pytest.fixture
def world(engine: Engine) -> BulkWorld:
    return BulkWorld(engine)


@pytest.fixture(params=SERVERS)
def server(request: pytest.FixtureRequest) -> Iterator[BulkWorld]:
    """A world whose rows have locks of their own."""
    engine = ready_engine(str(request.getfixturevalue(f"{request.param}_url")))
    yield BulkWorld(engine)
    engine.dispose()


@pytest.mark.slow_cases
@pytest.mark.parametrize("count", [0, 1, THREADS, MANY])
def test_each_step_is_done_for_all_slots_before_the_next_is_done_for_any(world: BulkWorld, count: int) -> None:
    leases = world.leases(count)
    names = sorted(lease.transactional_id for lease in leases)
    settling = world.recover_without_producer(leases)
    decided = sorted(lease.transactional_id for lease in leases[::2])
    assert settling.errors == []
    assert settling.outcomes == {name: Outcome.COMMITTED if name in decided else Outcome.ABORTED for name in names}
    steps = [what if what not in ("commit", "abort") else "complete" for what, _ in world.journal.done]
    expected = ["lock", "fence", "verify", "complete", "close"]
    assert steps == [*(step for step in expected[:-1] for _ in names), *["close"] * count, *["unlock"] * bool(count)]
    for step in ("lock", "fence", "verify", "close"):
        assert world.journal.names(step) == names


def test_no_slot_can_be_taken_over_while_recovery_asks_kafka(server: BulkWorld) -> None:
    """With the lock given up earlier, it would be a successor's transaction that is ended."""
    leases = server.leases(3)
    successor = TakingStore(server.engine, patience=0)

    def take_over(step: str) -> None:
        if step == "RECOVER_COMPLETE":
            with pytest.raises(DatabaseBusyError):
                successor.take_over("a-1", "successor")
            server.journal.add("tried")

    with BulkRecovery(THIS_PROCESS, server.store, server.recoverer, lambda: False, take_over) as settling:
        settling.recover_without_producer(leases)
    assert len(settling.outcomes) == len(server.journal.names("tried")) == 3
    assert successor.take_over("a-1", "successor"), "it is free afterwards"


def test_a_slot_that_kafka_refuses_does_not_prevent_the_recovery_of_the_others(world: BulkWorld) -> None:
    leases = world.leases(MANY)
    world.journal.on["fence", "a-3"] = world.journal.on["commit", "a-4"] = KafkaRefusedError("no", 1, "NO")
    settling = world.recover_without_producer(leases)
    assert set(settling.outcomes) == {lease.transactional_id for lease in leases} - {"a-3", "a-4"}
    assert [type(error) for error in settling.errors] == [KafkaRefusedError] * 2
    assert "a-3" not in world.journal.names("abort"), "what was not fenced is not ended"
    assert len(world.journal.names("close")) == MANY


def test_kafka_out_of_reach_ends_the_sweep(world: BulkWorld) -> None:
    leases = world.leases(MANY)
    for lease in leases:
        world.journal.on["fence", lease.transactional_id] = KafkaUnavailableError("nobody")
    with world.settling() as settling:
        settling.recover_without_producer(leases)
        assert settling.is_over
    assert settling.outcomes == {}
    assert world.journal.names("commit") == world.journal.names("abort") == []
    assert len(settling.errors) <= THREADS, "each thread has asked once"


def test_slots_fenced_before_kafka_became_unreachable_are_completed(world: BulkWorld) -> None:
    """One of several coordinators may be away for long: each sweep ends what the others answer for."""
    leases = world.leases(MANY)
    world.journal.on["fence", "a-3"] = KafkaUnavailableError("its coordinator is away")
    settling = world.recover_without_producer(leases)
    fenced = set(world.journal.names("fence")) - {"a-3"}
    assert fenced
    assert set(settling.outcomes) == fenced
    assert [type(error) for error in settling.errors] == [KafkaUnavailableError]


def test_kafka_becoming_unreachable_after_all_fencing_ends_the_sweep(world: BulkWorld) -> None:
    leases = world.leases(MANY)
    for lease in leases:
        for end in ("commit", "abort"):
            world.journal.on[end, lease.transactional_id] = KafkaUnavailableError("nobody")
    settling = world.recover_without_producer(leases)
    assert settling.outcomes == {}
    assert 1 <= len(settling.errors) <= THREADS, "each thread has asked once"


def test_a_slot_whose_leader_is_away_is_recovered_later(world: BulkWorld) -> None:
    """The leader of one partition is away, and the others' are not: theirs is ended, and only that slot is left."""
    leases = world.leases(MANY)
    for lease in leases[:THREADS:2]:
        world.journal.on["commit", lease.transactional_id] = EndingNotCheckedError("its leader is away")
    with world.settling() as settling:
        settling.recover_without_producer(leases)
        assert not settling.is_over
    assert set(settling.outcomes) == {lease.transactional_id for lease in leases if lease not in leases[:THREADS:2]}
    assert [type(error) for error in settling.errors] == [EndingNotCheckedError] * (THREADS // 2)


def test_a_slot_whose_lease_was_lost_during_recovery_is_left_alone(world: BulkWorld) -> None:
    leases = world.leases(MANY)
    lost = leases[4]
    world.journal.on["verify", lost.transactional_id] = LeaseLostError(lost)
    settling = world.recover_without_producer(leases)
    assert settling.errors == []
    assert set(settling.outcomes) == {lease.transactional_id for lease in leases if lease is not lost}
    assert lost.transactional_id not in world.journal.names("commit")


def test_without_the_connection_that_has_the_locks_nothing_is_decided(world: BulkWorld) -> None:
    leases = world.leases(MANY)
    world.journal.on["verify", "a-4"] = OperationalError("SELECT", {}, Exception("server closed the connection"))
    settling = world.recover_without_producer(leases)
    assert settling.outcomes == {}
    assert [type(error) for error in settling.errors] == [OperationalError]
    assert world.journal.names("commit") == world.journal.names("abort") == []
    assert len(world.journal.names("close")) == MANY


def test_a_heuristic_outcome_that_the_database_does_not_take_leaves_its_slot_to_the_next_sweep(
    world: BulkWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Given back as recovered, its next unit of work would overwrite the state, and hide what is not on record."""
    leases = world.leases(3)
    ended = {"a-0": Outcome.HEURISTIC_ABORT, "a-2": Outcome.HEURISTIC_ABORT}

    def complete(participant: Recording, state: PreparedTxnState) -> Outcome:
        return ended.get(participant.name, Outcome.ABORTED)

    def refuse(lease: Lease, outcome: Outcome) -> None:
        if lease is leases[0]:
            raise OperationalError("INSERT", {}, Exception("disk full"))

    monkeypatch.setattr(Recording, "complete_transaction", complete)
    monkeypatch.setattr(world.store, "record", refuse)
    settling = world.recover_without_producer(leases)
    assert settling.outcomes == {"a-1": Outcome.ABORTED, "a-2": Outcome.HEURISTIC_ABORT}
    assert [type(error) for error in settling.errors] == [OperationalError]


def test_a_lease_that_is_out_of_date_is_not_touched_in_kafka(world: BulkWorld) -> None:
    leases = world.leases(5)
    newer = world.store.take_over("a-2", "successor")
    settling = world.recover_without_producer(leases)
    assert settling.errors == []
    assert "a-2" not in settling.outcomes
    assert "a-2" not in world.journal.names("fence")
    with world.engine.connect() as connection:
        token = connection.scalar(select(table.c.fencing_token).where(table.c.transactional_id == "a-2"))
    assert token == newer.fencing_token


def test_slots_locked_by_others_are_recovered_last(server: BulkWorld) -> None:
    leases = server.leases(MANY)
    dead, ended = server.engine.connect(), threading.Event()
    dead.execute(text("UPDATE kafka_transaction_state SET anchor = 'x:0:1' WHERE transactional_id IN ('a-3', 'a-5')"))

    def end() -> None:
        assert ended.wait(20)
        dead.rollback()

    unlocked = threading.Thread(target=end)
    unlocked.start()
    add = server.journal.add

    def noted(what: str, name: str = "") -> None:
        add(what, name)
        if what == "unlock":
            ended.set()

    server.journal.add = noted  # type: ignore[method-assign]
    settling = server.recover_without_producer(leases)
    unlocked.join(20)
    dead.close()
    assert settling.errors == []
    assert len(settling.outcomes) == MANY
    assert server.journal.names("wait") == ["a-3", "a-5"]


def test_an_interrupt_leaves_threads_that_begin_nothing_more(world: BulkWorld) -> None:
    leases = world.leases(MANY)
    first = sorted(lease.transactional_id for lease in leases)[0]
    world.journal.on["fence", first] = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt), world.settling() as settling:
        settling.recover_without_producer(leases)
    assert settling.is_over
    assert world.journal.names("commit") == world.journal.names("abort") == []


def test_an_interrupted_recovery_thread_does_not_fence_the_slots_next_owner(world: BulkWorld) -> None:
    """It is in the middle of a question to Kafka when the locks are given up, and the leases after them."""
    leases = world.leases(MANY)
    order = [lease.transactional_id for lease in leases]
    asked, unlocked, left = threading.Event(), threading.Event(), threading.Event()
    add = world.journal.add

    def slow(what: str, name: str = "") -> None:
        if (what, name) == ("fence", order[1]):  # the first of the second thread
            asked.set()
            assert unlocked.wait(20)
            left.set()
        elif (what, name) == ("fence", order[0]):
            assert asked.wait(20)
            raise KeyboardInterrupt
        add(what, name)

    world.journal.add = slow  # type: ignore[method-assign]
    with world.settling() as settling:
        with pytest.raises(KeyboardInterrupt):
            settling.recover_without_producer(leases)
        before = set(threading.enumerate())
        world.journal.done.clear()
        unlocked.set()
        assert left.wait(20)
        for thread in before:
            if thread.name == "dualwrite-sweep":
                thread.join(20)
    assert world.journal.names("fence") == [order[1]], "what was under way, and nothing after it"


def test_an_interrupt_is_not_lost_in_closing_what_a_thread_is_adding_to(world: BulkWorld) -> None:
    leases = world.leases(MANY)
    order = [lease.transactional_id for lease in leases]
    asked, closing, made = threading.Event(), threading.Event(), threading.Event()

    class Closing(Recording):
        def init_transactions(self, keep_prepared_txn: bool = False) -> None:
            if self.name == order[0]:
                assert asked.wait(20)
                raise KeyboardInterrupt
            super().init_transactions(keep_prepared_txn)

        def close(self) -> None:
            closing.set()
            assert made.wait(20)

    @contextmanager
    def recoverer() -> Iterator[Callable[[str], RecoveryParticipant]]:
        def make(name: str) -> RecoveryParticipant:
            if name == order[1]:
                asked.set()
                assert closing.wait(20)
            return Closing(world.journal, name, [])

        yield make

    def observe(step: str) -> None:
        if closing.is_set():
            made.set()  # what the thread has made is in the books

    with (
        BulkRecovery(THIS_PROCESS, world.store, recoverer, lambda: False, observe) as settling,
        pytest.raises(KeyboardInterrupt),
    ):
        settling.recover_without_producer(leases)


def test_a_stopped_recovery_begins_nothing(world: BulkWorld) -> None:
    leases = world.leases(MANY)
    world.is_stopped = True
    assert world.recover_without_producer(leases).outcomes == {}
    assert world.journal.names("fence") == []


def test_an_unreadable_row_prevents_the_recovery_of_its_own_slot_only(world: BulkWorld) -> None:
    leases = world.leases(MANY)
    with world.engine.begin() as connection:
        unreadable = update(table).where(table.c.transactional_id == "a-3").values(prepared_txn_state="scribble")
        connection.execute(unreadable)
    settling = world.recover_without_producer(leases)
    assert set(settling.outcomes) == {lease.transactional_id for lease in leases} - {"a-3"}
    assert [type(error) for error in settling.errors] == [ConfigurationError]


def test_a_decision_is_read_as_it_was_stored(world: BulkWorld) -> None:
    states = [PreparedTxnState(), PreparedTxnState("7:3"), PreparedTxnState("7:3:topic:0:12")]
    leases = [world.store.take_over(f"a-{number}", "dead") for number in range(3)]
    with world.engine.begin() as connection:
        for lease, state in zip(leases, states, strict=True):
            world.store.store(connection, lease, state)
    with world.store.locked_at_once(leases) as held:
        assert [held[lease].state for lease in leases] == states
    assert states[1].producer == ProducerIdentity(7, 3)
