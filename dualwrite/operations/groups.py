"""Groups heuristic outcomes, so that one restored copy of a database or a cluster is one finding and not one for each
slot.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar

from dualwrite.coordinator.recovery.forecast import Forecast
from dualwrite.coordinator.rules.recovery_decision import Outcome
from dualwrite.coordinator.rules.slot_rules import named
from dualwrite.coordinator.sql.outcome_store import HeuristicOutcome
from dualwrite.operations.views import TransactionView

FROM_COPIES = frozenset({Outcome.HEURISTIC_COMMIT, Outcome.HEURISTIC_HAZARD})
"""The outcomes that a restored copy leaves in many slots at once. The others have a cause in each slot."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class HeuristicGroup(Generic[T]):
    """Heuristic outcomes with one meaning, and probably with one cause.

    :param detail: the meaning, in a line for the operator; empty if unknown.
    :param members: the grouped objects, in their order.
    :param transactional_ids: their slots, each once and sorted.
    """

    outcome: Outcome
    detail: str
    members: tuple[T, ...]
    transactional_ids: tuple[str, ...]

    @property
    def slots(self) -> str:
        """The slots: their number and a few of them, or the only one."""
        if len(self.transactional_ids) == 1:
            return self.transactional_ids[0]
        return f"{len(self.transactional_ids):,} slots ({named(self.transactional_ids)})"


def grouped(
    found: Iterable[T], name: Callable[[T], str], meaning: Callable[[T], tuple[Outcome, str]]
) -> list[HeuristicGroup[T]]:
    """Group those of ``found`` that one restored copy may have left; the others are groups of their own."""
    members: dict[object, list[T]] = {}
    for number, each in enumerate(found):
        outcome, detail = meaning(each)
        members.setdefault((outcome, detail) if outcome in FROM_COPIES else number, []).append(each)
    return [
        HeuristicGroup(*meaning(group[0]), tuple(group), tuple(sorted(set(map(name, group)))))
        for group in members.values()
    ]


def grouped_results(outcomes: Iterable[tuple[str, Outcome]]) -> list[HeuristicGroup[tuple[str, Outcome]]]:
    """Group the heuristic ones of recovery's ``outcomes``, given by transactional id."""
    found = [each for each in outcomes if each[1].is_heuristic]
    return grouped(found, lambda each: each[0], lambda each: (each[1], ""))


def grouped_forecasts(views: Iterable[TransactionView]) -> list[HeuristicGroup[TransactionView]]:
    """Group the heuristic outcomes that recovery would find."""
    found = [view for view in views if view.forecast is not None and view.forecast.is_heuristic]
    return grouped(found, lambda view: view.transactional_id, lambda view: _meaning(view.forecast))


def grouped_records(found: Iterable[HeuristicOutcome]) -> list[HeuristicGroup[HeuristicOutcome]]:
    """Group the heuristic outcomes on record."""
    return grouped(found, lambda each: each.transactional_id, lambda each: (each.outcome, each.detail))


def unclear(views: Iterable[TransactionView]) -> dict[str, list[str]]:
    """The transactional ids whose recovery cannot be foretold, by the reason."""
    reasons: dict[str, list[str]] = {}
    for view in views:
        if view.forecast is not None and view.forecast.outcome is None:
            reasons.setdefault(view.forecast.detail, []).append(view.transactional_id)
    return reasons


def _meaning(forecast: Forecast | None) -> tuple[Outcome, str]:
    assert forecast is not None
    assert forecast.outcome is not None
    return forecast.outcome, forecast.detail
