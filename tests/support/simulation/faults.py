"""What goes wrong in a run: a list that a seed makes, and that can be shortened.

A fault waits at a trigger, such as the 17th turn of an application or its third message, and strikes there. So the same
list on the same seed is the same run, and a failing run can be repeated with fewer faults.
"""

import random
from collections.abc import Iterable, Mapping, Sequence
from enum import Enum
from typing import NamedTuple

APPLICATIONS = 2


class FaultPlace(Enum):
    """Where a fault waits; it strikes at the n-th event there."""

    TURN = "turn of a thread"
    STORE = "state of a prepared transaction, before it is stored"
    COMMITTED = "COMMIT that took effect"
    MESSAGE = "message"
    DISK = "write or sync of the broker's disk"
    STEP = "step of the broker's event loop"
    COMMIT = "COMMIT on its way"
    CALL = "call of the database"
    LOCKED = "lock of a state row"

    __hash__ = object.__hash__


class SimulatedFault(Enum):
    """What goes wrong."""

    KILL = "is killed"
    STALL = "stalls"
    LOCK_LOST = "loses the database's connection that holds a lock, and stalls"
    LOSE_REQUEST = "loses its connection, with a request that never arrives"
    LOSE_ANSWER = "loses its connection, with the answer to a request"
    LATE_REQUEST = "loses its connection, and a request arrives later"
    SLOW_REQUEST = "has a slow connection"
    SILENCE = "has a connection that loses everything without a word"
    BROKER_KILL = "is killed in the middle of a write"
    BROKER_POWER = "loses its power"
    BROKER_STALL = "stalls there"
    BROKER_STOP = "is stopped, and started again"
    BROKER_DISK_ERROR = "gets an error from its disk, in the middle of a write, and ends"
    COMMIT_NEVER_ARRIVES = "the connection is lost before the COMMIT"
    COMMIT_ANSWER_LOST = "the connection is lost after the COMMIT"
    COMMIT_ARRIVES_LATER = "the connection is lost, and the COMMIT arrives later"
    DATABASE_RESTART = "restarts"
    DATABASE_FORGETS = "restarts, and has forgotten a COMMIT and all that followed it"

    __hash__ = object.__hash__


BROKER, OTHER_BROKER, DATABASE = "broker", "broker-b", "database"


class PlannedFault(NamedTuple):
    """One fault.

    :param lane: the application, the broker or the database that it strikes.
    :param at: it strikes at the n-th event of its place and lane.
    :param seconds: how long it lasts: a pause, the time until a restart, the delay of a message.
    """

    kind: SimulatedFault
    place: FaultPlace
    lane: str
    at: int
    seconds: float

    def __str__(self) -> str:
        return f"{self.lane} {self.kind.value} ({self.place.value} number {self.at}; {self.seconds:.3f} s)"


class _Sort(NamedTuple):
    """A sort of fault: where it waits, up to which event, how long it lasts, and the most of it in a run."""

    place: FaultPlace
    last: int
    longest: float
    most: int

    def widened(self, later: float, longer: float) -> "_Sort":
        """The sort that may strike ``later`` times as late and as often, and last ``longer`` times as long."""
        return _Sort(self.place, round(self.last * later), self.longest * longer, round(self.most * later))


_OF_APPLICATIONS: Mapping[SimulatedFault, Sequence[_Sort]] = {
    SimulatedFault.KILL: (
        _Sort(FaultPlace.TURN, 110, 6.0, 1),
        _Sort(FaultPlace.STORE, 3, 6.0, 1),
        _Sort(FaultPlace.COMMITTED, 3, 6.0, 1),
    ),
    SimulatedFault.STALL: (
        _Sort(FaultPlace.TURN, 110, 9.0, 1),
        _Sort(FaultPlace.STORE, 3, 9.0, 1),
        _Sort(FaultPlace.COMMITTED, 3, 9.0, 1),
    ),
    SimulatedFault.LOCK_LOST: (_Sort(FaultPlace.LOCKED, 3, 9.0, 1),),
    SimulatedFault.LOSE_REQUEST: (_Sort(FaultPlace.MESSAGE, 28, 0.5, 1),),
    SimulatedFault.LOSE_ANSWER: (_Sort(FaultPlace.MESSAGE, 28, 0.5, 2),),
    SimulatedFault.LATE_REQUEST: (_Sort(FaultPlace.MESSAGE, 28, 4.0, 2),),
    SimulatedFault.SLOW_REQUEST: (_Sort(FaultPlace.MESSAGE, 28, 4.0, 1),),
    SimulatedFault.SILENCE: (_Sort(FaultPlace.MESSAGE, 28, 9.0, 1),),
}
_OF_OTHERS: Mapping[SimulatedFault, tuple[str, _Sort]] = {
    SimulatedFault.BROKER_KILL: (BROKER, _Sort(FaultPlace.DISK, 130, 7.0, 1)),
    SimulatedFault.BROKER_POWER: (BROKER, _Sort(FaultPlace.DISK, 130, 7.0, 2)),
    SimulatedFault.BROKER_STALL: (BROKER, _Sort(FaultPlace.STEP, 260, 8.0, 1)),
    SimulatedFault.COMMIT_NEVER_ARRIVES: (DATABASE, _Sort(FaultPlace.COMMIT, 7, 1.0, 1)),
    SimulatedFault.COMMIT_ANSWER_LOST: (DATABASE, _Sort(FaultPlace.COMMIT, 7, 1.0, 1)),
    SimulatedFault.COMMIT_ARRIVES_LATER: (DATABASE, _Sort(FaultPlace.COMMIT, 7, 3.0, 1)),
    SimulatedFault.DATABASE_RESTART: (DATABASE, _Sort(FaultPlace.CALL, 80, 2.0, 1)),
}
_FORGETS = _Sort(FaultPlace.COMMITTED, 5, 4.0, 1)
_DISK_ERROR = _Sort(FaultPlace.DISK, 130, 7.0, 1)
_STOP = _Sort(FaultPlace.STEP, 260, 7.0, 1)
_QUIET = 0.05
"""The part of the runs in which nothing goes wrong."""
_FORGETFUL = 0.1
"""The part of the runs whose database may forget, as a standby does that lagged and is promoted."""
_DISK_ERRORS = 0.2
"""The part of the runs whose broker may get one error from its disk."""
_STOPS = 0.2
"""The part of the runs whose broker may be stopped cleanly, as for a new version of it."""
_LATE, _LATER = 0.3, 2.5
"""The part of the runs whose faults may strike up to the end, and not only in the first half; and how much later and
more often than in the others."""
_LONG, _LONGER = 0.2, 3.0
"""The part of the runs with longer faults, and how long they are then."""
_TWO_CLUSTERS = 0.2
"""The part of the runs with a second cluster."""


def has_two_clusters(seed: int) -> bool:
    """True if the run of ``seed`` has a second cluster, with a broker of its own."""
    return random.Random(f"clusters of {seed}").random() < _TWO_CLUSTERS


def faults_of(seed: int) -> list[PlannedFault]:
    """The faults of the run of ``seed``."""
    chance = random.Random(f"faults of {seed}")
    if chance.random() < _QUIET:
        return []
    extent = random.Random(f"extent {seed}")
    later, longer = _LATER if extent.random() < _LATE else 1.0, _LONGER if extent.random() < _LONG else 1.0
    faults = []
    for number in range(APPLICATIONS):
        for kind, sorts in _OF_APPLICATIONS.items():
            for sort in sorts:
                faults += _some(chance, kind, lane_of(number), sort.widened(later, longer))
    for kind, (lane, sort) in _OF_OTHERS.items():
        faults += _some(chance, kind, lane, sort.widened(later, longer))
    # Most databases forget little, so that units of work follow.
    forgets = SimulatedFault.DATABASE_FORGETS
    faults += _once(random.Random(f"forgetful {seed}"), _FORGETFUL, forgets, DATABASE, _FORGETS, power=3)
    error = SimulatedFault.BROKER_DISK_ERROR
    faults += _once(random.Random(f"disk errors {seed}"), _DISK_ERRORS, error, BROKER, _DISK_ERROR)
    stop = SimulatedFault.BROKER_STOP
    faults += _once(random.Random(f"stops {seed}"), _STOPS, stop, BROKER, _STOP.widened(later, longer))
    if has_two_clusters(seed):
        for kind, (lane, sort) in _OF_OTHERS.items():
            if lane == BROKER:
                faults += _some(chance, kind, OTHER_BROKER, sort.widened(later, longer))
    return faults


def lane_of(number: int) -> str:
    """The name of an application, over all of its processes."""
    return f"app-{number}"


def _some(chance: random.Random, kind: SimulatedFault, lane: str, sort: _Sort) -> Iterable[PlannedFault]:
    for _ in range(chance.randint(0, sort.most)):
        yield PlannedFault(kind, sort.place, lane, chance.randint(1, sort.last), chance.random() * sort.longest)


def _once(
    chance: random.Random, part: float, kind: SimulatedFault, lane: str, sort: _Sort, *, power: int = 1
) -> Iterable[PlannedFault]:
    """One fault in ``part`` of the runs; with a higher ``power`` most are short."""
    if chance.random() < part:
        at = chance.randint(1, sort.last)
        yield PlannedFault(kind, sort.place, lane, at, chance.random() ** power * sort.longest)


class Trigger:
    """Counts the events of one place and lane."""

    __slots__ = ("_due", "_next", "count")

    def __init__(self, faults: Iterable[PlannedFault]) -> None:
        self.count = 0
        self._due = sorted(faults, key=lambda fault: -fault.at)
        self._next = self._due[-1].at if self._due else 1 << 60

    def pull(self) -> PlannedFault | None:
        """Count an event; the fault that strikes here, if any."""
        self.count += 1
        if self.count < self._next:
            return None
        fault = self._due.pop()
        self._next = self._due[-1].at if self._due else 1 << 60
        return fault


class FaultPlan:
    """The faults of a run, by their places.

    :param faults: at most one strikes at an event; a second one at the same event strikes at the next.
    """

    def __init__(self, faults: Iterable[PlannedFault]) -> None:
        self.faults = tuple(faults)
        self._triggers: dict[tuple[FaultPlace, str], Trigger] = {}

    def trigger(self, place: FaultPlace, lane: str) -> Trigger:
        """The trigger at ``place`` of ``lane``."""
        key = place, lane
        if key not in self._triggers:
            self._triggers[key] = Trigger(fault for fault in self.faults if (fault.place, fault.lane) == key)
        return self._triggers[key]
