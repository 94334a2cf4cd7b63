"""The metrics that are read from the databases at each scrape: each application's slots, and its outcomes on record.

A look runs in a thread of its own. A database that stays silent would keep the scrape waiting, and every later one.
"""

import logging
import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from time import monotonic
from typing import NamedTuple

from sqlalchemy import Engine
from sqlalchemy.exc import SQLAlchemyError

from dualwrite.coordinator.process.this_process import THIS_PROCESS
from dualwrite.coordinator.rules.slot_rules import ENDED, SlotStatus
from dualwrite.coordinator.slots.usage import Usage
from dualwrite.coordinator.sql.dialects.supported import database_of
from dualwrite.coordinator.sql.outcome_store import outcomes
from dualwrite.errors import DualWriteError
from dualwrite.operations.rows import slot_prefix, state_rows

_LOG = logging.getLogger("dualwrite")

LONGEST_SECONDS = 5.0
"""How long a scrape waits for all databases. Prometheus gives up after 10 s by default."""


class DatabaseCounts(NamedTuple):
    """What the databases of an application have.

    :param slots: the number of slots by their state.
    :param outcomes: the number of outcomes that are not acknowledged.
    """

    slots: dict[str, int]
    outcomes: int


class DatabaseLooks:
    """Looks at the databases of applications. An application has one look at a time, however many scrapes wait."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._looks: dict[str, _Look] = {}

    def of(self, members: Mapping[str, Sequence[tuple[Usage, Engine | None]]]) -> Iterator[tuple[str, DatabaseCounts]]:
        """What is found for each application, without those whose database fails, or does not answer in time.

        :param members: the DualWrites of each application: their usages, and their engines as far as they are known.
        """
        deadline = monotonic() + LONGEST_SECONDS
        looks = {name: self._look_of(name, of) for name, of in members.items() if any(engine for _, engine in of)}
        for application, look in looks.items():
            try:
                yield application, look.result(max(0.0, deadline - monotonic()))
            except (DualWriteError, SQLAlchemyError, TimeoutError) as error:  # the other metrics are reported
                _LOG.warning("%s: the database's metrics are not available: %s", application, error)

    def _look_of(self, application: str, members: Sequence[tuple[Usage, Engine | None]]) -> "_Look":
        """The look that is in progress, or a new one."""
        with self._lock:
            look = self._looks.get(application)
            if look is None or look.is_over:
                look = self._looks[application] = _Look(members)
        return look


class _Look:
    """One look at the databases of an application."""

    def __init__(self, members: Sequence[tuple[Usage, Engine | None]]) -> None:
        self._process = os.getpid()
        self._done = threading.Event()
        self._found: DatabaseCounts | None = None
        self._error: Exception | None = None
        usages = [usage for usage, _ in members]
        # Not attributes: a look that is over would keep the engines of a DualWrite that is gone.
        engines = list({_place_of(engine): engine for _, engine in members if engine is not None}.values())
        try:
            THIS_PROCESS.start_thread(lambda: self._run(engines, usages), f"dualwrite metrics: {usages[0].application}")
        except RuntimeError:  # at the exit of the interpreter, when the last counts may be pushed, none can start
            self._run(engines, usages)

    @property
    def is_over(self) -> bool:
        """True if it has ended, or belongs to the process from which this one was forked."""
        return self._done.is_set() or self._process != os.getpid()

    def result(self, seconds: float) -> DatabaseCounts:
        """What was found.

        :raises TimeoutError: if the look has not ended after ``seconds``. Also the look's own error.
        """
        if not self._done.wait(seconds):
            raise TimeoutError(f"no answer in {LONGEST_SECONDS:g} s")
        if self._error is not None:
            raise self._error
        assert self._found is not None, "the look has ended without an error"
        return self._found

    def _run(self, engines: Sequence[Engine], usages: Sequence[Usage]) -> None:
        try:
            looks = [_look(engine, usages) for engine in engines]
            slots = {state: sum(found.slots[state] for found in looks) for state in looks[0].slots}
            self._found = DatabaseCounts(slots, sum(found.outcomes for found in looks))
        except Exception as error:  # noqa: BLE001  the scrape raises it
            self._error = error
        finally:
            self._done.set()


def _place_of(engine: Engine) -> str:
    """The database of ``engine``, by whichever engine it is reached."""
    return database_of(engine.dialect).server_of(engine.url)


def _look(engine: Engine, usages: Sequence[Usage]) -> DatabaseCounts:
    """The application's slots and outcomes in one database.

    :param usages: of the application's DualWrites.
    """
    application = usages[0].application
    rows = state_rows(engine, application=slot_prefix(engine, application)).values()
    statuses = [row.status for row in rows]
    leased = statuses.count(SlotStatus.HELD)
    left = sum(status in ENDED for status in statuses)
    # A slot that was never used has no row.
    free = max(statuses.count(SlotStatus.FREE), max(usage.pool_size for usage in usages) - leased - left)
    return DatabaseCounts({"leased": leased, "free": free, "left": left}, len(outcomes(engine, application)))
