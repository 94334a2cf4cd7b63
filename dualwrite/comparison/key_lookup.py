"""Finds rows by the text of their key, where the database compares exactly what it shows.

Only a few types do. A float, for example, need not equal its own text; and SQLite stores a timestamp in the form that
the writer chose. Rows that have such keys are found by reading the whole table. So are rows that a look-up does not
find again (``compare.py``).
"""

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any
from uuid import UUID

from sqlalchemy import BigInteger, ColumnElement, LargeBinary, Text, literal
from sqlalchemy import types as sqltypes
from sqlalchemy.types import TypeEngine

from dualwrite.coordinator.sql.dialects.base import Database

_INTEGER = re.compile(r"-?[1-9][0-9]{0,17}|0")


def exact_values(keys: Sequence[bytes], kind: TypeEngine[Any], database: Database) -> list[ColumnElement[Any]] | None:
    """``keys`` as values of a column of type ``kind``, for an IN; None if not every one has such a value."""
    if database.has_dynamic_types:
        is_known = isinstance(kind, sqltypes.LargeBinary | sqltypes.Integer | sqltypes.String)
        return [value for key in keys for value in _of_every_type(key)] if is_known else None
    if isinstance(kind, sqltypes.LargeBinary):
        return [literal(key, kind) for key in keys]
    convert = next((convert for known, convert in _CONVERTS if isinstance(kind, known)), None)
    if convert is None or isinstance(kind, sqltypes.Enum):
        return None
    try:
        return [convert(key.decode("ascii"), kind) for key in keys]
    except ValueError:
        return None


def _of_every_type(key: bytes) -> Iterator[ColumnElement[Any]]:
    """The values that have the text ``key``, where a column may hold each of them."""
    yield literal(key, LargeBinary())
    try:
        text = key.decode()
    except UnicodeDecodeError:
        return
    yield literal(text, Text())
    if _INTEGER.fullmatch(text):
        yield literal(int(text), BigInteger())


def _integer(key: str, kind: TypeEngine[Any]) -> ColumnElement[Any]:
    if not _INTEGER.fullmatch(key):
        raise ValueError(key)
    return literal(int(key), BigInteger())  # a key of the topic may be too large for the column's own type


def _uuid(key: str, kind: TypeEngine[Any]) -> ColumnElement[Any]:
    value = UUID(key)
    if str(value) != key:
        raise ValueError(key)
    return literal(value, kind)


def _text(key: str, kind: TypeEngine[Any]) -> ColumnElement[Any]:
    if "\0" in key:
        raise ValueError(key)
    return literal(key, kind)


_CONVERTS: Sequence[tuple[Any, Callable[[str, TypeEngine[Any]], ColumnElement[Any]]]] = (
    (sqltypes.Integer, _integer),
    (sqltypes.Uuid, _uuid),
    (sqltypes.String, _text),
)
