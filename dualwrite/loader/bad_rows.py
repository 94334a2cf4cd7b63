"""The file for bad rows: each bad row of the input once, also if the load is killed.

The rows of a unit of work are written, and synchronised to the disk, inside the unit, after its position has moved and
before the database commits. So no bad row is missing. A kill before the commit leaves rows of a unit that was rolled
back at the end of the file. The next run truncates the file there, in the same unit that writes these rows again. So no
bad row is there twice. At that place the database's lock on the position excludes every other unit of the same load.
"""

import base64
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from dualwrite.errors import InputError


@dataclass(frozen=True, slots=True)
class BadRow:
    """A row that does not fit.

    :param row: its number in the input, from 1; bad rows count, blank lines and the header do not.
    :param line: the line on which it begins, from 1.
    :param error: why it does not fit.
    :param raw: its lines.
    """

    row: int
    line: int
    error: str
    raw: bytes

    def encoded(self, source: str) -> bytes:
        """A line of JSON: the input, the row, the line, the error, and the row's text (base64 if it is not UTF-8)."""
        try:
            content = {"text": self.raw.decode().rstrip("\r\n")}
        except UnicodeDecodeError:
            content = {"base64": base64.b64encode(self.raw).decode()}
        entry = {"input": source, "row": self.row, "line": self.line, "error": self.error, **content}
        return json.dumps(entry).encode() + b"\n"


class BadRowFile:
    """A file with the bad rows of one load, opened and locked; a context manager that closes it.

    :param path: the file; made if it does not exist.
    :param source: the input, as the load's identity has it.
    :raises InputError: from the constructor if the file cannot be opened, belongs to something else, or is in use.
    """

    def __init__(self, path: Path, source: str) -> None:
        self._path = path
        self._source = source
        try:
            self._file = open(path, "ab+", buffering=0)  # noqa: SIM115  closed by close()
        except OSError as error:
            raise self._failed(error) from None
        try:
            self._lock()
            self._ends = self._read()
            _sync_directory(path)
        except OSError as error:
            self.close()
            raise self._failed(error) from None
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> "BadRowFile":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the file, and so unlock it."""
        self._file.close()

    def write(self, after: int, rows: Sequence[BadRow]) -> None:
        """Write ``rows`` behind those of the first ``after`` rows of the input, and drop what is there now. Returns
        once they are on the disk.

        :raises InputError: if the file cannot be written. The caller must roll the unit back.
        """
        while self._ends and self._ends[-1][0] > after:
            self._ends.pop()
        end = self._ends[-1][1] if self._ends else 0
        try:
            if os.fstat(self._file.fileno()).st_size != end:
                self._file.truncate(end)
            elif not rows:
                return  # no change, and nothing to wait for
            lines = [row.encoded(self._source) for row in rows]
            rest = memoryview(b"".join(lines))
            while rest:
                rest = rest[self._file.write(rest) :]
            os.fsync(self._file.fileno())
        except OSError as error:
            raise self._failed(error) from None
        for row, line in zip(rows, lines, strict=True):
            end += len(line)
            self._ends.append((row.row, end))

    def _lock(self) -> None:
        import fcntl  # here, as Windows lacks it

        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InputError(f"{self._path} is in use by another load; run only one, or name another file") from None

    def _read(self) -> list[tuple[int, int]]:
        """The number of each bad row in the file, and the size of the file up to its end. A torn last line, which a
        kill left, is not among them."""
        if not self._path.is_file():
            raise InputError(f"{self._path} is not a regular file: name a file for bad rows")
        ends = []
        end = 0
        self._file.seek(0)
        with open(self._file.fileno(), "rb", closefd=False) as reader:
            for line in reader:
                if line.endswith(b"\n"):
                    end += len(line)
                    ends.append((self._row_of(line), end))
                elif not line.startswith(b'{"input": '[: len(line)]):
                    raise self._foreign()
        return ends

    def _row_of(self, line: bytes) -> int:
        try:
            entry: Any = json.loads(line)
        except ValueError:
            entry = None
        if not isinstance(entry, dict) or not isinstance(entry.get("row"), int):
            raise self._foreign()
        if entry.get("input") != self._source:
            raise InputError(
                f"{self._path} holds the bad rows of another load, of {entry.get('input')}: name another file"
            )
        return int(entry["row"])

    def _foreign(self) -> InputError:
        return InputError(f"{self._path} is no file of bad rows, and is not overwritten: name another file")

    def _failed(self, error: OSError) -> InputError:
        return InputError(f"cannot write bad rows to {self._path}: {error.strerror or error}")


def _sync_directory(path: Path) -> None:
    """Keep the name of a new file through a power cut."""
    descriptor = os.open(path.resolve().parent, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
