"""Writes rows as JSON, letter for letter as Spark's ``to_json`` does with its default options.

It omits fields that are NULL, but writes NULLs in arrays and maps. Numbers are spelled as in Java. Binaries are in
base64. Timestamps have milliseconds and the session's zone.

PySpark provides timestamps without a zone, in the zone of this process.
"""

import math
import re
import struct
from base64 import b64encode
from collections.abc import Callable, Iterable, Sequence
from datetime import date, datetime, timedelta, timezone, tzinfo
from decimal import Context, Decimal
from json.encoder import encode_basestring
from typing import Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from dualwrite.errors import ConfigurationError
from dualwrite.spark.plan.spark_schema import DAYS, MICROS, WHOLE, Field, SparkType

Write = Callable[[Any], str]

_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
_FIRST_DAY = _EPOCH.toordinal()
_DIGITS = Context(prec=76)
"""Twice the precision of Spark's decimals."""
_OFFSET = re.compile(r"(?:UTC|GMT|UT)?([+-])(\d{1,2})(?::?(\d{2}))?")
_ESCAPES = {code: f"\\u{code:04X}" for code in range(0x20)} | {
    ord(character): escape
    for character, escape in zip('"\\\n\r\t\b\f', ('\\"', "\\\\", "\\n", "\\r", "\\t", "\\b", "\\f"), strict=True)
}


def zone_of(name: str) -> tzinfo:
    """The zone that Spark calls ``name``: a region, or an offset such as ``+01:00``.

    :raises ConfigurationError: if ``name`` is neither.
    """
    offset = _OFFSET.fullmatch(name)
    if name == "Z":
        return timezone.utc
    if offset:
        minutes = int(offset[2]) * 60 + int(offset[3] or 0)
        return timezone(timedelta(minutes=-minutes if offset[1] == "-" else minutes))
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise ConfigurationError(
            f"spark.sql.session.timeZone {name!r} is not known to Python: use a region such as Europe/Vienna, UTC, or "
            "an offset such as +01:00"
        ) from None


def object_writer(fields: Sequence[Field], zone: tzinfo) -> Callable[[Iterable[Any]], str]:
    """A function that makes the JSON object from the values of ``fields``, in their order."""
    members = [(f"{_string(field.name)}:", text_writer(field.type, zone)) for field in fields]

    def write(values: Iterable[Any]) -> str:
        written = [
            name + convert(value) for (name, convert), value in zip(members, values, strict=True) if value is not None
        ]
        return "{" + ",".join(written) + "}"

    return write


def text_writer(spark_type: SparkType, zone: tzinfo) -> Write:
    """A function that makes the JSON of a value of ``spark_type``, which is not None."""
    if spark_type.kind == "struct":
        return object_writer(spark_type.fields, zone)
    if spark_type.kind == "array":
        element = _or_null(text_writer(spark_type.fields[0].type, zone))
        return lambda values: f"[{','.join(map(element, values))}]"
    if spark_type.kind == "map":
        key_type, value_type = (field.type for field in spark_type.fields)
        write_key, write_value = text_writer(key_type, zone), _or_null(text_writer(value_type, zone))
        return lambda values: (
            "{" + ",".join(f"{_quoted(write_key(key))}:{write_value(item)}" for key, item in values.items()) + "}"
        )
    if spark_type.kind == "timestamp":
        return lambda moment: f'"{_moment(moment, zone)}"'
    if spark_type.kind == MICROS:
        return lambda micros: f'"{_moment(moment_of(micros), zone)}"'
    if spark_type.kind == "decimal":
        exact = with_scale(spark_type.scale)
        return lambda number: str(exact(number))
    return _PLAIN[spark_type.kind]


def with_scale(scale: int) -> Callable[[Decimal], Decimal]:
    """A function that gives a decimal the scale of its type: PySpark may turn ``1E-8`` into ``10E-9``."""
    unit = Decimal(1).scaleb(-scale)
    return lambda number: number.quantize(unit, context=_DIGITS)


def moment_of(micros: int) -> datetime:
    """The moment ``micros`` microseconds after the beginning of 1970."""
    return _EPOCH + timedelta(microseconds=micros)


def day_of(days: int) -> date:
    """The date ``days`` days after 1970-01-01."""
    return date.fromordinal(_FIRST_DAY + days)


def _or_null(write: Write) -> Write:
    return lambda value: "null" if value is None else write(value)


def _string(text: str) -> str:
    quoted = encode_basestring(text)  # much faster; differs from Spark only in the digits of \u
    return quoted if "\\u" not in quoted else f'"{text.translate(_ESCAPES)}"'


def _quoted(json: str) -> str:
    """The JSON of a map's key as a name."""
    return json if json.startswith('"') else f'"{json}"'


def _boolean(value: bool) -> str:
    return "true" if value else "false"


def _base64(value: bytes) -> str:
    return f'"{b64encode(value).decode()}"'


def _date(value: date) -> str:
    return f'"{value.isoformat()}"'


def _moment(value: datetime, zone: tzinfo) -> str:
    text = value.astimezone(zone).isoformat(timespec="milliseconds")
    return text[:-6] + "Z" if text.endswith("+00:00") else text


def _moment_without_zone(value: datetime) -> str:
    return f'"{value.isoformat(timespec="milliseconds")}"'


def _double(value: float) -> str:
    return _java(value, repr(value))


def _float(value: float) -> str:
    """The shortest spelling that identifies ``value`` among the numbers of 32 bits."""
    return _java(value, repr(value) if not math.isfinite(value) else _shortest(value))


def _shortest(value: float) -> str:
    packed = struct.pack("f", value)
    for digits in range(1, 9):
        text = f"{value:.{digits}g}"
        if struct.pack("f", float(text)) == packed:
            return text
    return f"{value:.9g}"


def _java(value: float, text: str) -> str:
    """``text``, a spelling of ``value``, in the format of Java's Double.toString."""
    if not math.isfinite(value):
        return '"NaN"' if math.isnan(value) else ('"Infinity"' if value > 0 else '"-Infinity"')
    sign = "-" if text.startswith("-") else ""
    mantissa, _, exponent_text = text.lstrip("-").partition("e")
    whole, _, fraction = mantissa.partition(".")
    digits = (whole + fraction).lstrip("0")
    if not digits:
        return f"{sign}0.0"
    leading = len(whole) if whole.strip("0") else len(digits) - len(fraction)
    exponent = leading + int(exponent_text or 0) - 1
    digits = digits.rstrip("0")
    if not -3 <= exponent < 7:
        return f"{sign}{digits[0]}.{digits[1:] or '0'}E{exponent}"
    if exponent < 0:
        return f"{sign}0.{'0' * (-exponent - 1)}{digits}"
    digits = digits.ljust(exponent + 1, "0")
    return f"{sign}{digits[: exponent + 1]}.{digits[exponent + 1 :] or '0'}"


_PLAIN: dict[str, Write] = {
    **dict.fromkeys(WHOLE, str),
    "boolean": _boolean,
    "binary": _base64,
    "date": _date,
    DAYS: lambda days: _date(day_of(days)),
    "double": _double,
    "float": _float,
    "string": _string,
    "timestamp_ntz": _moment_without_zone,
    "void": lambda value: "null",
}
