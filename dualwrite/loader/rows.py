"""Converts the values of an input row to the types of the table's columns, and encodes the row as a message.

Every value is first converted to the value that the database will store. The row and the message are made from that, so
they agree. Timestamps without a zone are UTC. A column without a zone gets every timestamp in UTC.
"""

import json
import re
from collections.abc import Callable, Sequence
from datetime import date, datetime, time, timezone
from decimal import Decimal
from typing import Any
from uuid import UUID

from sqlalchemy import Column, Table
from sqlalchemy import types as sqltypes

from dualwrite.coordinator.sql.dialects.base import Database
from dualwrite.errors import InputError
from dualwrite.loader.input import InputRow
from dualwrite.loader.numbers import decimal_of, float_of, plain_text

Row = dict[str, Any]
Convert = Callable[[Any], Any]

_INTEGER = re.compile(r"[+-]?[0-9]{1,20}")
_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_TIME = re.compile(r"([0-9]{2}:[0-9]{2})(:[0-9]{2})?(?:\.([0-9]{1,6}))?")
_ZONE = re.compile(r"(Z|z|[+-][0-9]{2}:?[0-9]{2})$")
_TOO_DEEP = "JSON that is nested too deeply"
_BOOLEANS = {"true": True, "t": True, "1": True, "false": False, "f": False, "0": False}


class RowTyper:
    """Converts input rows for one table.

    :param table: the reflected table.
    :param source: the input's name, for messages.
    :param database: the database of ``table``.
    :param csv: True if every value is a text. An empty text is then NULL, except in a NOT NULL text column.
    :param null: a further text that stands for NULL, such as ``NA``.
    """

    def __init__(self, table: Table, source: str, database: Database, *, csv: bool, null: str | None = None) -> None:
        self._table = table
        self._source = source
        self._csv = csv
        self._nulls = frozenset(text for text in ("" if csv else None, null) if text is not None)
        self._database = database
        self._plans: dict[tuple[str, ...], list[tuple[str, Convert]]] = {}

    def require(self, names: Sequence[str], where: str) -> None:
        """Prepare for rows that have exactly the columns ``names``.

        :raises InputError: if the table lacks a column, or the type of a column cannot be loaded. The message names the
            first such column, after ``where``.
        """
        column_names = [column.name for column in self._table.columns]
        for name in names:
            if name not in column_names:
                raise InputError(
                    f"{where}: table {self._table.fullname} has no column {name!r}; it has {', '.join(column_names)}"
                )
        self._plans[tuple(names)] = [
            (column.name, self._convert_for(column, where)) for column in self._table.columns if column.name in names
        ]

    def row(self, input_row: InputRow) -> Row:
        """The values of ``input_row`` in the types and the order of the table's columns.

        :raises InputError: if a value does not fit its column; the message names file, line and column.
        """
        values = input_row.values
        names = tuple(values)
        if names not in self._plans:
            self.require(names, f"{self._source}, line {input_row.line}")
        row: Row = {}
        for name, convert in self._plans[names]:
            try:
                row[name] = convert(values[name])
            except (ValueError, OverflowError) as error:
                raise InputError(f"{self._source}, line {input_row.line}: column {name!r}: {error}") from None
        return row

    def _convert_for(self, column: "Column[Any]", where: str) -> Convert:
        kind = column.type
        if isinstance(kind, sqltypes.Numeric | sqltypes.Float):
            return _nullable(self._number(kind), column, self._nulls)
        convert = next((convert for known, convert in _CONVERTS if isinstance(kind, known)), None)
        if convert is None:
            raise InputError(f"{where}: column {column.name!r} is of type {kind!r}, which cannot be loaded from text")
        if convert is _timestamp and not getattr(kind, "timezone", False):
            convert = _without_zone
        elif convert is _time and getattr(kind, "timezone", False):
            convert = _time_in_utc
        elif convert is _integer:
            is_boolean = getattr(kind, "display_width", None) == 1  # MySQL's
            convert = _within(self._database.integers(kind), _tiny if is_boolean else _integer)
        elif convert is _json and not self._csv:
            convert = _as_it_is
        elif isinstance(kind, sqltypes.String):
            convert = self._string(kind)
        return _nullable(_cut(convert, self._database.second_digits(kind)), column, self._nulls)

    def _number(self, kind: "sqltypes.Numeric[Any] | sqltypes.Float[Any]") -> Convert:
        database = self._database
        if database.is_float(kind):
            scale, keeps_zeros = database.float_scale(kind), database.keeps_negative_zeros
            return float_of(database.is_single(kind), scale, keeps_negative_zeros=keeps_zeros)
        return decimal_of(getattr(kind, "scale", None), None if database.has_dynamic_types else kind.precision)

    def _string(self, kind: sqltypes.String) -> Convert:
        if isinstance(kind, sqltypes.Enum):
            return _one_of(kind.enums)
        names = self._database.set_names(kind)
        return _text_of(kind, self._database) if names is None else _some_of(names)


def encode_value(row: Row) -> bytes:
    """The message value of ``row``: UTF-8 JSON with the columns in the table's order. Types that JSON lacks, such as
    NUMERIC, become strings; timestamps are in ISO format.

    :raises ValueError: if a text is not valid Unicode.
    """
    try:
        return json.dumps(row, default=_as_text, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()
    except RecursionError:
        raise ValueError(_TOO_DEEP) from None


def encode_key(value: Any) -> bytes | None:
    """The message key of a column's value: its text, as in the message value; None for NULL."""
    if value is None:
        return None
    if isinstance(value, bool | dict | list | float):
        return json.dumps(value, default=_as_text, ensure_ascii=False, separators=(",", ":")).encode()
    return (str(value) if isinstance(value, str | int) else _as_text(value)).encode()


def _as_text(value: Any) -> str:
    if isinstance(value, Decimal):
        return plain_text(value)
    return value.isoformat() if isinstance(value, date | time) else str(value)


def _nullable(convert: Convert, column: "Column[Any]", nulls: frozenset[str]) -> Convert:
    """``convert`` for values that are not NULL, with the column's treatment of NULL."""
    required = column.primary_key or not column.nullable
    empty_stays = required and isinstance(column.type, sqltypes.String)

    def converted(value: Any) -> Any:
        if value is None or (value.__class__ is str and value in nulls):
            if not required:
                return None
            if empty_stays and value == "":
                return value
            raise ValueError("is NOT NULL and has no value")
        return convert(value)

    return converted


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(f"expected a text, not {value!r}")
    if "\0" in value:
        raise ValueError("contains a NUL character")
    return value


def _integer(value: Any) -> int:
    if isinstance(value, str) and _INTEGER.fullmatch(value):
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool):
        raise ValueError(f"expected an integer, not {value!r}")
    return value


def _within(integers: range, convert: Callable[[Any], int]) -> Convert:
    """``convert`` for those integers alone."""

    def checked(value: Any) -> int:
        number = convert(value)
        if number not in integers:
            raise ValueError(f"expected an integer from {integers.start} to {integers.stop - 1}, not {number}")
        return number

    return checked


def _text_of(kind: "sqltypes.String", database: Database) -> Convert:
    """A text without those spaces at its end that the column does not hold."""
    is_padded, length = isinstance(kind, sqltypes.CHAR), kind.length

    def cut(value: Any) -> str:
        text = _text(value)
        if length is not None and text[length:].strip(" "):
            raise ValueError(f"has {len(text):,} characters, and the column holds {length:,}")
        return text.rstrip(" ") if is_padded else text[:length]

    return _text if database.has_dynamic_types else cut


def _one_of(names: Sequence[str]) -> Convert:
    """A text of an enumeration. MariaDB and MySQL would store ``b`` for ``B``, and the second name for ``2``."""

    def checked(value: Any) -> str:
        text = _text(value)
        if text not in names:
            raise ValueError(f"expected one of {', '.join(names)}, not {value!r}")
        return text

    return checked


def _some_of(names: Sequence[str]) -> Convert:
    """Texts of a SET, in the order in which the database stores them."""

    def ordered(value: Any) -> str:
        chosen = _text(value).split(",") if value != "" else []
        unknown = [name for name in chosen if name not in names]
        if unknown:
            raise ValueError(f"expected some of {', '.join(names)}, not {unknown[0]!r}")
        return ",".join(name for name in names if name in chosen)

    return ordered


def _tiny(value: Any) -> int:
    """An integer; true and false are 1 and 0, as the database stores them."""
    known = value if isinstance(value, bool) else _BOOLEANS.get(str(value).lower())
    return _integer(value) if known is None else int(known)


def _cut(convert: Convert, digits: int) -> Convert:
    """``convert`` for times, without the digits that the column does not store: databases would round or truncate
    them."""
    if digits >= 6 or convert not in (_time, _time_in_utc, _timestamp, _without_zone):
        return convert
    unit = 10 ** (6 - digits)

    def cut(value: Any) -> Any:
        moment = convert(value)
        return moment.replace(microsecond=moment.microsecond // unit * unit)

    return cut


def _boolean(value: Any) -> bool:
    known = value if isinstance(value, bool) else _BOOLEANS.get(str(value).lower())
    if known is None:
        raise ValueError(f"expected true or false, not {value!r}")
    return known


def _date(value: Any) -> date:
    if not isinstance(value, str) or not _DATE.fullmatch(value):
        raise ValueError(f"expected a date such as 2026-01-31, not {value!r}")
    return date.fromisoformat(value)


def _time(value: Any) -> time:
    match = _TIME.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        raise ValueError(f"expected a time such as 23:59:59, not {value!r}")
    minutes, seconds, fraction = match.groups()
    # Python 3.10 parses only three or six fractional digits
    return time.fromisoformat(f"{minutes}{seconds or ':00'}.{(fraction or '0').ljust(6, '0')}")


def _time_in_utc(value: Any) -> time:
    return _time(value).replace(tzinfo=timezone.utc)


def _timestamp(value: Any) -> datetime:
    """The timestamp in UTC, with its zone."""
    if not isinstance(value, str):
        raise ValueError(f"expected a timestamp as 2026-01-31T23:59:59Z, not {value!r}")
    day, clock = value[:10], value[11:]
    zone = _ZONE.search(clock)
    if zone:
        clock = clock[: zone.start()]
    if value[10:11] not in ("", "T", " ") or (value[10:11] and not clock):
        raise ValueError(f"expected a timestamp as 2026-01-31T23:59:59Z, not {value!r}")
    moment = datetime.combine(_date(day), _time(clock) if clock else time(), timezone.utc)
    if zone is None or zone[1] in "Zz":
        return moment
    offset = datetime.strptime(zone[1].replace(":", ""), "%z").utcoffset()
    return moment - offset if offset else moment


def _uuid(value: Any) -> UUID:
    return UUID(_text(value))


def _json(value: str) -> Any:
    try:
        return json.loads(value)
    except RecursionError:
        raise ValueError(_TOO_DEEP) from None


def _as_it_is(value: Any) -> Any:
    return value


def _without_zone(value: Any) -> datetime:
    return _timestamp(value).replace(tzinfo=None)


_CONVERTS: Sequence[tuple[Any, Convert]] = (
    (sqltypes.Boolean, _boolean),
    (sqltypes.Integer, _integer),
    (sqltypes.DateTime, _timestamp),
    (sqltypes.Date, _date),
    (sqltypes.Time, _time),
    (sqltypes.Uuid, _uuid),
    (sqltypes.JSON, _json),
    (sqltypes.String, _text),
    (sqltypes.NullType, _text),  # SQLite: a column without a type
)
