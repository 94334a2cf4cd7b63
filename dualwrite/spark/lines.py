"""The table's values of a row as Spark writes them for PostgreSQL's COPY: one text, which costs Python next to nothing,
where each value would be taken over, converted and written by itself.

What becomes of it in the table is the same as of the values. A row that is to be refused has a text that says why.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from dualwrite.spark.columns import REFUSED, Family, TableColumn, refusal_of_null
from dualwrite.spark.schemas import WHOLE, Field

if TYPE_CHECKING:
    from pyspark.sql import Column

_NULL = "\\N"
_ESCAPES = (("\\", "\\\\"), ("\t", "\\t"), ("\n", "\\n"), ("\r", "\\r"))
"""What COPY takes for something else, the backslash first."""
_DAYS = ("DATE'0001-01-01'", "DATE'9999-12-31'")
_MOMENTS = ("TIMESTAMP_NTZ'0001-01-01 00:00:00'", "TIMESTAMP_NTZ'9999-12-31 23:59:59.999999'")
"""Between which Python has days and moments: beyond, there are none on either side."""


def line_of(columns: "Sequence[Column]", fields: Sequence[Field], into: Sequence[TableColumn]) -> "Column | None":
    """The text of a row, without the end of its line; None if a value is one that Spark would write otherwise.

    :param columns: of ``fields``, which go ``into`` those of the table.
    """
    from pyspark.sql import functions as f

    parts: list[Column] = []
    refusals: list[Column] = []
    for column, field, each in zip(columns, fields, into, strict=True):
        write = _WRITERS.get((field.type.kind, each.family))
        if write is None:
            return None
        text, is_held = write(column)
        if is_held is not None:
            text = f.when(is_held, text)
            refusals.append(f.when(~is_held, _refusal(field, "is not of the years 1 to 9999")))
        if each.nullable:
            text = f.when(column.isNull(), f.lit(_NULL)).otherwise(text)
        else:
            refusals.append(f.when(column.isNull(), _refusal(field, refusal_of_null(each))))
        parts += [f.lit("\t"), text]
    # One part that is NULL makes NULL of them all: only then it is asked why.
    return f.coalesce(f.concat(*parts[1:]), *refusals)


def _refusal(field: Field, why: str) -> "Column":
    from pyspark.sql import functions as f

    return f.lit(f"{REFUSED}column {field.name!r}: {why}")


def _plain(column: "Column") -> "tuple[Column, Column | None]":
    return column.cast("string"), None


def _text(column: "Column") -> "tuple[Column, Column | None]":
    from pyspark.sql import functions as f

    text = column.cast("string")  # of which no rules of a language's say where a character is found
    for character, escape in _ESCAPES:
        text = f.replace(text, f.lit(character), f.lit(escape))
    return text, None


def _bytes(column: "Column") -> "tuple[Column, Column | None]":
    from pyspark.sql import functions as f

    return f.concat(f.lit("\\\\x"), f.hex(column)), None


def _day(column: "Column") -> "tuple[Column, Column | None]":
    return column.cast("string"), _is_between(column, _DAYS)


def _moment(column: "Column") -> "tuple[Column, Column | None]":
    return column.cast("string"), _is_between(column, _MOMENTS)


def _utc(column: "Column") -> "tuple[Column, Column | None]":
    """An instant in UTC, whatever the session's zone: a local time may be there twice."""
    from pyspark.sql import functions as f

    since = f.unix_micros(column) * f.expr("make_dt_interval(0, 0, 0, 0.000001BD)")
    return _moment(f.expr("TIMESTAMP_NTZ'1970-01-01 00:00:00'") + since)


def _instant(column: "Column") -> "tuple[Column, Column | None]":
    from pyspark.sql import functions as f

    text, is_held = _utc(column)
    return f.concat(text, f.lit("+00")), is_held


def _is_between(column: "Column", ends: tuple[str, str]) -> "Column":
    from pyspark.sql import functions as f

    return column.between(f.expr(ends[0]), f.expr(ends[1]))


_Writer = Callable[["Column"], "tuple[Column, Column | None]"]

_WRITERS: Mapping[tuple[str, Family], _Writer] = {
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
"""The text of a value that is not NULL, and if not every value has one, which have. Of floating point numbers Java may
write other digits than Python; which instant a local time is, Java and Python may say differently where the clock is
set; and what is nested is written as JSON (to_json.py)."""
