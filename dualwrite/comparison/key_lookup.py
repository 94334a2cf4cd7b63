"""Finds rows by the text of their key, where the database compares exactly what it shows.

Only a few types do. A float, for example, need not equal its own text; and SQLite stores a timestamp in the form that
the writer chose. Rows that have such keys are found by reading the whole table.
"""

import re
from collections.abc import Callable, Sequence
from typing import Any
from uuid import UUID

from sqlalchemy import BigInteger, ColumnElement, literal
from sqlalchemy import types as sqltypes
from sqlalchemy.types import TypeEngine

_INTEGER = re.compile(r"-?[1-9][0-9]{0,17}|0")


def exact_values(keys: Sequence[bytes], kind: TypeEngine[Any]) -> list[ColumnElement[Any]] | None:
    """``keys`` as values of a column of type ``kind``, for an IN; None if not every one has such a value."""
    if isinstance(kind, sqltypes.LargeBinary):
        return [literal(key, kind) for key in keys]
    convert = next((convert for known, convert in _CONVERTS if isinstance(kind, known)), None)
    if convert is None or isinstance(kind, sqltypes.Enum):
        return None
    try:
        return [convert(key.decode("ascii"), kind) for key in keys]
    except ValueError:
        return None


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
