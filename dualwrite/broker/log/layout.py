"""The names of a log's files, and the notes beside them: one number each, changed atomically.

``00000000000000000042.log`` is a segment; ``.index``, ``.timeindex`` and ``.txnindex`` belong to it; ``.snapshot`` is
the partition's state at that offset. These are Kafka's names. ``.checksums`` is this broker's own: the checksums of the
three indexes. So are the notes (Kafka has one file of each kind for all partitions): ``recovery-point``,
``log-start-offset``, ``cleaner-offset``.

A note holds its number and a checksum, such as ``42 crc32c 2e7d3dcb``: one flipped bit in a bare number is another
number. An operator may write a bare number, as an error message of the broker may advise. No flipped bit and no
truncation makes a bare number out of a note with a checksum.
"""

import re
from collections.abc import Iterable
from pathlib import Path

import crc32c

from dualwrite.errors import CorruptLogError
from dualwrite.ports import Files

LOG = ".log"
OFFSET_INDEX = ".index"
TIME_INDEX = ".timeindex"
TRANSACTION_INDEX = ".txnindex"
SNAPSHOT = ".snapshot"
CHECKSUMS = ".checksums"
INDEXES = (OFFSET_INDEX, TIME_INDEX, TRANSACTION_INDEX)
BESIDE_SEGMENT = (*INDEXES, CHECKSUMS)
"""The suffixes of the files that come and go with a segment."""

RECOVERY_POINT = "recovery-point"
LOG_START_OFFSET = "log-start-offset"
CLEANER_OFFSET = "cleaner-offset"
"""The offset where the last cleaning ended (Kafka's cleaner-offset-checkpoint)."""
_WITHOUT = {
    RECOVERY_POINT: "no record is lost, the next start reads and checks the whole log",
    LOG_START_OFFSET: "deleted records whose files are still there come back",
    CLEANER_OFFSET: "no record is lost, the next compaction begins at the start of the log",
}
"""The notes, and the consequence for a log if one is missing."""

UNFINISHED = ".tmp"
"""The suffix of a file that is still being written, until it is renamed."""
_STEM = re.compile(r"\d{20}")
_NOTE = re.compile(rb"(\d{1,19})(?: crc32c ([0-9a-f]{8}))?\n")


def name_at(offset: int, suffix: str) -> str:
    """The name of the file of kind ``suffix`` at ``offset``."""
    return f"{offset:020}{suffix}"


def offsets_of(names: Iterable[str], suffix: str) -> list[int]:
    """The offsets of the files of kind ``suffix`` among ``names``, in order."""
    stems = (name.removesuffix(suffix) for name in names if name.endswith(suffix))
    return sorted(int(stem) for stem in stems if _STEM.fullmatch(stem))


def segment_offsets(directory: Path, names: Iterable[str]) -> list[int]:
    """The base offsets of the segments among the ``names`` in ``directory``, in order.

    :raises CorruptLogError: if a file has the suffix of a segment, but no segment's name.
    """
    segments = [name for name in names if name.endswith(LOG)]
    for name in segments:
        if not _STEM.fullmatch(name.removesuffix(LOG)):
            raise CorruptLogError(f"{directory / name}: this is not the name of a segment; move the file away")
    return offsets_of(segments, LOG)


def belongs_to_log(name: str) -> bool:
    """True if a file called ``name`` belongs to a log or seems to, or is a note beside one."""
    return name.endswith((LOG, UNFINISHED)) or name in _WITHOUT or _STEM.match(name) is not None


def read_mark(files: Files, path: Path) -> int:
    """The number in the note at ``path``, 0 if there is no such file.

    :raises CorruptLogError: if the file does not hold one number, or its checksum is wrong. A crash cannot cause that,
        and the number must not be guessed: without the start offset, deleted records would come back.
    """
    if path.name not in files.list(path.parent):
        return 0
    file = files.reader(path)
    text = file.read(0, file.size())
    note = _NOTE.fullmatch(text)
    if note is None:
        raise CorruptLogError(
            f"{path}: damaged, not one number and a line feed. Restore it, or remove it: {_WITHOUT[path.name]}"
        )
    if note[2] is not None and note[2] != _checksum(note[1]):
        raise CorruptLogError(f"{path}: damaged, wrong checksum. Restore it, or remove it: {_WITHOUT[path.name]}")
    return int(note[1])


def write_mark(files: Files, path: Path, number: int) -> None:
    """Write ``number`` to the note at ``path``, durably. A crash leaves the old number or the new one."""
    digits = b"%d" % number
    replace_file(files, path, b"%s crc32c %s\n" % (digits, _checksum(digits)))


def _checksum(digits: bytes) -> bytes:
    return b"%08x" % crc32c.crc32c(digits)


def replace_file(files: Files, path: Path, content: bytes) -> None:
    """Replace the content of the file at ``path`` by ``content``, durably and atomically."""
    unfinished = path.with_name(path.name + UNFINISHED)
    file = files.open(unfinished)
    file.truncate(0)  # a crash may have left the file
    file.append(content)
    file.sync()
    file.close()
    files.rename(unfinished, path.name)
    files.sync_directory(path.parent)


def read_recovery_point(files: Files, directory: Path) -> int:
    """The offset up to which the log in ``directory`` is known to be whole on disk; 0 without a recovery point."""
    return read_mark(files, directory / RECOVERY_POINT)
