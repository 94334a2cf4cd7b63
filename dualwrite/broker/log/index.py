"""The positions of batches in a segment's file: the two sparse indexes of Kafka's OffsetIndex and TimeIndex.

About every ``index.interval.bytes`` a batch gets an entry: its last offset, and the position where it begins. If the
highest timestamp so far, including that batch, is new, the time index gets an entry too: the timestamp, and the last
offset of the first batch with it. An index gives only the position at which a search begins.

The active segment has its indexes in memory. Look-ups in sealed segments read single entries from the index files. On
disk, offsets are relative to the segment's base offset.
"""

import struct
from array import array
from bisect import bisect_left, bisect_right
from pathlib import Path
from typing import Protocol

from dualwrite.broker.log.index_checksums import IndexSums, checked_index, read_sums
from dualwrite.broker.log.layout import OFFSET_INDEX, TIME_INDEX
from dualwrite.ports import File, Files
from dualwrite.records.header import MalformedBatchError

NO_TIMESTAMP = -1
OFFSET_ENTRY = struct.Struct(">ii")
TIME_ENTRY = struct.Struct(">qi")
_INT = struct.Struct(">i")
_LONG = struct.Struct(">q")


class Column(Protocol):
    """Increasing numbers."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> int: ...


class Index:
    """The entries of one segment; offsets are absolute."""

    offsets: Column
    positions: Column
    times: Column
    time_offsets: Column

    @property
    def last_position(self) -> int:
        """The position of the last indexed batch, 0 if there is none."""
        return self.positions[-1] if len(self.positions) else 0

    def position_before(self, offset: int) -> int:
        """The position of a batch that ends at or before ``offset``; 0 if no entry has such a batch."""
        entry = bisect_right(self.offsets, offset) - 1
        return self.positions[entry] if entry >= 0 else 0

    def boundary_before(self, position: int) -> int:
        """The position of a batch at or before ``position``."""
        entry = bisect_right(self.positions, position) - 1
        return self.positions[entry] if entry >= 0 else 0

    def position_for_time(self, timestamp: int) -> int:
        """A batch's position; no batch before it has a timestamp of ``timestamp`` or higher."""
        time_entry = bisect_left(self.times, timestamp)
        if time_entry == len(self.times):
            return self.last_position
        entry = bisect_left(self.offsets, self.time_offsets[time_entry]) - 1
        return self.positions[entry] if entry >= 0 else 0

    def highest_before(self, offset: int) -> tuple[int, int]:
        """A timestamp and a position. The position is that of a batch that ends before ``offset``; the timestamp is the
        highest of the batches before that position."""
        entry = bisect_left(self.offsets, offset) - 1
        if entry < 0:
            return NO_TIMESTAMP, 0
        time_entry = bisect_right(self.time_offsets, self.offsets[entry]) - 1
        return self.times[time_entry] if time_entry >= 0 else NO_TIMESTAMP, self.positions[entry]


class GrowingIndex(Index):
    """The index of the active segment, in memory."""

    offsets: "array[int]"
    positions: "array[int]"
    times: "array[int]"
    time_offsets: "array[int]"

    def __init__(self) -> None:
        self.offsets = array("q")
        self.positions = array("q")
        self.times = array("q")
        self.time_offsets = array("q")
        self.indexed_to = 0
        """The same as :attr:`last_position`, for each append."""

    def add(self, offset: int, position: int) -> None:
        """Add the batch that begins at ``position`` and ends with ``offset``."""
        self.offsets.append(offset)
        self.positions.append(position)
        self.indexed_to = position

    def add_time(self, timestamp: int, offset: int) -> None:
        """Add ``timestamp``, of the batch that ends with ``offset``, if it is higher than the last."""
        if timestamp > (self.times[-1] if self.times else NO_TIMESTAMP):
            self.times.append(timestamp)
            self.time_offsets.append(offset)

    def offset_entries(self, first: int, base_offset: int) -> bytes:
        """The offset entries from number ``first`` on, in their form on disk."""
        pairs = zip(self.offsets[first:], self.positions[first:], strict=True)
        return b"".join(OFFSET_ENTRY.pack(offset - base_offset, position) for offset, position in pairs)

    def time_entries(self, first: int, base_offset: int) -> bytes:
        """The time entries from number ``first`` on, in their form on disk."""
        pairs = zip(self.times[first:], self.time_offsets[first:], strict=True)
        return b"".join(TIME_ENTRY.pack(time, offset - base_offset) for time, offset in pairs)


class StoredIndex(Index):
    """The index in the two files beside a sealed segment."""

    def __init__(self, files: Files, log: Path, base_offset: int) -> None:
        self._files = files
        self._log = log
        self._offset_index = log.with_suffix(OFFSET_INDEX)
        self._time_index = log.with_suffix(TIME_INDEX)
        self._base = base_offset
        self._sums: IndexSums | None = None

    def check(self) -> None:
        """Check both files. Entries that a crash has left behind the checked ones are not used.

        :raises DamagedIndexError: if a file is missing or damaged.
        """
        sums = read_sums(self._files, self._log)
        for path in (self._offset_index, self._time_index):
            checked_index(self._files, path, sums[path.suffix])
        self._sums = sums

    def loaded(self, before: int) -> GrowingIndex:
        """The entries of batches that end before the offset ``before``, in memory.

        :raises DamagedIndexError: as :meth:`check`.
        """
        index, sums = GrowingIndex(), read_sums(self._files, self._log)
        content = checked_index(self._files, self._offset_index, sums[OFFSET_INDEX])
        for relative, position in OFFSET_ENTRY.iter_unpack(content):
            if relative >= before - self._base:
                break
            index.add(self._base + relative, position)
        content = checked_index(self._files, self._time_index, sums[TIME_INDEX])
        for time, relative in TIME_ENTRY.iter_unpack(content):
            if relative >= before - self._base:
                break
            index.add_time(time, self._base + relative)
        return index

    # The look-ups of ``Index`` use attributes; here each attribute opens the file again.

    @property
    def offsets(self) -> Column:  # type: ignore[override]
        """Last offsets of the indexed batches."""
        return self._column(self._offset_index, OFFSET_ENTRY.size, 0, _INT, self._base)

    @property
    def positions(self) -> Column:  # type: ignore[override]
        """The positions of the indexed batches."""
        return self._column(self._offset_index, OFFSET_ENTRY.size, _INT.size, _INT, 0)

    @property
    def times(self) -> Column:  # type: ignore[override]
        """The timestamps of the time index."""
        return self._column(self._time_index, TIME_ENTRY.size, 0, _LONG, 0)

    @property
    def time_offsets(self) -> Column:  # type: ignore[override]
        """For each timestamp of the time index, the last offset of its batch."""
        return self._column(self._time_index, TIME_ENTRY.size, _LONG.size, _INT, self._base)

    def _column(self, path: Path, entry_size: int, at: int, field: struct.Struct, base: int) -> Column:
        file = self._files.reader(path)
        size = file.size() if self._sums is None else self._sums[path.suffix].size
        return _StoredColumn(file, size // entry_size, entry_size, at, field, base)


class _StoredColumn:
    """One field of the first ``count`` entries of a file."""

    def __init__(self, file: File, count: int, entry_size: int, at: int, field: struct.Struct, base: int) -> None:
        self._file = file
        self._entry_size = entry_size
        self._at = at
        self._field = field
        self._base = base
        self._count = count

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int, /) -> int:
        position = (index % self._count) * self._entry_size + self._at
        data = self._file.read(position, self._field.size)
        if len(data) < self._field.size:
            raise MalformedBatchError(f"an index file ends before byte {position}")
        (value,) = self._field.unpack(data)
        return int(value) + self._base
