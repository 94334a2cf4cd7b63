"""The form in which a column's values are compared: what is read of a row, and the spellings of a record."""

from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import Column, create_engine
from sqlalchemy import types as sqltypes
from sqlalchemy.dialects import mysql, sqlite

from dualwrite.comparison.column_forms import ColumnForm, column_form
from dualwrite.comparison.key_text import column_key, record_key
from dualwrite.coordinator.sql.dialects.supported import SUPPORTED

DIALECT = create_engine("sqlite://").dialect
JAPAN = timezone(timedelta(hours=9))
REAL, DOUBLE, PRICE, NUMERIC = sqltypes.REAL(), sqltypes.Double(), sqltypes.Numeric(9, 2), sqltypes.Numeric()


def form_of(kind: Any, database: str = "postgresql") -> ColumnForm:
    return column_form(Column("a", kind), SUPPORTED[database], DIALECT)


@pytest.mark.parametrize(
    ("kind", "value", "key"),
    [
        (sqltypes.CHAR(5), "ab   ", "ab"),
        (sqltypes.CHAR(5), None, None),
        (sqltypes.VARCHAR(5), "ab ", "ab "),
        (sqltypes.DateTime(), datetime(2026, 1, 1, 9, tzinfo=JAPAN), "2026-01-01T00:00:00+00:00"),
        (sqltypes.DateTime(), datetime(2026, 1, 1, 9), "2026-01-01T09:00:00"),
        (PRICE, Decimal("1.50"), "1.50"),
        (NUMERIC, Decimal("1.50"), "1.5"),
        (NUMERIC, Decimal("NaN"), "NaN"),
        (REAL, 0.1, "0.1"),
        (REAL, 0.10000000149011612, "0.1"),
        (DOUBLE, 0.10000000149011612, "0.10000000149011612"),
        (DOUBLE, float("nan"), "NaN"),
        (DOUBLE, float("-inf"), "-Infinity"),
        (DOUBLE, None, None),
        (sqltypes.LargeBinary(), memoryview(b"ab"), "ab"),
    ],
)
def test_a_value_is_read_as_the_loader_writes_it(kind: Any, value: Any, key: str | None) -> None:
    form = form_of(kind)
    assert column_key([form.read(value)], [form]) == (None if key is None else key.encode())


@pytest.mark.parametrize(
    ("kind", "stored", "value"),
    [
        (PRICE, 10, 10.0),
        (PRICE, 10.5, 10.5),
        (PRICE, 9007199254740993, 9007199254740993),
        (PRICE, "c0ffee00", "c0ffee00"),
        (PRICE, b"x", b"x"),
        (sqltypes.REAL(), 0.123456789, 0.123456789),
        (sqltypes.REAL(), "nope", "nope"),
        (sqltypes.CHAR(5), "ab ", "ab "),
        (sqltypes.Boolean(), 1, True),
        (sqltypes.Boolean(), None, None),
        (sqlite.DATETIME(), "2026-01-31 23:59:00.000000", datetime(2026, 1, 31, 23, 59)),
        (sqlite.DATETIME(), "2026-01-31T23:59:00+00:00", "2026-01-31T23:59:00+00:00"),
        (sqlite.DATETIME(), 1700000000, 1700000000),
        (sqlite.DATETIME(), "yesterday", "yesterday"),
        (sqlite.DATE(), "2026-01-31", date(2026, 1, 31)),
        (sqlite.DATE(), "yesterday", "yesterday"),
        (sqlite.TIME(), "23:59:00", time(23, 59)),
        (sqlite.JSON(), '{"a": 1}', {"a": 1}),
        (sqlite.JSON(), "nope", "nope"),
        (sqlite.JSON(), "[" * 100_000, "[" * 100_000),
        (sqlite.JSON(), 7, 7),
        (sqltypes.LargeBinary(), 4711, 4711),
        (sqltypes.LargeBinary(), "x", "x"),
        (sqltypes.Integer(), b"12", b"12"),
    ],
)
def test_what_sqlite_stores_in_another_form_is_read_as_it_is_stored(kind: Any, stored: Any, value: Any) -> None:
    read = form_of(kind, "sqlite").read(stored)
    assert read == value
    assert type(read) is type(value)


@pytest.mark.parametrize(
    ("length", "value"),
    [
        (timedelta(), time()),
        (timedelta(hours=23, seconds=1, microseconds=500_000), time(23, 0, 1, 500_000)),
        (timedelta(hours=24), "24:00:00"),
        (timedelta(hours=25), "25:00:00"),
        (timedelta(hours=-1), "-01:00:00"),
        (timedelta(hours=-838, minutes=-59, seconds=-59), "-838:59:59"),
        (timedelta(hours=48, microseconds=1), "48:00:00.000001"),
        (None, None),
    ],
)
def test_a_time_that_is_no_time_of_the_day_is_a_duration(length: timedelta | None, value: Any) -> None:
    assert form_of(mysql.TIME(), "mysql").read(length) == value


@pytest.mark.parametrize(
    ("kind", "database", "spelled", "key"),
    [
        (PRICE, "postgresql", "10.5", "10.50"),
        (PRICE, "postgresql", "1E+3", "1000.00"),
        (PRICE, "postgresql", "-0", "0.00"),
        (PRICE, "postgresql", "10.500", "10.50"),
        (PRICE, "postgresql", "10.505", "10.505"),
        (PRICE, "postgresql", "10,5", "10,5"),
        (PRICE, "postgresql", "", ""),
        (PRICE, "sqlite", "10", "10.0"),
        (PRICE, "sqlite", "1.05e1", "10.5"),
        (PRICE, "sqlite", "9007199254740993", "9007199254740993"),
        (PRICE, "sqlite", "tea", "tea"),
        (NUMERIC, "postgresql", "10.50", "10.5"),
        (NUMERIC, "postgresql", "1e3", "1000"),
        (NUMERIC, "postgresql", "1e-7", "0.0000001"),
        (NUMERIC, "postgresql", "9" * 4301, "9" * 4301),
        (REAL, "postgresql", "0.123456789", "0.12345679"),
        (REAL, "postgresql", "1e39", "1e+39"),
        (DOUBLE, "postgresql", "0.123456789", "0.123456789"),
        (DOUBLE, "postgresql", "7", "7.0"),
        (DOUBLE, "postgresql", "NaN", "NaN"),
        (DOUBLE, "postgresql", "-0", "0.0"),
        (DOUBLE, "postgresql", "9" * 4301, "9" * 4301),
        (sqltypes.JSON(), "postgresql", '{"b": 1.0, "a": "ø"}', '{"a":"ø","b":1.0}'),
        (sqltypes.JSON(), "postgresql", "{", "{"),
        (sqltypes.JSON(), "postgresql", '"\\ud800"', '"\\ud800"'),
        (sqlite.JSON(), "sqlite", "[" * 100_000, "[" * 100_000),
        (mysql.FLOAT(), "mysql", "0.123456789", "0.12345679"),
        (mysql.REAL(), "mysql", "0.123456789", "0.123456789"),
        (sqltypes.CHAR(5), "postgresql", "ab ", "ab"),
        (sqltypes.CHAR(5), "sqlite", "ab ", "ab "),
        (sqltypes.Integer(), "postgresql", "007", "007"),
        (sqltypes.String(), "postgresql", "1.0", "1.0"),
    ],
)
def test_the_spellings_of_a_number_are_one_key(kind: Any, database: str, spelled: str, key: str) -> None:
    assert record_key(spelled.encode(), form_of(kind, database)) == key.encode()
    assert record_key(key.encode(), form_of(kind, database)) == key.encode()


@pytest.mark.parametrize(
    ("kind", "field", "same"),
    [
        (PRICE, "10.5", "10.50"),
        (PRICE, 10.5, 10.5),
        (PRICE, None, None),
        (REAL, 0.123456789, 0.12345679),
        (REAL, 1e39, 1e39),
        (REAL, "0.123456789", "0.123456789"),
        (REAL, True, True),
        (DOUBLE, 7, 7.0),
        (DOUBLE, -0.0, 0.0),
        (DOUBLE, 10**400, 10**400),
        (DOUBLE, float("nan"), "NaN"),
        (sqltypes.CHAR(5), "ab ", "ab"),
        (sqltypes.CHAR(5), 7, 7),
        (sqltypes.String(), "ab ", "ab "),
    ],
)
def test_the_spellings_of_a_number_in_a_value_are_one_field(kind: Any, field: Any, same: Any) -> None:
    found = form_of(kind).field(field)
    assert repr(found) == repr(same)


@given(st.decimals(allow_nan=False, allow_infinity=False, places=2), st.integers(0, 5))
def test_zeros_at_the_end_do_not_matter(number: Decimal, zeros: int) -> None:
    form = form_of(PRICE)
    assert Decimal(form.text(f"{number}{'0' * zeros}")) == number
    assert form.text(f"{number}{'0' * zeros}") == form.text(str(number)) == form.text(format(number, "E"))


@given(st.floats(width=32, allow_nan=False, allow_infinity=False))
def test_every_single_precision_number_has_one_form(number: float) -> None:
    form = form_of(REAL)
    assert form.field(form.field(number)) == form.field(number)
    assert form.text(repr(number)) == form.text(f"{number:.9g}")
