"""Exhaustive search of the machine in a small world: every step may fail before or after its effect, or kill.

After recovery both sides must be equal, whatever happened, and what the caller was told must be true. Broken machines
show that the search would notice.
"""

from collections import Counter
from collections.abc import Mapping
from types import MappingProxyType

import pytest

from dualwrite.coordinator.rules import machine as machine_module
from dualwrite.coordinator.rules.machine import TRANSITIONS, Event, Result, UnitState
from tests.support.coordinator.searches.machine_search import KILLED, machine_scenario
from tests.support.exhaustive.histories import Chooser, run_histories


def search(*, produces: bool = True) -> Counter[str]:
    """How often each end was reached, with every combination of faults; an AssertionError if an invariant broke."""

    def scenario(chooser: Chooser) -> tuple[str]:
        return (machine_scenario(chooser, produces=produces),)

    found = run_histories(scenario)
    assert found.is_complete
    return found.seen


def test_after_recovery_both_sides_are_equal_whatever_failed() -> None:
    ends = search()
    # Each of the ends must have been met, or the search proved nothing about it.
    assert set(ends) == {KILLED, *names(Result.SUCCEEDED, Result.ROLLED_BACK, Result.IN_DOUBT)}
    assert sum(ends.values()) > 300


def test_a_unit_that_produces_nothing_ends_as_its_database_does() -> None:
    ends = search(produces=False)
    assert set(ends) == {KILLED, *names(Result.SUCCEEDED, Result.ROLLED_BACK, Result.DATABASE_FAILED)}


def names(*results: Result) -> set[str]:
    return {result.name for result in results}


def change(state: UnitState, event: Event, to: UnitState) -> Mapping[UnitState, Mapping[Event, UnitState]]:
    return MappingProxyType({**TRANSITIONS, state: {**TRANSITIONS[state], event: to}})


@pytest.mark.parametrize(
    ("state", "event", "to"),
    [
        (UnitState.COMMITTING_DATABASE, Event.FAILED, UnitState.ROLLING_BACK_DATABASE),  # guess: it was not committed
        (UnitState.COMMITTING_DATABASE, Event.FAILED, UnitState.COMMITTING_KAFKA),  # guess: it was
        (UnitState.READING_DECISION, Event.FAILED, UnitState.ABORTING_KAFKA),
        (UnitState.READING_DECISION, Event.COMMITTED, UnitState.ABORTING_KAFKA),
        (UnitState.READING_DECISION, Event.NOT_COMMITTED, UnitState.COMMITTING_KAFKA),
        (UnitState.PREPARING_KAFKA, Event.DONE, UnitState.COMMITTING_DATABASE),  # the state is never stored
        (UnitState.COMMITTING_KAFKA, Event.FAILED, UnitState.ABORTING_KAFKA),
        (UnitState.STORING_STATE, Event.DONE, UnitState.COMMITTING_KAFKA),  # Kafka before the decision
        (UnitState.READING_DECISION, Event.FAILED, UnitState.LEAVING_ABORT),  # an unknown outcome reported as known
        (UnitState.STORING_STATE, Event.FAILED, UnitState.COMMITTING_DATABASE),
    ],
)
def test_the_search_notices_a_broken_recipe(
    monkeypatch: pytest.MonkeyPatch, state: UnitState, event: Event, to: UnitState
) -> None:
    monkeypatch.setattr(machine_module, "TRANSITIONS", change(state, event, to))
    with pytest.raises(AssertionError, match="with the faults"):
        search()
