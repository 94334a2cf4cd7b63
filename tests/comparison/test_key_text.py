"""Keys as bytes: of columns, of fields in a JSON value, and as a reader sees them; and which can be looked up."""

import json
from datetime import date, datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import types as sqltypes
from sqlalchemy.dialects import mysql

from dualwrite.comparison.column_forms import ColumnForm
from dualwrite.comparison.key_lookup import exact_values
from dualwrite.comparison.key_text import (
    UNREADABLE_ROW,
    UNREADABLE_VALUE,
    column_key,
    field_key,
    record_key,
    row_digest,
    shown,
    value_digest,
)
from dualwrite.coordinator.sql.dialects.supported import SUPPORTED
from dualwrite.loader.rows import encode_value

SAME = ColumnForm()
UPPER = ColumnForm(text=str.upper, field=str.upper)
POSTGRESQL, SQLITE = SUPPORTED["postgresql"], SUPPORTED["sqlite"]
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
        ([date(2026, 1, 31)], b'["2026-01-31"]'),
        (Decimal("1E-7"), b"0.0000001"),
        ("\udcff", None),
        (None, None),
    ],
)
def test_the_key_of_a_column_is_the_text_of_its_value(value: Any, key: bytes | None) -> None:
    assert column_key([value], [SAME]) == key


@pytest.mark.parametrize(
    ("values", "key"),
    [((1, "a"), b'["1", "a"]'), (("1", "a"), b'["1", "a"]'), ((1, None), None), (("a,b", "c"), b'["a,b", "c"]')],
)
def test_the_key_of_several_columns_is_a_list_of_texts(values: tuple[Any, ...], key: bytes | None) -> None:
    assert column_key(values, [SAME, SAME]) == key


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
        ('{"id": "\\ud800"}', "id", None),
        ('{"id": {"a": "\\ud800"}}', "id", None),
        ("[" * 100_000, "id", None),
        ('{"id": ' + "[" * 100_000, "id", None),
    ],
)
def test_the_key_in_a_value_is_the_text_of_its_field(value: str | bytes, path: str, key: bytes | None) -> None:
    data = value if isinstance(value, bytes) else value.encode()
    assert field_key(data, [path.split(".")], [SAME]) == key


def test_the_key_of_several_fields_is_that_of_as_many_columns() -> None:
    forms = [SAME, UPPER]
    assert field_key(b'{"b": "y", "a": "x"}', [["a"], ["b"]], forms) == column_key(["x", "Y"], forms)
    assert field_key(b'{"a": "x"}', [["a"], ["b"]], forms) is None


def test_the_key_of_a_record_has_the_form_of_its_column() -> None:
    assert record_key(b"x", UPPER) == b"X"
    assert record_key(b"\xff", UPPER) == b"\xff", "it is no text"
    assert record_key(None, UPPER) is None


def test_a_row_has_the_digest_of_the_value_that_the_loader_writes() -> None:
    row = {"id": 1, "price": Decimal("1.50"), "note": "smø", "day": date(2026, 1, 31), "doc": {"b": 1, "a": None}}
    assert row_digest(row, {}) == value_digest(encode_value(row), {})
    spaced = json.dumps(json.loads(encode_value(row)), indent=2, sort_keys=True).encode()
    assert value_digest(spaced, {}) == row_digest(row, {})
    assert row_digest({**row, "id": 2}, {}) != row_digest(row, {})
    assert row_digest({**row, "price": Decimal("1.5")}, {}) != row_digest(row, {})


def test_the_fields_of_columns_are_compared_in_the_form_of_their_column() -> None:
    assert value_digest(b'{"a": "x", "b": "x"}', {"a": UPPER}) == row_digest({"a": "X", "b": "x"}, {"a": UPPER})
    assert value_digest(b'{"a": "x"}', {"b": UPPER}) != row_digest({"a": "X"}, {"b": UPPER})


@pytest.mark.parametrize("row", [{}, {"a": float("nan")}, {"a": "\udcff"}, {"a": {"b": "\udcff"}}])
@pytest.mark.parametrize("value", [b"", b"{", b"\xff", b"[" * 100_000, b'{"a": ' + b"[" * 100_000])
def test_a_value_that_is_not_json_equals_no_row(value: bytes, row: dict[str, Any]) -> None:
    assert value_digest(value, {}) == UNREADABLE_VALUE
    assert row_digest(row, {}) != UNREADABLE_VALUE


def test_a_row_that_no_json_can_hold_equals_no_value() -> None:
    nested: list[Any] = []
    for _ in range(100_000):
        nested = [nested]
    for row in ({"a": float("nan")}, {"a": "\udcff"}, {"a": nested}):
        assert row_digest(row, {}) == UNREADABLE_ROW
    for value in (b"", b"{", b"{}", b'{"a": NaN}', b'{"a": null}', b'"-"'):
        assert value_digest(value, {}) != UNREADABLE_ROW


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
    found = exact_values([key.encode()], kind, POSTGRESQL)
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
    assert exact_values([b"1", key.encode()], kind, POSTGRESQL) is None


@pytest.mark.parametrize("kind", [sqltypes.Integer(), sqltypes.String(), sqltypes.CHAR(3), sqltypes.LargeBinary()])
@pytest.mark.parametrize(
    ("key", "values"),
    [
        (b"47", [b"47", "47", 47]),
        (b"07", [b"07", "07"]),
        ("ø\0".encode(), ["ø\0".encode(), "ø\0"]),
        (b"\xff", [b"\xff"]),
    ],
)
def test_where_a_value_may_be_of_any_type_all_of_them_are_looked_up(kind: Any, key: bytes, values: list[Any]) -> None:
    found = exact_values([key], kind, SQLITE)
    assert found is not None
    assert [each.value for each in found] == values  # type: ignore[attr-defined]


@pytest.mark.parametrize("kind", [sqltypes.Numeric(), sqltypes.Float(), sqltypes.DateTime(), sqltypes.NullType()])
def test_where_the_text_of_a_key_is_not_its_value_the_whole_table_is_read(kind: Any) -> None:
    assert exact_values([b"1"], kind, SQLITE) is None
