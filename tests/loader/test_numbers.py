"""Numbers as columns hold them: single precision, and decimals with the digits of their column."""

import struct
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dualwrite.loader.numbers import (
    decimal_of,
    decimal_text,
    float_of,
    float_or_integer,
    is_number,
    plain_text,
    single,
)

LARGEST = 2.0**128 - 2.0**104


@pytest.mark.parametrize(
    ("number", "shown"),
    [
        (0.1, 0.1),
        (0.123456789, 0.12345679),
        (16777217.0, 16777216.0),
        (1e-45, 1e-45),
        (1e-50, 0.0),
        (-2.5, -2.5),
        (LARGEST, LARGEST),
        (3.4028235e38, LARGEST),
        (float("inf"), float("inf")),
    ],
)
def test_a_number_of_single_precision_has_the_fewest_digits(number: float, shown: float) -> None:
    assert single(number) == shown


@given(st.floats(width=32, allow_nan=False, allow_infinity=False))
def test_the_fewest_digits_are_still_the_same_number(number: float) -> None:
    shown = single(number)
    assert struct.pack("<f", shown) == struct.pack("<f", number)
    assert single(shown) == shown
    assert len(repr(shown)) <= len(repr(number))


@pytest.mark.parametrize("number", [1e39, -1e39])
def test_a_number_that_is_too_large_for_single_precision_is_refused(number: float) -> None:
    with pytest.raises(OverflowError):
        single(number)
    with pytest.raises(ValueError, match="too large for a number of single precision"):
        float_of(True, None, keeps_negative_zeros=True)(number)


@pytest.mark.parametrize(
    ("scale", "keeps_negative_zeros", "text", "value"),
    [(4, False, "0.123456", "0.1235"), (None, True, "-0", "-0.0"), (None, False, "-0", "0.0"), (1, True, "7", "7.0")],
)
def test_a_float_has_the_digits_of_its_column(
    scale: int | None, keeps_negative_zeros: bool, text: str, value: str
) -> None:
    for is_single in (True, False):
        assert repr(float_of(is_single, scale, keeps_negative_zeros=keeps_negative_zeros)(text)) == value


@given(st.decimals(allow_nan=False, allow_infinity=False, places=8), st.integers(0, 6))
def test_a_decimal_has_the_digits_of_its_column(number: Decimal, scale: int) -> None:
    held = decimal_of(scale)(str(number))
    assert held.as_tuple().exponent == -scale
    assert abs(held - number) * 2 <= Decimal(1).scaleb(-scale)
    assert decimal_of(scale)(str(held)) == held


@given(st.decimals(allow_nan=False, allow_infinity=False))
def test_every_spelling_of_a_decimal_has_one_text(number: Decimal) -> None:
    text = decimal_text(str(number), None)
    assert Decimal(text) == number
    assert decimal_text(plain_text(number), None) == text
    assert "E" not in text
    assert text == "0" or not text.startswith("-0") or "." in text


@pytest.mark.parametrize(
    ("text", "number"),
    [("7", 7.0), ("1e3", 1000.0), ("9007199254740993", 9007199254740993), ("1" * 400, int("1" * 400)), ("-0", -0.0)],
)
def test_an_integer_that_no_float_equals_stays_one(text: str, number: float) -> None:
    found = float_or_integer(text)
    assert found == number
    assert type(found) is type(number)


@pytest.mark.parametrize("text", ["", "x", "1_0", "0x1", "nan", "inf", " 1", "1e", "1e12345", "٣", "."])
def test_what_is_no_number(text: str) -> None:
    assert not is_number(text)
