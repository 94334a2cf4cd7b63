"""Heuristic outcomes are grouped by what one restored copy leaves, and by nothing else."""

from datetime import datetime, timezone

import pytest

from dualwrite.coordinator.recovery.forecast import Forecast
from dualwrite.coordinator.rules.recovery_decision import DETAILS, UNCLAIMED, Outcome
from dualwrite.coordinator.sql.outcome_store import HeuristicOutcome
from dualwrite.operations.groups import FROM_COPIES, grouped_forecasts, grouped_records, grouped_results, unclear
from dualwrite.operations.views import TransactionView

NOW = datetime(2026, 1, 2, tzinfo=timezone.utc)


def foretold(name: str, outcome: Outcome | None, detail: str = "") -> TransactionView:
    return TransactionView(name, None, None, forecast=Forecast(outcome, detail))


def recorded(number: int, name: str, outcome: Outcome, detail: str = "") -> HeuristicOutcome:
    return HeuristicOutcome(number, name, f"7:{number}", outcome, detail, NOW, None, None)


@pytest.mark.parametrize("outcome", DETAILS)
def test_only_outcomes_that_a_copy_leaves_are_grouped(outcome: Outcome) -> None:
    groups = grouped_results([("a-1", outcome), ("a-0", outcome)])
    names = [group.transactional_ids for group in groups]
    assert names == ([("a-0", "a-1")] if outcome in FROM_COPIES else [("a-1",), ("a-0",)])


@pytest.mark.parametrize("outcome", [outcome for outcome in Outcome if not outcome.is_heuristic])
def test_other_outcomes_are_left_out(outcome: Outcome) -> None:
    assert grouped_results([("a-0", outcome)]) == []
    assert grouped_forecasts([foretold("a-0", outcome)]) == []


def test_outcomes_of_different_meanings_are_different_groups() -> None:
    hazard = Outcome.HEURISTIC_HAZARD
    views = [foretold("a-0", hazard, "lost"), foretold("a-1", hazard, UNCLAIMED), foretold("b-0", hazard, "lost")]
    groups = grouped_forecasts(views)
    assert [(group.detail, group.transactional_ids) for group in groups] == [
        ("lost", ("a-0", "b-0")),
        (UNCLAIMED, ("a-1",)),
    ]
    assert groups[0].members == (views[0], views[2])


def test_several_units_of_one_slot_count_as_one_slot() -> None:
    found = [recorded(number, "a-0", Outcome.HEURISTIC_COMMIT) for number in (3, 4)]
    (group,) = grouped_records(found)
    assert (group.members, group.slots) == (tuple(found), "a-0")


@pytest.mark.parametrize(
    ("count", "slots"),
    [
        (1, "a-0"),
        (3, "3 slots (a-0, a-1, a-2)"),
        (4, "4 slots (a-0, a-1, a-2 and 1 more)"),
        (1003, "1,003 slots (a-0, a-1, a-10 and 1,000 more)"),
    ],
)
def test_a_group_names_the_number_of_its_slots_and_a_few(count: int, slots: str) -> None:
    (group,) = grouped_results([(f"a-{number}", Outcome.HEURISTIC_COMMIT) for number in range(count)])
    assert group.slots == slots


def test_slots_without_a_forecast_are_not_unclear() -> None:
    views = [
        foretold("a-0", None, "silent"),
        TransactionView("a-1", None, None),
        foretold("a-2", Outcome.NOTHING),
        foretold("a-3", None, "silent"),
        foretold("a-4", None, "unknown"),
    ]
    assert unclear(views) == {"silent": ["a-0", "a-3"], "unknown": ["a-4"]}
