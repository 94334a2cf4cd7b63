"""The log of one partition: segments named by their base offsets, as Kafka has them on disk (Kafka's UnifiedLog).

Threads: one thread owns a log and makes every call. Only :meth:`PartitionLog.sync` may run in another thread at the
same time, one call at a time. No lock is needed, because each shared value has a single writer: the owner writes the
list of segments and the end offset, the syncing thread writes the synced offset. A sealed segment never changes, so any
thread may read it.
"""

from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Sequence
from operator import attrgetter
from pathlib import Path
from threading import Lock

from dualwrite.broker.facts.producer_snapshot import ProducerSnapshot, encode_snapshot
from dualwrite.broker.facts.transaction_index import IndexedTransaction
from dualwrite.broker.log.layout import (
    LOG,
    LOG_START_OFFSET,
    RECOVERY_POINT,
    name_at,
    write_mark,
)
from dualwrite.broker.log.recovery import LogRecovery, OnSnapshot, remove_segment
from dualwrite.broker.log.recovery_point import PendingIndexes, RecoveryPoint, StoredSnapshots, joined
from dualwrite.broker.log.replacement import Replacement, swap_in
from dualwrite.broker.log.segment import OnBatch, Segment
from dualwrite.broker.log.settings import LogSettings
from dualwrite.ports import Files
from dualwrite.records.header import BatchHeader, peek_header

_POINT_BYTES = 64 * 1024 * 1024
_BYTES_LIKE_A_BATCH = 1024
"""The bytes that a start reads in the time that one batch header takes."""

_by_base_offset = attrgetter("base_offset")


class PartitionLog:
    """Batches in the order of their offsets. Made by :meth:`open`.

    After an OSError from any method the log is in an unknown state. The caller must stop the process; the next start
    recovers from the disk.
    """

    def __init__(self, files: Files, directory: Path, settings: LogSettings, recovery: LogRecovery) -> None:
        self.directory = directory
        self.cut_bytes = recovery.cut_bytes
        """How many bytes of a torn tail :meth:`open` cut off. The caller logs it if it is not 0."""
        self.settings = settings
        """The log's settings. A change applies from the next append on."""
        self.start_offset = recovery.start_offset
        """The first offset that readers may read."""
        self._files = files
        self._segments = recovery.segments
        self._end_offset = self._synced_offset = recovery.segments[-1].next_offset
        self.repairs = recovery.repairs
        """One line for each file that was missing or damaged and was rebuilt. The caller logs them."""
        self._end_at_last_call = -1
        """The end of the log at the last call of :meth:`roll_if_due`."""
        self._planned_before = recovery.replayed_from
        self._points: deque[RecoveryPoint] = deque()
        self._snapshots = StoredSnapshots(files, directory)
        self._writing_points = Lock()
        self._is_abandoned = False
        is_as_noted = recovery.recovery_point == recovery.replayed_from == self._end_offset and not recovery.cut_bytes
        self._unplanned = 0 if is_as_noted and not recovery.repairs else 1

    @classmethod
    def open(
        cls,
        files: Files,
        directory: Path,
        settings: LogSettings,
        on_batch: OnBatch,
        on_snapshot: OnSnapshot | None = None,
    ) -> "PartitionLog":
        """The log in ``directory``, which is created if it is missing.

        Calls ``on_batch(header, body)`` for every batch in order. ``body`` is the whole batch for a control batch and
        None for any other. A torn tail is cut from the last segment. The batches that are read there have their
        checksums verified; in earlier segments only the headers are checked. On return all reported batches are
        durable.

        :param on_snapshot: called first with the state at the last recovery point, if that is sound; then only later
            batches are read and reported. None to read every batch.
        :raises CorruptLogError: if an earlier segment is damaged or missing, a file has an invalid name, or a part of
            the log below the last recovery point is missing. Nothing was cut then.
        """
        recovery = LogRecovery(files, directory, settings, on_batch, on_snapshot)
        recovery.run()
        return cls(files, directory, settings, recovery)

    @property
    def end_offset(self) -> int:
        """The offset of the next record."""
        return self._end_offset

    @property
    def size_bytes(self) -> int:
        """The size of all segments in bytes."""
        return sum(segment.size for segment in self._segments)

    @property
    def synced_offset(self) -> int:
        """The offset below which every batch is covered by a :meth:`sync`."""
        return self._synced_offset

    @property
    def unsynced(self) -> bool:
        """True if some appended batch is not covered by a :meth:`sync` yet."""
        return self._synced_offset < self._end_offset

    def append(self, batch: bytes | bytearray | memoryview, header: BatchHeader | None = None) -> None:
        """Write ``batch``. Begins a new segment if the last is full or too old.

        :param batch: its base offset must be :attr:`end_offset`.
        :param header: the header of ``batch``, if the caller has it.
        :raises MalformedBatchError: if ``batch`` does not begin with the header of a record batch. Nothing was written.
        """
        if header is None:
            header = peek_header(batch)
        size = len(batch)
        assert header.base_offset == self._end_offset, f"batch at {header.base_offset}, log ends at {self._end_offset}"
        assert header.size == size, f"batch of {header.size} bytes in a buffer of {size}"
        segment, settings = self._segments[-1], self.settings
        if not segment.has_room(header, size, settings):
            segment = self._roll()
        self._end_offset = segment.append(header, batch, settings)
        self._unplanned += size + _BYTES_LIKE_A_BATCH

    def read(self, offset: int, max_bytes: int, before: int, at_least_one: bool = True) -> bytes:
        """Whole batches that end at or before offset ``before``, from the batch that contains ``offset`` on.

        Returns at most ``max_bytes``; if ``at_least_one``, the first batch even if it alone is larger. Stops at the end
        of a segment: the caller reads on from there. Empty if there is no such batch.

        :param offset: at least :attr:`start_offset`. For a lower one the caller answers OFFSET_OUT_OF_RANGE.
        """
        assert offset >= self.start_offset, f"offset {offset}, log begins at {self.start_offset}"
        return self._segment_with(offset).read(offset, max_bytes, before, at_least_one)

    def size_between(self, offset: int, before: int) -> int:
        """The size of all that :meth:`read` could return from ``offset`` on, if ``max_bytes`` allowed it."""
        return self._segment_with(offset).size_between(offset, before)

    def stops_early(self, offset: int, before: int) -> bool:
        """True if :meth:`read` from ``offset`` on stops at the end of a segment below ``before``."""
        return self._segment_with(offset).next_offset < before

    def _segment_with(self, offset: int) -> Segment:
        return self._segments[bisect_right(self._segments, offset, key=_by_base_offset) - 1]

    def offset_for_timestamp(self, timestamp: int, before: int) -> tuple[int, int] | None:
        """(timestamp, offset) of the first record at or after ``timestamp``, if its offset is below ``before``.

        Exact to the record: the batch is decompressed, if that is possible.

        :param timestamp: milliseconds since the epoch.
        """
        for segment in self._segments:
            timestamp_and_offset = segment.offset_for_timestamp(timestamp, self.start_offset, before)
            if timestamp_and_offset or segment.next_offset >= before:
                return timestamp_and_offset
        return None

    def max_timestamp(self, before: int) -> tuple[int, int] | None:
        """(timestamp, offset) of the first record with the highest timestamp in all batches that end before ``before``.

        As exact as :meth:`offset_for_timestamp`. None if there is no such batch.
        """
        if before <= self.start_offset:
            return None
        visible = (segment for segment in self._segments if segment.base_offset < before)
        highest = max(segment.highest_timestamp(self.start_offset, before) for segment in visible)
        return self.offset_for_timestamp(highest, before)

    def sync(self) -> None:
        """Return once everything appended before the call is on disk. May be called from another thread.

        :raises OSError: if the disk failed. The bytes may or may not be on disk; the caller must stop the process.
        """
        end = self._end_offset  # read first: all below it is in the segment read next, or a roll has synced it
        self._segments[-1].sync()
        self._synced_offset = max(self._synced_offset, end)

    def checkpoint(self) -> None:
        """Sync, and store the end as the recovery point, without a snapshot. For a log that is always replayed whole.

        :raises OSError: as :meth:`sync`.
        """
        self.sync()
        write_mark(self._files, self.directory / RECOVERY_POINT, self._end_offset)

    @property
    def point_due(self) -> bool:
        """True if a recovery point is due: since the last one a segment was sealed, or so much was appended that a
        restart would take long."""
        return self._unplanned > _POINT_BYTES

    @property
    def has_unplanned(self) -> bool:
        """True if a recovery point at the end of the log would write anything to disk."""
        return self._unplanned > 0

    def plan_recovery_point(
        self, producers: Sequence[ProducerSnapshot], aborted_since: Callable[[int], Sequence[IndexedTransaction]]
    ) -> None:
        """Plan a recovery point at the end of the log. :meth:`write_recovery_points` writes it.

        :param producers: the current state of the producers.
        :param aborted_since: returns the aborted transactions whose markers are at or after an offset.
        """
        if self._is_abandoned:
            return
        aborted = aborted_since(self._planned_before)
        indexes = []
        for segment in self._segments:
            # Points are written in their order: the first one after its end completes a segment's files.
            if not (segment.is_sealed and (segment.is_stored or segment.is_planned)):
                own = [end for end in aborted if segment.base_offset <= end.last_offset < segment.next_offset]
                indexes.append(PendingIndexes(segment, own))
                segment.is_planned = segment.is_sealed
        self._points.append(RecoveryPoint(self._end_offset, indexes, encode_snapshot(producers)))
        self._planned_before, self._unplanned = self._end_offset, 0

    def write_recovery_points(self) -> None:
        """Return once all planned recovery points are stored, those that have waited as one. May be called from any
        thread, at any time.

        :raises OSError: as :meth:`sync`.
        """
        with self._writing_points:
            while self._points:
                point = joined([self._points.popleft() for _ in range(len(self._points))])
                if self._synced_offset < point.offset:
                    self.sync()
                point.write(self._files, self.directory, self._snapshots)

    def abandon(self) -> None:
        """Drop the planned recovery points, because the files will be removed."""
        with self._writing_points:
            self._is_abandoned = True
            self._points.clear()

    def close(self) -> None:
        """Release the files, without a sync. No other thread may be in :meth:`sync`."""
        for segment in self._segments:
            segment.close()

    # --- retention: find the new log start offset, and move the log's start

    def expired_before(self, oldest_ms: int, limit: int) -> int:
        """The end of the oldest segments whose records are all older than ``oldest_ms``; the log's start if the first
        segment is younger. A segment without timestamps never expires (Kafka uses the age of its file).

        :param oldest_ms: the current time minus retention.ms.
        :param limit: the high watermark; segments that reach beyond it stay.
        """
        expired = self.start_offset
        for segment in self._segments:
            if segment.next_offset > limit or not 0 <= segment.newest_timestamp < oldest_ms:
                break
            expired = max(expired, segment.next_offset)
        return expired

    def oversized_before(self, retention_bytes: int, limit: int) -> int:
        """The end of the oldest segments without which the log still has ``retention_bytes``; the log's start if there
        are none.

        :param limit: as for :meth:`expired_before`.
        """
        oversized, surplus = self.start_offset, self.size_bytes - retention_bytes
        for segment in self._segments:
            surplus -= segment.size
            if segment.next_offset > limit or surplus < 0:
                break
            oversized = max(oversized, segment.next_offset)
        return oversized

    def removes_segments(self, offset: int) -> bool:
        """True if :meth:`truncate_before` would remove segments."""
        return self.start_offset < offset and self._segments[0].next_offset <= offset

    def truncate_before(self, offset: int) -> None:
        """Raise the log start offset to ``offset``, durably, and remove the segments that end at or before it
        (DeleteRecords, retention). Does nothing if the log begins there or later.

        :param offset: at most the high watermark.
        """
        assert offset <= self._end_offset, f"offset {offset}, log ends at {self._end_offset}"
        if offset <= self.start_offset:
            return
        self.write_recovery_points()  # they may concern segments that will be removed
        if offset == self._end_offset and self._segments[-1].size:
            self._roll()
        elif self.unsynced:
            self.sync()  # after a power cut, the log must not end before its start
        write_mark(self._files, self.directory / LOG_START_OFFSET, offset)
        self.start_offset = offset
        removed = [segment for segment in self._segments[:-1] if segment.next_offset <= offset]
        self._segments = self._segments[len(removed) :]
        for segment in removed:
            remove_segment(self._files, self.directory, segment.base_offset)

    def roll_if_due(self, now_ms: int) -> bool:
        """Begin a new segment if the last is older than segment.ms, and has got no batch since the last call. True if
        that is so.

        Kafka checks only at an append, by the time of the records, and so never cleans a log that gets no more of them.
        A log that gets more has the check at its appends here, too. At each call, records that are old already when
        they come would begin one segment after the other.
        """
        segment, is_idle = self._segments[-1], self._end_at_last_call == self._end_offset
        self._end_at_last_call = self._end_offset
        due = is_idle and segment.size > 0 and segment.is_older_than(self.settings.segment_ms, now_ms)
        if due:
            self._roll()
        return due

    # --- cleaning

    def sealed_segments(self) -> Sequence[Segment]:
        """All segments but the last, oldest first. They never change, so any thread may read them."""
        return self._segments[:-1]

    def begin_replacement(self, old: Sequence[Segment]) -> Replacement:
        """An empty replacement for ``old``. Any thread may fill and finish it; :meth:`replace` puts it into the log.

        :param old: consecutive segments of :meth:`sealed_segments`, together smaller than segment.bytes.
        """
        return Replacement(self._files, self.directory, old, self.settings)

    def replace(self, replacement: Replacement, aborted: Sequence[IndexedTransaction] = ()) -> bool:
        """Replace the old segments by the finished ``replacement``, durably. A crash leaves the old segments or the new
        one.

        :param aborted: the aborted transactions whose markers are in the old segments.
        :returns: False if one of the old segments was removed meanwhile; the replacement was then removed too.
        """
        if replacement.old[0] not in self._segments:
            replacement.discard()
            return False
        first = self._segments.index(replacement.old[0])
        assert tuple(self._segments[first : first + len(replacement.old)]) == replacement.old
        self.write_recovery_points()  # they may concern segments that will be removed
        segment = swap_in(self._files, self.directory, replacement, aborted)
        self._segments = [*self._segments[:first], segment, *self._segments[first + len(replacement.old) :]]
        return True

    def _roll(self) -> Segment:
        """Begin a new segment. The full segment is on disk before that, and the new one's name before its first
        batch."""
        if self.unsynced:
            self._segments[-1].sync()
        segment = Segment(self._files, self.directory / name_at(self._end_offset, LOG), self._end_offset)
        self._files.sync_directory(self.directory)
        self._segments[-1].seal()
        self._segments = [*self._segments, segment]
        self._unplanned += _POINT_BYTES
        return segment
