"""The answers to producers, and the oracle that compares them with a broker's log (Jepsen's names for anomalies)."""

import random
import threading
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from dualwrite.records.batch import iterate_records
from dualwrite.records.header import iterate_batches
from tests.support.requests.calls import fetch, read_all
from tests.support.requests.raw_client import RawClient
from tests.support.waiting import PATIENCE_SECONDS

Place = Any
"""A partition: its index where there is one topic, and otherwise a TopicPartition."""

Log = Mapping[Place, Sequence[tuple[int, bytes]]]
"""Partition -> offset and value of every record in it, whatever became of its transaction."""

Visible = Mapping[Place, Sequence[bytes]]
"""Partition -> the values that a read_committed consumer sees."""


class Fate(Enum):
    """What a producer knows of what it wrote together."""

    COMMITTED = "committed"
    ABORTED = "aborted"
    OPEN = "open"
    """Nobody has decided: what is in it must stay hidden."""
    UNKNOWN = "unknown"
    """The answer never came: all of it is there, or nothing."""


@dataclass
class Unit:
    """Records that one producer wrote together: a transaction, or a batch of a producer that has none."""

    producer: str
    writes: dict[Place, list[bytes]]
    fate: Fate = Fate.OPEN
    offsets: dict[tuple[Place, bytes], int] = field(default_factory=dict)
    """(partition, value) -> the offset that was acknowledged."""

    def values(self) -> Iterator[tuple[Place, bytes]]:
        """Every (partition, value), in the order in which they were written."""
        return ((partition, value) for partition, values in self.writes.items() for value in values)


class History:
    """The units of several producers, which run in threads of their own."""

    def __init__(self) -> None:
        self.units: list[Unit] = []
        self._changed = threading.Condition()
        self._events = 0
        self._begun: Counter[str] = Counter()

    def begins(self, producer: str, writes: dict[Place, list[bytes]]) -> Unit:
        """``producer`` is about to write ``writes``."""
        with self._changed:
            self.units.append(Unit(producer, writes))
            self._begun[producer] += 1
            self._changed.notify_all()
            return self.units[-1]

    def acknowledged(self, unit: Unit, partition: Place, values: Sequence[bytes], base_offset: int) -> None:
        """The broker has said that it has ``values`` from ``base_offset`` on."""
        with self._changed:
            for offset, value in enumerate(values, base_offset):
                unit.offsets[partition, value] = offset
            self._events += 1
            self._changed.notify_all()

    def ended(self, unit: Unit, fate: Fate) -> None:
        """The producer knows what has become of ``unit``."""
        with self._changed:
            unit.fate = fate
            self._events += 1
            self._changed.notify_all()

    def wait_for_events(self, count: int) -> None:
        """Return once ``count`` more acknowledgements and ends have come."""
        with self._changed:
            goal = self._events + count
            came = self._changed.wait_for(lambda: self._events >= goal, PATIENCE_SECONDS)
        assert came, f"the producers make no progress: {count} events were awaited"

    def wait_for_units_of(self, producers: Sequence[str], patience: float = PATIENCE_SECONDS) -> None:
        """Return once each of ``producers`` has begun one more unit; fail after ``patience`` seconds."""
        with self._changed:
            goals = {producer: self._begun[producer] + 1 for producer in producers}
            came = self._changed.wait_for(
                lambda: all(self._begun[producer] >= goal for producer, goal in goals.items()), patience
            )
            late = [producer for producer, goal in goals.items() if self._begun[producer] < goal]
        assert came, f"no progress of {late}"

    def fates(self) -> Counter[Fate]:
        """How many units had which fate."""
        return Counter(unit.fate for unit in self.units)


def anomalies(units: Sequence[Unit], log: Log, visible: Visible) -> list[str]:
    """Everything that contradicts what the producers were told; empty if all is well."""
    return [*_in_the_log(units, log), *_in_what_is_visible(units, visible), *_order(units, visible)]


def _in_the_log(units: Sequence[Unit], log: Log) -> Iterator[str]:
    places: dict[tuple[Place, bytes], list[int]] = {}
    for partition, records in log.items():
        for offset, value in records:
            places.setdefault((partition, value), []).append(offset)
    for key, offsets in places.items():
        if len(offsets) > 1:
            yield f"duplicate: {key} at {offsets}"
    for unit in units:
        for key, offset in unit.offsets.items():
            if offset not in places.get(key, ()):
                yield f"lost write: {key}, acknowledged at {offset}, is at {places.get(key, 'no offset')}"


def _in_what_is_visible(units: Sequence[Unit], visible: Visible) -> Iterator[str]:
    seen = {(partition, value) for partition, values in visible.items() for value in values}
    for unit in units:
        written = set(unit.values())
        there = written & seen
        if unit.fate is Fate.COMMITTED and there != written:
            yield f"lost write: {written - there} of a committed unit of {unit.producer}"
        if unit.fate in (Fate.ABORTED, Fate.OPEN) and there:
            yield f"aborted read: {there} of {unit.producer}, which is {unit.fate.value}"
        if unit.fate is Fate.UNKNOWN and there not in (set(), written):
            yield f"torn transaction: only {there} of {written} of {unit.producer}"
        seen -= written
    if seen:
        yield f"phantom: nobody has written {seen}"


def _order(units: Sequence[Unit], visible: Visible) -> Iterator[str]:
    for partition, values in visible.items():
        place = {value: index for index, value in enumerate(values)}
        last: dict[str, int] = {}
        for unit in units:
            for value in unit.writes.get(partition, ()):
                if value in place:
                    if place[value] <= last.get(unit.producer, -1):
                        yield f"reordered: {value!r} of {unit.producer} in partition {partition}"
                    last[unit.producer] = place[value]


def read_log(client: RawClient, topic: str, partitions: int) -> Log:
    """What ``topic`` holds."""
    log: dict[int, list[tuple[int, bytes]]] = {}
    for partition in range(partitions):
        offset, records = 0, log.setdefault(partition, [])
        while content := fetch(client, topic, offset, partition=partition).records:
            for header, data in iterate_batches(content):
                if not header.is_control:
                    records += [(record.offset, record.value or b"") for record in iterate_records(data)]
                offset = header.next_offset
    return log


def committed(client: RawClient, topic: str, partitions: int) -> Visible:
    """What a read_committed consumer sees of ``topic``."""
    return {index: [value or b"" for value in read_all(client, topic, index)] for index in range(partitions)}


def events_between_kills(chance: random.Random) -> int:
    """How many events pass before the next kill: often few, so that a kill meets the work of a recovery too."""
    return chance.choice([1, 5, 20, 60, 150])
