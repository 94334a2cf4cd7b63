"""Units of work that are known to be only on one side, until they are recorded as heuristic outcomes."""

import logging
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from dualwrite.coordinator.ports.database import DecisionStore
from dualwrite.coordinator.ports.runtime import Runtime
from dualwrite.coordinator.rules.lease import LeaseContradictedError
from dualwrite.coordinator.rules.lease_memory import RowSeen, Unmatched
from dualwrite.coordinator.slots.slot import Counters

_LOG = logging.getLogger("dualwrite")


class _PendingOutcome(NamedTuple):
    """Units of work of one slot that are not recorded yet; ``row`` is as for DecisionStore.note_unmatched."""

    transactional_id: str
    units: Sequence[Unmatched]
    row: RowSeen | None


class UnmatchedUnits:
    """Keeps unmatched units of work until they are recorded in the database. Thread-safe.

    A database that has just lost commits, or a connection, may not answer: a record that cannot be written now is
    written at the end of the next unit of work, at the next heartbeat, or in close().
    """

    def __init__(self, runtime: Runtime, store: DecisionStore, counters: Counters) -> None:
        self._now = runtime.monotonic
        self._store = store
        self._counters = counters
        self._waiting: deque[_PendingOutcome] = deque()
        """The methods of a deque are atomic."""

    def add(self, contradiction: LeaseContradictedError) -> None:
        """Keep the units of work that ``contradiction`` has found."""
        if contradiction.unmatched:
            name = contradiction.lease.transactional_id
            self._waiting.append(_PendingOutcome(name, contradiction.unmatched, contradiction.outdated_row))

    def keep(self, transactional_id: str, unit: Unmatched) -> None:
        """Keep ``unit``, which ran in the slot ``transactional_id``, and could not be recorded just now."""
        self._waiting.append(_PendingOutcome(transactional_id, [unit], None))

    def record(self) -> None:
        """Put the waiting units of work on record. An error is logged with the units, which continue to wait."""
        while (waiting := self._next()) is not None:
            error = self._write(waiting)
            if error is not None:
                for unit in waiting.units:
                    log_not_yet(waiting.transactional_id, unit, error)
                return

    def close(self, deadline: float) -> None:
        """Try once more to put each unit of work on record. A unit that the database refuses is logged with the INSERT
        statement to run by hand, and waits for another call.

        :param deadline: in monotonic seconds, after which no further one is tried.
        """
        error: Exception | None = None
        try:
            for _ in range(len(self._waiting)):
                waiting = self._next()
                if waiting is not None:
                    error = self._write(waiting) or error
                if self._now() >= deadline:
                    break
        finally:
            for _ in range(len(self._waiting)):
                waiting = self._next()
                if waiting is not None:
                    self._waiting.append(waiting)
                    for unit in waiting.units:
                        self._log_lost(waiting.transactional_id, unit, error)

    def _next(self) -> _PendingOutcome | None:
        try:
            return self._waiting.popleft()
        except IndexError:
            return None

    def _write(self, waiting: _PendingOutcome) -> Exception | None:
        """Put ``waiting`` on record. If that fails, keep it and return the error."""
        try:
            self._store.note_unmatched(*waiting)
        except BaseException as error:
            self._waiting.append(waiting)
            if not isinstance(error, Exception):
                raise
            return error
        self._counters.add("heuristic", len(waiting.units))
        return None

    def _log_lost(self, transactional_id: str, unit: Unmatched, error: Exception | None) -> None:
        """Log ``unit``, whose record ends with this process, with the statement that inserts it."""
        _LOG.error(
            "%s: closed before the database accepted the record of %s of the unit of work with the state %s (%s). "
            "Insert it by hand: %s",
            transactional_id,
            unit.outcome.value,
            str(unit.state),
            "there was no time to try" if error is None else error,
            self._store.outcome_insert_sql(transactional_id, unit),
            extra={"outcome": unit.outcome.value, "state": str(unit.state)},
        )


def log_not_yet(transactional_id: str, unit: Unmatched, error: BaseException) -> None:
    """Log ``unit`` with the content of its record, which could not be written because of ``error``."""
    _LOG.error(
        "%s: %s of the unit of work with the state %s is not on record yet (%s): %s",
        transactional_id,
        unit.outcome.value,
        str(unit.state),
        error,
        unit.detail,
    )
