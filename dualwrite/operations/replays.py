"""Heuristic outcomes whose records the application itself produces again (``replay=True``, coordinator/replay)."""

from collections.abc import Collection, Iterable

from sqlalchemy import Engine
from sqlalchemy.exc import DBAPIError

from dualwrite.coordinator.replay.replay import lost_units
from dualwrite.coordinator.rules.slot_rules import named
from dualwrite.coordinator.sql.outcome_store import HeuristicOutcome
from dualwrite.coordinator.sql.own_tables import ours
from dualwrite.operations.phrases import counted
from dualwrite.operations.rows import is_refused


def awaiting_replay(engine: Engine, found: Iterable[HeuristicOutcome]) -> list[int]:
    """The numbers of those of ``found`` whose records are kept for a replay. Empty if this login may not read what is
    kept, which are records of the application."""
    numbers = {outcome.id for outcome in found}
    if not numbers:
        return []
    with engine.connect() as connection:
        try:
            lost = connection.execute(lost_units(), execution_options=ours(connection)).all()
        except DBAPIError as error:
            if not is_refused(engine, error):
                raise
            return []
    return sorted(numbers & {number for _, number, *_ in lost})


def replay_advice(numbers: Collection[int]) -> str:
    """What an operator must know about the outcomes ``numbers``, of :func:`awaiting_replay`, in a line."""
    shown = named([str(number) for number in numbers], _SHOWN)
    return (
        f"the records of {counted(len(numbers), 'outcome')} ({shown}) are kept: an application with replay=True "
        "produces them again itself when it next uses the slot. Acknowledge such an outcome before you produce its "
        "records by hand or undo its rows"
    )


_SHOWN = 20
"""The most numbers in the line."""
