"""Lets Spark write a row's values for PostgreSQL's COPY, as one text. Python then handles one text for each row,
instead of converting each value. All of it is Spark's SQL.

The table gets the same values as without it. For a row that must be refused, the text is the reason.
"""

from collections.abc import Callable, Mapping, Sequence

from dualwrite.spark.plan.columns import REFUSED, Family, TableColumn, refusal_of_null
from dualwrite.spark.plan.spark_schema import WHOLE, Field

_NULL = "\\N"
_ESCAPES = (("\\", "\\\\"), ("\t", "\\t"), ("\n", "\\n"), ("\r", "\\r"))
"""Characters with a meaning in COPY, the backslash first."""
_HEX = "\\\\x"
"""The beginning of bytes in hexadecimal digits, with the backslash escaped."""
_DAYS = ("DATE'0001-01-01'", "DATE'9999-12-31'")
_MOMENTS = ("TIMESTAMP_NTZ'0001-01-01 00:00:00'", "TIMESTAMP_NTZ'9999-12-31 23:59:59.999999'")
"""The limits of Python's dates and timestamps: outside of them, neither way of writing supports a value."""
_ODD_YEARS = "is not of the years 1 to 9999"

_Written = tuple[str, str | None]
"""Spark's SQL for the text of a value that is not NULL; and a condition for values that have one, if not all do."""


def line_of(columns: Sequence[str], fields: Sequence[Field], into: Sequence[TableColumn]) -> str | None:
    """Spark's SQL for the text of a row, without the line end; None if Spark would write one of the values differently.
    It is one text of SQL, as Spark takes longer for a separate call for each function than to parse all of it.

    :param columns: the SQL expressions of ``fields``, whose values go ``into`` these table columns.
    """
    parts: list[str] = []
    refusals: list[str] = []
    for column, field, each in zip(columns, fields, into, strict=True):
        write = _WRITERS.get((field.type.kind, each.family))
        if write is None:
            return None
        text, is_held = write(column)
        if is_held is not None:
            text = f"CASE WHEN {is_held} THEN {text} END"
            refusals.append(_refusal(f"NOT ({is_held})", field, _ODD_YEARS))
        if each.nullable:
            text = f"CASE WHEN {column} IS NULL THEN {_literal(_NULL)} ELSE {text} END"
        else:
            refusals.append(_refusal(f"{column} IS NULL", field, refusal_of_null(each)))
        parts += [_literal("\t"), text]
    # If one part is NULL, the whole text is NULL: only then the reason is looked for.
    row = f"concat({', '.join(parts[1:])})"
    return f"coalesce({', '.join([row, *refusals])})"


def refusal_of_moment(column: str, field: Field) -> str | None:
    """For JSON: Spark's SQL for the reason to refuse a row, if ``column`` has a date or timestamp in a year that Python
    does not support, in UTC or in the session's zone; NULL for every other row. None if ``field`` is neither.

    :param column: its SQL expression.
    """
    held = {
        "date": [_is_between(column, _DAYS)],
        "timestamp_ntz": [_is_between(column, _MOMENTS)],
        "timestamp": [_is_between(each, _MOMENTS) for each in (_as_utc(column), f"CAST({column} AS TIMESTAMP_NTZ)")],
    }.get(field.type.kind)
    return None if held is None else _refusal(f"NOT ({' AND '.join(held)})", field, _ODD_YEARS)


def _literal(text: str) -> str:
    """``text`` as a literal of SQL, independent of the session's rules for quotes and backslashes."""
    return f"CAST(X'{text.encode().hex()}' AS STRING)"


def _refusal(condition: str, field: Field, why: str) -> str:
    return f"CASE WHEN {condition} THEN {_literal(f'{REFUSED}column {field.name!r}: {why}')} END"


def _plain(column: str) -> _Written:
    return f"CAST({column} AS STRING)", None


def _text(column: str) -> _Written:
    text = f"CAST({column} AS STRING)"  # of which no rules of a language's say where a character is found
    for character, escape in _ESCAPES:
        text = f"replace({text}, {_literal(character)}, {_literal(escape)})"
    return text, None


def _bytes(column: str) -> _Written:
    return f"concat({_literal(_HEX)}, hex({column}))", None


def _day(column: str) -> _Written:
    return f"CAST({column} AS STRING)", _is_between(column, _DAYS)


def _moment(column: str) -> _Written:
    return f"CAST({column} AS STRING)", _is_between(column, _MOMENTS)


def _as_utc(column: str) -> str:
    """An instant in UTC, independent of the session's zone: a local time may occur twice."""
    return f"(TIMESTAMP_NTZ'1970-01-01 00:00:00' + unix_micros({column}) * make_dt_interval(0, 0, 0, 0.000001BD))"


def _utc(column: str) -> _Written:
    return _moment(_as_utc(column))


def _instant(column: str) -> _Written:
    text, is_held = _utc(column)
    return f"concat({text}, '+00')", is_held


def _is_between(column: str, ends: tuple[str, str]) -> str:
    return f"{column} BETWEEN {ends[0]} AND {ends[1]}"


_WRITERS: Mapping[tuple[str, Family], Callable[[str], _Written]] = {
    **{(kind, family): _plain for kind in (*WHOLE, "decimal") for family in (Family.WHOLE, Family.EXACT)},
    **{(kind, Family.FLOATING): _plain for kind in (*WHOLE, "decimal")},
    **{("string", family): _text for family in (Family.TEXT, Family.JSON, Family.OTHER)},
    **{("void", family): _plain for family in Family},
    ("boolean", Family.BOOLEAN): _plain,
    ("binary", Family.BYTES): _bytes,
    ("date", Family.DATE): _day,
    ("timestamp", Family.MOMENT): _utc,
    ("timestamp", Family.ZONED): _instant,
    ("timestamp_ntz", Family.MOMENT): _moment,
}
"""Types that Spark does not write: Java may write floating-point numbers with other digits than Python; Java and Python
may map a local time to different instants where the clock is set; nested values are written as JSON (to_json.py)."""
