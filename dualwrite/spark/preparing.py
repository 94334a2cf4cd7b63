"""What Spark does to the rows of a whole batch before they come to Python, where it costs several times as much.

It writes the JSON, gives moments and days as numbers, and leaves out what nobody needs. Where somebody else hands the
rows over, as Spark's data sources do, they are taken as they are (rows.py): what is written is the same to the byte.
"""

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from dualwrite.spark.columns import RECORD_PLACES, Plan
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


def prepared(df: "DataFrame", plan: Plan) -> "tuple[DataFrame, Plan]":
    """A DataFrame with the same rows in the same partitions as ``df``, and the plan for it.

    :param plan: for ``df``.
    """
    from pyspark.sql import functions as f

    given = df.toDF(*map(_name, range(len(plan.fields))))  # as names may differ in their case alone
    by_spark = bool(plan.json) and _is_alike(df, plan)
    left = () if by_spark else plan.json
    records: dict[str, int] = {name: place for name in RECORD_PLACES if (place := getattr(plan, name)) is not None}
    kept = sorted({*plan.table, *left, *records.values()})
    taken = [_taken(place, plan.fields[place]) for place in kept]
    columns, fields = [column for column, _ in taken], [field for _, field in taken]
    at = {place: number for number, place in enumerate(kept)}
    moved: dict[str, Any] = {name: at[place] for name, place in records.items()}
    made = replace(
        plan,
        fields=tuple(fields),
        table=tuple(at[place] for place in plan.table),
        json=tuple(at[place] for place in left),
        **moved,
    )
    if by_spark:
        members = [f.col(_name(place)).alias(plan.fields[place].name, metadata=_NO_DEFAULT) for place in plan.json]
        columns.append(f.to_json(f.struct(*members), {"ignoreNullFields": "true"}))
        made = replace(made, fields=(*made.fields, Field("value", _TEXT)), value_at=len(fields))
    return given.select(*columns), made


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


def _is_alike(df: "DataFrame", plan: Plan) -> bool:
    """True if Spark writes the JSON as this library does, to the byte: of floating point numbers an older Java writes
    more digits than needed, and moments have another form where the session wants Spark 2's parser."""
    if df.sparkSession.conf.get(_PARSER) == "LEGACY":
        return False
    return not any(_has_floating(plan.fields[place].type) for place in plan.json)


def _has_floating(kind: SparkType) -> bool:
    return kind.kind in FLOATING or any(_has_floating(inner.type) for inner in kind.fields)
