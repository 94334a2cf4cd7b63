"""Faults of one application alone: SIGKILL of it, of its servers, or of both, right before a step of its recipe."""

import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from dualwrite.client.admin.control_plane import ControlPlane
from dualwrite.client.terms.transaction_states import ONGOING
from tests.matrix.cells import Cell, Mode, Victim
from tests.matrix.live import LiveApplication
from tests.matrix.places import TIMEOUT_MS, MatrixPlace
from tests.support.crash.application import Task
from tests.support.crash.losing_disk import LosingBroker

LATEST_UNIT = 4
"""The fault strikes in one of the application's first units, for each of its threads."""
UNITS_AFTER = 4
"""Units of each thread that an application runs if nothing kills it."""


@dataclass
class StruckCounts:
    """What a run of a cell has done.

    :param faults: that struck at the named step.
    :param deaths: processes that were killed, among them those whose death only prepared the fault.
    :param missed: attempts in which the application did not come to the step.
    :param unsynced_bytes: that the broker's files had when its power was cut.
    :param cuts: the direction and the first byte that did not arrive, as ``answers 17``.
    :param problems: what is wrong beside what both sides have.
    """

    faults: int = 0
    deaths: int = 0
    missed: int = 0
    unsynced_bytes: int = 0
    cuts: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    def count(self, has_struck: bool, deaths: int = 0) -> None:
        """One attempt."""
        self.faults += has_struck
        self.missed += not has_struck
        self.deaths += deaths

    def note(self, application: LiveApplication) -> None:
        """An application that hung is a divergence."""
        if application.has_hung:
            self.problems.append("hung: an application neither paused nor ended")


@dataclass
class Strike:
    """What a strike is given: the cell, its place, the names of its units, its randomness, and how often it strikes."""

    cell: Cell
    place: MatrixPlace
    prefix: str
    chance: random.Random
    times: int
    struck: StruckCounts = field(default_factory=StruckCounts)

    def task(self, **changes: Any) -> Task:
        """The application's task, which pauses at the step of the cell."""
        task = self.place.task
        latest = LATEST_UNIT * task.threads
        chosen = {
            "prefix": self.prefix,
            "seed": self.chance.randrange(10**6),
            "pause_step": self.cell.step,
            "pause_unit": self.chance.randint(1, latest),
            "units": latest + UNITS_AFTER,
        }
        if self.cell.step.startswith("RECOVER"):
            chosen |= {"pause_unit": 0, "units": 0}
        return replace(task, **{**chosen, **changes})

    def start(self, **changes: Any) -> LiveApplication:
        """Run an application with :meth:`task`."""
        return LiveApplication(self.task(**changes), self.place.told)

    def recover(self) -> None:
        """A start of the application that runs no unit, and ends well."""
        task = replace(self.place.task, prefix=self.prefix, units=0)
        with LiveApplication(task, self.place.told) as application:
            code = application.let_end()
            if code != 0:
                self.struck.problems.append(f"recovery: the application ended with {code}")
            self.struck.note(application)

    def leave_something_to_recover(self) -> None:
        """For a fault in recovery: an application dies between the two commits."""
        with self.start(pause_step="COMMIT_KAFKA", pause_unit=1, units=LATEST_UNIT) as application:
            if application.comes_to("paused"):
                application.kill()
                self.struck.deaths += 1


def kill_application(strike: Strike) -> None:
    """SIGKILL of the application, again and again; only the last death is followed by a start that runs no unit."""
    for _ in range(strike.times):
        _kill_once(strike, before=lambda: None, deaths=1)
    strike.recover()


def kill_and_time_out(strike: Strike) -> None:
    """SIGKILL; the broker aborts the transaction as its timeout does; recovery."""
    for _ in range(strike.times):
        _kill_once(strike, before=lambda: None, deaths=1)
        abort_open(strike.place.broker.bootstrap_servers)
        strike.recover()


def kill_application_and_broker(strike: Strike) -> None:
    """SIGKILL of both, or a power cut of the broker's disk with both, while the application is at the step."""
    place = strike.place

    def kill_broker() -> None:
        if isinstance(place.broker, LosingBroker):
            strike.struck.unsynced_bytes += place.broker.cut_power(strike.chance)
        else:
            place.broker.kill()

    for _ in range(strike.times):
        _kill_once(strike, kill_broker, deaths=2)
        place.broker.start()
    strike.recover()


def kill_application_and_database(strike: Strike) -> None:
    """SIGKILL of both."""
    server = strike.place.server
    assert server is not None
    for _ in range(strike.times):
        if _kill_once(strike, server.kill, deaths=2):
            server.start()
            strike.place.engine.dispose()
    strike.recover()


def _kill_once(strike: Strike, before: Callable[[], None], deaths: int) -> bool:
    """Kill one application at the step; ``before`` is done while it is there. False if it did not come there."""
    if strike.cell.step.startswith("RECOVER"):
        strike.leave_something_to_recover()
    with strike.start() as application:
        has_come = application.comes_to("paused")
        if has_come:
            before()
        application.kill()
        strike.struck.count(has_come, deaths * has_come)
        strike.struck.note(application)
    return has_come


def kill_broker(strike: Strike) -> None:
    """SIGKILL of the broker, or a power cut, while the application is at the step. The application goes on, sometimes
    before the broker is back."""
    place = strike.place

    def kill() -> None:
        if isinstance(place.broker, LosingBroker):
            strike.struck.unsynced_bytes += place.broker.cut_power(strike.chance)
        else:
            place.broker.kill()

    def start() -> None:
        place.broker.start()

    # A cluster answers while one node is down; the restart of a node takes longer than a unit may wait.
    goes_on_first = place.key.mode is Mode.RESUME_ON_KAFKA or strike.chance.random() < 0.5
    _strike_server(strike, kill, start, goes_on_first=goes_on_first)


def kill_database(strike: Strike) -> None:
    """SIGKILL of the database server while the application is at the step. The application goes on."""
    server = strike.place.server
    assert server is not None
    _strike_server(strike, server.kill, server.start, goes_on_first=strike.chance.random() < 0.5)
    strike.place.engine.dispose()


def _strike_server(strike: Strike, kill: Callable[[], None], start: Callable[[], None], *, goes_on_first: bool) -> None:
    for _ in range(strike.times):
        with strike.start() as application:
            has_come = application.comes_to("paused")
            if has_come:
                kill()
                if goes_on_first:
                    application.go_on()
                start()
            application.let_end()  # with an error, perhaps: its callers know
            strike.struck.count(has_come, int(has_come))
            strike.struck.note(application)
    strike.recover()


def abort_open(bootstrap_servers: str) -> None:
    """Abort every open transaction, as its timeout does."""
    control = ControlPlane({"bootstrap.servers": bootstrap_servers})
    try:
        for view in control.list_transactions():
            if view.state == ONGOING:
                control.init_producer_id(
                    view.transactional_id,
                    transaction_timeout_ms=TIMEOUT_MS,
                    two_phase_commit=False,
                    keep_prepared_txn=False,
                )
    finally:
        control.close()


KILLS: dict[Victim, Callable[[Strike], None]] = {
    Victim.APPLICATION: kill_application,
    Victim.BROKER: kill_broker,
    Victim.DATABASE: kill_database,
    Victim.APPLICATION_AND_BROKER: kill_application_and_broker,
    Victim.APPLICATION_AND_DATABASE: kill_application_and_database,
}
"""SIGKILL, and power cuts, by victim."""
