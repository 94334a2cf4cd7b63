"""Reads the rows of an input in CSV, TSV or JSON lines, in any encoding that Python knows.

Every row has the number of the line on which it begins. A digest covers the lines read so far, so that a later run can
check that the beginning of the input is unchanged.
"""

import csv
import json
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

from dualwrite.errors import InputError
from dualwrite.loader.format import InputFormat
from dualwrite.loader.lines import LineError, TextLines
from dualwrite.loader.streams import STANDARD_INPUT, open_input

_ARRAY = "expected JSON lines, one object a line, but this begins a JSON array; convert it with: jq -c '.[]'"


class InputRow(NamedTuple):
    """One row: the line on which it begins, counted from 1, and its values by column name (texts for CSV)."""

    line: int
    values: dict[str, Any]


class MalformedRow(NamedTuple):
    """A row that cannot be read: the line on which it begins, and a message that names input and line."""

    line: int
    message: str


class ExactFloat(float):
    """A number of a JSON line with its own spelling, so that a NUMERIC column gets every digit."""

    text: str

    @classmethod
    def parse(cls, text: str) -> "ExactFloat":
        """The number that ``text`` spells."""
        number = cls(text)
        number.text = text
        return number


class _RepeatingObject(dict[str, Any]):
    """A JSON object that has a name more than once. Python keeps the last value and drops the others.

    :param pairs: its names and values.
    """

    def __init__(self, pairs: list[tuple[str, Any]]) -> None:
        super().__init__(pairs)
        self.repeated, _ = Counter(name for name, _ in pairs).most_common(1)[0]


class InputFile:
    """An input, opened; a context manager that closes it.

    :param path: the file; None for standard input.
    :param form: its format. Without a kind, the file's name says it.
    :raises InputError: from the constructor if the file is missing, unreadable, of an unknown kind, or its header is
        invalid; from :meth:`items` and :meth:`rows` where it cannot be read further. The message names the input and
        the line. Correct the input, and read it again.
    :raises ConfigurationError: if the format contradicts itself.
    """

    def __init__(self, path: Path | None, form: InputFormat | None = None) -> None:
        self.name = STANDARD_INPUT if path is None else path.name
        self._stack = ExitStack()
        try:
            self._stream = open_input(path, self._stack)
            self.form = (form or InputFormat()).of(self._stream.name, self.name)
            self._lines = TextLines(self.name, self._stream.text, self.form)
            self._records = self._field_records() if self.form.has_fields else iter(())
            self.columns: tuple[str, ...] | None = self._header() if self.form.has_fields else None
        except BaseException:
            self._stack.close()
            raise

    def __enter__(self) -> "InputFile":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stack.close()

    def items(self) -> Iterator[InputRow | MalformedRow]:
        """The remaining rows, one by one, with those that are malformed.

        :raises InputError: where the input cannot be read further: at an unreadable file, at a malformed row of several
            lines, which may have swallowed good rows, or at a JSON array.
        """
        return self._field_rows() if self.columns is not None else self._json_rows(self._lines)

    def rows(self) -> Iterator[InputRow]:
        """The remaining rows, one by one.

        :raises InputError: at a malformed row, or where the input cannot be read further.
        """
        for item in self.items():
            if isinstance(item, MalformedRow):
                raise InputError(item.message)
            yield item

    def raw(self) -> bytes:
        """The lines of the last row that :meth:`items` returned, as they are in the input. They are in UTF-8 if the
        input is in UTF-16 or the like."""
        return b"".join(self._lines.row)

    def digest(self) -> str:
        """SHA-256, in hex, of every line up to the end of the last row that was returned. Every line end counts as a
        newline, so that the last line may get its newline later. Blank lines do not count."""
        return self._lines.digest.hexdigest()

    def fraction(self) -> float:
        """The part of the text that was read, 0 to 1; 1 only once there are no more rows. For a .gz file, whose text
        length is unknown, the part of the compressed file, including read-ahead. 0 for standard input until its
        end."""
        stream = self._stream
        if self._lines.ended:
            return 1.0
        if stream.file_size is None:
            return 0.0
        if stream.text_size is None or self.form.encoding != "utf-8":
            return min(0.99, stream.raw.tell() / max(1, stream.file_size))
        return min(0.99, self._lines.size / max(1, stream.text_size))

    def _where(self, line: int, message: str) -> str:
        return f"{self.name}, line {line}: {message}"

    def _field_records(self) -> Iterator[tuple[int, list[str] | MalformedRow]]:
        reader = csv.reader(self._lines, strict=True, delimiter=self.form.delimiter or ",")
        while True:
            begins = self._lines.begin_row()
            try:
                fields = next(reader, None)
            except (csv.Error, LineError) as error:
                message = self._where(begins, str(error))
                if len(self._lines.row) > 1:
                    raise InputError(message) from None
                yield begins, MalformedRow(begins, message)
                continue
            if fields is None:
                return
            if fields:
                yield begins, fields

    def _header(self) -> tuple[str, ...]:
        line, names = next(self._records, (1, []))
        if isinstance(names, MalformedRow):
            raise InputError(names.message)
        if not names:
            raise InputError(f"{self.name} is empty; its first line must name the columns")
        for place, name in enumerate(names):
            if not name.strip():
                raise InputError(self._where(line, f"column {place + 1} has no name"))
            if name in names[:place]:
                raise InputError(self._where(line, f"column {name!r} is named twice"))
        return tuple(names)

    def _field_rows(self) -> Iterator[InputRow | MalformedRow]:
        names = self.columns or ()
        for line, fields in self._records:
            if isinstance(fields, MalformedRow):
                yield fields
            elif len(fields) != len(names):
                message = f"{len(fields)} fields where the header names {len(names)} columns"
                yield MalformedRow(line, self._where(line, message))
            else:
                yield InputRow(line, dict(zip(names, fields, strict=True)))

    def _json_rows(self, lines: TextLines) -> Iterator[InputRow | MalformedRow]:
        is_first = True
        while True:
            line = lines.begin_row()
            try:
                text = next(lines, None)
                if text is None:
                    return
                if not text.strip():
                    continue
                if is_first and text.lstrip().startswith("["):
                    raise InputError(self._where(line, _ARRAY))
                is_first = False
                yield InputRow(line, _json_object(text))
            except LineError as error:
                is_first = False
                yield MalformedRow(line, self._where(line, str(error)))


def check_input(path: Path | None, form: InputFormat) -> None:
    """Open the file and read its header, so that a mistake is found at once. Leaves standard input alone.

    :raises InputError: as the constructor of :class:`InputFile`.
    :raises ConfigurationError: if the format contradicts itself.
    """
    if path is not None:
        with InputFile(path, form):
            return


def _json_object(text: str) -> dict[str, Any]:
    try:
        values = json.loads(
            text, parse_float=ExactFloat.parse, parse_constant=_refuse_constant, object_pairs_hook=_object_of
        )
    except (ValueError, RecursionError) as error:
        raise LineError(f"no JSON: {error}") from None
    if not isinstance(values, dict) or not values:
        raise LineError("expected a JSON object with a value for each column")
    if isinstance(values, _RepeatingObject):  # inside of a value it is the column's own
        raise LineError(f"column {values.repeated!r} is named twice")
    return values


def _object_of(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    return fields if len(fields) == len(pairs) else _RepeatingObject(pairs)


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is not a JSON number")
