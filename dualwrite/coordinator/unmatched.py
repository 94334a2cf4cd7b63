"""Units of work that a process knows to be on one side alone, on their way to the record of heuristic outcomes."""

import logging
from queue import Empty, SimpleQueue

from dualwrite.coordinator.lease import LeaseContradictedError
from dualwrite.coordinator.participants import DecisionStore
from dualwrite.coordinator.slots import Counters

_LOG = logging.getLogger("dualwrite")


class UnmatchedUnits:
    """Keeps them until the database has taken them. Thread-safe.

    A database that has just lost commits may not answer: what cannot be written now is written at the next heartbeat.
    """

    def __init__(self, store: DecisionStore, counters: Counters) -> None:
        self._store = store
        self._counters = counters
        self._waiting: SimpleQueue[LeaseContradictedError] = SimpleQueue()

    def add(self, contradiction: LeaseContradictedError) -> None:
        """Keep the units of work that ``contradiction`` has found."""
        if contradiction.unmatched:
            self._waiting.put(contradiction)

    def record(self) -> None:
        """Put what waits on record. An error is logged with the units of work, which wait on."""
        while True:
            try:
                waiting = self._waiting.get_nowait()
            except Empty:
                return
            name, units = waiting.lease.transactional_id, waiting.unmatched
            try:
                self._store.note_unmatched(name, units, waiting.row)
            except BaseException as error:
                self._waiting.put(waiting)
                if not isinstance(error, Exception):
                    raise
                states = ", ".join(str(unit.state) for unit in units)
                _LOG.error("%s: %s of %s is not on record yet: %s", name, units[0].outcome.value, states, error)
                return
            self._counters.add("heuristic", len(units))
