"""The form in which the values of a column are compared: one for all spellings of a value.

A row has the value that its column holds. A record may have been written with other digits: by a program that knows
less of the column than ``dualwrite load`` does, or by an earlier version of it.
"""

import json
import math
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import Any

from sqlalchemy import Column, Dialect
from sqlalchemy import types as sqltypes

from dualwrite.coordinator.sql.dialects.base import Database
from dualwrite.loader.numbers import decimal_text, float_or_integer, is_number, single

_DAY = timedelta(days=1)
_LONGEST_NUMBER = 4_300
"""The most characters of a text that is compared as a number."""
_PARSED = (sqltypes.Boolean, sqltypes.DateTime, sqltypes.Date, sqltypes.Time)
"""The types that SQLite stores as others, and SQLAlchemy reads."""


def _same(value: Any) -> Any:
    return value


@dataclass(frozen=True, slots=True)
class ColumnForm:
    """How to compare the values of a column.

    :param read: turns a value as the database gives it into the one that ``dualwrite load`` encodes.
    :param text: turns the text of a key into the one form of all keys that are the same.
    :param field: the same for a value of JSON.
    """

    read: Callable[[Any], Any] = _same
    text: Callable[[str], str] = _same
    field: Callable[[Any], Any] = _same

    def key(self, key: bytes) -> bytes:
        """The form of a key, which need not be a text."""
        if self.text is _same:
            return key
        try:
            return self.text(key.decode()).encode()
        except UnicodeError:
            return key


def column_form(column: "Column[Any]", database: Database, dialect: Dialect) -> ColumnForm:
    """The form of the values of ``column``, read by :meth:`Database.exact_column`."""
    kind = column.type
    if database.is_float(kind):
        return _float_form(database.is_single(kind))
    if isinstance(kind, sqltypes.Numeric):
        text = _decimal_form(kind.scale)
        return ColumnForm(text=text, field=_on_texts(text))
    if isinstance(kind, sqltypes.JSON):
        return ColumnForm(_parsed_by(kind, dialect) if database.has_dynamic_types else _same, _sorted)
    if database.has_dynamic_types:
        return ColumnForm(_parsed_by(kind, dialect) if isinstance(kind, _PARSED) else _same)
    if isinstance(kind, sqltypes.CHAR):
        return ColumnForm(_on_texts(_unpadded), _unpadded, _on_texts(_unpadded))
    if isinstance(kind, sqltypes.DateTime):
        return ColumnForm(_in_utc)
    if isinstance(kind, sqltypes.Time):
        return ColumnForm(_clock_or_duration)
    return ColumnForm(_as_bytes)


def _on_texts(form: Callable[[str], str]) -> Callable[[Any], Any]:
    return lambda value: form(value) if isinstance(value, str) else value


def _decimal_form(scale: int | None) -> Callable[[str], str]:
    def form(text: str) -> str:
        return decimal_text(text, scale) if len(text) <= _LONGEST_NUMBER and is_number(text) else text

    return form


def _float_form(is_single: bool) -> ColumnForm:
    def read(value: Any) -> Any:
        if isinstance(value, bool) or not isinstance(value, int | float):
            return value
        number = float_or_integer(str(value)) if isinstance(value, int) else value
        if isinstance(number, int):
            return number
        if not math.isfinite(number):
            return "NaN" if math.isnan(number) else "Infinity" if number > 0 else "-Infinity"
        if is_single:
            with suppress(OverflowError):
                number = single(number)
        return number

    def field(value: Any) -> Any:
        number = read(value)
        return abs(number) if isinstance(number, float) and not number else number  # few databases keep -0.0

    def text(spelled: str) -> str:
        if len(spelled) > _LONGEST_NUMBER or not is_number(spelled):
            return spelled
        return json.dumps(field(float_or_integer(spelled)))

    return ColumnForm(read, text, field)


def _parsed_by(kind: "sqltypes.TypeEngine[Any]", dialect: Dialect) -> Callable[[Any], Any]:
    """SQLAlchemy's value of what is stored; for what is stored in another form, what is stored."""
    parse = kind.dialect_impl(dialect).result_processor(dialect, None)

    def parsed(value: Any) -> Any:
        if value is None or parse is None:
            return value
        try:
            known = parse(value)
        except (ValueError, TypeError, RecursionError):
            return value
        # SQLAlchemy writes none with a zone, and not every version of Python reads all of them.
        return known if getattr(known, "tzinfo", None) is None else value

    return parsed


def _sorted(text: str) -> str:
    """A JSON document with its fields in order. PostgreSQL's JSONB has an order of its own."""
    try:
        return json.dumps(json.loads(text), ensure_ascii=False, sort_keys=True, separators=(",", ":"))
    except (ValueError, RecursionError):
        return text


def _unpadded(text: str) -> str:
    return text.rstrip(" ")


def _in_utc(value: Any) -> Any:
    has_zone = isinstance(value, datetime) and value.tzinfo is not None
    return value.astimezone(timezone.utc) if has_zone else value


def _clock_or_duration(value: Any) -> Any:
    """MariaDB and MySQL have one type for both: ``23:59:59``, ``-01:00:00``, ``838:59:59``."""
    if not isinstance(value, timedelta):
        return value
    if timedelta() <= value < _DAY:
        return (datetime.min + value).time()
    length = abs(value)
    minutes, seconds = divmod(length.days * 86_400 + length.seconds, 60)
    fraction = f".{length.microseconds:06}" if length.microseconds else ""
    return f"{'-' if value < length else ''}{minutes // 60:02}:{minutes % 60:02}:{seconds:02}{fraction}"


def _as_bytes(value: Any) -> Any:
    return bytes(value) if isinstance(value, memoryview) else value
