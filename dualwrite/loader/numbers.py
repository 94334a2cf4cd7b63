"""Numbers as a column holds them. Pure.

The loader writes them, and the comparison reads the numbers of rows and records in the same form.
"""

import math
import re
import struct
from collections.abc import Callable
from decimal import ROUND_HALF_UP, Context, Decimal, InvalidOperation
from typing import Any

from dualwrite.loader.input import ExactFloat

_NUMBER = re.compile(r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]{1,4})?")
_INTEGER = re.compile(r"[+-]?[0-9]{1,4300}")
_LONG = Context(prec=20_000)
"""More digits than any database keeps."""
_SINGLE = struct.Struct("<f")
_LARGEST = _SINGLE.unpack(b"\xff\xff\x7f\x7f")[0]
"""The largest number of single precision. Databases refuse its shortest text, which is larger."""
_SINGLE_DIGITS = range(1, 10)
"""Nine digits tell every single-precision number from all others."""


def is_number(text: str) -> bool:
    """True if ``text`` spells a number, such as ``-1.5e3``."""
    return _NUMBER.fullmatch(text) is not None


def float_of(is_single: bool, scale: int | None, *, keeps_negative_zeros: bool) -> Callable[[Any], float]:
    """Turns a number of an input into the value of a floating-point column.

    The result raises ValueError for a text that is not a number, or is too large.

    :param is_single: True for single precision; the number then has the fewest digits that identify it.
    :param scale: the number of digits after the point to which the column rounds; None if it does not.
    :param keeps_negative_zeros: False if the column holds 0.0 for -0.0.
    """
    round_off = None if scale is None else decimal_of(scale)

    def converted(value: Any) -> float:
        number = float(_spelling(value) if round_off is None else round_off(value))
        try:
            if is_single:
                number = single(number)
        except OverflowError:
            raise ValueError(f"{value} is too large for a number of single precision") from None
        if math.isinf(number):
            raise ValueError(f"{value} is too large for a floating-point number")
        return number if number or keeps_negative_zeros else 0.0

    return converted


def decimal_of(scale: int | None, precision: int | None = None) -> Callable[[Any], Decimal]:
    """Turns a number of an input into the value of a NUMERIC column with ``scale`` digits after the point, as databases
    do: they round a number with more digits, and add zeros to one with fewer. None for a column that keeps all digits.

    The result raises ValueError for a text that is not a number, or has more digits than the column.

    :param precision: the number of all digits of the column; None if it is not known.
    """
    whole = None if scale is None or precision is None else precision - scale
    limit = None if whole is None else Decimal(1).scaleb(whole)

    def converted(value: Any) -> Decimal:
        number = Decimal(_spelling(value))
        exponent = int(number.as_tuple().exponent)
        digits = min(exponent, 0) if scale is None else -scale
        if exponent != digits:
            try:
                number = number.quantize(Decimal(1).scaleb(digits), ROUND_HALF_UP, _LONG)
            except InvalidOperation:
                raise ValueError(f"{str(value)[:40]} has too many digits") from None
        if limit is not None and number.copy_abs() >= limit:  # abs() would round
            raise ValueError(f"{str(value)[:40]} has more than {whole} digits before the point")
        return number if number else abs(number)  # no database keeps the sign of a zero

    return converted


def single(number: float) -> float:
    """The single-precision number that is nearest to ``number``, with the fewest digits that identify it.

    :raises OverflowError: if it is too large.
    """
    packed = _SINGLE.pack(number)
    (wide,) = _SINGLE.unpack(packed)
    shorter = (float(f"{wide:.{digits}g}") for digits in _SINGLE_DIGITS)
    return next((short for short in shorter if abs(short) <= _LARGEST and _SINGLE.pack(short) == packed), float(wide))


def plain_text(number: Decimal) -> str:
    """``number`` without an exponent."""
    return format(number, "f")


def decimal_text(text: str, scale: int | None) -> str:
    """The number that ``text`` spells, in one form for all spellings of it: with ``scale`` digits after the point, or
    with more if it has more that are not zero. Without ``scale``, with as few digits as possible."""
    number = Decimal(text)
    whole, _, fraction = plain_text(number if number else abs(number)).partition(".")
    fraction = fraction.rstrip("0").ljust(scale or 0, "0")
    return f"{whole}.{fraction}" if fraction else whole


def float_or_integer(text: str) -> float | int:
    """The number that ``text`` spells, as a float; but an integer that no float equals stays one."""
    number = float(text)
    if _INTEGER.fullmatch(text) and (number in (float("inf"), float("-inf")) or int(number) != int(text)):
        return int(text)
    return number


def _spelling(value: Any) -> str:
    text = value.text if isinstance(value, ExactFloat) else str(value)
    if isinstance(value, bool) or not isinstance(value, str | int | float) or not is_number(text):
        raise ValueError(f"expected a number, not {value!r}")
    return text
