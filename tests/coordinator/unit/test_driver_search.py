"""Exhaustive search of the real coordinator: DualWrite to recovery, on a real SQLite file and a Kafka that fails.

Two units of work run; every step, every request to Kafka and every COMMIT may fail before or after its effect or kill
the process. Then a fresh process recovers, and the oracle compares both sides.
"""

import sqlite3
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine, delete, event, insert

from dualwrite.coordinator.dual_write import DualWrite
from dualwrite.coordinator.recovery import sequence as recovery
from dualwrite.coordinator.slots import pool
from dualwrite.coordinator.slots import slot as slots
from dualwrite.coordinator.sql.outcome_store import outcomes
from dualwrite.coordinator.sql.tables import kafka_transaction_outcome, kafka_transaction_state
from dualwrite.errors import DualWriteError, InDoubtError
from dualwrite.ids import OngoingTransaction, PreparedTxnState
from tests.support.coordinator.event_table import CONFIG, events, expire_leases, ready_engine, stored_values
from tests.support.coordinator.fake_kafka import Crash, FakeKafka, Fault
from tests.support.state_search import Chooser, every_run


class UserError(Exception):
    """What the user's own code raises."""


class NoBackground:
    """Instead of the thread: the next use recovers in the foreground, so that each run is deterministic."""

    running = closed = False
    last_error = None

    def __init__(self, runtime: object, act: Callable[[], object], name: str, when_idle: Callable[[], None]) -> None:
        """Take what Background takes."""

    def hurry(self) -> None:
        """There is nothing to hurry."""

    def start(self) -> None:
        """The next use does it."""

    def resume(self) -> None:
        """The next use does it."""

    def wait(self, timeout: float) -> bool:
        return True

    def close(self, timeout: float) -> bool:
        return True


class NoHeartbeat:
    """Instead of the thread that renews leases."""

    is_beating = True

    def __init__(self, runtime: object, beat: Callable[[], None], interval: float, name: str) -> None:
        """Take what Heartbeat takes."""

    def start(self) -> None:
        """No lease runs out here."""

    def stop(self, timeout: float) -> None:
        """There is nothing to stop."""


class World:
    """Both sides, and the process on them, which dies at a Crash."""

    def __init__(self, engine: Engine, completion: str) -> None:
        self.engine = engine
        self.completion = completion
        self.kafka = FakeKafka()
        self.chooser: Chooser | None = None
        self.dead = False
        self.committing = False
        self.kafka.before_effect = lambda request: self.check_alive()
        self.kafka.fault = lambda request: self.fault()
        self.kafka.is_slow = lambda: bool(self.chooser and self.chooser.choose(2))

    def check_alive(self) -> None:
        if self.dead:
            raise Crash("dead already")

    def fault(self) -> Fault:
        fault = Fault(self.chooser.choose(4)) if self.chooser else Fault.NONE
        self.dead = self.dead or fault is Fault.CRASH
        return fault

    def observe(self, step: str) -> None:
        self.check_alive()
        self.committing = step == "COMMIT_DATABASE"
        choice = self.chooser.choose(3) if self.chooser else 0
        if choice == 1:
            self.dead = True
            raise Crash(step)
        if choice == 2:
            raise DualWriteError(f"{step} failed before its effect")

    def commit(self, plain: Callable[[Any], None], connection: Any) -> None:
        """The dialect's COMMIT, of a unit of work's transaction only."""
        committing, self.committing = self.committing, False
        fault = self.fault() if committing else Fault.NONE
        if fault is Fault.BEFORE:
            raise sqlite3.OperationalError("connection lost before COMMIT")
        plain(connection)
        if fault is Fault.AFTER:
            raise sqlite3.OperationalError("connection lost after COMMIT")
        if fault is Fault.CRASH:
            raise Crash("COMMIT")


@pytest.fixture
def engine(sqlite_url: str, tmp_path: Path) -> Iterator[Engine]:
    ready_engine(sqlite_url).dispose()
    engine = create_engine(sqlite_url)
    event.listen(engine, "connect", lambda connection, _: connection.execute("PRAGMA synchronous = OFF"))
    yield engine
    engine.dispose()


@pytest.fixture(autouse=True)
def _foreground(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slots, "Background", NoBackground)
    monkeypatch.setattr(pool, "LeaseRenewal", NoHeartbeat)


def start(world: World) -> DualWrite:
    world.dead = world.committing = False
    expire_leases(world.engine)
    options: Any = {"application": "a", "pool_size": 1, "participant": world.kafka.participant}
    options["completion"] = world.completion
    return DualWrite(world.engine, CONFIG, on_step=world.observe, **options)


def run_unit(dual_write: DualWrite, value: str) -> str:
    """Run one unit of work; what its caller learns about it."""
    try:
        with dual_write.transaction() as tx:
            tx.execute(insert(events).values(value=value))
            tx.produce("events", value)
            if value == "raises":
                raise UserError
            tx.produce("events", value)
    except InDoubtError:
        return "in doubt"
    except Crash:
        return "killed"
    except (DualWriteError, UserError, sqlite3.Error):
        return "rolled back"
    except Exception as error:
        if isinstance(getattr(error, "orig", None), sqlite3.Error):
            return "rolled back"
        raise
    return "succeeded"


def check(world: World, ends: dict[str, str]) -> None:
    rows = stored_values(world.engine)
    records = world.kafka.committed
    assert world.kafka.ongoing is None, "a transaction is left open"
    found = outcomes(world.engine)
    assert sorted(records) == sorted(rows * 2), f"torn: rows {rows}, records {records}, ends {ends}, {found}"
    assert found == [], f"a false alarm: {ends}, {found}"
    for value, end in ends.items():
        if end == "succeeded":
            assert value in rows, f"lost write: {value} {ends}"
        if end == "rolled back":
            assert value not in rows, f"told to run {value} again, but it is there: {ends}"


def search(engine: Engine, values: tuple[str, ...], faults: int, completion: str = "await") -> Counter[str]:
    """Every combination of faults over ``values``; how often each unit of work ended in which way."""
    seen: Counter[str] = Counter()
    plain = engine.dialect.do_commit

    def scenario(chooser: Chooser) -> None:
        with engine.begin() as connection:
            connection.execute(delete(events))
            connection.execute(delete(kafka_transaction_state))
            connection.execute(delete(kafka_transaction_outcome))
        world = World(engine, completion)
        engine.dialect.do_commit = lambda connection: world.commit(plain, connection)  # type: ignore[method-assign]
        world.chooser = chooser
        ends: dict[str, str] = {}
        dual_write = start(world)
        for value in values:
            ends[value] = run_unit(dual_write, value)
            if world.dead:
                dual_write = start(world)
        world.chooser = None
        world.committing = False
        dual_write.close()
        assert world.kafka.open_participants() == 0 or "killed" in ends.values(), "a participant is never closed"
        survivor = start(world)
        survivor.recover()
        check(world, ends)
        ends["last"] = run_unit(survivor, "last")
        assert ends["last"] == "succeeded"
        survivor.close()
        check(world, ends)
        seen.update(ends[value] for value in values)

    try:
        every_run(scenario, faults)
    finally:
        engine.dialect.do_commit = plain  # type: ignore[method-assign]
    return seen


ALL_ENDS = {"succeeded", "rolled back", "killed", "in doubt"}


@pytest.mark.slow
def test_after_any_two_faults_in_one_unit_of_work_both_sides_are_equal(engine: Engine) -> None:
    assert set(search(engine, ("one",), faults=2)) == ALL_ENDS


@pytest.mark.slow
def test_after_any_fault_in_two_units_of_work_both_sides_are_equal(engine: Engine) -> None:
    # In doubt needs two faults at once: the COMMIT's and the reading's.
    assert set(search(engine, ("one", "two"), faults=1)) == ALL_ENDS - {"in doubt"}


def test_after_any_fault_around_a_unit_that_raises_both_sides_are_equal(engine: Engine) -> None:
    assert set(search(engine, ("one", "raises"), faults=1)) >= {"succeeded", "rolled back", "killed"}


@pytest.mark.slow
def test_after_any_two_faults_in_two_units_of_work_both_sides_are_equal(engine: Engine) -> None:
    assert set(search(engine, ("one", "two"), faults=2)) == ALL_ENDS


def test_after_any_fault_around_commits_that_are_not_awaited_both_sides_are_equal(engine: Engine) -> None:
    assert set(search(engine, ("one", "two"), 1, "background")) == ALL_ENDS - {"in doubt"}


@pytest.mark.slow
def test_after_any_two_faults_around_commits_that_are_not_awaited_both_sides_are_equal(engine: Engine) -> None:
    assert set(search(engine, ("one", "two"), 2, "background")) == ALL_ENDS


def test_the_search_notices_an_identity_without_the_anchor(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    def same_producer(self: PreparedTxnState, ongoing: OngoingTransaction) -> bool:
        return bool(self) and self.producer == ongoing.producer

    monkeypatch.setattr(PreparedTxnState, "identifies", same_producer)
    with pytest.raises(AssertionError, match="torn"):
        search(engine, ("one", "two"), faults=1)


def test_the_search_notices_a_plain_init_before_the_decision(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    def careless(store: Any, lease: Any, factory: Any, observe: Any) -> Any:
        def initialized() -> Any:
            participant = factory()
            participant.init_transactions()
            return participant

        return recovery.recover(store, lease, initialized, observe)

    monkeypatch.setattr(slots, "recover", careless)
    with pytest.raises(AssertionError, match="torn"):
        search(engine, ("one",), faults=1)
