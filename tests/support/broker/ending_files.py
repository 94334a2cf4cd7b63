"""A disk at each use of which its process may end, in the middle of an append, too."""

import random
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path

from dualwrite.ports import File, Files


def no_last_words() -> None:
    """The process ends with nothing written."""


class EndingFiles(ABC):
    """The Files of a process that may end.

    :param beneath: the machine's disk.
    :param rng: decides how much of an append is written where the process ends.
    """

    def __init__(self, beneath: Files, rng: random.Random) -> None:
        self.beneath = beneath
        self._rng = rng

    @abstractmethod
    def require_alive(self) -> None:
        """Raise the error of a process that has ended, if it has."""

    @abstractmethod
    def use(self, last_words: Callable[[], None] = no_last_words) -> None:
        """Change something on the disk, unless the process ends here. Then ``last_words`` is the last that it does."""

    def some_of(self, data: bytes) -> bytes:
        """The part of an append that a process which ends there has written."""
        return data[: self._rng.randint(0, len(data))]

    def open(self, path: Path) -> File:
        self.require_alive()
        return _EndingFile(self, self.beneath.open(path))

    def reader(self, path: Path) -> File:
        return self.beneath.reader(path)

    def list(self, directory: Path) -> list[str]:
        return self.beneath.list(directory)

    def make_directory(self, path: Path) -> None:
        self.use()
        self.beneath.make_directory(path)

    def remove(self, path: Path) -> None:
        self.use()
        self.beneath.remove(path)

    def remove_directory(self, path: Path) -> None:
        self.use()
        self.beneath.remove_directory(path)

    def rename(self, path: Path, name: str) -> None:
        self.use()
        self.beneath.rename(path, name)

    def sync_directory(self, path: Path) -> None:
        self.use()
        self.beneath.sync_directory(path)

    def space(self, path: Path) -> tuple[int, int]:
        return self.beneath.space(path)


class _EndingFile:
    __slots__ = ("_beneath", "_files", "read", "size")

    def __init__(self, files: EndingFiles, beneath: File) -> None:
        self._files = files
        self._beneath = beneath
        self.read = beneath.read
        self.size = beneath.size

    def append(self, *parts: bytes | bytearray | memoryview) -> None:
        data = b"".join(parts)
        self._files.use(lambda: self._beneath.append(self._files.some_of(data)))
        self._beneath.append(data)

    def truncate(self, size: int) -> None:
        self._files.use()
        self._beneath.truncate(size)

    def sync(self) -> None:
        self._files.use()
        self._beneath.sync()

    def settle(self) -> None:
        self._files.use()
        self._beneath.settle()

    def close(self) -> None:
        self._beneath.close()
