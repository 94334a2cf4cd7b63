"""Prepares the rows of a whole batch in Spark, because the same work in Python costs several times as much.

Spark writes the JSON, and for PostgreSQL the lines of COPY (copy_lines.py). It converts timestamps and dates to
numbers, and drops columns that are not needed. A data source gets its rows unprepared, and rows.py converts them. The
output is identical, byte for byte.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from dualwrite.spark.plan.columns import INDEX_FIELDS, TableColumn, WritePlan
from dualwrite.spark.plan.copy_lines import line_of, refusal_of_moment
from dualwrite.spark.plan.spark_schema import DAYS, FLOATING, MICROS, Field, SparkType

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_PARSER_POLICY = "spark.sql.legacy.timeParserPolicy"
_NO_DEFAULT = {"made by": "dualwrite"}
"""Replaces a column's metadata, which may contain a default: that would change what is written for NULL. Spark refuses
empty metadata."""
_TEXT = SparkType("string", "string")
_AS_NUMBERS = {"timestamp": ("unix_micros", MICROS), "date": ("unix_date", DAYS)}
"""Spark's function that converts the type to a number, and the kind of field that it makes."""


def prepared(
    df: "DataFrame", plan: WritePlan, table_columns: Sequence[TableColumn] | None = None
) -> "tuple[DataFrame, WritePlan]":
    """A DataFrame with the same rows in the same partitions as ``df``, and the plan for it.

    :param plan: for ``df``.
    :param table_columns: the table's columns for ``plan.table``, if PostgreSQL's COPY takes the rows.
    """
    renamed = df.toDF(*map(_name, range(len(plan.fields))))  # names may differ only in case
    text_columns: dict[str, Column] = {}
    table, json = plan.table, plan.json
    if str(df.sparkSession.conf.get(_PARSER_POLICY)).upper() != "LEGACY":  # which writes timestamps in another form
        if json and not any(_has_floating(plan.fields[index].type) for index in json):
            text_columns["json_at"], json = _json_of(plan), ()
        line = None if table_columns is None else _line_of(plan, table_columns)
        if line is not None:
            text_columns["line_at"], table = line, ()
    records: dict[str, int] = {name: index for name in INDEX_FIELDS if (index := getattr(plan, name)) is not None}
    taken = sorted({*table, *json, *records.values()})
    columns_taken = [_converted(index, plan.fields[index]) for index in taken]
    new_index = {index: number for number, index in enumerate(taken)}
    new_indexes: dict[str, Any] = {name: new_index[index] for name, index in records.items()}
    new_indexes |= {name: number for number, name in enumerate(text_columns, len(taken))}
    new_plan = replace(
        plan,
        fields=(
            *(field for _, field in columns_taken),
            *(Field(name.removesuffix("_at"), _TEXT) for name in text_columns),
        ),
        table=tuple(new_index[index] for index in table),
        json=tuple(new_index[index] for index in json),
        **new_indexes,
    )
    texts = (text.alias(name) for name, text in text_columns.items())
    return renamed.select(*(column for column, _ in columns_taken), *texts), new_plan


def _json_of(plan: WritePlan) -> "Column":
    from pyspark.sql import functions as f

    members = [f.col(_name(index)).alias(plan.fields[index].name, metadata=_NO_DEFAULT) for index in plan.json]
    refusals = [refusal_of_moment(_name(index), plan.fields[index]) for index in plan.json]
    json = f.to_json(f.struct(*members), {"ignoreNullFields": "true"})
    return f.coalesce(*(f.expr(refusal) for refusal in refusals if refusal is not None), json)


def _line_of(plan: WritePlan, table_columns: Sequence[TableColumn]) -> "Column | None":
    from pyspark.sql import functions as f

    line = line_of([_name(index) for index in plan.table], plan.table_fields, table_columns)
    return None if line is None else f.expr(line)


def _name(index: int) -> str:
    return f"_{index}"


def _converted(index: int, field: Field) -> "tuple[Column, Field]":
    """The expression for the column at ``index``, as a number if it is a date or a timestamp, and its new field."""
    from pyspark.sql import functions as f

    column = f.col(_name(index))
    if field.type.kind not in _AS_NUMBERS:
        return column, field
    function, kind = _AS_NUMBERS[field.type.kind]
    return getattr(f, function)(column), field._replace(type=field.type._replace(kind=kind))


def _has_floating(kind: SparkType) -> bool:
    """True if ``kind`` has floating-point numbers. Older Java versions, and so Spark, write them with more digits than
    needed."""
    return kind.kind in FLOATING or any(_has_floating(inner.type) for inner in kind.fields)
