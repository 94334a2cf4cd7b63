"""Exhaustive search of the real coordinator: DualWrite to recovery, on a real SQLite file and a Kafka that fails.

Two units of work run; every step, every request to Kafka and every COMMIT may fail before or after its effect or kill
the process. Then a fresh process recovers, and the oracle compares both sides.
"""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine, delete, event

from dualwrite.coordinator.dual_write import DualWrite
from dualwrite.coordinator.recovery import sequence as recovery
from dualwrite.coordinator.slots import pool
from dualwrite.coordinator.slots import slot as slots
from dualwrite.coordinator.sql.tables import kafka_transaction_outcome, kafka_transaction_state
from dualwrite.ids import OngoingTransaction, PreparedTxnState
from tests.support.coordinator.event_table import CONFIG, events, expire_leases, ready_engine
from tests.support.coordinator.unit_search import NoBackground, NoHeartbeat, UnitSearchWorld, check, run_unit
from tests.support.state_search import Chooser, every_run


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


def start(world: UnitSearchWorld) -> DualWrite:
    world.dead = world.committing = False
    expire_leases(world.engine)
    options: Any = {"application": "a", "pool_size": 1, "participant": world.kafka.participant}
    options["completion"] = world.completion
    return DualWrite(world.engine, CONFIG, on_step=world.observe, **options)


def search(
    engine: Engine, values: tuple[str, ...], faults: int, completion: str = "await", *, in_session: bool = False
) -> Counter[str]:
    """Every combination of faults over ``values``; how often each unit of work ended in which way."""
    seen: Counter[str] = Counter()
    plain = engine.dialect.do_commit

    def scenario(chooser: Chooser) -> None:
        with engine.begin() as connection:
            connection.execute(delete(events))
            connection.execute(delete(kafka_transaction_state))
            connection.execute(delete(kafka_transaction_outcome))
        world = UnitSearchWorld(engine, completion)
        engine.dialect.do_commit = lambda connection: world.commit(plain, connection)  # type: ignore[method-assign]
        world.chooser = chooser
        ends: dict[str, str] = {}
        dual_write = start(world)
        for value in values:
            ends[value] = run_unit(dual_write, value, in_session=in_session)
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


@pytest.mark.slow
def test_after_any_fault_around_a_unit_that_raises_both_sides_are_equal(engine: Engine) -> None:
    assert set(search(engine, ("one", "raises"), faults=1)) >= {"succeeded", "rolled back", "killed"}


@pytest.mark.slow
def test_after_any_two_faults_in_two_units_of_work_both_sides_are_equal(engine: Engine) -> None:
    assert set(search(engine, ("one", "two"), faults=2)) == ALL_ENDS


@pytest.mark.slow
def test_after_any_fault_around_commits_that_are_not_awaited_both_sides_are_equal(engine: Engine) -> None:
    assert set(search(engine, ("one", "two"), 1, "background")) == ALL_ENDS - {"in doubt"}


@pytest.mark.slow
def test_after_any_two_faults_around_commits_that_are_not_awaited_both_sides_are_equal(engine: Engine) -> None:
    assert set(search(engine, ("one", "two"), 2, "background")) == ALL_ENDS


def test_after_any_fault_while_records_are_sent_and_a_session_is_flushed_both_sides_are_equal(engine: Engine) -> None:
    assert set(search(engine, ("one", "raises"), 1, in_session=True)) >= {"succeeded", "rolled back", "killed"}


@pytest.mark.slow
def test_after_any_two_faults_while_records_are_sent_and_a_session_is_flushed_both_sides_are_equal(
    engine: Engine,
) -> None:
    assert set(search(engine, ("one", "two"), 2, in_session=True)) == ALL_ENDS


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
