"""What Spark does to the rows of a whole batch before they come to Python, where it costs several times as much.

It writes the JSON, and for PostgreSQL what goes into the table (lines.py), gives moments and days as numbers, and
leaves out what nobody needs. Where somebody else hands the rows over, as Spark's data sources do, they are taken as
they are (rows.py): what is written is the same to the byte.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from dualwrite.spark.columns import RECORD_PLACES, Plan, TableColumn
from dualwrite.spark.lines import line_of
from dualwrite.spark.schemas import DAYS, FLOATING, MICROS, Field, SparkType

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_PARSER = "spark.sql.legacy.timeParserPolicy"
_NO_DEFAULT = {"made by": "dualwrite"}
"""In place of a column's metadata, a default among them: that would change what is written for NULL. Spark takes no
empty ones."""
_TEXT = SparkType("string", "string")
_AS_NUMBERS = {"timestamp": ("unix_micros", MICROS), "date": ("unix_date", DAYS)}
"""Spark's function for it, and the kind of field that it makes."""
_MOMENTS = frozenset({*_AS_NUMBERS, "timestamp_ntz"})


def prepared(df: "DataFrame", plan: Plan, into: Sequence[TableColumn] | None = None) -> "tuple[DataFrame, Plan]":
    """A DataFrame with the same rows in the same partitions as ``df``, and the plan for it.

    :param plan: for ``df``.
    :param into: the table's columns for ``plan.table``, if PostgreSQL's COPY takes the rows.
    """
    given = df.toDF(*map(_name, range(len(plan.fields))))  # as names may differ in their case alone
    texts: dict[str, Column] = {}
    table, json = plan.table, plan.json
    if str(df.sparkSession.conf.get(_PARSER)).upper() != "LEGACY":  # which writes moments in another form
        if json and all(_is_sparks(plan.fields[place].type, is_looked_at=place in table) for place in json):
            texts["value_at"], json = _json_of(plan), ()
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


def _json_of(plan: Plan) -> "Column":
    from pyspark.sql import functions as f

    members = [f.col(_name(place)).alias(plan.fields[place].name, metadata=_NO_DEFAULT) for place in plan.json]
    return f.to_json(f.struct(*members), {"ignoreNullFields": "true"})


def _line_of(plan: Plan, into: Sequence[TableColumn]) -> "Column | None":
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


def _is_sparks(kind: SparkType, *, is_looked_at: bool) -> bool:
    """True if what Spark makes JSON of in ``kind`` is what Python would: not so floating point numbers, of which an
    older Java writes more digits than needed, and moments, of which Spark knows years after 9999.

    :param is_looked_at: it is for the table, too, which takes no such moment.
    """
    if kind.kind in FLOATING or (kind.kind in _MOMENTS and not is_looked_at):
        return False
    return all(_is_sparks(inner.type, is_looked_at=is_looked_at) for inner in kind.fields)
