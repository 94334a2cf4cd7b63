"""One segment of a partition: a file of record batches, and a sparse index of it in memory (Kafka's LogSegment).

The index has an entry about every 4 KiB (Kafka's index.interval.bytes): the base offset of a batch, its position, and
the highest timestamp of all batches before it. It is rebuilt from the batch headers when the segment is opened.
"""

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator

from dualwrite.ports import File
from dualwrite.records.compression import batch_body
from dualwrite.records.header import (
    HEADER_SIZE,
    BatchHeader,
    MalformedBatchError,
    checksum_matches,
    peek_extent,
    peek_header,
)
from dualwrite.records.rewriting import iterate_spans

OnBatch = Callable[[BatchHeader, bytes | None], None]
"""Called with each batch of a log that is opened: its header and, if it is a control batch, all of its bytes."""

_INDEX_INTERVAL = 4096
_NO_TIMESTAMP = -1
_SCAN_CHUNK = 64 * 1024
_LOOKUP_CHUNK = _INDEX_INTERVAL + HEADER_SIZE


class DamagedSegmentError(ValueError):
    """The file has bytes that are not the next whole batch. What precedes them, ``Segment.size`` bytes, is sound."""


class Segment:
    """The batches from ``base_offset`` up to but not including ``next_offset``. Only :meth:`sync` is thread-safe."""

    def __init__(self, file: File, base_offset: int) -> None:
        self.base_offset = base_offset
        self.next_offset = base_offset
        self.size = 0
        """Bytes of whole batches; the file itself may be longer until a torn tail is cut."""
        self.max_timestamp = _NO_TIMESTAMP
        self._file = file
        self._offsets = array("q")
        self._positions = array("q")
        self._max_timestamps_before = array("q")

    def recover(self, on_batch: OnBatch, verify: bool) -> None:
        """Read the headers of the whole file, once, and index them. With ``verify``, check every batch's checksum too.

        :raises DamagedSegmentError: at the first byte that does not belong to a sound batch with the next offset; all
            batches before it have been indexed and reported.
        """
        file_size = self._file.size()
        window = _Window(self._file, _SCAN_CHUNK)
        while self.size < file_size:
            try:
                header = peek_header(*window.at(self.size, HEADER_SIZE))
            except MalformedBatchError as error:
                raise DamagedSegmentError(f"at byte {self.size}: {error}") from None
            if header.base_offset != self.next_offset:
                raise DamagedSegmentError(
                    f"at byte {self.size}: offset {header.base_offset} after {self.next_offset - 1}"
                )
            if self.size + header.size > file_size:
                raise DamagedSegmentError(f"at byte {self.size}: a batch of {header.size} bytes runs past the end")
            body = None
            if verify or header.is_control:
                buffer, at = window.at(self.size, header.size)
                batch = memoryview(buffer)[at : at + header.size]
                if not checksum_matches(header, batch):
                    raise DamagedSegmentError(f"at byte {self.size}: wrong checksum of the batch")
                body = bytes(batch) if header.is_control else None
            self._add(header)
            on_batch(header, body)

    def cut_tail(self) -> int:
        """Cut what follows the last sound batch, durably; returns how many bytes that was."""
        torn = self._file.size() - self.size
        if torn:
            self._file.truncate(self.size)
        return torn

    def append(self, header: BatchHeader, batch: bytes | bytearray) -> None:
        """Write ``batch``, whose header is ``header``, at the end.

        :raises OSError: as the file does; the segment must not be used again.
        """
        self._file.append(memoryview(batch))
        self._add(header)

    def read(self, offset: int, max_bytes: int, before: int, at_least_one: bool) -> bytes:
        """As :meth:`~dualwrite.broker.log.partition_log.PartitionLog.read`, within this segment."""
        start = self._position_of(offset)
        stop = self._position_of(before)
        if stop - start > max_bytes:
            stop = self._last_boundary(start, start + max_bytes, at_least_one)
        return self._file.read(start, stop - start) if stop > start else b""

    def offset_for_timestamp(self, timestamp: int, before: int) -> tuple[int, int] | None:
        """As :meth:`~dualwrite.broker.log.partition_log.PartitionLog.offset_for_timestamp`, within this segment."""
        if not self.size or self.max_timestamp < timestamp:
            return None
        entry = max(0, bisect_left(self._max_timestamps_before, timestamp) - 1)
        for position, header in self._headers_from(entry):
            if header.base_offset >= before:
                break
            if header.max_timestamp >= timestamp:
                found = self._first_record(position, header, timestamp)
                return found if found[1] < before else None
        return None

    def highest_timestamp(self, before: int) -> int:
        """The highest timestamp of the batches that end before ``before``; -1 if there is none."""
        if before >= self.next_offset:
            return self.max_timestamp
        entry = max(0, bisect_right(self._offsets, before) - 1)
        highest = self._max_timestamps_before[entry]
        for _, header in self._headers_from(entry):
            if header.last_offset >= before:
                break
            highest = max(highest, header.max_timestamp)
        return highest

    def sync(self) -> None:
        """Return once everything appended before the call is on disk. May be called from another thread."""
        self._file.sync()

    def close(self) -> None:
        """Release the file, without syncing it."""
        self._file.close()

    def _add(self, header: BatchHeader) -> None:
        if not self._positions or self.size - self._positions[-1] >= _INDEX_INTERVAL:
            self._offsets.append(header.base_offset)
            self._positions.append(self.size)
            self._max_timestamps_before.append(self.max_timestamp)
        self.size += header.size
        self.next_offset = header.next_offset
        if header.max_timestamp > self.max_timestamp:
            self.max_timestamp = header.max_timestamp

    def _position_of(self, offset: int) -> int:
        """Where the batch that holds ``offset`` begins; the segment's beginning or end for one outside of it."""
        if offset >= self.next_offset:
            return self.size
        if offset <= self.base_offset:
            return 0
        position = self._positions[bisect_right(self._offsets, offset) - 1]
        window = _Window(self._file, _LOOKUP_CHUNK)
        while True:
            _, last_offset, size = peek_extent(*window.at(position, HEADER_SIZE))
            if last_offset >= offset:
                return position
            position += size

    def _last_boundary(self, start: int, limit: int, at_least_one: bool) -> int:
        """The end of the last whole batch that ends at or before ``limit``, for a ``limit`` inside the segment; the end
        of the batch at ``start`` if that alone is too long and ``at_least_one``."""
        position = max(start, self._positions[bisect_right(self._positions, limit) - 1])
        window = _Window(self._file, _LOOKUP_CHUNK)
        while True:
            _, _, size = peek_extent(*window.at(position, HEADER_SIZE))
            if position + size > limit:
                return position + size if position == start and at_least_one else position
            position += size

    def _headers_from(self, entry: int) -> Iterator[tuple[int, BatchHeader]]:
        position = self._positions[entry]
        window = _Window(self._file, _LOOKUP_CHUNK)
        while position < self.size:
            header = peek_header(*window.at(position, HEADER_SIZE))
            yield position, header
            position += header.size

    def _first_record(self, position: int, header: BatchHeader, timestamp: int) -> tuple[int, int]:
        """Timestamp and offset of the batch's first record at or after ``timestamp``. A batch whose records cannot be
        opened (nonsense that a client wrote) answers with its base offset."""
        inexact = header.max_timestamp, header.base_offset
        try:
            body = batch_body(header, self._file.read(position, header.size))
            records = iterate_spans(header, body)
            return next(
                ((record.timestamp, record.offset) for record in records if record.timestamp >= timestamp), inexact
            )
        except MalformedBatchError:
            return inexact


class _Window:
    """Reads a file in chunks, so that many small batches cost one read."""

    def __init__(self, file: File, chunk: int) -> None:
        self._file = file
        self._chunk = chunk
        self._start = 0
        self._data = b""

    def at(self, position: int, size: int) -> tuple[bytes, int]:
        """A buffer and the index in it where ``size`` bytes from ``position`` begin; fewer at the end of the file."""
        index = position - self._start
        if index < 0 or index + size > len(self._data):
            self._data = self._file.read(position, max(size, self._chunk))
            self._start, index = position, 0
        return self._data, index
