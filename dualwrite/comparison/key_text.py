"""Keys and values as bytes, in one form for both sides: of a row's columns, of a record, of fields of its value.

The text of a value is what ``dualwrite load`` writes as a record's key. Timestamps with a zone are in UTC.
"""

import json
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from typing import Any

from dualwrite.comparison.column_forms import ColumnForm
from dualwrite.loader.rows import Row, encode_key, encode_value

UNREADABLE_VALUE = b""
"""The digest of a record's value that is not JSON. It differs from every other digest."""
UNREADABLE_ROW = b"-"
"""The digest of a row that no JSON can hold. It differs from every other digest."""
_DIGEST_BYTES = 8
_NOT_JSON = (ValueError, RecursionError)
"""The errors of json for a text that is not JSON, or is nested too deeply to be read."""


def column_key(values: Sequence[Any], forms: Sequence[ColumnForm]) -> bytes | None:
    """The key of a row by the values of its key columns; None if one of them is NULL, or a text that is not valid
    Unicode."""
    try:
        return _joined([bytes(value) if isinstance(value, bytes) else encode_key(value) for value in values], forms)
    except UnicodeEncodeError:
        return None


def record_key(key: bytes | None, form: ColumnForm) -> bytes | None:
    """The key of a record; None if it has none."""
    return None if key is None else form.key(key)


def field_key(value: bytes, paths: Sequence[Sequence[str]], forms: Sequence[ColumnForm]) -> bytes | None:
    """The key in the JSON ``value``: its fields at ``paths``. None if it is not JSON, or lacks one, or if one is no
    valid Unicode. A number counts as it is spelled, unless ``forms`` say more."""
    try:
        document = json.loads(value, parse_int=str, parse_float=str)
        return _joined([_field(document, path) for path in paths], forms)
    except _NOT_JSON:
        return None


def row_digest(row: Row, forms: Mapping[str, ColumnForm]) -> bytes:
    """The digest of a row, equal to the :func:`value_digest` of the value that ``dualwrite load`` writes for it."""
    try:
        return value_digest(encode_value(row), forms) or UNREADABLE_ROW
    except _NOT_JSON:
        return UNREADABLE_ROW


def value_digest(value: bytes, forms: Mapping[str, ColumnForm]) -> bytes:
    """The digest of a JSON value. It does not depend on the order of fields, on white space, or on the spelling of a
    column's number.

    :param forms: of the columns, by name.
    """
    try:
        document = json.loads(value)
        if isinstance(document, dict):
            document = {name: forms[name].field(field) if name in forms else field for name, field in document.items()}
        canonical = json.dumps(document, sort_keys=True)
    except _NOT_JSON:
        return UNREADABLE_VALUE
    return blake2b(canonical.encode(), digest_size=_DIGEST_BYTES).digest()


def shown(key: bytes) -> str:
    """``key`` to be read: its text, or hexadecimal digits after ``0x`` if it is not a printable one."""
    try:
        text = key.decode()
    except UnicodeDecodeError:
        return f"0x{key.hex()}"
    return text if text.isprintable() else f"0x{key.hex()}"


def _field(document: Any, path: Sequence[str]) -> bytes | None:
    for name in path:
        if not isinstance(document, dict):
            return None
        document = document.get(name)
    return encode_key(document)


def _joined(parts: Sequence[bytes | None], forms: Sequence[ColumnForm]) -> bytes | None:
    """One key of several parts: a JSON array of their texts."""
    known = [form.key(part) for part, form in zip(parts, forms, strict=True) if part is not None]
    if len(known) < len(parts):
        return None
    return known[0] if len(known) == 1 else json.dumps([shown(part) for part in known]).encode()
