"""Row typing: a text becomes what its column will hold, and the message says the same; what does not fit is refused."""

import json
import math
from collections.abc import Mapping
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import (
    CHAR,
    JSON,
    REAL,
    BigInteger,
    Boolean,
    Column,
    Date,
    DateTime,
    Double,
    Enum,
    Float,
    Integer,
    LargeBinary,
    MetaData,
    Numeric,
    SmallInteger,
    String,
    Table,
    Text,
    Time,
    Uuid,
)
from sqlalchemy.dialects import mysql, postgresql, sqlite
from sqlalchemy.types import NullType, TypeEngine

from dualwrite.coordinator.sql.dialects.base import Database
from dualwrite.coordinator.sql.dialects.supported import SUPPORTED
from dualwrite.errors import InputError
from dualwrite.loader.input import ExactFloat, InputRow
from dualwrite.loader.rows import RowTyper, encode_key, encode_value

UTC = timezone.utc
INDIA = timezone(timedelta(hours=5, minutes=30))


def typer_for(kind: TypeEngine[Any], *, csv: bool = True, nullable: bool = True, **options: Any) -> RowTyper:
    """A typer for a table whose one column, ``x``, is of ``kind``."""
    table = Table("t", MetaData(), Column("x", kind, nullable=nullable))
    return RowTyper(table, "f.csv", options.pop("database", _database_of(kind)), csv=csv, **options)


def _database_of(kind: TypeEngine[Any]) -> Database:
    """The database that has ``kind``; PostgreSQL for a type of SQLAlchemy's own."""
    room = type(kind).__module__.split(".")
    return SUPPORTED[room[2] if room[1] == "dialects" else "postgresql"]


def typed(kind: TypeEngine[Any], value: Any, **options: Any) -> Any:
    return typer_for(kind, **options).row(InputRow(7, {"x": value}))["x"]


def refusal(kind: TypeEngine[Any], value: Any, **options: Any) -> str:
    with pytest.raises(InputError) as refused:
        typed(kind, value, **options)
    return str(refused.value)


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        (Integer(), "42", 42),
        (Integer(), "-0", 0),
        (Integer(), "-2147483648", -(2**31)),
        (SmallInteger(), "32767", 32767),
        (mysql.TINYINT(), "-128", -128),
        (mysql.TINYINT(unsigned=True), "255", 255),
        (mysql.MEDIUMINT(), "8388607", 8388607),
        (mysql.BIGINT(unsigned=True), "18446744073709551615", 2**64 - 1),
        (Numeric(5, 2), "-999.994", Decimal("-999.99")),
        (Numeric(2, 4), "0.0099", Decimal("0.0099")),
        (Numeric(3, -2), "99949", Decimal("9.99E+4")),
        (SmallInteger(), "+7", 7),
        (BigInteger(), "-9223372036854775808", -(2**63)),
        (Float(), "1.5", 1.5),
        (Double(), "-1e3", -1000.0),
        (sqlite.REAL(), ".5", 0.5),
        (Numeric(30, 20), "0.10000000000000000001", Decimal("0.10000000000000000001")),
        (Numeric(10, 2), "5.", Decimal("5")),
        (Numeric(10, 2), "0.125", Decimal("0.13")),
        (Numeric(10, 2), "-0.125", Decimal("-0.13")),
        (Numeric(10, 2), "0.1249", Decimal("0.12")),
        (Numeric(65, 2), "9" * 60 + ".005", Decimal("9" * 60 + ".01")),
        (Numeric(10, 0), "2.5", Decimal("3")),
        (mysql.TINYINT(display_width=1), "true", 1),
        (mysql.TINYINT(display_width=1), "F", 0),
        (mysql.TINYINT(display_width=1), "7", 7),
        (Boolean(), "TRUE", True),
        (Boolean(), "f", False),
        (Boolean(), "1", True),
        (Date(), "2013-01-31", date(2013, 1, 31)),
        (Time(), "23:59", time(23, 59)),
        (Time(), "23:59:58.5", time(23, 59, 58, 500_000)),
        (DateTime(), "2013-01-01T10:00:00Z", datetime(2013, 1, 1, 10)),
        (DateTime(), "2013-01-01 10:00", datetime(2013, 1, 1, 10)),
        (DateTime(), "2013-01-01", datetime(2013, 1, 1)),
        (DateTime(), "2013-01-01T10:00:00+05:30", datetime(2013, 1, 1, 4, 30)),
        (sqlite.TIMESTAMP(), "2013-01-01T10:00:00.123456Z", datetime(2013, 1, 1, 10, 0, 0, 123456)),
        (mysql.DATETIME(), "2013-01-01T10:00:00.999999", datetime(2013, 1, 1, 10)),
        (mysql.DATETIME(fsp=3), "2013-01-01T10:00:00.123956", datetime(2013, 1, 1, 10, 0, 0, 123000)),
        (mysql.DATETIME(fsp=6), "2013-01-01T10:00:00.123956", datetime(2013, 1, 1, 10, 0, 0, 123956)),
        (mysql.TIME(), "10:00:00.9", time(10)),
        (postgresql.TIMESTAMP(precision=0), "2013-01-01T10:00:00.9", datetime(2013, 1, 1, 10)),
        (DateTime(timezone=True), "2013-01-01T10:00:00-0200", datetime(2013, 1, 1, 12, tzinfo=UTC)),
        (DateTime(timezone=True), "2013-01-01T10:00:00", datetime(2013, 1, 1, 10, tzinfo=UTC)),
        (postgresql.TIMESTAMP(timezone=True), "2013-01-01T10:00:00.1z", datetime(2013, 1, 1, 10, 0, 0, 100_000, UTC)),
        (Uuid(), "5f0c9b0a-3b1e-4f7e-8f55-0123456789ab", UUID("5f0c9b0a-3b1e-4f7e-8f55-0123456789ab")),
        (JSON(), '{"a": [1, null]}', {"a": [1, None]}),
        (String(5), " a ", " a "),
        (Text(), "NA", "NA"),
        (Enum("a", "b"), "a", "a"),
        (NullType(), "anything", "anything"),
    ],
)
def test_a_text_becomes_its_columns_type(kind: TypeEngine[Any], text: str, value: Any) -> None:
    found = typed(kind, text)
    assert found == value
    assert type(found) is type(value)
    assert getattr(found, "tzinfo", None) == getattr(value, "tzinfo", None)


@pytest.mark.parametrize(
    ("kind", "text", "message"),
    [
        (Integer(), "4.0", "expected an integer, not '4.0'"),
        (Integer(), " 4", "expected an integer, not ' 4'"),
        (Integer(), "1_000", "expected an integer, not '1_000'"),
        (Integer(), "٣", "expected an integer, not '٣'"),
        (
            BigInteger(),
            "9223372036854775808",
            f"expected an integer from {-(2**63)} to {2**63 - 1}, not 92233720368547758",
        ),
        (Integer(), "2147483648", "expected an integer from -2147483648 to 2147483647, not 2147483648"),
        (SmallInteger(), "-32769", "expected an integer from -32768 to 32767, not -32769"),
        (mysql.TINYINT(), "128", "expected an integer from -128 to 127, not 128"),
        (mysql.TINYINT(display_width=1), "-129", "expected an integer from -128 to 127, not -129"),
        (mysql.MEDIUMINT(unsigned=True), "-1", "expected an integer from 0 to 16777215, not -1"),
        (String(3), "abcd ", "has 5 characters, and the column holds 3"),
        (CHAR(3), "äöüß", "has 4 characters, and the column holds 3"),
        (Numeric(5, 2), "999.995", "999.995 has more than 3 digits before the point"),
        (Numeric(2, 4), "0.01", "0.01 has more than -2 digits before the point"),
        (Numeric(3, -2), "123456", "123456 has more than 5 digits before the point"),
        (mysql.TINYINT(display_width=1), "yes", "expected an integer, not 'yes'"),
        (Float(), "nan", "expected a number, not 'nan'"),
        (Float(), "1e999", "1e999 is too large for a floating-point number"),
        (Numeric(), "1,5", "expected a number, not '1,5'"),
        (Numeric(), "Infinity", "expected a number, not 'Infinity'"),
        (Boolean(), "yes", "expected true or false, not 'yes'"),
        (Date(), "20130131", "expected a date such as 2026-01-31, not '20130131'"),
        (Date(), "2013-02-30", "day is out of range for month"),
        (Time(), "23h", "expected a time such as 23:59:59, not '23h'"),
        (DateTime(), "2013-01-01T", "expected a timestamp as 2026-01-31T23:59:59Z, not '2013-01-01T'"),
        (DateTime(), "2013-01-01x10:00:00", "expected a timestamp as 2026-01-31T23:59:59Z, not '2013-01-01x10:00:00'"),
        (DateTime(), "2013-01-01T25:00:00", "hour must be in 0..23"),
        (DateTime(), "0001-01-01T00:00:00+01:00", "date value out of range"),
        (Uuid(), "no", "badly formed hexadecimal UUID string"),
        (JSON(), "{", "Expecting property name"),
    ],
)
def test_a_text_that_does_not_fit_is_refused_with_its_place(kind: TypeEngine[Any], text: str, message: str) -> None:
    assert refusal(kind, text).startswith(f"f.csv, line 7: column 'x': {message}")


@pytest.mark.parametrize(
    ("kind", "given_value", "value"),
    [
        (Integer(), 42, 42),
        (Float(), 3, 3.0),
        (Float(), ExactFloat.parse("0.5"), 0.5),
        (Numeric(30, 20), ExactFloat.parse("0.10000000000000000001"), Decimal("0.10000000000000000001")),
        (Numeric(), 12, Decimal(12)),
        (Boolean(), False, False),
        (DateTime(), "2013-01-01T10:00:00Z", datetime(2013, 1, 1, 10)),
        (JSON(), "a text", "a text"),
        (JSON(), {"a": 1}, {"a": 1}),
        (String(), "", ""),
    ],
)
def test_a_json_value_becomes_its_columns_type(kind: TypeEngine[Any], given_value: Any, value: Any) -> None:
    found = typed(kind, given_value, csv=False)
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [(SmallInteger(), "2147483648", 2**31), (Numeric(3, 1), "12345", 12345.0), (String(2), "longer", "longer")],
)
def test_sqlite_takes_more_than_its_column_says(kind: TypeEngine[Any], text: str, value: Any) -> None:
    assert typed(kind, text, database=SUPPORTED["sqlite"]) == value
    assert "expected an integer from -9223372036854775808" in refusal(
        Integer(), "9223372036854775808", database=SUPPORTED["sqlite"]
    )


@pytest.mark.parametrize(
    ("kind", "given_value", "message"),
    [
        (Integer(), True, "expected an integer, not True"),
        (Integer(), ExactFloat.parse("4.0"), "expected an integer, not 4.0"),
        (Integer(), 2**31, "expected an integer from -2147483648 to 2147483647"),
        (Integer(), "", "expected an integer, not ''"),
        (Float(), True, "expected a number, not True"),
        (Float(), [1], "expected a number, not [1]"),
        (String(), 4, "expected a text, not 4"),
        (String(), "a\0", "contains a NUL character"),
        (Date(), 20130131, "expected a date"),
        (DateTime(), 0, "expected a timestamp"),
        (Boolean(), None, "is NOT NULL and has no value"),
    ],
)
def test_a_json_value_that_does_not_fit_is_refused(kind: TypeEngine[Any], given_value: Any, message: str) -> None:
    assert message in refusal(kind, given_value, csv=False, nullable=False)


@pytest.mark.parametrize("kind", [Integer(), String(), DateTime(), JSON()])
def test_an_empty_csv_field_and_the_null_text_are_null(kind: TypeEngine[Any]) -> None:
    assert typed(kind, "", null="NA") is None
    assert typed(kind, "NA", null="NA") is None
    assert typed(kind, None, csv=False) is None


def test_an_empty_csv_field_of_a_not_null_text_is_an_empty_text() -> None:
    assert typed(String(), "", nullable=False) == ""
    assert "is NOT NULL" in refusal(String(), "NA", nullable=False, null="NA")
    assert "is NOT NULL" in refusal(Integer(), "", nullable=False)


def test_where_the_database_keeps_numerics_as_floats_the_message_does_too() -> None:
    assert typed(Numeric(30, 20), "0.10000000000000000001", database=SUPPORTED["sqlite"]) == 0.1


@pytest.mark.parametrize(
    ("kind", "value", "text"),
    [
        (Numeric(10, 2), "10.5", "10.50"),
        (Numeric(10, 2), "7", "7.00"),
        (Numeric(10, 2), "1e3", "1000.00"),
        (Numeric(10, 2), "-0.001", "0.00"),
        (Numeric(30, 20), "0", "0.00000000000000000000"),
        (Numeric(10, 0), "1e3", "1000"),
        (Numeric(), "10.50", "10.50"),
        (Numeric(), "1e3", "1000"),
        (Numeric(), "1e-7", "0.0000001"),
        (Numeric(), "-0.0", "0.0"),
        (Float(), "1e3", "1000.0"),
        (REAL(), "0.123456789", "0.12345679"),
        (mysql.FLOAT(), "0.123456789", "0.12345679"),
        (mysql.REAL(), "0.123456789", "0.123456789"),
        (CHAR(5), "ab  ", "ab"),
        (CHAR(5), "      ", ""),
        (String(3), "ab  ", "ab "),
        (String(3), "abc ", "abc"),
        (String(), "ab  ", "ab  "),
        (mysql.SET("x", "y", "z"), "z,x,z", "x,z"),
        (Time(timezone=True), "10:00", "10:00:00+00:00"),
    ],
)
def test_a_record_has_the_digits_and_the_letters_that_the_column_holds(
    kind: TypeEngine[Any], value: str, text: str
) -> None:
    row = typer_for(kind).row(InputRow(7, {"x": value}))
    assert encode_key(row["x"]) == text.encode()
    assert str(json.loads(encode_value(row))["x"]) == text


@pytest.mark.parametrize(
    ("kind", "value"), [(REAL(), "0.123456789"), (Float(), "1e+300"), (CHAR(5), "ab  "), (String(3), "ab  ")]
)
def test_a_record_has_every_digit_and_letter_where_the_database_keeps_them(kind: TypeEngine[Any], value: str) -> None:
    row = typer_for(kind, database=SUPPORTED["sqlite"]).row(InputRow(7, {"x": value}))
    assert str(json.loads(encode_value(row))["x"]) == value


@pytest.mark.parametrize(
    ("kind", "value", "message"),
    [
        (Enum("a", "b"), "B", "expected one of a, b, not 'B'"),
        (mysql.ENUM("a", "b"), "2", "expected one of a, b, not '2'"),
        (mysql.SET("x", "y"), "x,Y", "expected some of x, y, not 'Y'"),
        (REAL(), "1e39", "1e39 is too large for a number of single precision"),
        (Numeric(10, 2), "1" * 30_000, "1111111111111111111111111111111111111111 has too many digits"),
    ],
)
def test_a_value_that_the_column_would_hold_as_another_is_refused(
    kind: TypeEngine[Any], value: str, message: str
) -> None:
    assert refusal(kind, value) == f"f.csv, line 7: column 'x': {message}"


def test_a_column_that_the_table_lacks_is_refused() -> None:
    typer = typer_for(Integer())
    with pytest.raises(InputError, match=r"f\.csv: table t has no column 'y'; it has x"):
        typer.require(["x", "y"], "f.csv")
    with pytest.raises(InputError, match=r"f\.csv, line 7: table t has no column 'y'"):
        typer.row(InputRow(7, {"y": "1"}))


def test_a_type_that_text_cannot_fill_is_refused() -> None:
    assert refusal(LargeBinary(), "x").startswith("f.csv, line 7: column 'x' is of type LargeBinary")


def flights() -> Table:
    return Table("t", MetaData(), Column("a", Integer), Column("b", String), Column("c", Numeric(5, 2)))


@pytest.mark.parametrize("order", [("a", "b", "c"), ("c", "a", "b"), ("b", "c", "a")])
def test_a_message_has_the_order_of_the_table_not_of_the_file(order: tuple[str, ...]) -> None:
    values: Mapping[str, str] = {"a": "1", "b": "ü\n", "c": "0.50"}
    row = RowTyper(flights(), "f", SUPPORTED["postgresql"], csv=True).row(
        InputRow(2, {name: values[name] for name in order})
    )
    assert encode_value(row) == '{"a":1,"b":"ü\\n","c":"0.50"}'.encode()


def test_a_column_that_a_json_line_leaves_out_is_not_in_the_message() -> None:
    assert RowTyper(flights(), "f", SUPPORTED["postgresql"], csv=False).row(InputRow(1, {"b": "x"})) == {"b": "x"}


def test_types_that_json_lacks_are_strings_in_the_message() -> None:
    row = {"d": date(2013, 1, 1), "t": time(1), "m": datetime(2013, 1, 1, tzinfo=INDIA), "u": UUID(int=1)}
    assert json.loads(encode_value(row)) == {
        "d": "2013-01-01",
        "t": "01:00:00",
        "m": "2013-01-01T00:00:00+05:30",
        "u": "00000000-0000-0000-0000-000000000001",
    }


def test_a_text_with_lone_surrogates_cannot_be_a_message() -> None:
    with pytest.raises(ValueError, match="surrogates not allowed"):
        encode_value({"x": "\ud800"})


@pytest.mark.parametrize(
    ("value", "key"),
    [
        (None, None),
        ("", b""),
        ("ü", "ü".encode()),
        (42, b"42"),
        (0.1, b"0.1"),
        (True, b"true"),
        (Decimal("1.50"), b"1.50"),
        (datetime(2013, 1, 1), b"2013-01-01T00:00:00"),
        ({"a": 1}, b'{"a":1}'),
    ],
)
def test_a_key_is_the_text_of_its_column(value: Any, key: bytes | None) -> None:
    assert encode_key(value) == key


@given(st.integers(-(2**63), 2**63 - 1))
def test_every_64_bit_integer_comes_through(number: int) -> None:
    assert typed(BigInteger(), str(number)) == number


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_every_float_comes_through(number: float) -> None:
    found = typed(Float(), repr(number))
    assert found == number
    assert math.copysign(1, found) == math.copysign(1, number)


@given(
    st.datetimes(timezones=st.sampled_from([UTC, INDIA]), min_value=datetime(2, 1, 1), max_value=datetime(9998, 1, 1))
)
def test_every_timestamp_comes_through_in_utc(moment: datetime) -> None:
    assert typed(DateTime(timezone=True), moment.isoformat()) == moment
    assert typed(DateTime(), moment.isoformat(" ")) == moment.astimezone(UTC).replace(tzinfo=None)


@given(st.decimals(-(10**24) + 1, 10**24 - 1, places=6))
def test_every_decimal_comes_through_to_the_last_digit(number: Decimal) -> None:
    held = typed(Numeric(30, 6), str(number))
    assert held == number
    assert held.as_tuple().exponent == -6


def test_json_that_is_nested_too_deeply_is_refused_with_its_line() -> None:
    with pytest.raises(InputError, match=r"f\.csv, line 3: column 'x': JSON that is nested too deeply"):
        typer_for(JSON()).row(InputRow(3, {"x": "[" * 100_000}))


def test_a_row_that_is_nested_too_deeply_for_a_message_is_refused() -> None:
    nested: list[object] = []
    for _ in range(100_000):
        nested = [nested]
    with pytest.raises(ValueError, match="nested too deeply"):
        encode_value({"x": nested})
