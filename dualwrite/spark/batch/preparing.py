"""Prepares the rows of a whole batch in Spark, as the same work in Python costs several times as much.

Spark writes the JSON, and for PostgreSQL the lines of COPY (copy_lines.py). It converts timestamps and dates to
numbers, and leaves out columns that are not needed. Rows that Spark's data sources hand over are not prepared, and
rows.py converts them as they are. The output is identical, byte for byte.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from dualwrite.spark.plan.columns import RECORD_PLACES, TableColumn, WritePlan
from dualwrite.spark.plan.copy_lines import line_of, refusal_of_moment
from dualwrite.spark.plan.spark_schema import DAYS, FLOATING, MICROS, Field, SparkType

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_PARSER = "spark.sql.legacy.timeParserPolicy"
_NO_DEFAULT = {"made by": "dualwrite"}
"""Replaces a column's metadata, which may contain a default: that would change what is written for NULL. Spark refuses
empty metadata."""
_TEXT = SparkType("string", "string")
_AS_NUMBERS = {"timestamp": ("unix_micros", MICROS), "date": ("unix_date", DAYS)}
"""Spark's function that converts the type to a number, and the kind of field that it makes."""


def prepared(
    df: "DataFrame", plan: WritePlan, into: Sequence[TableColumn] | None = None
) -> "tuple[DataFrame, WritePlan]":
    """A DataFrame with the same rows in the same partitions as ``df``, and the plan for it.

    :param plan: for ``df``.
    :param into: the table's columns for ``plan.table``, if PostgreSQL's COPY takes the rows.
    """
    given = df.toDF(*map(_name, range(len(plan.fields))))  # names may differ only in case
    texts: dict[str, Column] = {}
    table, json = plan.table, plan.json
    if str(df.sparkSession.conf.get(_PARSER)).upper() != "LEGACY":  # which writes timestamps in another form
        if json and not any(_has_floating(plan.fields[place].type) for place in json):
            texts["json_at"], json = _json_of(plan), ()
        line = None if into is None else _line_of(plan, into)
        if line is not None:
            texts["line_at"], table = line, ()
    records: dict[str, int] = {name: place for name in RECORD_PLACES if (place := getattr(plan, name)) is not None}
    kept = sorted({*table, *json, *records.values()})
    taken = [_taken(place, plan.fields[place]) for place in kept]
    at = {place: number for number, place in enumerate(kept)}
    moved: dict[str, Any] = {name: at[place] for name, place in records.items()}
    moved |= {name: number for number, name in enumerate(texts, len(kept))}
    made = replace(
        plan,
        fields=(*(field for _, field in taken), *(Field(name.removesuffix("_at"), _TEXT) for name in texts)),
        table=tuple(at[place] for place in table),
        json=tuple(at[place] for place in json),
        **moved,
    )
    return given.select(*(column for column, _ in taken), *texts.values()), made


def _json_of(plan: WritePlan) -> "Column":
    from pyspark.sql import functions as f

    members = [f.col(_name(place)).alias(plan.fields[place].name, metadata=_NO_DEFAULT) for place in plan.json]
    refusals = [refusal_of_moment(_name(place), plan.fields[place]) for place in plan.json]
    json = f.to_json(f.struct(*members), {"ignoreNullFields": "true"})
    return f.coalesce(*(f.expr(each) for each in refusals if each is not None), json)


def _line_of(plan: WritePlan, into: Sequence[TableColumn]) -> "Column | None":
    from pyspark.sql import functions as f

    line = line_of([_name(place) for place in plan.table], plan.table_fields, into)
    return None if line is None else f.expr(line)


def _name(place: int) -> str:
    return f"_{place}"


def _taken(place: int, field: Field) -> "tuple[Column, Field]":
    """The expression for the column at ``place``, and its field."""
    from pyspark.sql import functions as f

    column = f.col(_name(place))
    if field.type.kind not in _AS_NUMBERS:
        return column, field
    function, kind = _AS_NUMBERS[field.type.kind]
    return getattr(f, function)(column), field._replace(type=field.type._replace(kind=kind))


def _has_floating(kind: SparkType) -> bool:
    """True if ``kind`` has floating-point numbers: older Java versions write them with more digits than needed, as
    Spark does then."""
    return kind.kind in FLOATING or any(_has_floating(inner.type) for inner in kind.fields)
