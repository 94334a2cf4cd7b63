"""Keys as bytes, in one form for both sides: the text of a column's value, a record's key, fields of a record's value.

The text of a value is what ``dualwrite load`` writes as a record's key. Timestamps with a zone are in UTC.
"""

import json
from collections.abc import Callable, Sequence
from datetime import datetime, timezone
from hashlib import blake2b
from typing import Any, TypeGuard

from sqlalchemy import Column
from sqlalchemy import types as sqltypes
from sqlalchemy.types import TypeEngine

from dualwrite.coordinator.sql.dialects.base import Database
from dualwrite.loader.rows import Row, encode_key, encode_value

NOT_JSON = b""
"""The digest of a value that is not JSON. It differs from every other digest."""
_DIGEST_BYTES = 8


def is_float(kind: TypeEngine[Any], database: Database) -> TypeGuard["sqltypes.Numeric[Any]"]:
    """True if a column of type ``kind`` holds floating-point numbers."""
    return isinstance(kind, sqltypes.Float) or (isinstance(kind, sqltypes.Numeric) and not database.keeps_decimals)


def value_reader(column: "Column[Any]", database: Database) -> Callable[[Any], Any]:
    """Turns a value that was read from ``column`` into the value that its text is made of."""
    kind = column.type
    if is_float(kind, database):
        return lambda value: None if value is None else float(value)
    if isinstance(kind, sqltypes.CHAR):
        return lambda value: value.rstrip(" ") if isinstance(value, str) else value
    if isinstance(kind, sqltypes.DateTime):
        return _in_utc
    return lambda value: value


def column_key(values: Sequence[Any]) -> bytes | None:
    """The key of a row by the values of its key columns; None if one of them is NULL."""
    parts = [bytes(value) if isinstance(value, bytes | memoryview) else encode_key(value) for value in values]
    return _joined(parts)


def field_key(value: bytes, paths: Sequence[Sequence[str]]) -> bytes | None:
    """The key in the JSON ``value``: its fields at ``paths``. None if it is not JSON, or lacks one of them. A number
    counts as it is spelled."""
    try:
        document = json.loads(value, parse_int=str, parse_float=str)
    except ValueError:
        return None
    return _joined([_field(document, path) for path in paths])


def row_digest(row: Row) -> bytes:
    """The digest of a row, equal to the :func:`value_digest` of the value that ``dualwrite load`` writes for it."""
    try:
        return value_digest(encode_value(row))
    except ValueError:
        return NOT_JSON


def value_digest(value: bytes) -> bytes:
    """The digest of a JSON value. It does not depend on the order of fields, or on white space."""
    try:
        canonical = json.dumps(json.loads(value), sort_keys=True)
    except ValueError:
        return NOT_JSON
    return blake2b(canonical.encode(), digest_size=_DIGEST_BYTES).digest()


def shown(key: bytes) -> str:
    """``key`` to be read: its text, or hexadecimal digits after ``0x`` if it is not a printable one."""
    try:
        text = key.decode()
    except UnicodeDecodeError:
        return f"0x{key.hex()}"
    return text if text.isprintable() else f"0x{key.hex()}"


def _in_utc(value: Any) -> Any:
    has_zone = isinstance(value, datetime) and value.tzinfo is not None
    return value.astimezone(timezone.utc) if has_zone else value


def _field(document: Any, path: Sequence[str]) -> bytes | None:
    for name in path:
        if not isinstance(document, dict):
            return None
        document = document.get(name)
    return encode_key(document)


def _joined(parts: Sequence[bytes | None]) -> bytes | None:
    """One key of several parts: a JSON array of their texts."""
    if len(parts) == 1:
        return parts[0]
    known = [part for part in parts if part is not None]
    return json.dumps([shown(part) for part in known]).encode() if len(known) == len(parts) else None
