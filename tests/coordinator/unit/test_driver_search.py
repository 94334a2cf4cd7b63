"""Exhaustive search of the real coordinator: DualWrite to recovery, on a real SQLite file and a Kafka that fails.

Two units of work run; every step, every request to Kafka and every COMMIT may fail before or after its effect or kill
the process. Then a fresh process recovers, and the oracle compares both sides.
"""

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import Engine

from dualwrite.coordinator.recovery import sequence as recovery
from dualwrite.coordinator.slots import slot as slots
from dualwrite.ids import OngoingTransaction, PreparedTxnState
from tests.support.coordinator.searches.driver_search import driver_scenario, in_foreground, search_engine
from tests.support.exhaustive.histories import run_histories


@pytest.fixture
def engine(sqlite_url: str) -> Iterator[Engine]:
    with in_foreground(), search_engine(sqlite_url) as engine:
        yield engine


def search(
    engine: Engine, values: tuple[str, ...], faults: int, completion: str = "await", *, in_session: bool = False
) -> Counter[str]:
    """Every combination of faults over ``values``; in how many histories a unit of work ended in which way."""
    found = run_histories(driver_scenario(engine, values, completion, in_session=in_session), faults=faults)
    assert found.faults == faults
    return found.seen


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
            try:
                participant.init_transactions()
            except BaseException:
                participant.close()
                raise
            return participant

        return recovery.recover(store, lease, initialized, observe)

    monkeypatch.setattr(slots, "recover", careless)
    with pytest.raises(AssertionError, match="torn"):
        search(engine, ("one",), faults=1)
