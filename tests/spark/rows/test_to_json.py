"""JSON as Spark writes it. What Spark itself writes is compared in test_json_of_spark.py."""

import json
import math
import struct
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dualwrite.errors import ConfigurationError
from dualwrite.spark.plan.spark_schema import fields_of
from dualwrite.spark.plan.to_json import object_writer, zone_of
from tests.support.spark.expected_rows import array, map_of, schema

UTC = timezone.utc


def written(kind: Any, value: Any, zone: str = "UTC") -> str:
    """The JSON of a column ``a``."""
    return object_writer(fields_of(schema(a=kind)), zone_of(zone))([value])


@pytest.mark.parametrize(
    ("kind", "value", "expected"),
    [
        ("long", -7, "-7"),
        ("boolean", True, "true"),
        ("boolean", False, "false"),
        ("string", 'q"\\/\n\t\r\b\f\x01\x1f\x7f\u2028é😀', '"q\\"\\\\/\\n\\t\\r\\b\\f\\u0001\\u001F\x7f\u2028é😀"'),
        ("binary", bytearray(b"\x00\xff\x10"), '"AP8Q"'),
        ("decimal(10,2)", Decimal("1.50"), "1.50"),
        ("decimal(12,8)", Decimal("0.00000001"), "1E-8"),
        ("decimal(12,8)", Decimal("0E-8"), "0E-8"),
        ("decimal(12,8)", Decimal("10E-9"), "1E-8"),
        (
            "decimal(38,18)",
            Decimal("12345678901234567890.123456789012345678"),
            "12345678901234567890.123456789012345678",
        ),
        ("double", 1e10, "1.0E10"),
        ("double", 1e-5, "1.0E-5"),
        ("double", 0.001, "0.001"),
        ("double", 0.0123, "0.0123"),
        ("double", 123.456, "123.456"),
        ("double", 9999999.0, "9999999.0"),
        ("double", 1e7, "1.0E7"),
        ("double", 12345678.5, "1.23456785E7"),
        ("double", 1.7976931348623157e308, "1.7976931348623157E308"),
        ("double", -0.0, "-0.0"),
        ("double", 0.0, "0.0"),
        ("double", -1.5e-7, "-1.5E-7"),
        ("double", math.nan, '"NaN"'),
        ("double", math.inf, '"Infinity"'),
        ("double", -math.inf, '"-Infinity"'),
        ("float", struct.unpack("f", struct.pack("f", 0.1))[0], "0.1"),
        ("float", struct.unpack("f", struct.pack("f", 16777216.0))[0], "1.6777216E7"),
        ("float", math.nan, '"NaN"'),
        ("date", date(2024, 2, 29), '"2024-02-29"'),
        ("date", date(1, 1, 1), '"0001-01-01"'),
        ("timestamp", datetime(2024, 7, 29, 10, 34, 56, 999999, UTC), '"2024-07-29T10:34:56.999Z"'),
        ("timestamp_ntz", datetime(2024, 7, 29, 10, 34, 56, 123456), '"2024-07-29T10:34:56.123"'),
        (array("long"), [1, None], "[1,null]"),
        (array("long"), [], "[]"),
        (array(schema(x="long", y="long")), [(1, None), None], '[{"x":1},null]'),
        (map_of("string", "long"), {"k": None, "j": 1}, '{"k":null,"j":1}'),
        (map_of("long", "string"), {2: "x"}, '{"2":"x"}'),
        (map_of("boolean", "long"), {True: 1}, '{"true":1}'),
        (map_of("decimal(3,2)", "long"), {Decimal("1.50"): 1}, '{"1.50":1}'),
        (map_of("double", "long"), {1.5: 1, math.nan: 2}, '{"1.5":1,"NaN":2}'),
        (schema(x="long"), (None,), "{}"),
    ],
)
def test_a_value_is_written_in_sparks_form(kind: Any, value: Any, expected: str) -> None:
    assert written(kind, value) == f'{{"a":{expected}}}'


def test_null_is_left_out_and_names_are_escaped() -> None:
    write = object_writer(fields_of(schema(**{"a": "long", 'b "c"': "string", "d": "void"})), UTC)
    assert write([None, "x", None]) == '{"b \\"c\\"":"x"}'
    assert write([None, None, None]) == "{}"


@pytest.mark.parametrize(
    ("zone", "expected"),
    [
        ("Europe/Vienna", "2024-07-29T12:34:56.000+02:00"),
        ("America/St_Johns", "2024-07-29T08:04:56.000-02:30"),
        ("+05:30", "2024-07-29T16:04:56.000+05:30"),
        ("GMT-3", "2024-07-29T07:34:56.000-03:00"),
        ("UTC+2", "2024-07-29T12:34:56.000+02:00"),
        ("Z", "2024-07-29T10:34:56.000Z"),
        ("UTC", "2024-07-29T10:34:56.000Z"),
    ],
)
def test_a_moment_is_in_the_zone_of_the_session(zone: str, expected: str) -> None:
    assert written("timestamp", datetime(2024, 7, 29, 10, 34, 56, tzinfo=UTC), zone) == f'{{"a":"{expected}"}}'


def test_a_moment_without_a_zone_is_in_this_processs() -> None:
    here = datetime(2024, 7, 29, 10, 34, 56)
    assert written("timestamp", here) == written("timestamp", here.astimezone(UTC))


def test_the_two_equal_hours_of_a_clock_change_differ_by_their_offset() -> None:
    vienna = ZoneInfo("Europe/Vienna")
    first, second = (datetime(2024, 10, 27, 2, 30, tzinfo=vienna, fold=fold) for fold in (0, 1))
    assert written("timestamp", first, "Europe/Vienna") == '{"a":"2024-10-27T02:30:00.000+02:00"}'
    assert written("timestamp", second, "Europe/Vienna") == '{"a":"2024-10-27T02:30:00.000+01:00"}'


@pytest.mark.parametrize("zone", ["PST8", "Mars/Olympus", "", "../etc/passwd", "+1:2:3"])
def test_an_unknown_zone_is_refused(zone: str) -> None:
    with pytest.raises(ConfigurationError, match="is not known to Python"):
        zone_of(zone)


def test_an_offset_is_a_zone() -> None:
    assert zone_of("GMT-03:30") == timezone(-timedelta(hours=3, minutes=30))


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_a_double_is_read_back_as_it_was(value: float) -> None:
    text = written("double", value)
    assert json.loads(text) == {"a": value}
    digits = text[5:-1].lstrip("-")
    assert ("E" in digits) == (value != 0 and not 1e-3 <= abs(value) < 1e7)
    assert "." in digits


@given(st.floats(width=32, allow_nan=False, allow_infinity=False))
def test_a_float_is_read_back_as_it_was_and_has_no_digits_too_many(value: float) -> None:
    read = json.loads(written("float", value))["a"]
    assert struct.pack("f", read) == struct.pack("f", value)
    assert len(repr(read).replace(".", "").replace("-", "").partition("e")[0].strip("0")) <= 9


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_a_text_is_read_back_as_it_was(text: str) -> None:
    assert json.loads(written("string", text)) == {"a": text}
