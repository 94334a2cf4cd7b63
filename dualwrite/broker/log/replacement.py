"""One segment in place of several: how a cleaner writes it, and how it gets into the log (Kafka: UnifiedLog's
replaceSegments).

The new segment is written as ``BASE.cleaned``, its indexes as ``BASE.index.cleaned`` and so on; a start removes such
files. Once all are on disk, the segment is renamed to ``BASE.END.swap``. From then on they replace everything from BASE
to END, and a start finishes what a crash interrupted.
"""

import re
from collections.abc import Sequence
from pathlib import Path

from dualwrite.broker.facts.transaction_index import IndexedTransaction
from dualwrite.broker.log.layout import INDEXES, LOG, UNFINISHED, name_at, offsets_of
from dualwrite.broker.log.recovery_point import PendingIndexes
from dualwrite.broker.log.segment import Segment
from dualwrite.broker.log.settings import LogSettings
from dualwrite.ports import Files
from dualwrite.records.header import peek_header

CLEANED = ".cleaned"
_SWAP = re.compile(r"(\d{20})\.(\d{20})\.swap")


class Replacement:
    """A future segment in place of consecutive ``old`` ones. Made by ``PartitionLog.begin_replacement``; used by one
    thread at a time, which may be any thread.

    The new segment contains batches of the old ones, in their order, some of them rewritten with fewer records. The
    remaining records keep their offsets.
    """

    def __init__(self, files: Files, directory: Path, old: Sequence[Segment], settings: LogSettings) -> None:
        self.old = tuple(old)
        self.base_offset = self.old[0].base_offset
        self.end_offset = self.old[-1].next_offset
        self._files = files
        self._settings = settings
        self.control_offsets: set[int] = set()
        """The entries of the transaction markers that were kept."""
        path = directory / name_at(self.base_offset, CLEANED)
        self.segment = Segment(files, path, self.base_offset)
        self.segment.cut_tail()  # remove the rest of an earlier file, if any

    @property
    def size(self) -> int:
        """Bytes so far."""
        return self.segment.size

    def append(self, batch: bytes) -> None:
        """Write the next batch, with its offsets in the log."""
        header = peek_header(batch)
        assert self.segment.next_offset <= header.base_offset, f"{header.base_offset} goes back"
        assert header.next_offset <= self.end_offset, f"{header.base_offset} is not among the old segments"
        self.segment.append(header, batch, self._settings)
        if header.is_control and header.record_count:
            self.control_offsets.add(header.base_offset)

    def finish(self) -> None:
        """Return once it is on disk; then ``PartitionLog.replace`` accepts it."""
        self.segment.sync()
        self.segment.seal(self.end_offset)

    def discard(self) -> None:
        """Remove the files that were written."""
        self.segment.close()
        self._files.remove(self.segment.path)


def swap_in(files: Files, directory: Path, replacement: Replacement, aborted: Sequence[IndexedTransaction]) -> Segment:
    """Replace the old segments by the finished ``replacement``, for good; return the new segment.

    :param aborted: the aborted transactions whose markers were in the old segments.
    """
    # Without its marker a consumer would skip the producer's later transactions.
    kept = [each for each in aborted if each.last_offset in replacement.control_offsets]
    PendingIndexes(replacement.segment, kept).write(files, CLEANED)
    files.sync_directory(directory)
    name = f"{replacement.base_offset:020}.{replacement.end_offset:020}.swap"
    files.rename(replacement.segment.path, name)
    files.sync_directory(directory)
    _complete(files, directory, name)
    replacement.segment.path = directory / name_at(replacement.base_offset, LOG)
    return replacement.segment


def finish_replacements(files: Files, directory: Path) -> None:
    """Put finished segments in place, and remove every file that a crash left unfinished."""
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
    for suffix in (*INDEXES, LOG):
        _remove(files, directory, [each for each in offsets_of(names, suffix) if base < each < end], suffix)
    for suffix in INDEXES:
        if name_at(base, suffix) + CLEANED in names:
            files.rename(directory / (name_at(base, suffix) + CLEANED), name_at(base, suffix))
    files.sync_directory(directory)  # an old segment's index must never be taken for the new one's
    files.rename(directory / swap, name_at(base, LOG))
    files.sync_directory(directory)


def _remove(files: Files, directory: Path, offsets: Sequence[int], suffix: str) -> None:
    for offset in offsets:
        files.remove(directory / name_at(offset, suffix))
