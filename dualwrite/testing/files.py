"""A disk in memory that can fail: :class:`MemoryFiles` implements the Files port and loses data as a disk may."""

import errno
import random
from dataclasses import dataclass, field
from pathlib import Path

from dualwrite.ports import File

_SECTOR = 512
_VOLUME = 1 << 40


@dataclass(slots=True)
class _Content:
    """The content of a file: its bytes, and how many of them are on disk."""

    data: bytearray = field(default_factory=bytearray)
    synced: int = 0
    broken: bool = False

    def after_power_cut(self, rng: random.Random) -> "_Content":
        data = self.data[: self.synced] + _torn(self.data[self.synced :], rng)
        return _Content(data, synced=len(data))


@dataclass(frozen=True, slots=True)
class _Change:
    """A change of names that may not be on disk yet: ``path`` now leads to ``content``, or to nothing."""

    path: Path
    content: _Content | None
    formerly: Path | None = None
    """The former name, if the change is a rename."""

    def make(self, names: dict[Path, _Content]) -> None:
        if self.formerly is not None and names.get(self.formerly) is self.content:
            del names[self.formerly]
        if self.content is None:
            names.pop(self.path, None)
        else:
            names[self.path] = self.content


def _torn(unsynced: bytearray, rng: random.Random) -> bytearray:
    """One possible content of unsynced bytes after a power cut: a prefix, then sectors written, stale or empty."""
    kept = unsynced[: rng.choice((len(unsynced), rng.randint(0, len(unsynced))))]
    if rng.random() < 0.5:
        return kept
    length = rng.choice((len(unsynced), rng.randint(len(kept), len(unsynced))))
    while len(kept) < length:
        at = len(kept)
        sector = unsynced[at : min(at - at % _SECTOR + _SECTOR, length)]
        kept += rng.choice((sector, bytes(len(sector)), rng.randbytes(len(sector))))
    return kept


class MemoryFile:
    """A :class:`~dualwrite.ports.File` of a :class:`MemoryFiles`. Its methods raise ValueError after ``close``."""

    def __init__(self, files: "MemoryFiles", content: _Content) -> None:
        self._files = files
        self._content: _Content | None = content

    def append(self, *parts: bytes | bytearray | memoryview) -> None:
        """Write ``parts``. If this append is set to fail, write the first half of the bytes, and raise OSError."""
        content, data = self._open_content(), b"".join(parts)
        if self._files.appends.hit():
            content.data += data[: len(data) // 2]
            raise OSError(errno.ENOSPC, "no space left (injected)")
        content.data += data

    def read(self, position: int, size: int) -> bytes:
        """Up to ``size`` bytes from ``position``."""
        return bytes(self._open_content().data[position : position + size])

    def size(self) -> int:
        """Length in bytes."""
        return len(self._open_content().data)

    def truncate(self, size: int) -> None:
        """Cut the file to ``size`` bytes, durably."""
        content = self._open_content()
        del content.data[size:]
        content.synced = min(content.synced, size)

    def sync(self) -> None:
        """Make appended bytes durable. After a failed sync, the next one succeeds and does nothing, as on Linux."""
        content = self._open_content()
        length = len(content.data)
        if self._files.syncs.hit():
            content.broken = True
            raise OSError(errno.EIO, "input/output error (injected)")
        if not content.broken:
            content.synced = length

    def settle(self) -> None:
        """Sync, and cut off the bytes that a failed sync has lost."""
        self.sync()
        content = self._open_content()
        if content.broken:
            del content.data[content.synced :]
            content.broken = False

    def close(self) -> None:
        """Release the file. A second call does nothing."""
        self._content = None

    def _open_content(self) -> _Content:
        if self._content is None:
            raise ValueError("I/O operation on a closed file")
        return self._content


class Faults:
    """Counts calls of one kind, and fails the selected one."""

    def __init__(self) -> None:
        self.count = 0
        """The number of calls so far, including failed ones."""
        self._fail_at: int | None = None

    def fail(self, nth: int = 1) -> None:
        """Let only the ``nth`` call from now on raise OSError."""
        self._fail_at = self.count + nth

    def hit(self) -> bool:
        """Count one call; True if it must fail."""
        self.count += 1
        return self.count == self._fail_at


class MemoryFiles:
    """:class:`~dualwrite.ports.Files` in memory.

    It guarantees exactly what the port guarantees. To reopen files on the same object shows the disk after a killed
    process; :meth:`power_cut` shows the disk after a power cut. ``appends.fail(n)`` and ``syncs.fail(n)`` inject errors
    (a sync of a directory counts, too), and their ``count`` is the number of calls.

    Not guaranteed: that unsynced bytes vanish (a disk may have written them), or keep their order beyond a random
    prefix; that a name created, removed or changed since the last ``sync_directory`` exists or does not; that a file
    whose sync failed once becomes durable again before it was settled. Permissions, symbolic links, and reads on a full
    disk are not simulated.
    """

    def __init__(self) -> None:
        self.appends = Faults()
        self.syncs = Faults()
        self._directories: set[Path] = {Path("/"), Path(".")}
        self._names: dict[Path, _Content] = {}
        self._durable_names: dict[Path, _Content] = {}
        self._changes: list[_Change] = []
        self._listings: dict[Path, list[str]] = {}
        """The names in each directory, as far as they were asked for since the last change."""

    def open(self, path: Path) -> File:
        """The file at ``path``, created if it is missing.

        :raises FileNotFoundError: if its directory is missing.
        """
        if path.parent not in self._directories:
            raise FileNotFoundError(errno.ENOENT, "no such directory", str(path.parent))
        if path not in self._names:
            self._change(_Change(path, _Content()))
        return MemoryFile(self, self._names[path])

    def reader(self, path: Path) -> File:
        """The file at ``path``.

        :raises FileNotFoundError: if it is missing.
        """
        if path not in self._names:
            raise FileNotFoundError(errno.ENOENT, "no such file", str(path))
        return MemoryFile(self, self._names[path])

    def list(self, directory: Path) -> list[str]:
        """Names in ``directory``, sorted; empty if there is no such directory."""
        if directory not in self._listings:
            entries = (*self._names, *self._directories)
            self._listings[directory] = sorted(
                path.name for path in entries if path.parent == directory and path != directory
            )
        return list(self._listings[directory])

    def make_directory(self, path: Path) -> None:
        """Create ``path`` and its missing parents, durably."""
        self._directories.update((path, *path.parents))
        self._listings.clear()

    def remove(self, path: Path) -> None:
        """Remove the file at ``path``; open files keep it."""
        if path not in self._names:
            raise FileNotFoundError(errno.ENOENT, "no such file", str(path))
        self._change(_Change(path, None))

    def rename(self, path: Path, name: str) -> None:
        """Rename the file at ``path`` to ``name``."""
        if path not in self._names:
            raise FileNotFoundError(errno.ENOENT, "no such file", str(path))
        self._change(_Change(path.with_name(name), self._names[path], formerly=path))

    def remove_directory(self, path: Path) -> None:
        """Remove the empty directory at ``path``. Not simulated: that a power cut may bring it back, empty."""
        if path not in self._directories:
            raise FileNotFoundError(errno.ENOENT, "no such directory", str(path))
        if self.list(path):
            raise OSError(errno.ENOTEMPTY, "directory not empty", str(path))
        self._directories.remove(path)
        self._listings.clear()

    def space(self, path: Path) -> tuple[int, int]:
        """A volume that is never full."""
        return _VOLUME, _VOLUME

    def sync_directory(self, path: Path) -> None:
        """Make the names in ``path`` durable, but not the content of the files."""
        if self.syncs.hit():
            raise OSError(errno.EIO, "input/output error (injected)")
        for change in self._changes:
            if change.path.parent == path:
                change.make(self._durable_names)
        self._changes = [change for change in self._changes if change.path.parent != path]

    def power_cut(self, rng: random.Random) -> "MemoryFiles":
        """One possible disk after a power cut at this moment, chosen by ``rng``. This object is unchanged."""
        after = type(self)()
        after._directories |= self._directories
        survivors = dict(self._durable_names)
        for change in self._changes:
            if rng.random() < 0.5:
                change.make(survivors)
        after._names = {path: survivors[path].after_power_cut(rng) for path in sorted(survivors)}
        after._durable_names = dict(after._names)
        return after

    def _change(self, change: "_Change") -> None:
        change.make(self._names)
        self._changes.append(change)
        self._listings.clear()
