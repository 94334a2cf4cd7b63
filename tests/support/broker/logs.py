"""Builders for the tests of the log."""

from collections.abc import Sequence
from pathlib import Path

from dualwrite.broker.log.partition_log import PartitionLog
from dualwrite.broker.log.settings import LogSettings
from dualwrite.ports import File, Files
from dualwrite.records.batch import Record
from dualwrite.records.header import BatchFields, BatchHeader, iterate_batches
from dualwrite.testing.files import MemoryFile, MemoryFiles
from tests.support.strategies import placed

DIRECTORY = Path("/data/t-0")


class Reported:
    """What a log that is opened reports."""

    def __init__(self) -> None:
        self.headers: list[BatchHeader] = []
        self.bodies: list[bytes | None] = []

    def __call__(self, header: BatchHeader, body: bytes | None) -> None:
        self.headers.append(header)
        self.bodies.append(body)

    @property
    def offsets(self) -> list[int]:
        return [header.base_offset for header in self.headers]


class LyingFile(MemoryFile):
    def sync(self) -> None:
        """Claim to."""


class LyingFiles(MemoryFiles):
    """A disk whose sync does nothing: the negative control of every test of durability."""

    def open(self, path: Path) -> File:
        file = super().open(path)
        file.__class__ = LyingFile
        return file


def opened(
    files: Files, directory: Path = DIRECTORY, segment_bytes: int = 1 << 30, reported: Reported | None = None
) -> PartitionLog:
    """The log of ``directory``; ``reported`` sees its batches."""
    return PartitionLog.open(files, directory, LogSettings(segment_bytes), reported or Reported())


def add(log: PartitionLog, *records: Record, fields: BatchFields | None = None) -> bytes:
    """Append one batch of ``records``, one plain record if there are none; returns its bytes in the log."""
    batch = placed(records or (Record(b"key", b"value", 1000),), log.end_offset, fields)
    log.append(batch)
    return bytes(batch)


def add_each(log: PartitionLog, timestamps: Sequence[int]) -> None:
    """Append one batch of one record for each of ``timestamps``."""
    for timestamp in timestamps:
        add(log, Record(None, b"v", timestamp))


def whole(log: PartitionLog) -> bytes:
    """Everything in the log."""
    data, offset = b"", log.start_offset
    while part := log.read(offset, 1 << 20, log.end_offset):
        data += part
        *_, (last, _) = iterate_batches(part)
        offset = last.next_offset
    return data


def rewrite(files: MemoryFiles, path: Path, content: bytes) -> None:
    """Make ``content`` the content of the file, durably."""
    file = files.open(path)
    file.truncate(0)
    file.append(content)
    file.sync()


def content_of(files: MemoryFiles, path: Path) -> bytes:
    """All bytes of the file."""
    file = files.reader(path)
    return file.read(0, file.size())


def flipped(content: bytes, bit: int) -> bytes:
    """``content`` with another value of one ``bit``."""
    damaged = bytearray(content)
    damaged[bit // 8] ^= 1 << bit % 8
    return bytes(damaged)
