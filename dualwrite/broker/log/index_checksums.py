"""The checksums of a segment's index files, in one file beside them: Kafka's forms of the three indexes have none.

The file has a line for each index: its suffix, a size in bytes, and the CRC-32C of that many bytes from the index's
beginning. An index may be longer, because a crash can come after the index has grown and before this file is replaced.
The last line has the size that the segment itself has at least. Without that, a compacted segment could end earlier:
after it, a gap in the offsets is normal. The checksum of that line is the file's own.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import crc32c

from dualwrite.broker.log.layout import CHECKSUMS, INDEXES, LOG
from dualwrite.ports import Files

_SUFFIXES = (*INDEXES, LOG)
_LINES = re.compile("".join(rf"\{suffix} (\d{{1,10}}) ([0-9a-f]{{8}})\n" for suffix in _SUFFIXES).encode())


class DamagedIndexError(ValueError):
    """A file is missing, or is not an index of its segment. The caller must rebuild it from the segment."""


class IndexSum(NamedTuple):
    """The size in bytes and the CRC-32C of an index file, or of its beginning; of a segment the size alone."""

    size: int = 0
    crc: int = 0

    def extended(self, data: bytes) -> "IndexSum":
        """The sum after ``data`` was appended."""
        return IndexSum(self.size + len(data), crc32c.crc32c(data, self.crc))


IndexSums = Mapping[str, IndexSum]
"""The sums of a segment's indexes and of itself, by their suffixes."""

NO_SUMS: IndexSums = dict.fromkeys(_SUFFIXES, IndexSum())
"""The sums of an empty segment."""


def encode_sums(sums: IndexSums) -> bytes:
    """The content of a file of checksums."""
    lines = b"".join(b"%s %d %08x\n" % (suffix.encode(), *sums[suffix]) for suffix in INDEXES)
    content = b"%s%s %d " % (lines, LOG.encode(), sums[LOG].size)
    return b"%s%08x\n" % (content, crc32c.crc32c(content))


def read_sums(files: Files, log: Path) -> IndexSums:
    """The sums of the indexes of the segment at ``log``.

    :raises DamagedIndexError: if the file is missing or damaged.
    """
    path = log.with_suffix(CHECKSUMS)
    content = _content(files, path)
    lines = _LINES.fullmatch(content)
    if lines is None or int(lines[lines.re.groups], 16) != crc32c.crc32c(content[: lines.start(lines.re.groups)]):
        raise DamagedIndexError(f"{path.name} is damaged")
    fields = iter(lines.groups())
    sums = {suffix: IndexSum(int(next(fields)), int(next(fields), 16)) for suffix in _SUFFIXES}
    return {**sums, LOG: IndexSum(sums[LOG].size)}


def checked_index(files: Files, path: Path, known: IndexSum) -> bytes:
    """The part of the index file at ``path`` that ``known`` is the sum of.

    :raises DamagedIndexError: if the file is missing, or its sum is another.
    """
    content = _content(files, path)[: known.size]
    if len(content) < known.size:
        raise DamagedIndexError(f"{path.name} has {len(content)} bytes instead of {known.size}")
    if IndexSum().extended(content) != known:
        raise DamagedIndexError(f"{path.name} has a wrong checksum")
    return content


def _content(files: Files, path: Path) -> bytes:
    try:
        file = files.reader(path)
    except FileNotFoundError:
        raise DamagedIndexError(f"{path.name} is missing") from None
    return file.read(0, file.size())
