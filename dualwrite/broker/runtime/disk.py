"""The real disk behind the Files port. It buffers nothing in the process: written bytes survive the process."""

import os
import sys
from collections import OrderedDict
from pathlib import Path
from threading import Lock

from dualwrite.ports import File

_MOST_PARTS = os.sysconf("SC_IOV_MAX")
_MOST_READERS = 128

if sys.platform == "darwin":  # there fsync() leaves the data in the drive's volatile cache
    import fcntl

    def _flush(descriptor: int) -> None:
        fcntl.fcntl(descriptor, fcntl.F_FULLFSYNC)
else:

    def _flush(descriptor: int) -> None:
        os.fdatasync(descriptor)


class DiskFile:
    """A :class:`~dualwrite.ports.File` on a file system. One thread appends; any thread may read and sync."""

    def __init__(self, path: Path, flags: int = os.O_RDWR | os.O_CREAT | os.O_APPEND) -> None:
        self._descriptor = -1  # until there is one to close
        self._path = path
        self._descriptor = os.open(path, flags | os.O_CLOEXEC, 0o644)

    def append(self, *parts: bytes | bytearray | memoryview) -> None:
        """Write ``parts`` at the end, all of them.

        :raises OSError: if the disk is full or broken. Part of the bytes may be in the file: stop and recover.
        """
        try:
            written = os.writev(self._descriptor, parts[:_MOST_PARTS])
            if written < sum(map(len, parts)):
                self._append_rest([memoryview(part) for part in parts], written)
        except OSError as error:
            raise self._named(error) from None

    def _append_rest(self, rest: list[memoryview], written: int) -> None:
        """Write the rest, after the first ``written`` bytes."""
        while True:
            while rest and written >= len(rest[0]):
                written -= len(rest.pop(0))
            if not rest:
                return
            rest[0] = rest[0][written:]
            written = os.writev(self._descriptor, rest[:_MOST_PARTS])

    def read(self, position: int, size: int) -> bytes:
        """Up to ``size`` bytes from ``position``; fewer only at the end of the file."""
        data = os.pread(self._descriptor, size, position)
        while 0 < len(data) < size:
            more = os.pread(self._descriptor, size - len(data), position + len(data))
            if not more:
                break
            data += more
        return data

    def size(self) -> int:
        """Length in bytes."""
        return os.fstat(self._descriptor).st_size

    def truncate(self, size: int) -> None:
        """Cut the file to ``size`` bytes; the cut is on disk when this returns."""
        os.ftruncate(self._descriptor, size)
        _flush(self._descriptor)

    def sync(self) -> None:
        """Return once everything appended before the call is on disk.

        :raises OSError: if the disk failed. The kernel may have dropped the bytes, and a second call would succeed
            without them: stop the process, and never call again.
        """
        try:
            _flush(self._descriptor)
        except OSError as error:
            raise self._named(error) from None

    def _named(self, error: OSError) -> OSError:
        """``error`` of a call by descriptor, with the file's name added."""
        error.filename = str(self._path)
        return error

    def close(self) -> None:
        """Release the descriptor; a second call does nothing. No other thread may be in a call."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def __del__(self) -> None:
        """Close the descriptor when the file's last user drops it, if it was not closed before."""
        self.close()


class DiskFiles:
    """:class:`~dualwrite.ports.Files` on the file systems of this machine."""

    def __init__(self) -> None:
        self._readers: OrderedDict[Path, DiskFile] = OrderedDict()
        self._lock = Lock()

    def open(self, path: Path) -> File:
        """The file at ``path``, created if it is missing.

        :raises OSError: if its directory is missing, or the process may not.
        """
        return DiskFile(path)

    def reader(self, path: Path) -> File:
        """The file at ``path`` for reading. The most recently used ones stay open; the others are closed when their
        last user drops them.

        :raises FileNotFoundError: if it is missing.
        """
        with self._lock:
            found = self._readers.get(path)
            if found is None:
                found = self._readers[path] = DiskFile(path, os.O_RDONLY)
                if len(self._readers) > _MOST_READERS:
                    self._readers.popitem(last=False)
            else:
                self._readers.move_to_end(path)
            return found

    def list(self, directory: Path) -> list[str]:
        """Names in ``directory``, sorted; empty if there is no such directory."""
        try:
            return sorted(os.listdir(directory))
        except FileNotFoundError:
            return []

    def make_directory(self, path: Path) -> None:
        """Create ``path`` and what is missing above it, durably.

        The parent is synced even if ``path`` was there: its creator may have been killed before it could do so.
        """
        if not path.parent.is_dir():
            self.make_directory(path.parent)
        path.mkdir(exist_ok=True)
        self.sync_directory(path.parent)

    def remove(self, path: Path) -> None:
        """Remove the file at ``path``."""
        os.unlink(path)
        self._forget(path)

    def rename(self, path: Path, name: str) -> None:
        """Let the file at ``path`` be called ``name``, in place of any other."""
        os.replace(path, path.with_name(name))
        self._forget(path, path.with_name(name))

    def remove_directory(self, path: Path) -> None:
        """Remove the empty directory at ``path``."""
        os.rmdir(path)

    def space(self, path: Path) -> tuple[int, int]:
        """The size of the volume of ``path``, and the space that this process may use, in bytes."""
        volume = os.statvfs(path)
        return volume.f_blocks * volume.f_frsize, volume.f_bavail * volume.f_frsize

    def sync_directory(self, path: Path) -> None:
        """Return once the names in ``path`` are on disk."""
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def _forget(self, *paths: Path) -> None:
        with self._lock:
            for path in paths:
                self._readers.pop(path, None)
