"""The real disk behind the Files port. It has no buffers in the process: written bytes survive a killed process."""

import os
import sys
from collections import OrderedDict
from pathlib import Path
from threading import Lock

from dualwrite.broker.process.data_dir import PRIVATE_DIRECTORY, PRIVATE_FILE
from dualwrite.ports import File

_MOST_PARTS = os.sysconf("SC_IOV_MAX")
_MOST_READERS = 128

if sys.platform == "darwin":  # on macOS fsync() leaves the data in the drive's volatile cache
    import fcntl

    def _flush(descriptor: int) -> None:
        fcntl.fcntl(descriptor, fcntl.F_FULLFSYNC)

    def _forget_cached(descriptor: int) -> None:
        """macOS has no such call."""
else:

    def _flush(descriptor: int) -> None:
        os.fdatasync(descriptor)

    def _forget_cached(descriptor: int) -> None:
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)


class DiskFile:
    """A :class:`~dualwrite.ports.File` on a file system. One thread appends; any thread may read and sync."""

    def __init__(self, path: Path, flags: int = os.O_RDWR | os.O_CREAT | os.O_APPEND) -> None:
        self._descriptor = -1  # until there is one to close
        self._path = path
        self._descriptor = os.open(path, flags | os.O_CLOEXEC, PRIVATE_FILE)

    def append(self, *parts: bytes | bytearray | memoryview) -> None:
        """Write ``parts`` at the end, all of them.

        :raises OSError: if the disk is full or broken. Some of the bytes may be in the file; the caller must stop the
            process.
        """
        try:
            if len(parts) == 1:
                written, size = os.write(self._descriptor, parts[0]), len(parts[0])
            else:
                written, size = os.writev(self._descriptor, parts[:_MOST_PARTS]), sum(map(len, parts))
            if written < size:
                self._append_rest([memoryview(part) for part in parts], written)
        except OSError as error:
            raise self._named(error) from None

    def _append_rest(self, rest: list[memoryview], written: int) -> None:
        """Write ``rest`` without its first ``written`` bytes."""
        while True:
            while rest and written >= len(rest[0]):
                written -= len(rest.pop(0))
            if not rest:
                return
            rest[0] = rest[0][written:]
            written = os.writev(self._descriptor, rest[:_MOST_PARTS])

    def read(self, position: int, size: int) -> bytes:
        """``size`` bytes from ``position``; fewer only at the end of the file.

        :raises OSError: if the disk failed.
        """
        try:
            data = os.pread(self._descriptor, size, position)
            while 0 < len(data) < size:
                more = os.pread(self._descriptor, size - len(data), position + len(data))
                if not more:
                    break
                data += more
        except OSError as error:
            raise self._named(error) from None
        return data

    def size(self) -> int:
        """Length in bytes."""
        return os.fstat(self._descriptor).st_size

    def truncate(self, size: int) -> None:
        """Cut the file to ``size`` bytes. The cut is on disk on return."""
        try:
            os.ftruncate(self._descriptor, size)
            _flush(self._descriptor)
        except OSError as error:
            raise self._named(error) from None

    def sync(self) -> None:
        """Return once everything appended before the call is on disk.

        :raises OSError: if the disk failed. The caller must stop the process, and never call this again: the kernel may
            have dropped the bytes, and a second call would succeed without them.
        """
        try:
            _flush(self._descriptor)
        except OSError as error:
            raise self._named(error) from None

    def settle(self) -> None:
        """Sync, and let the system forget the pages of the file, which may differ from the disk after a failed sync.

        The whole file: a page that is only in part behind some position would stay.
        """
        self.sync()
        _forget_cached(self._descriptor)

    def _named(self, error: OSError) -> OSError:
        """``error``, which is of a call by descriptor, with the file's name."""
        error.filename = str(self._path)
        return error

    def close(self) -> None:
        """Release the descriptor. A second call does nothing. No other thread may be in a call."""
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

        :raises OSError: if its directory is missing, or the process lacks the permission.
        """
        return DiskFile(path)

    def reader(self, path: Path) -> File:
        """The file at ``path`` for reading. The most recently used files stay open; any other closes when its last user
        drops it.

        :raises FileNotFoundError: if it is missing.
        """
        with self._lock:
            file = self._readers.get(path)
            if file is None:
                file = self._readers[path] = DiskFile(path, os.O_RDONLY)
                if len(self._readers) > _MOST_READERS:
                    self._readers.popitem(last=False)
            else:
                self._readers.move_to_end(path)
            return file

    def list(self, directory: Path) -> list[str]:
        """The names in ``directory``, sorted; empty if there is no such directory."""
        try:
            return sorted(os.listdir(directory))
        except FileNotFoundError:
            return []

    def make_directory(self, path: Path) -> None:
        """Create ``path`` and its missing parents, durably.

        The parent is synced even if ``path`` exists: a process may have been killed between its creation and the sync.
        """
        if not path.parent.is_dir():
            self.make_directory(path.parent)
        path.mkdir(PRIVATE_DIRECTORY, exist_ok=True)
        self.sync_directory(path.parent)

    def remove(self, path: Path) -> None:
        """Remove the file at ``path``."""
        os.unlink(path)
        self._forget(path)

    def rename(self, path: Path, name: str) -> None:
        """Rename the file at ``path`` to ``name``, in place of any other file."""
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
        except OSError as error:
            error.filename = str(path)
            raise
        finally:
            os.close(descriptor)

    def _forget(self, *paths: Path) -> None:
        with self._lock:
            for path in paths:
                self._readers.pop(path, None)
