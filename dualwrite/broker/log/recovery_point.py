"""Recovery points: a start need not read the log below them, because the resulting state is on disk.

Each step is on disk before the next: the log itself, its indexes, the partition's state at that offset (a snapshot),
and the note of the offset (Kafka's recovery-point-offset-checkpoint).
"""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from dualwrite.broker.facts.transaction_index import IndexedTransaction, encode_aborted
from dualwrite.broker.log.index import OFFSET_ENTRY, TIME_ENTRY
from dualwrite.broker.log.index_checksums import encode_sums
from dualwrite.broker.log.layout import (
    CHECKSUMS,
    OFFSET_INDEX,
    RECOVERY_POINT,
    SNAPSHOT,
    TIME_INDEX,
    TRANSACTION_INDEX,
    name_at,
    offsets_of,
    replace_file,
    write_mark,
)
from dualwrite.broker.log.segment import Segment
from dualwrite.ports import Files

_KEPT_SNAPSHOTS = 2
"""The number of snapshots: the newest, and the one before it in case the newest is damaged."""


@dataclass(frozen=True, slots=True)
class IndexEntries:
    """Entries that follow the first ``kept`` bytes of an index file."""

    suffix: str
    kept: int
    data: bytes

    def write(self, files: Files, path: Path) -> None:
        """Write the entries to the file at ``path``, atomically, because a start may rely on the present content."""
        file = files.open(path)
        if self.data or file.size() > self.kept:  # a longer file is from before a crash
            replace_file(files, path, file.read(0, self.kept) + self.data)
        file.close()


class PendingIndexes:
    """The entries that the index files of one segment lack. The log's owner creates them, any thread may write them."""

    def __init__(self, segment: Segment, aborted: Sequence[IndexedTransaction]) -> None:
        """:param aborted: the aborted transactions with a marker in ``segment`` that its file does not contain yet."""
        self._segment = segment
        self._is_sealed = segment.is_sealed
        stored, index, base_offset = segment.stored, segment.growing_index, segment.base_offset
        added = {
            OFFSET_INDEX: index.offset_entries(stored[OFFSET_INDEX].size // OFFSET_ENTRY.size, base_offset),
            TIME_INDEX: index.time_entries(stored[TIME_INDEX].size // TIME_ENTRY.size, base_offset),
            TRANSACTION_INDEX: encode_aborted(aborted),
        }
        self._entries = [IndexEntries(suffix, stored[suffix].size, data) for suffix, data in added.items()]
        self._sums = {suffix: stored[suffix].extended(data) for suffix, data in added.items()}
        segment.stored = self._sums

    def write(self, files: Files, ending: str = "") -> None:
        """Write the entries to disk. The names of empty files still need a sync of the directory.

        :param ending: appended to the files' names after their suffixes.
        """
        for entries in self._entries:
            entries.write(files, self._segment.path.with_suffix(entries.suffix + ending))
        # Last: the checksums are those of the beginnings of the indexes, which may already have more entries.
        path, content = self._segment.path.with_suffix(CHECKSUMS + ending), encode_sums(self._sums)
        file = files.open(path)
        if file.read(0, file.size()) != content:
            replace_file(files, path, content)
        file.close()
        if self._is_sealed:
            self._segment.read_index_from_disk()


@dataclass(frozen=True, slots=True)
class RecoveryPoint:
    """The files that must be on disk before ``offset`` is stored, except the log itself."""

    offset: int
    indexes: Sequence[PendingIndexes]
    snapshot: bytes

    def write(self, files: Files, directory: Path, snapshots: "StoredSnapshots") -> None:
        """Store the offset, durably. The log up to it must be on disk.

        :param snapshots: those of the log.
        """
        for pending in self.indexes:
            pending.write(files)
        # This also syncs the names of the indexes.
        replace_file(files, directory / name_at(self.offset, SNAPSHOT), self.snapshot)
        write_mark(files, directory / RECOVERY_POINT, self.offset)
        snapshots.add(self.offset)


def joined(points: Sequence[RecoveryPoint]) -> RecoveryPoint:
    """The last of ``points``, with the indexes of all: a disk that has fallen behind writes one point for many."""
    newest = points[-1]
    return RecoveryPoint(newest.offset, [pending for point in points for pending in point.indexes], newest.snapshot)


class StoredSnapshots:
    """The snapshots of one log. The directory is listed once, for the first recovery point: it has several files for
    each segment, so listing it for each point would cost more and more as a log grows.
    """

    def __init__(self, files: Files, directory: Path) -> None:
        self._files = files
        self._directory = directory
        self._offsets: set[int] | None = None

    def add(self, offset: int) -> None:
        """Note the snapshot at ``offset``, which is on disk, and remove the older ones that are not kept."""
        if self._offsets is None:
            self._offsets = set(offsets_of(self._files.list(self._directory), SNAPSHOT))
        self._offsets.add(offset)
        for each in sorted(self._offsets)[:-_KEPT_SNAPSHOTS]:
            with suppress(FileNotFoundError):  # an operator has removed it since it was noted
                self._files.remove(self._directory / name_at(each, SNAPSHOT))
            self._offsets.remove(each)
