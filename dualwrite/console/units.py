"""The units of work of the process that the console is mounted in: how many in each second, how long they took, and the
steps and consumers' offsets of some of them. An observer of DualWrites collects it, whether a page is open or not.
"""

import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from time import monotonic
from typing import Protocol

from dualwrite.coordinator.rules.machine import Result, Step
from dualwrite.coordinator.slots.slot import Counters
from dualwrite.coordinator.steps.observers import Observer
from dualwrite.ids import TopicPartition

SECONDS_KEPT = 300
"""How far back the plots go."""

MOST_SAMPLES = 200
"""The most durations that are kept of one second; with more units, those of its beginning stand for all."""

MOST_TIMELINES = 200

MOST_POSITIONS = 20
"""The most partitions of one timeline whose offsets are kept; the others are counted."""

WAIT = "wait for a slot"
PRODUCE = "produce: the block's own code"
_NAMES = {
    Step.BEGIN_DATABASE: "begin in the database",
    Step.BEGIN_KAFKA: "begin in Kafka",
    Step.PREPARE_KAFKA: "prepare: every record is acknowledged",
    Step.STORE_STATE: "store the prepared state in the row",
    Step.COMMIT_DATABASE: "commit in the database: the decision",
    Step.COMMIT_KAFKA: "complete in Kafka",
}
_ENDS = {Result.SUCCEEDED: "committed", Result.ROLLED_BACK: "rolled back", None: "no slot, or given up"}


class ObservableUnits(Protocol):
    """The part of a DualWrite, or of an AsyncDualWrite, that the console uses."""

    @property
    def counters(self) -> Counters:
        """The counts of events; see DualWrite."""

    def add_observer(self, observer: Observer) -> None:
        """Call ``observer`` for each unit of work from now on; see DualWrite."""


@dataclass(frozen=True, slots=True)
class TimelineStep:
    """A step of a unit of work; times in seconds since the unit began.

    :param failed: the type of the step's exception; empty if it succeeded.
    """

    name: str
    began: float
    ended: float
    failed: str = ""


@dataclass(frozen=True, slots=True)
class TimelineOffsets:
    """The offsets of a consumer group that a unit of work commits.

    :param in_database: True if they are in the database, False if they are in the Kafka transaction.
    :param positions: partitions, each with the offset of the next record to read.
    """

    group_id: str
    in_database: bool
    positions: tuple[tuple[TopicPartition, int], ...]


@dataclass(frozen=True, slots=True)
class Timeline:
    """A unit of work that is over.

    :param transactional_id: its slot; empty if it never got one.
    :param ended_as: how it ended.
    :param offsets: of consumer groups; of MOST_POSITIONS partitions at most.
    :param more_positions: the number of further partitions.
    """

    transactional_id: str
    ended_as: str
    seconds: float
    steps: tuple[TimelineStep, ...]
    offsets: tuple[TimelineOffsets, ...] = ()
    more_positions: int = 0

    @property
    def is_good(self) -> bool:
        """True if it is on both sides."""
        return self.ended_as == _ENDS[Result.SUCCEEDED]


@dataclass(slots=True)
class SecondOfUnits:
    """The units of work that ended within one second of the clock."""

    number: int
    committed: int = 0
    others: int = 0
    durations: list[float] = field(default_factory=list)


class UnitLog:
    """Collects the units of work of DualWrites. Its memory is bounded.

    :param clock: in seconds; it never goes back.
    """

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._seconds: deque[SecondOfUnits] = deque(maxlen=SECONDS_KEPT)
        self._timelines: deque[Timeline] = deque(maxlen=MOST_TIMELINES)

    def unit_began(self) -> "ObservedUnit":
        """A unit of work begins; see Observer."""
        return ObservedUnit(self, self._clock)

    def add(self, timeline: Timeline) -> None:
        """A unit of work is over."""
        number = int(self._clock())
        with self._lock:
            if not self._seconds or self._seconds[-1].number != number:
                self._seconds.append(SecondOfUnits(number))
            second = self._seconds[-1]
            if timeline.is_good:
                second.committed += 1
            else:
                second.others += 1
            if len(second.durations) < MOST_SAMPLES:
                second.durations.append(timeline.seconds)
            self._timelines.append(timeline)

    def history(self, seconds: int = SECONDS_KEPT) -> list[SecondOfUnits]:
        """The last ``seconds`` whole seconds, the oldest first; those without units too."""
        last = int(self._clock()) - 1
        with self._lock:
            known = {
                each.number: SecondOfUnits(each.number, each.committed, each.others, list(each.durations))
                for each in self._seconds
            }
        return [known.get(number, SecondOfUnits(number)) for number in range(last - seconds + 1, last + 1)]

    def shown(self) -> list[tuple[str, Timeline]]:
        """Timelines that are worth a look, each with the reason: the newest, the slowest, the newest that failed."""
        with self._lock:
            known = list(self._timelines)
        if not known:
            return []
        chosen = [("the newest", known[-1])]
        chosen.append((f"the slowest of the last {len(known)}", max(known, key=lambda each: each.seconds)))
        failed = [each for each in known if not each.is_good]
        if failed:
            chosen.append(("the newest that was not committed", failed[-1]))
        return [pair for number, pair in enumerate(chosen) if pair[1] not in [each for _, each in chosen[:number]]]


class ObservedUnit:
    """One unit of work under observation; see UnitObserver and OffsetsObserver."""

    def __init__(self, log: UnitLog, clock: Callable[[], float]) -> None:
        self._log = log
        self._clock = clock
        self._began = self._last = clock()
        self._name = ""
        self._steps: list[TimelineStep] = []
        self._offsets: dict[tuple[str, bool], dict[TopicPartition, int]] = {}

    def slot_taken(self, transactional_id: str) -> None:
        """The wait is over."""
        self._name = transactional_id
        self._until_now(WAIT)

    def step_began(self, step: Step) -> None:
        """What lies between two steps is the block's own code."""
        if self._steps and self._steps[-1].name != WAIT:
            self._until_now(PRODUCE)
        else:
            self._last = self._clock()

    def step_ended(self, step: Step, error: BaseException | None) -> None:
        """A step has ended."""
        self._until_now(_NAMES.get(step, step.value), "" if error is None else type(error).__name__)

    def offsets_added(self, group_id: str, offsets: Mapping[TopicPartition, int], in_database: bool) -> None:
        """Of several calls for one partition the last one counts."""
        self._offsets.setdefault((group_id, in_database), {}).update(offsets)

    def ended(self, result: Result | None, error: BaseException | None) -> None:
        """The unit is over."""
        seconds = self._clock() - self._began
        offsets, more = _first_positions(self._offsets)
        self._log.add(Timeline(self._name, _ENDS.get(result, "in doubt"), seconds, tuple(self._steps), offsets, more))

    def _until_now(self, name: str, failed: str = "") -> None:
        now = self._clock()
        self._steps.append(TimelineStep(name, self._last - self._began, now - self._began, failed))
        self._last = now


def _first_positions(
    offsets: Mapping[tuple[str, bool], Mapping[TopicPartition, int]],
) -> tuple[tuple[TimelineOffsets, ...], int]:
    """The offsets of MOST_POSITIONS partitions at most, and the number of the others."""
    groups: list[TimelineOffsets] = []
    room = MOST_POSITIONS
    for (group_id, in_database), positions in offsets.items():
        first = tuple(sorted(positions.items()))[:room]
        if first:
            groups.append(TimelineOffsets(group_id, in_database, first))
        room -= len(first)
    return tuple(groups), sum(map(len, offsets.values())) - (MOST_POSITIONS - room)


def percentile(durations: Sequence[float], share: float) -> float | None:
    """The duration that ``share`` of ``durations`` do not exceed; None for none."""
    if not durations:
        return None
    return sorted(durations)[min(len(durations) - 1, int(share * len(durations)))]
