"""Units of work that are known to be on one side alone, until they are recorded as heuristic outcomes."""

import logging
from collections.abc import Sequence
from queue import Empty, SimpleQueue
from typing import NamedTuple

from dualwrite.coordinator.ports import DecisionStore
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
    written at the end of the next unit of work, or at the next heartbeat.
    """

    def __init__(self, store: DecisionStore, counters: Counters) -> None:
        self._store = store
        self._counters = counters
        self._waiting: SimpleQueue[_PendingOutcome] = SimpleQueue()

    def add(self, contradiction: LeaseContradictedError) -> None:
        """Keep the units of work that ``contradiction`` has found."""
        if contradiction.unmatched:
            name = contradiction.lease.transactional_id
            self._waiting.put(_PendingOutcome(name, contradiction.unmatched, contradiction.row))

    def keep(self, transactional_id: str, unit: Unmatched) -> None:
        """Keep ``unit``, which ran in the slot ``transactional_id``, and could not be recorded just now."""
        self._waiting.put(_PendingOutcome(transactional_id, [unit], None))

    def record(self) -> None:
        """Put the waiting units of work on record. An error is logged with the units, which continue to wait."""
        while True:
            try:
                waiting = self._waiting.get_nowait()
            except Empty:
                return
            name, units, row = waiting
            try:
                self._store.note_unmatched(name, units, row)
            except BaseException as error:
                self._waiting.put(waiting)
                if not isinstance(error, Exception):
                    raise
                for unit in units:
                    log_not_yet(name, unit, error)
                return
            self._counters.add("heuristic", len(units))


def log_not_yet(transactional_id: str, unit: Unmatched, error: BaseException) -> None:
    """Log ``unit`` with the content of its record, which could not be written because of ``error``."""
    _LOG.error(
        "%s: %s of the unit of work with the state %s is not on record yet (%s): %s",
        transactional_id,
        unit.outcome.value,
        unit.state,
        error,
        unit.detail,
    )
