"""Makes Spark's SQL for the text of a row for PostgreSQL's COPY. Python then handles one text for each row, instead of
converting each value.

The table gets the same values either way. For a row that must be refused, the text is the reason.
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
"""The limits of Python's dates and timestamps. Neither way of writing supports a value outside of them."""
_REFUSED_YEARS = "is not of the years 1 to 9999"

_SqlText = tuple[str, str | None]
"""Spark's SQL for the text of a value that is not NULL, and for the condition under which the value has a text. The
condition is None if every value has one."""


def line_of(columns: Sequence[str], fields: Sequence[Field], table_columns: Sequence[TableColumn]) -> str | None:
    """Spark's SQL for the text of a row, without the line end. None if Spark would write one of the values differently.

    It is one text of SQL, because Spark parses it faster than it runs a separate call for each function.

    :param columns: the SQL expressions of ``fields``.
    :param table_columns: the table's columns for ``fields``.
    """
    parts: list[str] = []
    refusals: list[str] = []
    for column, field, table_column in zip(columns, fields, table_columns, strict=True):
        write = _WRITERS.get((field.type.kind, table_column.family))
        if write is None:
            return None
        text, condition = write(column)
        if condition is not None:
            text = f"CASE WHEN {condition} THEN {text} END"
            refusals.append(_refusal(f"NOT ({condition})", field, _REFUSED_YEARS))
        if table_column.nullable:
            text = f"CASE WHEN {column} IS NULL THEN {_literal(_NULL)} ELSE {text} END"
        else:
            refusals.append(_refusal(f"{column} IS NULL", field, refusal_of_null(table_column)))
        parts += [_literal("\t"), text]
    # If one part is NULL, the whole text is NULL. Only then Spark evaluates the refusals.
    row = f"concat({', '.join(parts[1:])})"
    return f"coalesce({', '.join([row, *refusals])})"


def refusal_of_moment(column: str, field: Field) -> str | None:
    """Spark's SQL for the reason to refuse a row before it becomes JSON. None if ``field`` is neither a date nor a
    timestamp.

    The SQL gives the reason if the year of the value is one that Python does not support, in UTC or in the session's
    zone. It gives NULL for every other row.

    :param column: the SQL expression of ``field``.
    """
    in_session_zone = f"CAST({column} AS TIMESTAMP_NTZ)"
    conditions = {
        "date": [_is_between(column, _DAYS)],
        "timestamp_ntz": [_is_between(column, _MOMENTS)],
        "timestamp": [_is_between(moment, _MOMENTS) for moment in (_as_utc(column), in_session_zone)],
    }.get(field.type.kind)
    return None if conditions is None else _refusal(f"NOT ({' AND '.join(conditions)})", field, _REFUSED_YEARS)


def _literal(text: str) -> str:
    """``text`` as a literal of SQL, independent of the session's rules for quotes and backslashes."""
    return f"CAST(X'{text.encode().hex()}' AS STRING)"


def _refusal(condition: str, field: Field, why: str) -> str:
    return f"CASE WHEN {condition} THEN {_literal(f'{REFUSED}column {field.name!r}: {why}')} END"


def _plain(column: str) -> _SqlText:
    return f"CAST({column} AS STRING)", None


def _text(column: str) -> _SqlText:
    text = f"CAST({column} AS STRING)"  # a string without a collation: replace() compares bytes
    for character, escape in _ESCAPES:
        text = f"replace({text}, {_literal(character)}, {_literal(escape)})"
    return text, None


def _bytes(column: str) -> _SqlText:
    return f"concat({_literal(_HEX)}, hex({column}))", None


def _day(column: str) -> _SqlText:
    return f"CAST({column} AS STRING)", _is_between(column, _DAYS)


def _moment(column: str) -> _SqlText:
    return f"CAST({column} AS STRING)", _is_between(column, _MOMENTS)


def _as_utc(column: str) -> str:
    """An instant in UTC, independent of the session's zone: a local time may occur twice."""
    return f"(TIMESTAMP_NTZ'1970-01-01 00:00:00' + unix_micros({column}) * make_dt_interval(0, 0, 0, 0.000001BD))"


def _utc(column: str) -> _SqlText:
    return _moment(_as_utc(column))


def _instant(column: str) -> _SqlText:
    text, condition = _utc(column)
    return f"concat({text}, '+00')", condition


def _is_between(column: str, ends: tuple[str, str]) -> str:
    return f"{column} BETWEEN {ends[0]} AND {ends[1]}"


_WRITERS: Mapping[tuple[str, Family], Callable[[str], _SqlText]] = {
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
"""The types that Spark writes. It does not write floating-point numbers, for which Java may choose other digits than
Python. It does not write local times as instants, which Java and Python may convert differently when the clocks change.
Nested values are written as JSON (to_json.py)."""
