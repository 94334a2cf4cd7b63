"""Opens a log: finishes or cuts what a crash left unfinished, and refuses any other damage.

Below the newest snapshot, recovery reads only the ends of the segments, to check that their indexes belong to them. It
checks and replays the rest of the log. Indexes and snapshots are only an optimization: recovery rebuilds missing or
damaged ones from the log, and replays the whole log if there is no sound snapshot.

A segment is synced before the next one begins. So a power cut can damage only the last segment, even without any call
of ``sync``. Damage anywhere else, or below the recovery point, has another cause, and must not be cut away (Kafka's
recovery-point-offset-checkpoint).
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import pairwise
from pathlib import Path

from dualwrite.broker.facts.producer_snapshot import ProducerSnapshot, decode_snapshot
from dualwrite.broker.facts.transaction_index import IndexedTransaction, decode_aborted, encode_aborted
from dualwrite.broker.log.index_checksums import DamagedIndexError, IndexSum, checked_index, read_sums
from dualwrite.broker.log.layout import (
    BESIDE_SEGMENT,
    CLEANER_OFFSET,
    LOG,
    LOG_START_OFFSET,
    RECOVERY_POINT,
    SNAPSHOT,
    TRANSACTION_INDEX,
    name_at,
    offsets_of,
    read_mark,
    read_recovery_point,
    segment_offsets,
)
from dualwrite.broker.log.replacement import finish_replacements
from dualwrite.broker.log.segment import DamagedSegmentError, OnBatch, Segment
from dualwrite.broker.log.settings import LogSettings
from dualwrite.errors import CorruptLogError
from dualwrite.ports import Files

OnSnapshot = Callable[[int, Sequence[ProducerSnapshot], Sequence[IndexedTransaction]], None]
"""Called at most once, before any batch, with the state at an offset: the producers, and the aborted transactions whose
markers are between the log's start and that offset. Then only batches from that offset on are reported."""


class LogRecovery:
    """The result of opening a log's directory, once :meth:`run` has returned."""

    def __init__(
        self, files: Files, directory: Path, settings: LogSettings, on_batch: OnBatch, on_snapshot: OnSnapshot | None
    ) -> None:
        self.segments: list[Segment] = []
        self.cut_bytes = 0
        """How many bytes of a torn tail were cut off."""
        self.repairs: list[str] = []
        """Files that were missing or damaged and were rebuilt."""
        self.start_offset = 0
        self.recovery_point = 0
        self.replayed_from = 0
        """The offset where the replay began: that of a snapshot, or of the first segment."""
        self._files = files
        self._directory = directory
        self._settings = settings
        self._on_batch = on_batch
        self._on_snapshot = on_snapshot
        self._stored_aborted: dict[int, IndexSum] = {}

    def run(self) -> None:
        """Open every segment, the last one for appends.

        :raises CorruptLogError: as ``PartitionLog.open``.
        """
        self._files.make_directory(self._directory)
        finish_replacements(self._files, self._directory)
        self.recovery_point = read_recovery_point(self._files, self._directory)
        self.start_offset = read_mark(self._files, self._directory / LOG_START_OFFSET)
        base_offsets = segment_offsets(self._directory, self._files.list(self._directory)) or [self.start_offset]
        if base_offsets[0] > self.start_offset:
            raise CorruptLogError(
                f"{self._path(base_offsets[0])}: no segment precedes it, but the log should begin at"
                f" {self.start_offset}. Restore the missing segments, or write {base_offsets[0]} and a line feed into"
                f" {self._directory / LOG_START_OFFSET} to lose them"
            )
        bases = [base for base, next_base in pairwise(base_offsets) if next_base > self.start_offset] + base_offsets[
            -1:
        ]
        self.replayed_from = self._restore(bases)
        for base_offset, next_base in pairwise(bases):
            self._open_earlier(base_offset, next_base)
        self._open_last(bases[-1])
        self._remove_leftovers(bases)
        # A killed process may have left names that are only in the page cache.
        self._files.sync_directory(self._directory)

    def _remove_leftovers(self, bases: Sequence[int]) -> None:
        """Remove segments below the log's start that a crash left, indexes without a segment, and the snapshots and the
        cleaner's note of records that were cut off or removed: other records will have their offsets."""
        names, end_offset = self._files.list(self._directory), self.segments[-1].next_offset
        for offset in offsets_of(names, SNAPSHOT):
            if offset > end_offset:
                self._files.remove(self._directory / name_at(offset, SNAPSHOT))
        with suppress(CorruptLogError):  # the next cleaning reports a damaged note, and begins at the log's start
            if read_mark(self._files, self._directory / CLEANER_OFFSET) > end_offset:
                self._files.remove(self._directory / CLEANER_OFFSET)
        for suffix in (*BESIDE_SEGMENT, LOG):
            for leftover in set(offsets_of(names, suffix)).difference(bases):
                self._files.remove(self._directory / name_at(leftover, suffix))

    def _restore(self, bases: Sequence[int]) -> int:
        """Report the newest usable snapshot, and return its offset; without one, return the first segment's offset."""
        if self._on_snapshot is None or not self.recovery_point:
            return bases[0]
        names = self._files.list(self._directory)
        candidates = [base for base in offsets_of(names, SNAPSHOT) if bases[0] <= base <= self.recovery_point]
        for offset in reversed(candidates):
            try:
                producers = decode_snapshot(self._content(name_at(offset, SNAPSHOT)))
                aborted = [
                    transaction for base in bases if base < offset for transaction in self._aborted(base, offset)
                ]
            except ValueError as error:
                self.repairs.append(f"snapshot at offset {offset}: {error}")
                self._stored_aborted.clear()
                continue
            if offset < self.recovery_point and not self.repairs:
                self.repairs.append(f"no snapshot at offset {self.recovery_point}: replayed from offset {offset}")
            self._on_snapshot(offset, producers, [ended for ended in aborted if ended.last_offset >= self.start_offset])
            return offset
        self.repairs.append(f"no snapshot up to offset {self.recovery_point} can be used: replayed the whole log")
        return bases[0]

    def _aborted(self, base_offset: int, before: int) -> list[IndexedTransaction]:
        name = name_at(base_offset, TRANSACTION_INDEX)
        known = read_sums(self._files, self._path(base_offset))[TRANSACTION_INDEX]
        content = checked_index(self._files, self._directory / name, known)
        try:
            aborted = decode_aborted(content)
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from None
        aborted = [transaction for transaction in aborted if transaction.last_offset < before]
        if aborted and aborted[0].last_offset < base_offset:
            raise ValueError(f"{name} belongs to another segment")
        self._stored_aborted[base_offset] = IndexSum().extended(encode_aborted(aborted))
        return aborted

    def _content(self, name: str) -> bytes:
        file = self._files.reader(self._directory / name)
        return file.read(0, file.size())

    def _open_earlier(self, base_offset: int, following: int) -> None:
        segment = self._open_segment(base_offset, following)
        if not segment.is_stored:
            report_from = max(base_offset, self.replayed_from)
            try:
                segment.recover(self._settings, self._on_batch, report_from)
            except DamagedSegmentError as error:
                raise CorruptLogError(
                    f"{segment.path}: {error}; later segments follow it. Restore it from a copy, or write {following}"
                    f" and a line feed into {self._directory / LOG_START_OFFSET} to lose it and all that precedes it"
                ) from None
        if segment.next_offset != following:
            raise CorruptLogError(
                f"{self._path(following)}: begins at offset {following}, but the segment before it ends at"
                f" {segment.next_offset} ({segment.path})"
            )
        segment.seal()

    def _open_last(self, base_offset: int) -> None:
        segment = self._open_segment(base_offset, None)
        damage: DamagedSegmentError | str = "the file ends there"
        # A killed process may have left bytes that are only in the page cache, and a failed fsync bytes that never get
        # from there to the disk. Records behind those would be lost with the next power cut.
        segment.settle()
        try:
            segment.recover(self._settings, self._on_batch, self.replayed_from)
        except DamagedSegmentError as error:
            damage = error
        if segment.next_offset < self.recovery_point:
            raise CorruptLogError(
                f"{segment.path}: {damage}; it was whole up to offset {self.recovery_point} at the last recovery"
                f" point. Restore it from a copy, or remove {self._directory / RECOVERY_POINT} to lose what follows"
            )
        if segment.next_offset < self.start_offset:
            raise CorruptLogError(
                f"{segment.path}: {damage}, at offset {segment.next_offset}, but the log should begin at"
                f" {self.start_offset}"
            )
        self.cut_bytes = segment.cut_tail()

    def _open_segment(self, base_offset: int, following: int | None) -> Segment:
        """The opened segment. The index has its batches below the snapshot, if it is sound."""
        segment = Segment(self._files, self._path(base_offset), base_offset)
        if base_offset < self.replayed_from:
            is_known = following is not None and following <= self.replayed_from
            bound = following if is_known and following is not None else self.replayed_from
            try:
                segment.load(self._settings, bound, is_known)
            except DamagedIndexError as error:
                self.repairs.append(f"{segment.path.name}: {error}")
                segment.close()
                segment = Segment(self._files, self._path(base_offset), base_offset)
        segment.stored = {**segment.stored, TRANSACTION_INDEX: self._stored_aborted.get(base_offset, IndexSum())}
        self.segments.append(segment)
        return segment

    def _path(self, base_offset: int) -> Path:
        return self._directory / name_at(base_offset, LOG)


def remove_segment(files: Files, directory: Path, base_offset: int) -> None:
    """Remove the files of a segment below the log start offset."""
    names = files.list(directory)
    for suffix in (*BESIDE_SEGMENT, LOG):
        if name_at(base_offset, suffix) in names:
            files.remove(directory / name_at(base_offset, suffix))
