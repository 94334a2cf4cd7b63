"""Opening a log: what a crash left unfinished is finished or cut, what is damaged otherwise is refused.

A segment is synced before the next one is begun, so that a power cut can damage the last segment only, whether or not
anybody calls ``sync``. Damage anywhere else, or below the recovery point, was not caused by losing power, and must not
be cut away as if it were (Kafka's recovery-point-offset-checkpoint).
"""

from itertools import pairwise
from pathlib import Path

from dualwrite.broker.log.layout import (
    CLEANED_BEFORE,
    INDEXES,
    LOG,
    LOG_START_OFFSET,
    RECOVERY_POINT,
    name_at,
    read_note,
    read_recovery_point,
    segment_offsets,
)
from dualwrite.broker.log.replacement import finish_replacements
from dualwrite.broker.log.segment import DamagedSegmentError, OnBatch, Segment
from dualwrite.broker.log.settings import LogSettings
from dualwrite.errors import CorruptLogError
from dualwrite.ports import Files


class Recovery:
    """What was found in the directory of a log, once :meth:`run` has returned."""

    def __init__(self, files: Files, directory: Path, settings: LogSettings, on_batch: OnBatch) -> None:
        self.segments: list[Segment] = []
        self.cut_bytes = 0
        """How many bytes of a torn tail were cut off."""
        self.start_offset = 0
        self.cleaned_before = 0
        self._files = files
        self._directory = directory
        self._settings = settings
        self._on_batch = on_batch

    def run(self) -> None:
        """Open every segment; the last one can be appended to.

        :raises CorruptLogError: as ``PartitionLog.open``.
        """
        self._files.make_directory(self._directory)
        finish_replacements(self._files, self._directory)
        noted_start = read_note(self._files, self._directory / LOG_START_OFFSET)
        self.cleaned_before = read_note(self._files, self._directory / CLEANED_BEFORE)
        bases = segment_offsets(self._directory, self._files.list(self._directory)) or [noted_start]
        bases = self._without_deleted(bases, noted_start)
        for base_offset, following in pairwise(bases):
            self._recover_earlier(base_offset, following)
        self._recover_last(bases[-1])
        self.start_offset = max(noted_start, bases[0])
        end_offset = self.segments[-1].next_offset
        if end_offset < self.start_offset:
            raise CorruptLogError(
                f"{self._path(bases[-1])}: ends at offset {end_offset}, but the log was to begin at {self.start_offset}"
            )

    def _without_deleted(self, bases: list[int], start_offset: int) -> list[int]:
        """The base offsets without those of segments that a crash kept from being removed."""
        kept = [base for base, following in pairwise(bases) if following > start_offset]
        for base in bases[: len(bases) - 1 - len(kept)]:
            remove_segment(self._files, self._directory, base)
        return [*kept, bases[-1]]

    def _recover_earlier(self, base_offset: int, following: int) -> None:
        segment = self._open_segment(base_offset)
        try:
            segment.recover(self._settings, self._on_batch, verify=False, gaps_before=self.cleaned_before)
        except DamagedSegmentError as error:
            raise CorruptLogError(f"{segment.path}: {error}; later segments follow it") from None
        if not segment.next_offset <= following <= max(segment.next_offset, self.cleaned_before):
            raise CorruptLogError(
                f"{self._path(following)}: begins at offset {following}, but the segment before it ends at"
                f" {segment.next_offset}"
            )
        segment.seal(following)

    def _recover_last(self, base_offset: int) -> None:
        recovery_point = read_recovery_point(self._files, self._directory)
        segment = self._open_segment(base_offset)
        damage: DamagedSegmentError | str = "the file ends there"
        try:
            segment.recover(self._settings, self._on_batch, verify=True)
        except DamagedSegmentError as error:
            damage = error
        if segment.next_offset < recovery_point:
            raise CorruptLogError(
                f"{segment.path}: {damage}; it was whole up to offset {recovery_point} at the last clean"
                f" stop. Restore it from a copy, or remove {self._directory / RECOVERY_POINT} to lose what follows"
            )
        self.cut_bytes = segment.cut_tail()
        # A killed process may have left bytes and a name that are still in the page cache only.
        segment.sync()
        self._files.sync_directory(self._directory)

    def _open_segment(self, base_offset: int) -> Segment:
        segment = Segment(self._files, self._path(base_offset), base_offset)
        self.segments.append(segment)
        return segment

    def _path(self, base_offset: int) -> Path:
        return self._directory / name_at(base_offset, LOG)


def remove_segment(files: Files, directory: Path, base_offset: int) -> None:
    """Remove the files of a segment below the log's noted start."""
    names = files.list(directory)
    for suffix in (*INDEXES, LOG):
        if name_at(base_offset, suffix) in names:
            files.remove(directory / name_at(base_offset, suffix))
