"""Which offset of the target a moved record has: the offsets of one partition in both clusters.

Only committed records are moved, so the offsets of the two clusters differ. A *run* is a sequence of records without a
gap on either side.
"""

from array import array
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

SEVERAL = -1
"""The result of :func:`first_offset` for the records of several producers."""


class OffsetRun(NamedTuple):
    """``length`` records, whose offsets begin with ``source`` and ``target`` and have no gaps."""

    source: int
    target: int
    length: int


class OffsetMapping:
    """The moved records of one partition. Takes 24 bytes for each run.

    :param runs: the first runs, in the order of their offsets.
    """

    def __init__(self, runs: Iterable[OffsetRun] = ()) -> None:
        self._sources = array("q")
        self._targets = array("q")
        self._lengths = array("q")
        for run in runs:
            self.add(run)

    def add(self, run: OffsetRun) -> None:
        """Add a run behind all others; join it to the last one if there is no gap.

        :raises ValueError: if it is not behind the last run on both sides.
        """
        if run.length < 1 or run.source < self.next_source or run.target < self.next_target:
            raise ValueError(f"{run} is not behind source offset {self.next_source}, target offset {self.next_target}")
        if self._lengths and (run.source, run.target) == (self.next_source, self.next_target):
            self._lengths[-1] += run.length
            return
        self._sources.append(run.source)
        self._targets.append(run.target)
        self._lengths.append(run.length)

    def __iter__(self) -> Iterator[OffsetRun]:
        return map(OffsetRun, self._sources, self._targets, self._lengths)

    def __len__(self) -> int:
        """The number of moved records."""
        return sum(self._lengths)

    @property
    def next_source(self) -> int:
        """The source offset after the last moved record; 0 if there is none."""
        return self._sources[-1] + self._lengths[-1] if self._lengths else 0

    @property
    def next_target(self) -> int:
        """The target offset after the last moved record; 0 if there is none."""
        return self._targets[-1] + self._lengths[-1] if self._lengths else 0

    def target_of(self, source: int) -> int | None:
        """The target offset of the record with this source offset; None if no record with it was moved."""
        index = bisect_right(self._sources, source) - 1
        if index < 0 or source >= self._sources[index] + self._lengths[index]:
            return None
        return self._targets[index] + source - self._sources[index]

    def translate(self, position: int) -> int:
        """The position at the target that is equal to ``position`` at the source: the target offset of the first moved
        record at or after it, or the one after the last moved record.

        A consumer that goes on there reads the same records as one that goes on at ``position``.
        """
        index = bisect_right(self._sources, position) - 1
        if index >= 0 and position < self._sources[index] + self._lengths[index]:
            return self._targets[index] + position - self._sources[index]
        return self._targets[index + 1] if index + 1 < len(self._targets) else self.next_target

    def reversed(self) -> "OffsetMapping":
        """The mapping for the way back."""
        return OffsetMapping(OffsetRun(target, source, length) for source, target, length in self)

    def merged(self, other: "OffsetMapping") -> "OffsetMapping":
        """The runs of both, which must not overlap.

        :raises ValueError: if they overlap.
        """
        return OffsetMapping(sorted((*self, *other)))


def runs_of(sources: Iterable[int], targets: Iterable[int]) -> list[OffsetRun]:
    """The runs of records whose offsets are ``sources`` and ``targets``, record by record and in order."""
    runs: list[OffsetRun] = []
    for source, target in zip(sources, targets, strict=True):
        last = runs[-1] if runs else None
        if last is not None and (source, target) == (last.source + last.length, last.target + last.length):
            runs[-1] = last._replace(length=last.length + 1)
        else:
            runs.append(OffsetRun(source, target, 1))
    return runs


def first_offset(offsets: Sequence[int]) -> int | None:
    """The offset of the first of several records that were written one after the other.

    :param offsets: the offset of each; negative if the cluster did not tell it, as for a repeated request.
    :return: None if no offset is known; SEVERAL if there are records of another producer between them.
    """
    firsts = {offset - index for index, offset in enumerate(offsets) if offset >= 0}
    if not firsts:
        return None
    return firsts.pop() if len(firsts) == 1 else SEVERAL
