"""The disk of the simulated broker: at any use of it the process may end, and of an append a part may be written."""

import random
from collections.abc import Callable
from pathlib import Path

from dualwrite.ports import File, Files


class BrokerEnded(BaseException):
    """The broker's process has ended: raised by every use of its disk from then on."""


class BrokerDisk:
    """The Files of one broker process.

    :param beneath: the machine's disk.
    :param use: called at each change; True if the process ends here.
    :param end: called then, once a part of an append may be written.
    """

    def __init__(self, beneath: Files, rng: random.Random, use: Callable[[], bool], end: Callable[[], None]) -> None:
        self.beneath = beneath
        self._rng = rng
        self._use = use
        self._end = end
        self.has_ended = False

    def open(self, path: Path) -> File:
        self.require_alive()
        return _BrokerFile(self, self.beneath.open(path))

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

    def require_alive(self) -> None:
        if self.has_ended:
            raise BrokerEnded

    def use(self) -> None:
        """Use the disk, unless the process ends here."""
        self.require_alive()
        if self._use():
            self._end()
            raise BrokerEnded

    def append(self, file: File, parts: tuple[bytes | bytearray | memoryview, ...]) -> None:
        """Append to ``file``; all of it, or a part if the process ends here."""
        self.require_alive()
        if self._use():
            data = b"".join(parts)
            file.append(data[: self._rng.randint(0, len(data))])
            self._end()
            raise BrokerEnded
        file.append(*parts)


class _BrokerFile:
    __slots__ = ("_beneath", "_disk", "read", "size")

    def __init__(self, disk: BrokerDisk, beneath: File) -> None:
        self._disk = disk
        self._beneath = beneath
        self.read = beneath.read
        self.size = beneath.size

    def append(self, *parts: bytes | bytearray | memoryview) -> None:
        self._disk.append(self._beneath, parts)

    def truncate(self, size: int) -> None:
        self._disk.use()
        self._beneath.truncate(size)

    def sync(self) -> None:
        self._disk.use()
        self._beneath.sync()

    def settle(self) -> None:
        self._disk.use()
        self._beneath.settle()

    def close(self) -> None:
        self._beneath.close()
