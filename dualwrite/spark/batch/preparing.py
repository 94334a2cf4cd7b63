"""What Spark does to the rows of a whole batch before they come to Python, where it costs several times as much.

It writes the JSON, and for PostgreSQL what goes into the table (copy_lines.py), gives moments and days as numbers, and
leaves out what nobody needs. Where somebody else hands the rows over, as Spark's data sources do, they are taken as
they are (rows.py): what is written is the same to the byte.
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
"""In place of a column's metadata, a default among them: that would change what is written for NULL. Spark takes no
empty ones."""
_TEXT = SparkType("string", "string")
_AS_NUMBERS = {"timestamp": ("unix_micros", MICROS), "date": ("unix_date", DAYS)}
"""Spark's function for it, and the kind of field that it makes."""


def prepared(
    df: "DataFrame", plan: WritePlan, into: Sequence[TableColumn] | None = None
) -> "tuple[DataFrame, WritePlan]":
    """A DataFrame with the same rows in the same partitions as ``df``, and the plan for it.

    :param plan: for ``df``.
    :param into: the table's columns for ``plan.table``, if PostgreSQL's COPY takes the rows.
    """
    given = df.toDF(*map(_name, range(len(plan.fields))))  # as names may differ in their case alone
    texts: dict[str, Column] = {}
    table, json = plan.table, plan.json
    if str(df.sparkSession.conf.get(_PARSER)).upper() != "LEGACY":  # which writes moments in another form
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
    """How the column at ``place`` is taken along, and as what."""
    from pyspark.sql import functions as f

    column = f.col(_name(place))
    if field.type.kind not in _AS_NUMBERS:
        return column, field
    function, kind = _AS_NUMBERS[field.type.kind]
    return getattr(f, function)(column), field._replace(type=field.type._replace(kind=kind))


def _has_floating(kind: SparkType) -> bool:
    """True if ``kind`` has numbers of which an older Java writes more digits than needed, as Spark does then."""
    return kind.kind in FLOATING or any(_has_floating(inner.type) for inner in kind.fields)
