"""What operators read about transactions, on the command line and in the console: an owner, a verdict, a plan."""

from collections.abc import Iterator, Mapping, Sequence

from sqlalchemy import Engine

from dualwrite.coordinator.rules.recovery_decision import Outcome, RecoveryDecision
from dualwrite.coordinator.rules.slot_rules import SlotStatus, describe_owner, named
from dualwrite.coordinator.sql.outcome_store import HeuristicOutcome
from dualwrite.operations.groups import HeuristicGroup, grouped_results
from dualwrite.operations.phrases import counted, since
from dualwrite.operations.resolving import Intention
from dualwrite.operations.terminating import contradicts
from dualwrite.operations.views import RowView, Situation, TransactionView

_FORETOLD = {Outcome.COMMITTED: "commit", Outcome.ABORTED: "abort", Outcome.NOTHING: "nothing to do"}
"""Recovery's actions by their outcomes, in a few words. A heuristic outcome has its own name."""
_MOST_RANGES = 20
"""The most ranges of numbers in a line."""


def owner(row: RowView) -> str:
    """The slot's owner, in a few words."""
    if row.status is SlotStatus.FREE:
        return "free"
    name = describe_owner(row.slot.owner)
    if row.status is SlotStatus.HELD:
        return f"{name}, {row.slot.remaining or 0:.0f} s"
    is_dead = row.status is SlotStatus.DEAD or (row.status is SlotStatus.FOREIGN and (row.slot.remaining or 0) > 0)
    return f"{name}, {'dead' if is_dead else 'silent'}"


def recovery(view: TransactionView) -> str:
    """The action of recovery, in a few words."""
    forecast = view.forecast
    if forecast is not None and forecast.outcome is not None:
        return _FORETOLD.get(forecast.outcome, forecast.outcome.value)
    situation = view.situation
    if forecast is not None and situation is not Situation.ENDING:
        return "unclear"
    if situation is Situation.QUIET:
        return "nothing to do"
    if situation is Situation.LEFT_BEHIND:
        return "commit" if view.verdict is RecoveryDecision.COMMIT else "abort"
    return {
        Situation.AT_WORK: "its owner's",
        Situation.ENDING: "ending now",
        Situation.UNKNOWN: "not this database's",
        Situation.FOREIGN: "in another cluster",
        Situation.AT_WORK_ELSEWHERE: "in another cluster",
    }[situation]


def foretold(view: TransactionView) -> str:
    """What recovery would do or find, in a line; only for a view with a forecast."""
    forecast = view.forecast
    assert forecast is not None
    if forecast.outcome is None:
        return f"unclear: {forecast.detail}"
    if forecast.is_heuristic:
        return f"would find a {forecast.outcome.value}: {forecast.detail}"
    return f"would {'do nothing' if forecast.outcome is Outcome.NOTHING else f'{recovery(view)} it'}"


def recorded(group: HeuristicGroup[HeuristicOutcome]) -> str:
    """Heuristic outcomes on record, in a line: their numbers, their slots and their meaning."""
    first = group.members[0]
    if len(group.members) == 1:
        numbers, what = f"{first.id}", f"{first.transactional_id}, {first.state}"
    else:
        numbers = _numbers([each.id for each in group.members])
        what = f"{counted(len(group.members), 'unit')} of work in {group.slots}"
    return f"{group.outcome.value} {numbers}, found {since(first.found_at)} ago: {what}: {group.detail}"


def _numbers(ids: Sequence[int]) -> str:
    """``ids``, which are in order, as ranges: an operator who acknowledges one range with a gap would acknowledge what
    other causes have left in the gap."""
    ranges: list[range] = []
    for number in ids:
        is_next = bool(ranges) and ranges[-1].stop == number
        start = ranges.pop().start if is_next else number
        ranges.append(range(start, number + 1))
    return named([f"{each[0]} to {each[-1]}" if len(each) > 1 else f"{each[0]}" for each in ranges], _MOST_RANGES)


def plan_line(intention: Intention) -> str:
    """What resolving would do with one transactional id, in a line."""
    view = intention.view
    if intention.obstacle:
        return f"{view.transactional_id}: not touched: {intention.obstacle}"
    if view.forecast is not None and (view.forecast.is_heuristic or view.forecast.outcome is None):
        return f"{view.transactional_id}: {foretold(view)}"
    if not is_to_end(intention):
        return f"{view.transactional_id}: nothing is open"
    decided = (
        "the database has committed it"
        if view.verdict is RecoveryDecision.COMMIT
        else "the database has not committed it"
    )
    return f"{view.transactional_id}: would {recovery(view)} {described(view)}: {decided}"


def is_to_end(intention: Intention) -> bool:
    """True if resolving would end a transaction."""
    return intention.action in (RecoveryDecision.COMMIT, RecoveryDecision.ABORT)


def described(view: TransactionView) -> str:
    """The open transaction of ``view``: its producer, and the number of its partitions."""
    assert view.kafka is not None
    return f"{view.kafka.producer}, in {counted(len(view.kafka.partitions), 'partition')}"


def termination_meaning(view: TransactionView, engine: Engine | None) -> str:
    """What the abort of ``view``'s transaction means for the rows of the database; None if it is lost."""
    if engine is None:
        return "Its database's decision is unknown: if it committed, read_committed consumers miss its records."
    if view.row is None:
        return "No row of this database names it: if another database committed it, its rows lose their records."
    if view.is_new_here:
        return (
            "No unit of work of this database has left it open: if another database committed it, its rows lose their "
            "records."
        )
    if contradicts(view):
        return (
            "THE DATABASE HAS COMMITTED IT: its rows are there, and read_committed consumers will not see its records. "
            "That is a heuristic outcome, which `dualwrite transactions list` shows until it is acknowledged."
        )
    return "The database does not ask for its commit: recovery would abort it, too."


def results(outcomes: Mapping[str, Outcome]) -> Iterator[str]:
    """What recovery has done or found, line by line; heuristic outcomes of one kind in one line."""
    groups = {group.transactional_ids[0]: group for group in grouped_results(outcomes.items())}
    for name, outcome in outcomes.items():
        if not outcome.is_heuristic:
            yield f"{name}: {'nothing was open' if outcome is Outcome.NOTHING else outcome.value}"
        elif name in groups:
            yield f"{groups[name].slots}: {outcome.value}"


def acknowledgement(outcome: HeuristicOutcome) -> str:
    """An outcome that is acknowledged, in a line."""
    assert outcome.acknowledged_at is not None, "it is acknowledged"
    return (
        f"{outcome.outcome.value} {outcome.id} of {outcome.transactional_id}: acknowledged by "
        f"{outcome.acknowledged_by}, {outcome.acknowledged_at.isoformat(timespec='seconds')}"
    )
