"""Recovery points: offsets below which a start need not look, as everything about them is on disk.

The order in which that comes to the disk is the order of trust: the log itself, its indexes, what the partition knew at
that offset (a snapshot), and then alone the note of the offset (Kafka's recovery-point-offset-checkpoint).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from dualwrite.broker.facts.transaction_index import ENTRY_SIZE, IndexedTransaction, encode_aborted
from dualwrite.broker.log.index import OFFSET_ENTRY, TIME_ENTRY
from dualwrite.broker.log.layout import (
    OFFSET_INDEX,
    RECOVERY_POINT,
    SNAPSHOT,
    TIME_INDEX,
    TRANSACTION_INDEX,
    name_at,
    offsets_of,
    replace_file,
    write_note,
)
from dualwrite.broker.log.segment import Segment
from dualwrite.ports import Files

_KEPT_SNAPSHOTS = 2
"""The newest, and the one before it in case that one is damaged."""


@dataclass(frozen=True, slots=True)
class IndexEntries:
    """Entries that are to follow the first ``kept`` bytes of an index file."""

    suffix: str
    kept: int
    data: bytes

    def write(self, files: Files, path: Path) -> None:
        """Bring them to the file at ``path``, in one step: a start may go by what is there until now."""
        file = files.open(path)
        if self.data or file.size() > self.kept:  # what is longer is of a time that a crash took back
            replace_file(files, path, file.read(0, self.kept) + self.data)
        file.close()


class PendingIndexes:
    """What the index files of one segment lack, now. Made by the log's owner, written by any thread."""

    def __init__(self, segment: Segment, aborted: Sequence[IndexedTransaction]) -> None:
        """``aborted`` are those whose markers are in ``segment`` and that its file does not have yet."""
        self._segment = segment
        self._is_sealed = segment.is_sealed
        offsets, times, transactions = segment.stored
        index = segment.growing_index
        base_offset = segment.base_offset
        self._entries = (
            IndexEntries(OFFSET_INDEX, offsets * OFFSET_ENTRY.size, index.offset_entries(offsets, base_offset)),
            IndexEntries(TIME_INDEX, times * TIME_ENTRY.size, index.time_entries(times, base_offset)),
            IndexEntries(TRANSACTION_INDEX, transactions * ENTRY_SIZE, encode_aborted(aborted)),
        )
        segment.stored = (len(index.offsets), len(index.times), transactions + len(aborted))

    def write(self, files: Files, ending: str = "") -> None:
        """Bring them to the disk; the names of empty files need a sync of the directory still.

        :param ending: what the files' names end with after their suffixes.
        """
        for entries in self._entries:
            entries.write(files, self._segment.path.with_suffix(entries.suffix + ending))
        if self._is_sealed:
            self._segment.read_index_from_disk()


@dataclass(frozen=True, slots=True)
class RecoveryPoint:
    """Everything that has to be on disk before ``offset`` is noted, but for the log itself."""

    offset: int
    indexes: Sequence[PendingIndexes]
    snapshot: bytes

    def write(self, files: Files, directory: Path) -> None:
        """Note the offset, durably; the log up to it must be on disk."""
        for pending in self.indexes:
            pending.write(files)
        # This syncs the names of the indexes too.
        replace_file(files, directory / name_at(self.offset, SNAPSHOT), self.snapshot)
        write_note(files, directory / RECOVERY_POINT, self.offset)
        older = [offset for offset in offsets_of(files.list(directory), SNAPSHOT) if offset <= self.offset]
        for offset in older[:-_KEPT_SNAPSHOTS]:
            files.remove(directory / name_at(offset, SNAPSHOT))
