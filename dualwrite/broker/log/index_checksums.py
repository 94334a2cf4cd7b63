"""The checksums of a segment's index files, in one file beside them: Kafka's forms of the three indexes have none.

The file has a line for each index: its suffix, a size in bytes, and the CRC-32C of that many bytes from the index's
beginning. An index may be longer, because a crash can come after the index has grown and before this file is replaced.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import crc32c

from dualwrite.broker.log.layout import CHECKSUMS, INDEXES
from dualwrite.ports import Files

_LINES = re.compile("".join(rf"\{suffix} (\d{{1,10}}) ([0-9a-f]{{8}})\n" for suffix in INDEXES).encode())


class DamagedIndexError(ValueError):
    """A file is missing, or is not an index of its segment. The caller must rebuild it from the segment."""


class IndexSum(NamedTuple):
    """The size in bytes and the CRC-32C of an index file, or of its beginning."""

    size: int = 0
    crc: int = 0

    def extended(self, data: bytes) -> "IndexSum":
        """The sum after ``data`` was appended."""
        return IndexSum(self.size + len(data), crc32c.crc32c(data, self.crc))


IndexSums = Mapping[str, IndexSum]
"""The sums of a segment's indexes, by their suffixes."""

NO_SUMS: IndexSums = dict.fromkeys(INDEXES, IndexSum())
"""The sums of an empty segment."""


def encode_sums(sums: IndexSums) -> bytes:
    """The content of a file of checksums."""
    return b"".join(b"%s %d %08x\n" % (suffix.encode(), *sums[suffix]) for suffix in INDEXES)


def read_sums(files: Files, log: Path) -> IndexSums:
    """The sums of the indexes of the segment at ``log``.

    :raises DamagedIndexError: if the file is missing or damaged.
    """
    path = log.with_suffix(CHECKSUMS)
    lines = _LINES.fullmatch(_content(files, path))
    if lines is None:
        raise DamagedIndexError(f"{path.name} is damaged")
    fields = iter(lines.groups())
    return {suffix: IndexSum(int(next(fields)), int(next(fields), 16)) for suffix in INDEXES}


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
