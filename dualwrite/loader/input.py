"""Reads the rows of a CSV or JSON-lines file, plain, gzipped or as the one member of a zip archive.

Every row has the number of the line on which it begins. A digest covers the lines read so far, so that a later run can
check that the beginning of the file is unchanged.
"""

import csv
import gzip
import hashlib
import json
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path, PurePath
from types import TracebackType
from typing import IO, Any, NamedTuple, Protocol

from dualwrite.errors import InputError

_CSV = (".csv",)
_JSON_LINES = (".jsonl", ".ndjson", ".json")


class InputRow(NamedTuple):
    """One row: the line on which it begins, counted from 1, and its values by column name (texts for CSV)."""

    line: int
    values: dict[str, Any]


class ExactFloat(float):
    """A number of a JSON line with its own spelling, so that a NUMERIC column gets every digit."""

    text: str

    @classmethod
    def parse(cls, text: str) -> "ExactFloat":
        """The number that ``text`` spells."""
        number = cls(text)
        number.text = text
        return number


class InputFile:
    """An input file, opened; a context manager that closes it.

    :raises InputError: from the constructor if the file is missing, unreadable, of an unknown kind, or its header is
        invalid; from :meth:`rows` at a malformed row. The message names the file and the line.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._stack = ExitStack()
        try:
            self._raw, text = _open(path, self._stack)
            is_csv = _kind(path, text.name) in _CSV
            self._file_size = path.stat().st_size
            self._text_size = text.size
            self._lines = _Lines(path.name, text.stream)
            self._records = self._csv_records() if is_csv else iter(())
            self.columns: tuple[str, ...] | None = self._header() if is_csv else None
        except BaseException:
            self._stack.close()
            raise

    def __enter__(self) -> "InputFile":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stack.close()

    def rows(self) -> Iterator[InputRow]:
        """The remaining rows, one by one.

        :raises InputError: at a malformed row, or where the file cannot be read further.
        """
        return self._csv_rows() if self.columns is not None else self._json_rows(self._lines)

    def digest(self) -> str:
        """SHA-256, in hex, of every line up to the end of the last row that was returned. Every line end counts as a
        newline, so that the last line may get its newline later. Blank lines do not count."""
        return self._lines.digest.hexdigest()

    def fraction(self) -> float:
        """The part of the text that was read, 0 to 1; 1 only once there are no more rows. For a .gz file, whose text
        length is unknown, the part of the compressed file, including read-ahead."""
        if self._lines.ended:
            return 1.0
        read = self._raw.tell() if self._text_size is None else self._lines.size
        return min(0.99, read / max(1, self._text_size or self._file_size))

    def _csv_records(self) -> Iterator[tuple[int, list[str]]]:
        reader = csv.reader(self._lines, strict=True)
        while True:
            begins = self._lines.number + 1
            try:
                fields = next(reader, None)
            except csv.Error as error:
                raise self._lines.error(begins, str(error)) from None
            if fields is None:
                return
            if fields:
                yield begins, fields

    def _header(self) -> tuple[str, ...]:
        line, names = next(self._records, (1, []))
        if not names:
            raise InputError(f"{self.path.name} is empty; its first line must name the columns")
        for place, name in enumerate(names):
            if not name.strip():
                raise self._lines.error(line, f"column {place + 1} has no name")
            if name in names[:place]:
                raise self._lines.error(line, f"column {name!r} is named twice")
        return tuple(names)

    def _csv_rows(self) -> Iterator[InputRow]:
        names = self.columns or ()
        for line, fields in self._records:
            if len(fields) != len(names):
                raise self._lines.error(line, f"{len(fields)} fields where the header names {len(names)} columns")
            yield InputRow(line, dict(zip(names, fields, strict=True)))

    def _json_rows(self, lines: "_Lines") -> Iterator[InputRow]:
        for text in lines:
            if not text.strip():
                continue
            try:
                values = json.loads(text, parse_float=ExactFloat.parse, parse_constant=_refuse_constant)
            except (ValueError, RecursionError) as error:
                raise lines.error(lines.number, f"no JSON: {error}") from None
            if not isinstance(values, dict) or not values:
                raise lines.error(lines.number, "expected a JSON object with a value for each column")
            yield InputRow(lines.number, values)


class _Stream(Protocol):
    """Bytes, line by line."""

    def readline(self) -> bytes: ...


class _Text(NamedTuple):
    """The text of a file, the file name with the suffix of its kind, and the text's size in bytes if it is known."""

    stream: _Stream
    name: str
    size: int | None


class _Lines:
    """The lines of a stream as text, counted and digested."""

    def __init__(self, name: str, stream: _Stream) -> None:
        self._name = name
        self._stream = stream
        self.number = 0
        self.size = 0
        self.ended = False
        self.digest = hashlib.sha256()

    def __iter__(self) -> "_Lines":
        return self

    def __next__(self) -> str:
        try:
            raw = self._stream.readline()
        # zipfile raises RuntimeError for an encrypted member, NotImplementedError for an unknown compression
        except (OSError, EOFError, zlib.error, zipfile.BadZipFile, RuntimeError) as error:
            raise InputError(f"{self._name} cannot be read beyond line {self.number}: {error}") from None
        if not raw:
            self.ended = True
            raise StopIteration
        self.number += 1
        self.size += len(raw)
        if raw.strip():
            self.digest.update(raw.rstrip(b"\r\n") + b"\n")
        if b"\0" in raw:
            raise self.error(self.number, "contains a NUL byte; this is not a text file")
        try:
            return raw.decode("utf-8-sig" if self.number == 1 else "utf-8")
        except UnicodeDecodeError as error:
            raise self.error(self.number, f"is not UTF-8 (byte {error.start + 1})") from None

    def error(self, line: int, message: str) -> InputError:
        return InputError(f"{self._name}, line {line}: {message}")


def _kind(path: Path, inner_name: str) -> str:
    suffix = PurePath(inner_name).suffix.lower()
    if suffix not in _CSV + _JSON_LINES:
        kinds = ".csv, .jsonl, .ndjson or .json, alone, as .gz or in .zip"
        raise InputError(f"{path.name}: {inner_name!r} is of an unknown kind; use {kinds}")
    return suffix


def _open(path: Path, stack: ExitStack) -> tuple[IO[bytes], _Text]:
    """The file on disk, and its text."""
    try:
        raw: IO[bytes] = stack.enter_context(path.open("rb"))
        if not path.is_file():
            raise InputError(f"{path} is not a regular file")
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror or error}") from None
    if path.suffix.lower() == ".gz":
        return raw, _Text(stack.enter_context(gzip.GzipFile(fileobj=raw, mode="rb")), path.stem, None)
    if path.suffix.lower() == ".zip":
        return raw, _open_member(path, raw, stack)
    return raw, _Text(raw, path.name, path.stat().st_size)


def _open_member(path: Path, raw: IO[bytes], stack: ExitStack) -> _Text:
    try:
        archive = stack.enter_context(zipfile.ZipFile(raw))
        members = [member for member in archive.infolist() if not member.is_dir()]
        if len(members) != 1:
            raise InputError(f"{path.name} holds {len(members)} files; it must hold one")
        stream = stack.enter_context(archive.open(members[0]))
        return _Text(stream, members[0].filename, members[0].file_size)
    except (OSError, zipfile.BadZipFile, RuntimeError) as error:
        raise InputError(f"{path.name} cannot be read: {error}") from None


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is not a JSON number")
