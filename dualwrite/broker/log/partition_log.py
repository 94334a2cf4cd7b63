"""The log of one partition: segments named by their base offsets, as Kafka has them on disk (Kafka's UnifiedLog).

Threads: one thread owns a log and makes every call; only :meth:`PartitionLog.sync` may run in another thread at the
same time, one at a time. No lock is needed, because the two share three things, each written by one of them: the list
of segments and the end offset (the owner), and the synced offset (whoever syncs).

The recovery point: a clean stop notes how far the log reaches. Damage below it is no crash's, and must not be cut away
as one (Kafka's recovery-point-offset-checkpoint).

What can be torn: a segment is synced before the next one is begun, so that a power cut can damage the last segment
only, whether or not anybody calls ``sync``. Damage anywhere else was not caused by losing power.
"""

import re
from bisect import bisect_right
from operator import attrgetter
from pathlib import Path

from dualwrite.broker.log.segment import DamagedSegmentError, OnBatch, Segment
from dualwrite.errors import CorruptLogError
from dualwrite.ports import Files
from dualwrite.records.header import peek_header

_SUFFIX = ".log"
_RECOVERY_POINT = "recovery-point"
_SEGMENT_NAME = re.compile(r"\d{20}\.log")
_by_base_offset = attrgetter("base_offset")


def read_recovery_point(files: Files, directory: Path) -> int:
    """The offset up to which the log in ``directory`` was whole at its last clean stop; 0 if it had none."""
    if _RECOVERY_POINT not in files.list(directory):
        return 0
    note = files.open(directory / _RECOVERY_POINT)
    text = note.read(0, note.size())
    note.close()
    # A note that a crash left unfinished promises nothing.
    return int(text) if text.endswith(b"\n") and text.strip().isdigit() else 0


def is_segment(name: str) -> bool:
    """True if a file called ``name`` is part of a log, or claims to be."""
    return name.endswith(_SUFFIX)


class PartitionLog:
    """Batches in the order of their offsets, without gaps. Made by :meth:`open`.

    After an OSError from any method the log is in an unknown state: stop the process and recover from the disk.
    """

    def __init__(self, files: Files, directory: Path, segment_bytes: int) -> None:
        self.directory = directory
        self.cut_bytes = 0
        """How many bytes of a torn tail :meth:`open` cut off; worth a line in the broker's log if not 0."""
        self.segment_bytes = segment_bytes
        """Size at which a segment is full (Kafka's segment.bytes). May be changed; the next append goes by it."""
        self._files = files
        self._segments: list[Segment] = []
        self._end_offset = 0
        self._synced_offset = 0

    @classmethod
    def open(cls, files: Files, directory: Path, segment_bytes: int, on_batch: OnBatch) -> "PartitionLog":
        """The log in ``directory``, which is made if it is missing.

        Calls ``on_batch(header, body)`` for every batch in order; ``body`` is the whole batch for a control batch and
        None for any other. A torn tail is cut from the last segment, whose checksums are verified; of earlier segments
        only the headers are read. On return everything that was reported is durable.

        :param segment_bytes: size at which a segment is full (Kafka's segment.bytes).
        :raises CorruptLogError: if an earlier segment is damaged or missing, a file has no segment's name, or what was
            there at the last clean stop is not; nothing was cut then.
        """
        files.make_directory(directory)
        log = cls(files, directory, segment_bytes)
        recovery_point = read_recovery_point(files, directory)
        bases = log._base_offsets()
        for base_offset in bases[:-1]:
            log._recover_earlier(base_offset, on_batch)
        log._recover_last(bases[-1] if bases else 0, on_batch, recovery_point)
        return log

    @property
    def start_offset(self) -> int:
        """The first offset of the log."""
        return self._segments[0].base_offset

    @property
    def end_offset(self) -> int:
        """The offset that the next record gets."""
        return self._end_offset

    @property
    def size_bytes(self) -> int:
        """The size of all records on disk."""
        return sum(segment.size for segment in self._segments)

    @property
    def unsynced(self) -> bool:
        """True if something was appended that no :meth:`sync` has covered yet."""
        return self._synced_offset < self._end_offset

    def append(self, batch: bytearray) -> None:
        """Write ``batch``, placed at :attr:`end_offset` by the caller, beginning a new segment if the last is full.

        :raises MalformedBatchError: if it has no header of a record batch; nothing was written.
        """
        header = peek_header(batch)
        assert header.base_offset == self._end_offset, f"batch at {header.base_offset}, log ends at {self._end_offset}"
        assert header.size == len(batch), f"batch of {header.size} bytes in a buffer of {len(batch)}"
        segment = self._segments[-1]
        if segment.size and segment.size + len(batch) > self.segment_bytes:
            segment = self._roll()
        segment.append(header, batch)
        self._end_offset = header.next_offset

    def read(self, offset: int, max_bytes: int, before: int, at_least_one: bool = True) -> bytes:
        """Whole batches, from the one that contains ``offset`` on, whose records all lie before offset ``before``.

        At most ``max_bytes``, except that a first batch which alone is larger is returned if ``at_least_one``. Stops at
        the end of a segment: ask again from where it ended. Empty if there is nothing to return.

        :param offset: not below :attr:`start_offset`; the caller answers OFFSET_OUT_OF_RANGE for that.
        """
        assert offset >= self.start_offset, f"offset {offset}, log begins at {self.start_offset}"
        index = bisect_right(self._segments, offset, key=_by_base_offset) - 1
        return self._segments[index].read(offset, max_bytes, before, at_least_one)

    def offset_for_timestamp(self, timestamp: int, before: int) -> tuple[int, int] | None:
        """(timestamp, offset) of the first record at or after ``timestamp``, if its offset is below ``before``.

        Exact to the record: the batch is opened, if it can be.

        :param timestamp: milliseconds since the epoch.
        """
        for segment in self._segments:
            found = segment.offset_for_timestamp(timestamp, before)
            if found or segment.next_offset >= before:
                return found
        return None

    def max_timestamp(self, before: int) -> tuple[int, int] | None:
        """(timestamp, offset) of the first record with the highest timestamp of all batches that end before ``before``,
        as exact as :meth:`offset_for_timestamp`; None if there are none."""
        if before <= self.start_offset:
            return None
        highest = max(segment.highest_timestamp(before) for segment in self._segments if segment.base_offset < before)
        return self.offset_for_timestamp(highest, before)

    def sync(self) -> None:
        """Return once everything appended before the call is on disk. May be called from another thread.

        :raises OSError: if the disk refused; whether the bytes are there is then unknowable. Stop the process.
        """
        end = self._end_offset  # read first: whatever is below it is in the segment read next, or was synced by a roll
        self._segments[-1].sync()
        self._synced_offset = end

    def checkpoint(self) -> None:
        """Sync, and note the end as the recovery point; for a clean stop.

        :raises OSError: as :meth:`sync`.
        """
        self.sync()
        note = self._files.open(self.directory / _RECOVERY_POINT)
        note.truncate(0)
        note.append(b"%d\n" % self._end_offset)
        note.sync()
        note.close()
        self._files.sync_directory(self.directory)

    def close(self) -> None:
        """Release the files. Does not sync; no other thread may be in :meth:`sync`."""
        for segment in self._segments:
            segment.close()

    def _base_offsets(self) -> list[int]:
        names = list(filter(is_segment, self._files.list(self.directory)))
        for name in names:
            if not _SEGMENT_NAME.fullmatch(name):
                raise CorruptLogError(f"{self.directory / name}: no segment is named like that; move the file away")
        return [int(name.removesuffix(_SUFFIX)) for name in names]

    def _recover_earlier(self, base_offset: int, on_batch: OnBatch) -> None:
        segment = self._open_segment(base_offset)
        try:
            segment.recover(on_batch, verify=False)
        except DamagedSegmentError as error:
            raise CorruptLogError(f"{self._path(base_offset)}: {error}; later segments follow it") from None
        self._end_offset = segment.next_offset

    def _recover_last(self, base_offset: int, on_batch: OnBatch, recovery_point: int) -> None:
        segment = self._open_segment(base_offset)
        damage: DamagedSegmentError | str = "the file ends there"
        try:
            segment.recover(on_batch, verify=True)
        except DamagedSegmentError as error:
            damage = error
        if segment.next_offset < recovery_point:
            raise CorruptLogError(
                f"{self._path(base_offset)}: {damage}; it was whole up to offset {recovery_point} at the last clean"
                f" stop. Restore it from a copy, or remove {self.directory / _RECOVERY_POINT} to lose what follows"
            )
        self.cut_bytes = segment.cut_tail()
        # A killed process may have left bytes and a name that are still in the page cache only.
        segment.sync()
        self._files.sync_directory(self.directory)
        self._end_offset = self._synced_offset = segment.next_offset

    def _roll(self) -> Segment:
        """Begin a new segment; the full one is on disk first, and the new one's name before anything is in it."""
        if self.unsynced:
            self._segments[-1].sync()
        segment = self._open_segment(self._end_offset)
        self._files.sync_directory(self.directory)
        return segment

    def _open_segment(self, base_offset: int) -> Segment:
        if self._segments and base_offset != self._end_offset:
            raise CorruptLogError(
                f"{self._path(base_offset)}: begins at offset {base_offset}, but the segment before it ends at"
                f" {self._end_offset}"
            )
        segment = Segment(self._files.open(self._path(base_offset)), base_offset)
        self._segments.append(segment)
        return segment

    def _path(self, base_offset: int) -> Path:
        return self.directory / f"{base_offset:020}{_SUFFIX}"
