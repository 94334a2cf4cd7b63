"""One segment in place of several: how a cleaner writes it, and how the log takes it over (Kafka: UnifiedLog's
replaceSegments).

The new segment is written as ``BASE.cleaned``, its indexes as ``BASE.index.cleaned`` and so on. A start removes such
files. Once all are on disk, the segment is renamed to ``BASE.END.swap``. From then on they replace all segments from
BASE to END, and a start finishes a replacement that a crash interrupted.
"""

import re
from collections.abc import Sequence
from pathlib import Path

from dualwrite.broker.facts.transaction_index import IndexedTransaction
from dualwrite.broker.log.layout import BESIDE_SEGMENT, LOG, UNFINISHED, name_at, offsets_of
from dualwrite.broker.log.recovery_point import PendingIndexes
from dualwrite.broker.log.segment import Segment
from dualwrite.broker.log.settings import LogSettings
from dualwrite.ports import Files
from dualwrite.records.header import NO_TIMESTAMP, BatchHeader, peek_header, placeholder, rebuild_batch

CLEANED = ".cleaned"
_SWAP = re.compile(r"(\d{20})\.(\d{20})\.swap")


class Replacement:
    """A future segment in place of consecutive ``old`` segments. ``PartitionLog.begin_replacement`` creates it; one
    thread at a time may use it.

    The new segment contains batches of the old segments, in their order, some of them rewritten with fewer records. The
    remaining records keep their offsets. One empty batch stands for consecutive batches that were left out. Kafka
    leaves a gap; but then a flipped bit of an offset, which no checksum covers, could not be noticed.
    """

    def __init__(self, files: Files, directory: Path, old: Sequence[Segment], settings: LogSettings) -> None:
        self.old = tuple(old)
        self.base_offset = self.old[0].base_offset
        self.end_offset = self.old[-1].next_offset
        self._files = files
        self._settings = settings
        self.control_offsets: set[int] = set()
        """The offsets of the transaction markers that the new segment has."""
        self._next_offset = self.base_offset
        self._left_out_timestamp = NO_TIMESTAMP
        path = directory / name_at(self.base_offset, CLEANED)
        self.segment = Segment(files, path, self.base_offset)
        self.segment.cut_tail()  # remove the content of an earlier file, if any

    @property
    def size(self) -> int:
        """The size so far, in bytes."""
        return self.segment.size

    def append(self, batch: bytes) -> None:
        """Write the next batch, with its offsets in the log."""
        header = peek_header(batch)
        self._advance(header)
        self._fill(header.base_offset)
        self.segment.append(header, batch, self._settings)
        if header.is_control and header.record_count:
            self.control_offsets.add(header.base_offset)

    def leave_out(self, header: BatchHeader) -> None:
        """Leave out the next batch, whose header is ``header``."""
        self._advance(header)
        self._left_out_timestamp = max(self._left_out_timestamp, header.max_timestamp)

    def _advance(self, header: BatchHeader) -> None:
        assert header.base_offset == self._next_offset, f"{header.base_offset} instead of {self._next_offset}"
        assert header.next_offset <= self.end_offset, f"{header.base_offset} is not among the old segments"
        self._next_offset = header.next_offset

    def _fill(self, before: int) -> None:
        """Write an empty batch for those that were left out up to the offset ``before``, if any were."""
        if self.segment.next_offset < before:
            batch = rebuild_batch(placeholder(self.segment.next_offset, before, self._left_out_timestamp), b"")
            self.segment.append(peek_header(batch), batch, self._settings)
            self._left_out_timestamp = NO_TIMESTAMP

    def finish(self) -> None:
        """Return once the replacement is on disk. Then ``PartitionLog.replace`` accepts it."""
        self._fill(self._next_offset)
        end_offset = self.segment.next_offset
        assert end_offset == self.end_offset, f"the new segment ends at {end_offset} instead of {self.end_offset}"
        self.segment.sync()
        self.segment.seal()

    def discard(self) -> None:
        """Remove the files that were written."""
        self.segment.close()
        self._files.remove(self.segment.path)


def swap_in(files: Files, directory: Path, replacement: Replacement, aborted: Sequence[IndexedTransaction]) -> Segment:
    """Replace the old segments by the finished ``replacement``, durably; return the new segment.

    :param aborted: the aborted transactions whose markers were in the old segments.
    """
    # Without its marker a consumer would skip the producer's later transactions.
    kept_aborted = [transaction for transaction in aborted if transaction.last_offset in replacement.control_offsets]
    PendingIndexes(replacement.segment, kept_aborted).write(files, CLEANED)
    files.sync_directory(directory)
    name = f"{replacement.base_offset:020}.{replacement.end_offset:020}.swap"
    files.rename(replacement.segment.path, name)
    files.sync_directory(directory)
    _complete(files, directory, name)
    replacement.segment.path = directory / name_at(replacement.base_offset, LOG)
    return replacement.segment


def finish_replacements(files: Files, directory: Path) -> None:
    """Put the finished replacements of ``directory`` in place, and remove every file that a crash left unfinished."""
    for name in files.list(directory):
        if _SWAP.fullmatch(name):
            _complete(files, directory, name)
    for name in files.list(directory):
        if name.endswith((CLEANED, UNFINISHED)):
            files.remove(directory / name)


def _complete(files: Files, directory: Path, swap: str) -> None:
    match = _SWAP.fullmatch(swap)
    assert match is not None
    base, end = int(match[1]), int(match[2])
    names = files.list(directory)
    for suffix in (*BESIDE_SEGMENT, LOG):
        _remove(files, directory, [offset for offset in offsets_of(names, suffix) if base < offset < end], suffix)
    for suffix in BESIDE_SEGMENT:
        if name_at(base, suffix) + CLEANED in names:
            files.rename(directory / (name_at(base, suffix) + CLEANED), name_at(base, suffix))
    files.sync_directory(directory)  # an old segment's index must never be taken for the new one's
    files.rename(directory / swap, name_at(base, LOG))
    files.sync_directory(directory)


def _remove(files: Files, directory: Path, offsets: Sequence[int], suffix: str) -> None:
    for offset in offsets:
        files.remove(directory / name_at(offset, suffix))
