"""Where batches are in a segment's file: the two sparse indexes of Kafka's OffsetIndex and TimeIndex, in memory.

About every ``index.interval.bytes`` a batch gets an entry: its last offset, and the position where it begins. If the
highest timestamp up to and with that batch is a new one, the time index gets an entry too: the timestamp, and the last
offset of the first batch that has it. An index only says where to begin to look.
"""

from array import array
from bisect import bisect_left, bisect_right

NO_TIMESTAMP = -1


class SegmentIndex:
    """The entries of one segment; offsets are absolute."""

    def __init__(self) -> None:
        self.offsets = array("q")
        self.positions = array("q")
        self.times = array("q")
        self.time_offsets = array("q")

    @property
    def last_position(self) -> int:
        """Where the last indexed batch begins, 0 if there is none."""
        return self.positions[-1] if len(self.positions) else 0

    def add(self, offset: int, position: int) -> None:
        """Add the batch that begins at ``position`` and ends with ``offset``."""
        self.offsets.append(offset)
        self.positions.append(position)

    def add_time(self, timestamp: int, offset: int) -> None:
        """Note that ``timestamp`` is the highest so far, and that the batch that ends with ``offset`` has it; nothing
        happens if it is not higher than the last."""
        if timestamp > (self.times[-1] if self.times else NO_TIMESTAMP):
            self.times.append(timestamp)
            self.time_offsets.append(offset)

    def position_before(self, offset: int) -> int:
        """Where a batch begins that ends at or before ``offset``; the beginning if no entry does."""
        entry = bisect_right(self.offsets, offset) - 1
        return self.positions[entry] if entry >= 0 else 0

    def boundary_before(self, position: int) -> int:
        """Where a batch begins, at or before ``position``."""
        entry = bisect_right(self.positions, position) - 1
        return self.positions[entry] if entry >= 0 else 0

    def position_for_time(self, timestamp: int) -> int:
        """Where a batch begins before which no batch reaches ``timestamp``."""
        found = bisect_left(self.times, timestamp)
        if found == len(self.times):
            return self.last_position
        entry = bisect_left(self.offsets, self.time_offsets[found]) - 1
        return self.positions[entry] if entry >= 0 else 0

    def highest_before(self, offset: int) -> tuple[int, int]:
        """The highest timestamp of the batches that begin before the returned position, and that position: where a
        batch begins that ends before ``offset``."""
        entry = bisect_left(self.offsets, offset) - 1
        if entry < 0:
            return NO_TIMESTAMP, 0
        found = bisect_right(self.time_offsets, self.offsets[entry]) - 1
        return self.times[found] if found >= 0 else NO_TIMESTAMP, self.positions[entry]
