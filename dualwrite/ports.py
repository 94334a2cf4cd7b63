"""Clock, entropy and files as Protocols, so that a simulation can replace them and make them fail on purpose.

What a port does *not* promise is as much a part of it as what it does.
"""

from pathlib import Path
from typing import Protocol


class Clock(Protocol):
    """Wall-clock and monotonic time. The two may drift apart; wall-clock time may jump backwards."""

    def wall_ms(self) -> int:
        """Milliseconds since the epoch, as Kafka stamps records."""

    def monotonic(self) -> float:
        """Seconds on a clock that never goes back. Its zero means nothing."""


class Entropy(Protocol):
    """Randomness. A running program has the system's, which is fit for secrets, too."""

    def random_bytes(self, count: int) -> bytes:
        """``count`` random bytes."""


class File(Protocol):
    """An append-only file.

    After an append has returned, only the operating system has the data: they survive a killed process, not a power
    cut, and may be torn or missing in any part until :meth:`sync` has returned. After an append or sync has raised, the
    file is in an unknown state: the process must stop and recover from the data on disk.
    """

    def append(self, *parts: bytes | bytearray | memoryview) -> None:
        """Write ``parts`` one after another at the end, all of them or raise."""

    def read(self, position: int, size: int) -> bytes:
        """Up to ``size`` bytes from ``position``; fewer at the end of the file."""

    def size(self) -> int:
        """Length in bytes."""

    def truncate(self, size: int) -> None:
        """Cut the file to ``size`` bytes and make the cut durable."""

    def sync(self) -> None:
        """Return once everything appended before the call is on disk. May be called from another thread."""

    def settle(self) -> None:
        """Sync, and let later reads return what is on disk.

        After a failed sync the operating system may still show bytes that will never be on disk, also to the next
        process, whose sync then succeeds without them. Those bytes are cut off or of any value after the call.
        """

    def close(self) -> None:
        """Release the file. Does not sync."""


class Files(Protocol):
    """A directory tree. Names created or removed are durable only after :meth:`sync_directory` of their parent."""

    def open(self, path: Path) -> File:
        """The file at ``path`` for appending and reading, created if it is missing."""

    def reader(self, path: Path) -> File:
        """The file at ``path`` for reading alone, from any thread.

        The caller never closes it, and asks again for each use: the number of open files is bounded.

        :raises FileNotFoundError: if it is missing.
        """

    def list(self, directory: Path) -> list[str]:
        """Names in ``directory``, sorted; empty if there is no such directory."""

    def make_directory(self, path: Path) -> None:
        """Create ``path`` and what is missing above it, durably."""

    def remove(self, path: Path) -> None:
        """Remove the file at ``path``; a process that has it open goes on with it."""

    def remove_directory(self, path: Path) -> None:
        """Remove the empty directory at ``path``."""

    def rename(self, path: Path, name: str) -> None:
        """Let the file at ``path`` be called ``name`` in the same directory, in place of any file of that name.

        A crash leaves the old names or the new ones, nothing in between.
        """

    def sync_directory(self, path: Path) -> None:
        """Return once the names in ``path`` are on disk."""

    def space(self, path: Path) -> tuple[int, int]:
        """The size of the volume that ``path`` is on and how much of it is left to this process, in bytes."""
