"""Keys as bytes: of columns, of fields in a JSON value, and as a reader sees them; and which can be looked up."""

import json
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import Column
from sqlalchemy import types as sqltypes
from sqlalchemy.dialects import mysql

from dualwrite.comparison.key_lookup import exact_values
from dualwrite.comparison.key_text import (
    NOT_JSON,
    column_key,
    field_key,
    row_digest,
    shown,
    value_digest,
    value_reader,
)
from dualwrite.coordinator.sql.dialects.supported import SUPPORTED
from dualwrite.loader.rows import encode_value

JAPAN = timezone(timedelta(hours=9))
UID = "5f0c9b0a-3b1e-4f7e-8f55-0123456789ab"


@pytest.mark.parametrize(
    ("value", "key"),
    [
        (7, b"7"),
        ("smø", "smø".encode()),
        ("", b""),
        (True, b"true"),
        (0.1, b"0.1"),
        (Decimal("10.50"), b"10.50"),
        (date(2026, 1, 31), b"2026-01-31"),
        (datetime(2026, 1, 31, 23, 59), b"2026-01-31T23:59:00"),
        (UUID(UID), UID.encode()),
        ([1, "a"], b'[1,"a"]'),
        (b"\xff\0", b"\xff\0"),
        (memoryview(b"\xff\0"), b"\xff\0"),
        (None, None),
    ],
)
def test_the_key_of_a_column_is_the_text_of_its_value(value: Any, key: bytes | None) -> None:
    assert column_key([value]) == key


@pytest.mark.parametrize(
    ("values", "key"),
    [((1, "a"), b'["1", "a"]'), (("1", "a"), b'["1", "a"]'), ((1, None), None), (("a,b", "c"), b'["a,b", "c"]')],
)
def test_the_key_of_several_columns_is_a_list_of_texts(values: tuple[Any, ...], key: bytes | None) -> None:
    assert column_key(values) == key


@pytest.mark.parametrize(
    ("kind", "value", "read"),
    [
        (sqltypes.CHAR(5), "ab   ", "ab"),
        (sqltypes.VARCHAR(5), "ab ", "ab "),
        (
            sqltypes.DateTime(),
            datetime(2026, 1, 1, 9, tzinfo=JAPAN),
            "2026-01-01T00:00:00+00:00",
        ),
        (sqltypes.DateTime(), datetime(2026, 1, 1, 9), "2026-01-01T09:00:00"),
        (sqltypes.Numeric(9, 2), Decimal("1.50"), "1.50"),
        (sqltypes.CHAR(5), None, None),
    ],
)
def test_a_value_is_read_as_the_loader_writes_it(kind: Any, value: Any, read: str | None) -> None:
    key = column_key([value_reader(Column("a", kind), SUPPORTED["postgresql"])(value)])
    assert key == (None if read is None else read.encode())


@pytest.mark.parametrize(("value", "read"), [(10, b"10.0"), (10.5, b"10.5"), (None, None)])
def test_a_number_that_the_database_keeps_as_a_float_is_read_as_one(value: Any, read: bytes | None) -> None:
    column = Column("a", sqltypes.Numeric(9, 2))
    assert column_key([value_reader(column, SUPPORTED["sqlite"])(value)]) == read


@pytest.mark.parametrize(
    ("value", "path", "key"),
    [
        ('{"id": 7}', "id", b"7"),
        ('{"id": "7"}', "id", b"7"),
        ('{"id": 10.50}', "id", b"10.50"),
        ('{"id": 1e3}', "id", b"1e3"),
        ('{"id": 12345678901234567890}', "id", b"12345678901234567890"),
        ('{"id": true}', "id", b"true"),
        ('{"id": ""}', "id", b""),
        ('{"a": {"b": {"c": "x"}}}', "a.b.c", b"x"),
        ('{"id": null}', "id", None),
        ('{"a": 1}', "id", None),
        ('{"a": [1]}', "a.0", None),
        ("[1]", "id", None),
        ("7", "id", None),
        ("{", "id", None),
        ("", "id", None),
        (b"\xff", "id", None),
    ],
)
def test_the_key_in_a_value_is_the_text_of_its_field(value: str | bytes, path: str, key: bytes | None) -> None:
    data = value if isinstance(value, bytes) else value.encode()
    assert field_key(data, [path.split(".")]) == key


def test_the_key_of_several_fields_is_that_of_as_many_columns() -> None:
    assert field_key(b'{"b": 1, "a": "x"}', [["a"], ["b"]]) == column_key(["x", 1])
    assert field_key(b'{"a": "x"}', [["a"], ["b"]]) is None


def test_a_row_has_the_digest_of_the_value_that_the_loader_writes() -> None:
    row = {"id": 1, "price": Decimal("1.50"), "note": "smø", "day": date(2026, 1, 31), "doc": {"b": 1, "a": None}}
    assert row_digest(row) == value_digest(encode_value(row))
    spaced = json.dumps(json.loads(encode_value(row)), indent=2, sort_keys=True).encode()
    assert value_digest(spaced) == row_digest(row)
    assert row_digest({**row, "id": 2}) != row_digest(row)
    assert row_digest({**row, "price": Decimal("1.5")}) != row_digest(row)


@pytest.mark.parametrize("value", [b"", b"{", b"\xff"])
def test_a_value_that_is_not_json_has_a_digest_of_no_row(value: bytes) -> None:
    assert value_digest(value) == NOT_JSON
    assert row_digest({}) != NOT_JSON
    assert row_digest({"a": float("nan")}) == NOT_JSON


@pytest.mark.parametrize(
    ("key", "text"),
    [(b"7", "7"), ("smø 1".encode(), "smø 1"), (b"", ""), (b"\xff", "0xff"), (b"a\n", "0x610a"), (b"\0", "0x00")],
)
def test_a_key_is_shown_as_text_if_it_is_one(key: bytes, text: str) -> None:
    assert shown(key) == text


@pytest.mark.parametrize(
    ("kind", "key", "value"),
    [
        (sqltypes.Integer(), "-7", -7),
        (sqltypes.SmallInteger(), "999999999999", 999999999999),
        (sqltypes.String(), "a 'b", "a 'b"),
        (sqltypes.Uuid(), UID, UUID(UID)),
        (sqltypes.LargeBinary(), "\0x", b"\0x"),
    ],
)
def test_a_key_that_the_database_compares_exactly_is_looked_up(kind: Any, key: str, value: Any) -> None:
    found = exact_values([key.encode()], kind)
    assert found is not None
    assert [each.value for each in found] == [value]  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("kind", "key"),
    [
        (sqltypes.Integer(), "007"),
        (sqltypes.Integer(), "+7"),
        (sqltypes.Integer(), "12345678901234567890"),
        (sqltypes.Integer(), "x"),
        (sqltypes.String(), "smø"),
        (sqltypes.String(), "a\0"),
        (sqltypes.Uuid(), UID.upper()),
        (sqltypes.Uuid(), "x"),
        (mysql.ENUM("a", "b"), "a"),
        (sqltypes.Float(), "0.1"),
        (sqltypes.Numeric(), "1.50"),
        (sqltypes.DateTime(), "2026-01-31T00:00:00"),
        (sqltypes.NullType(), "a"),
    ],
)
def test_for_any_other_key_the_whole_table_is_read(kind: Any, key: str) -> None:
    assert exact_values([b"1", key.encode()], kind) is None
