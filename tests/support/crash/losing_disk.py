"""A broker on a disk that loses unsynced pages when its power is cut.

The broker's process writes real files, and notes how far each of them is synced, beside its data directory. A power cut
is SIGKILL, and then of each file's unsynced part some pages are lost, as the pages that a file system had not written
yet: the file is shorter, or has zeros there. Names of files are not lost.
"""

import functools
import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from dualwrite.broker import broker
from dualwrite.broker.process.disk import DiskFile, DiskFiles
from dualwrite.ports import File
from tests.support import forked
from tests.support.forked import ForkedBroker

PAGE = 4096


class NotedFile(DiskFile):
    """Notes how far it is synced, each time before :meth:`sync` returns."""

    def __init__(self, path: Path, notes: int, flags: int = os.O_RDWR | os.O_CREAT | os.O_APPEND) -> None:
        super().__init__(path, flags)
        self._notes, self._name = notes, path

    def truncate(self, size: int) -> None:
        super().truncate(size)
        self._note(size)

    def sync(self) -> None:
        size = self.size()  # what comes while it is synced may be lost
        super().sync()
        self._note(size)

    def _note(self, size: int) -> None:
        os.write(self._notes, f"{size} {self._name}\n".encode())


class NotedFiles(DiskFiles):
    """Those of a broker.

    :param notes: a file that is appended to.
    """

    def __init__(self, notes: Path) -> None:
        super().__init__()
        self._notes = os.open(notes, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)

    def open(self, path: Path) -> File:
        return NotedFile(path, self._notes)

    def rename(self, path: Path, name: str) -> None:
        """Its content is synced before, by all who replace a file."""
        super().rename(path, name)
        new = path.with_name(name)
        os.write(self._notes, f"{new.stat().st_size} {new}\n".encode())


class LosingBroker(ForkedBroker):
    """A ForkedBroker whose power can be cut."""

    @property
    def _notes(self) -> Path:
        return self.data_dir.with_name(f"{self.data_dir.name}.synced")

    def _spawn(self, command: list[str], log: IO[bytes]) -> forked.BrokerProcess:
        return forked.BrokerProcess(command, log, __name__, str(self._notes))

    def cut_power(self, chance: random.Random) -> int:
        """SIGKILL, and the loss of unsynced pages; how many bytes were not synced."""
        self.kill()
        synced = dict(read_notes(self._notes))
        lost = 0
        for path in sorted(self.data_dir.rglob("*.log")):
            if path.parent != self.data_dir:  # broker.log is no data
                lost += lose_pages(path, synced.get(str(path), 0), chance)
        self._notes.write_text("".join(f"{path.stat().st_size} {path}\n" for path in self.data_dir.rglob("*.log")))
        return lost


def read_notes(notes: Path) -> Iterator[tuple[str, int]]:
    """Each file with a size up to which it is synced, in the order in which they were noted."""
    for line in notes.read_text().splitlines():
        size, _, name = line.partition(" ")
        yield name, int(size)


def lose_pages(path: Path, synced: int, chance: random.Random) -> int:
    """Drop some of the pages of ``path`` behind its first ``synced`` bytes; how many bytes were at risk."""
    content = bytearray(path.read_bytes())
    risk = len(content) - synced
    if risk <= 0:
        return 0
    del content[chance.randint(synced, len(content)) :]
    for begin in range(synced, len(content), PAGE):
        if chance.random() < 0.5:
            content[begin : begin + PAGE] = bytes(len(content[begin : begin + PAGE]))
    path.write_bytes(content)
    return risk


def main(given: tuple[list[str], str]) -> None:
    """The broker's process."""
    arguments, notes = given
    broker.DiskFiles = functools.partial(NotedFiles, Path(notes))  # type: ignore[misc,assignment]
    forked.main(arguments)
