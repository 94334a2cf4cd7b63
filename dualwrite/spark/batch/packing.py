"""Packs each prepared row into one binary value, because Spark sends binaries to Python without pickling them.

Rows are packed if Spark has written their line and their JSON, and if their records have no other columns than a key.
"""

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from dualwrite.spark.plan.columns import WritePlan
from dualwrite.spark.plan.packed_rows import NULL_KEY, PART_END
from dualwrite.spark.plan.spark_schema import Field, SparkType

if TYPE_CHECKING:
    from pyspark import RDD
    from pyspark.sql import Column, DataFrame

_MAKES_TEXTS = "spark.sql.function.concatBinaryAsString"
"""The setting with which Spark makes a text of several binaries."""
_PACKED = (Field("row", SparkType("binary", "binary")),)


def packed(df: "DataFrame", plan: WritePlan) -> "tuple[DataFrame, WritePlan]":
    """The rows of ``df``, packed, and the plan for them; both unchanged if the rows cannot be packed.

    :param df: prepared (preparing.py).
    :param plan: for ``df``.
    """
    others = (plan.topic_at, plan.headers_at, plan.partition_at)
    makes_texts = str(df.sparkSession.conf.get(_MAKES_TEXTS, "false")).lower() == "true"
    if plan.line_at is None or plan.json_at is None or any(at is not None for at in others) or makes_texts:
        return df, plan
    columns = df.columns
    key = None if plan.key_at is None else columns[plan.key_at]
    row = _row_of(columns[plan.line_at], key, columns[plan.json_at])
    nowhere: dict[str, Any] = {"key_at": None, "line_at": None, "json_at": None}
    return df.select(row.alias("row")), replace(plan, fields=_PACKED, is_packed=True, **nowhere)


def rdd_of(df: "DataFrame", plan: WritePlan) -> "RDD[Any]":
    """The rows of ``df`` for a function in Python; packed rows as bytes. Plans the query of ``df``."""
    if not plan.is_packed:
        return df.rdd
    from pyspark import RDD
    from pyspark.serializers import NoOpSerializer

    context: Any = df.sparkSession.sparkContext
    frame: Any = df._jdf  # DataFrame.toJSON does the same for texts
    binaries = getattr(frame, "as")(context._jvm.org.apache.spark.sql.Encoders.BINARY())
    return RDD(binaries.toJavaRDD(), context, NoOpSerializer())


def _row_of(line: str, key: str | None, json: str) -> "Column":
    from pyspark.sql import functions as f

    end = _literal(PART_END)
    parts = [_binary(line), end, _literal(NULL_KEY), end]
    if key is not None:
        parts[2] = f"coalesce({_binary(f'CAST(octet_length({key}) AS STRING)')}, {_literal(NULL_KEY)})"
        parts.append(f"coalesce({_binary(key)}, {_literal(b'')})")
    return f.expr(f"concat({', '.join([*parts, _binary(json)])})")


def _binary(expression: str) -> str:
    return f"CAST({expression} AS BINARY)"


def _literal(content: bytes) -> str:
    return f"X'{content.hex()}'"
