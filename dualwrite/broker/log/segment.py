"""One segment of a partition: a file of record batches, and their positions in it (Kafka's LogSegment).

Only the last segment of a log, the active one, gets new batches and keeps its file open. The others are sealed: they
never change, and each read opens their files.
"""

import struct
from collections.abc import Callable, Iterator
from pathlib import Path

from dualwrite.broker.log.batch_checks import LEADER_EPOCH, UncheckedPart, check_batches, checked_batches
from dualwrite.broker.log.index import (
    NO_TIMESTAMP,
    OFFSET_ENTRY,
    TIME_ENTRY,
    GrowingIndex,
    Index,
    StoredIndex,
)
from dualwrite.broker.log.index_checksums import NO_SUMS, DamagedIndexError, IndexSum
from dualwrite.broker.log.layout import OFFSET_INDEX, TIME_INDEX
from dualwrite.broker.log.settings import LogSettings
from dualwrite.ports import File, Files
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
"""Called with each batch while a log is opened: its header and, for a control batch, all of its bytes."""

_SCAN_CHUNK = 64 * 1024
_LOOKUP_CHUNK = 4096 + HEADER_SIZE
_OFFSET_ENTRY_BYTES, _TIME_ENTRY_BYTES = OFFSET_ENTRY.size, TIME_ENTRY.size
_HIGHEST_RELATIVE_OFFSET = 2**31 - 1


class DamagedSegmentError(ValueError):
    """The file has bytes that are not the next whole batch. The first ``Segment.size`` bytes are sound."""


class Segment:
    """The batches from ``base_offset`` up to but not including ``next_offset``. Only :meth:`sync` is thread-safe."""

    def __init__(self, files: Files, path: Path, base_offset: int) -> None:
        self.path = path
        self.base_offset = base_offset
        self.next_offset = base_offset
        self.size = 0
        """The size of all whole batches in bytes. The file may be longer until a torn tail is cut."""
        self.first_timestamp = NO_TIMESTAMP
        """The highest timestamp of the first batch, which determines the segment's age."""
        self.max_timestamp = NO_TIMESTAMP
        self.growing_index = GrowingIndex()
        """The index that :meth:`append` adds to."""
        self.index: Index = self.growing_index
        """The index that look-ups use."""
        self.stored = NO_SUMS
        """The sums of the entries that the index files have at least."""
        self.is_planned = False
        """True if it is sealed, and a planned recovery point will complete its index files."""
        self._max_timestamp_offset = base_offset
        self._unchecked = UncheckedPart()
        self._files = files
        self._file: File | None = files.open(self.path)

    @property
    def is_sealed(self) -> bool:
        """True if the segment takes no more batches."""
        return self._file is None

    def load(self, settings: LogSettings, bound: int, is_sealed: bool) -> None:
        """Use the indexes on disk for the batches below the offset ``bound``, after a check of a few batches at the
        end.

        :param is_sealed: True if no batch will follow, so that the indexes can stay on disk.
        :raises DamagedIndexError: if the indexes or the checked batches are wrong. The caller then calls
            :meth:`recover` of a new object.
        """
        stored = StoredIndex(self._files, self.path, self.base_offset)
        if is_sealed:
            stored.check()
            self.index = stored
        else:
            index = self.index = self.growing_index = stored.loaded(bound)
            offsets, times = index.offset_entries(0, self.base_offset), index.time_entries(0, self.base_offset)
            added = {OFFSET_INDEX: IndexSum().extended(offsets), TIME_INDEX: IndexSum().extended(times)}
            self.stored = {**NO_SUMS, **added}
        try:
            self._walk_to(bound, settings.index_interval_bytes)
        except (MalformedBatchError, struct.error) as error:
            raise DamagedIndexError(f"the index of {self.path.name} leads nowhere: {error}") from None
        self._unchecked.size = self.size

    def _walk_to(self, bound: int, interval: int) -> None:
        index, window = self.index, _Window(self._reader(), _LOOKUP_CHUNK)
        file_size = self._reader().size()
        if file_size:
            self.first_timestamp = peek_header(*window.view(0, HEADER_SIZE)).max_timestamp
        if len(index.times):
            self.max_timestamp, self._max_timestamp_offset = index.times[-1], index.time_offsets[-1]
        first = self.size = index.last_position
        if first < 0:
            raise MalformedBatchError(f"batch at byte {first}")
        while self.size < file_size and self.next_offset < bound:
            header = peek_header(*window.view(self.size, HEADER_SIZE))
            buffer, at = window.view(self.size, header.size)
            has_new_time = self._update_times(header)
            is_indexed = self.size == first and first > 0
            if (
                not checksum_matches(header, memoryview(buffer)[at : at + header.size])
                or header.next_offset > bound
                or (header.last_offset != index.offsets[-1] if is_indexed else header.base_offset != self.next_offset)
                or (is_indexed and has_new_time)
                or self.size - first > interval
            ):
                raise MalformedBatchError(f"batch at byte {self.size}")
            self.size += header.size
            self.next_offset = header.next_offset
        if (first and self.size == first) or (self.index is not self.growing_index and self.size < file_size):
            raise MalformedBatchError(f"byte {self.size} of {file_size}")
        if len(index.times):
            self._check_time(index.times[-1], index.time_offsets[-1])

    def _check_time(self, timestamp: int, offset: int) -> None:
        position, window = self._position_of(offset), _Window(self._reader(), _LOOKUP_CHUNK)
        header = peek_header(*window.view(position, HEADER_SIZE))
        if (header.last_offset, header.max_timestamp) != (offset, timestamp):
            raise MalformedBatchError(f"no batch of time {timestamp} ends at offset {offset}")

    def read_index_from_disk(self) -> None:
        """Use the files instead of the index in memory, for a sealed segment. May be called from another thread."""
        self.index, self.growing_index = StoredIndex(self._files, self.path, self.base_offset), GrowingIndex()

    @property
    def is_stored(self) -> bool:
        """True if the index files are complete."""
        return isinstance(self.index, StoredIndex)

    def recover(self, settings: LogSettings, on_batch: OnBatch, report_from: int = 0) -> None:
        """Read, check and index the rest of the file.

        :param report_from: batches below this offset are not reported.
        :raises DamagedSegmentError: at the first byte that does not belong to a sound batch with the next offset. All
            batches before it are indexed and reported.
        """
        file = self._reader()
        file_size = file.size()
        window = _Window(file, _SCAN_CHUNK)
        while self.size < file_size:
            try:
                header = peek_header(*window.view(self.size, HEADER_SIZE))
            except MalformedBatchError as error:
                raise DamagedSegmentError(f"at byte {self.size}: {error}") from None
            if header.base_offset != self.next_offset:
                raise DamagedSegmentError(
                    f"at byte {self.size}: offset {header.base_offset} after {self.next_offset - 1}"
                )
            if self.size + header.size > file_size:
                raise DamagedSegmentError(f"at byte {self.size}: a batch of {header.size} bytes runs past the end")
            buffer, start = window.view(self.size, header.size)
            batch = memoryview(buffer)[start : start + header.size]
            if not checksum_matches(header, batch):
                raise DamagedSegmentError(f"at byte {self.size}: wrong checksum of the batch")
            self._add(header, settings)
            # A batch with another leader epoch, which its checksum does not cover, is whole: its readers refuse it.
            if header.partition_leader_epoch != LEADER_EPOCH:
                self._unchecked.size = self.size
            if header.base_offset >= report_from:
                on_batch(header, bytes(batch) if header.is_control else None)

    def settle(self) -> None:
        """Let :meth:`recover` read what is on disk. Without bytes to recover, all of the file was on disk at a recovery
        point."""
        file = self._writer()
        if file.size() > self.size:
            file.settle()

    def cut_tail(self) -> int:
        """Cut the bytes after the last sound batch, durably. Return their number."""
        file = self._writer()
        torn = file.size() - self.size
        if torn:
            file.truncate(self.size)
        return torn

    def has_room(self, header: BatchHeader, size: int, settings: LogSettings) -> bool:
        """False if the batch with ``header``, of ``size`` bytes, must go into a new segment (Kafka:
        LogSegment.shouldRoll)."""
        if header.base_offset + header.last_offset_delta - self.base_offset > _HIGHEST_RELATIVE_OFFSET:
            return False
        first, index = self.first_timestamp, self.growing_index
        return not self.size or (
            self.size + size <= settings.segment_bytes
            and not (first >= 0 and header.max_timestamp - first > settings.segment_ms)  # as is_older_than
            and len(index.offsets) < settings.segment_index_bytes // _OFFSET_ENTRY_BYTES
            and len(index.times) < settings.segment_index_bytes // _TIME_ENTRY_BYTES
        )

    @property
    def newest_timestamp(self) -> int:
        """The highest timestamp of its records. If a cleaner has removed all of them, that of the first ones."""
        return self.max_timestamp if self.max_timestamp >= 0 else self.first_timestamp

    def is_older_than(self, age_ms: int, now_ms: int) -> bool:
        """True if the first batch has a timestamp and is more than ``age_ms`` old at ``now_ms``."""
        return self.first_timestamp >= 0 and now_ms - self.first_timestamp > age_ms

    def append(self, header: BatchHeader, batch: bytes | bytearray | memoryview, settings: LogSettings) -> int:
        """Write ``batch``, whose header is ``header``, at the end. Return the offset after it.

        :raises OSError: if the write fails. The segment must not be used again.
        """
        file = self._file
        assert file is not None, f"{self.path} is sealed"
        file.append(batch)
        return self._add(header, settings)

    def read(self, offset: int, max_bytes: int, before: int, at_least_one: bool) -> bytes:
        """As :meth:`~dualwrite.broker.log.partition_log.PartitionLog.read`, within this segment."""
        try:
            start = self._position_of(offset)
            stop = self._position_of(before)
            if stop - start > max_bytes:
                stop = self._last_boundary(start, start + max_bytes, at_least_one)
            batches = self._reader().read(start, stop - start) if stop > start else b""
            if batches and self._unchecked.has(start, start + len(batches)):
                self._check(start, batches, offset, _Window(self._reader(), HEADER_SIZE))
        except MalformedBatchError as error:
            raise self._named(error) from None
        return batches

    def size_between(self, offset: int, before: int) -> int:
        """As :meth:`~dualwrite.broker.log.partition_log.PartitionLog.size_between`, within this segment."""
        try:
            return self._position_of(before) - self._position_of(offset)
        except MalformedBatchError as error:
            raise self._named(error) from None

    def offset_for_timestamp(self, timestamp: int, start: int, before: int) -> tuple[int, int] | None:
        """As :meth:`~dualwrite.broker.log.partition_log.PartitionLog.offset_for_timestamp`, within this segment and
        from offset ``start`` on."""
        if not self.size or self.max_timestamp < timestamp:
            return None
        for position, header in self._headers_from(self.index.position_for_time(timestamp)):
            if header.base_offset >= before:
                break
            if header.record_count and header.max_timestamp >= timestamp and header.last_offset >= start:
                timestamp_and_offset = self._first_record(position, header, timestamp, start)
                if timestamp_and_offset is not None:
                    return timestamp_and_offset if timestamp_and_offset[1] < before else None
        return None

    def highest_timestamp(self, start: int, before: int) -> int:
        """The highest timestamp of the batches that end at or after ``start`` and before ``before``; -1 if there is
        none."""
        if start > self.base_offset:
            highest, position = NO_TIMESTAMP, self._position_of(start)
        elif before >= self.next_offset:
            return self.max_timestamp
        else:
            highest, position = self.index.highest_before(before)
        for _, header in self._headers_from(position):
            if header.last_offset >= before:
                break
            if header.record_count:
                highest = max(highest, header.max_timestamp)
        return highest

    def sync(self) -> None:
        """Return once everything appended before the call is on disk. May be called from another thread."""
        file = self._file
        if file is not None:
            file.sync()

    def seal(self) -> None:
        """Release the file. Everything must be on disk; no batch may follow."""
        if self.index is self.growing_index:
            self.growing_index.add_time(self.max_timestamp, self._max_timestamp_offset)
        self._file = None  # the file closes once another thread's sync is done

    def batches(self) -> Iterator[tuple[BatchHeader, bytes]]:
        """Every batch of a sealed segment. Any thread may call it; it stays complete if the segment is removed
        meanwhile.

        :raises FileNotFoundError: if the segment was removed before.
        :raises MalformedBatchError: at a damaged batch. A cleaner would give its content a new checksum.
        """
        try:
            yield from checked_batches(self._whole_batches(), self.base_offset)
        except MalformedBatchError as error:
            raise self._named(error) from None

    def _whole_batches(self) -> Iterator[tuple[BatchHeader, bytes]]:
        window, position, end = _Window(self._reader(), _SCAN_CHUNK), 0, self.size
        while position < end:
            header = peek_header(*window.view(position, HEADER_SIZE))
            buffer, start = window.view(position, header.size)
            yield header, buffer[start : start + header.size]
            position += header.size

    def close(self) -> None:
        """Release the file, without a sync."""
        if self._file is not None:
            self._file.close()

    def _reader(self) -> File:
        return self._files.reader(self.path) if self._file is None else self._file

    def _writer(self) -> File:
        assert self._file is not None, f"{self.path} is sealed"
        return self._file

    def _add(self, header: BatchHeader, settings: LogSettings) -> int:
        """Count the batch with ``header``, which is now the last. Return the offset after it."""
        size, timestamp = self.size, header.max_timestamp
        last_offset = header.base_offset + header.last_offset_delta
        if timestamp > self.max_timestamp:
            self._update_times(header)
        if not size:
            self.first_timestamp = timestamp
        elif size - self.growing_index.indexed_to > settings.index_interval_bytes:
            self.growing_index.add(last_offset, size)
            self.growing_index.add_time(self.max_timestamp, self._max_timestamp_offset)
        self.size = size + header.size
        self.next_offset = last_offset + 1
        return self.next_offset

    def _update_times(self, header: BatchHeader) -> bool:
        """Update the timestamps by the batch. True if its timestamp is the highest so far. A batch that a cleaner
        emptied has none."""
        is_highest = header.record_count > 0 and header.max_timestamp > self.max_timestamp
        if is_highest:
            self.max_timestamp, self._max_timestamp_offset = header.max_timestamp, header.last_offset
        return is_highest

    def _position_of(self, offset: int) -> int:
        """The position of the first batch that ends at or after ``offset``; the segment's end if there is none."""
        if offset >= self.next_offset:
            return self.size
        if offset <= self.base_offset:
            return 0
        window = _Window(self._reader(), _LOOKUP_CHUNK)
        position = self.index.position_before(offset)
        if position and self.is_stored and not self._begins_before(offset, position, window):
            position = 0  # the file is damaged
        while position < self.size:
            _, last_offset, size = peek_extent(*window.view(position, HEADER_SIZE))
            if last_offset >= offset:
                return position
            position += size
        raise MalformedBatchError(f"no batch with offset {offset}")

    def _begins_before(self, offset: int, position: int, window: "_Window") -> bool:
        """True if the batch at ``position`` may contain ``offset`` or an earlier one."""
        if not 0 <= position < self.size:
            return False
        try:
            header = peek_header(*window.view(position, HEADER_SIZE))
        except MalformedBatchError:
            return False
        return self.base_offset <= header.base_offset <= offset and header.size <= self.size - position

    def _last_boundary(self, start: int, limit: int, at_least_one: bool) -> int:
        """The end of the last whole batch that ends at or before ``limit``, which is a position inside the segment. If
        ``at_least_one``, at least the end of the batch at ``start``."""
        position = max(start, self.index.boundary_before(limit))
        window = _Window(self._reader(), _LOOKUP_CHUNK)
        while True:
            _, _, size = peek_extent(*window.view(position, HEADER_SIZE))
            if position + size > limit:
                return position + size if position == start and at_least_one else position
            position += size

    def _headers_from(self, position: int) -> Iterator[tuple[int, BatchHeader]]:
        window = _Window(self._reader(), _LOOKUP_CHUNK)
        while position < self.size:
            try:
                header = peek_header(*window.view(position, HEADER_SIZE))
                if self._unchecked.has(position, position + header.size):
                    buffer, start = window.view(position, header.size)
                    self._check(position, buffer[start : start + header.size], header.base_offset, window)
            except MalformedBatchError as error:
                raise self._named(error) from None
            yield position, header
            position += header.size

    def _named(self, error: MalformedBatchError) -> MalformedBatchError:
        """``error`` with the file's name."""
        return MalformedBatchError(f"{self.path}: {error}")

    def _check(self, position: int, batches: bytes, offset: int, window: "_Window") -> None:
        """Check ``batches``, which were read at ``position`` for a reader of ``offset``."""
        end, following = position + len(batches), self.next_offset
        if end < self.size:
            following = peek_header(*window.view(end, HEADER_SIZE)).base_offset
        check_batches(batches, offset, following)
        self._unchecked.was_checked(position, end)

    def _first_record(self, position: int, header: BatchHeader, timestamp: int, start: int) -> tuple[int, int] | None:
        """Timestamp and offset of the batch's first record at or after ``timestamp`` and offset ``start``. If the
        records cannot be decompressed, because a client wrote invalid data, the base offset."""
        inexact = header.max_timestamp, max(header.base_offset, start)
        try:
            body = batch_body(header, self._reader().read(position, header.size))
            records = [record for record in iterate_spans(header, body) if record.timestamp >= timestamp]
        except MalformedBatchError:
            return inexact
        if not records:
            return inexact
        return next(((record.timestamp, record.offset) for record in records if record.offset >= start), None)


class _Window:
    """Reads a file in chunks, so that many small batches cost one read."""

    def __init__(self, file: File, chunk: int) -> None:
        self._file = file
        self._chunk = chunk
        self._start = 0
        self._data = b""

    def view(self, position: int, size: int) -> tuple[bytes, int]:
        """A buffer, and the index at which it has ``size`` bytes from ``position`` on. At the end of the file the
        buffer has fewer."""
        index = position - self._start
        if index < 0 or index + size > len(self._data):
            self._data = self._file.read(position, max(size, self._chunk))
            self._start, index = position, 0
        return self._data, index
