"""Rows that Spark has packed are what they would be as they are, to the byte."""

import random
from typing import TYPE_CHECKING, Any

import pytest

from dualwrite.errors import InputError
from dualwrite.spark.batch.packing import packed, rdd_of
from dualwrite.spark.batch.preparing import prepared
from dualwrite.spark.plan.columns import REFUSED, Family, WritePlan, match_columns, plan_of
from dualwrite.spark.plan.converted_row import ConvertedRow
from dualwrite.spark.plan.packed_rows import unpacked
from dualwrite.spark.plan.rows import RowConverter
from tests.support.spark.expected_rows import KEEPS, column, options, table
from tests.support.spark.random_rows import SCHEMA, ZONES, some

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FAMILIES = {
    "b": Family.BOOLEAN,
    "i": Family.WHOLE,
    "n": Family.EXACT,
    "t": Family.TEXT,
    "x": Family.BYTES,
    "day": Family.DATE,
    "at": Family.ZONED,
}
"""Of columns of SCHEMA that Spark writes."""


def test_a_packed_row_is_its_line_its_key_and_its_value() -> None:
    rows = [b"1\ta\n1\nk{}", b'2\t\\n\n-\n{"a":"\n"}', b'3\n0\n{"id":3}', b"4\n5\nk\nk\n-{}"]
    assert list(unpacked(rows, "orders")) == [
        ConvertedRow(b"1\ta", "orders", b"k", b"{}", -1, None, 9),
        ConvertedRow(b"2\t\\n", "orders", None, b'{"a":"\n"}', -1, None, 16),
        ConvertedRow(b"3", "orders", b"", b'{"id":3}', -1, None, 12),
        ConvertedRow(b"4", "orders", b"k\nk\n-", b"{}", -1, None, 11),
    ]


@pytest.mark.parametrize(
    ("row", "why"),
    [
        (f"{REFUSED}column 'at': is NULL\n1\nk{{}}", "row 2, column 'at': is NULL"),
        (f"2\n1\nk{REFUSED}column 'at': is not of the years", "row 2, column 'at': is not of the years"),
        ("2\tnote\0\n-\n{}", "row 2: PostgreSQL's texts have no NUL characters"),
    ],
)
def test_a_row_that_spark_or_postgresql_refuses_is_an_error_with_its_number(row: str, why: str) -> None:
    with pytest.raises(InputError) as refused:
        list(unpacked([b"1\n-\n{}", row.encode()], "orders"))
    assert str(refused.value) == why


def both(df: "DataFrame", **changed: Any) -> tuple[list[ConvertedRow], list[ConvertedRow], WritePlan]:
    """The rows as they are, packed, and the plan of these."""
    zone = str(df.sparkSession.conf.get("spark.sql.session.timeZone"))
    plan = plan_of(df.schema.jsonValue(), options(**changed), zone)
    names = [plan.fields[place].name for place in plan.table]
    into = match_columns(plan, table(*(column(name, FAMILIES[name]) for name in names)), options())
    as_they_are = prepared(df, plan, into)
    packed_df, packed_plan = packed(*as_they_are)
    rows = RowConverter(as_they_are[1], into, KEEPS["postgresql"]).rows(as_they_are[0].collect())
    packed_rows = RowConverter(packed_plan, into, KEEPS["postgresql"]).rows(rdd_of(packed_df, packed_plan).collect())
    return [row._replace(weight=0) for row in rows], [row._replace(weight=0) for row in packed_rows], packed_plan


@pytest.mark.slow
class TestInSpark:
    @pytest.fixture(autouse=True)
    def as_before(self, spark: "SparkSession") -> Any:
        """The session's zone after a test is that before it."""
        zone = spark.conf.get("spark.sql.session.timeZone")
        yield
        spark.conf.set("spark.sql.session.timeZone", str(zone))

    @pytest.mark.parametrize("zone", ZONES[:2])
    @pytest.mark.parametrize("key", ["t", "x", "CAST(NULL AS STRING)", None])
    def test_rows_are_the_same(self, spark: "SparkSession", zone: str, key: str | None) -> None:
        spark.conf.set("spark.sql.session.timeZone", zone)
        chance = random.Random(zone)
        df = spark.createDataFrame([some(chance) for _ in range(100)], SCHEMA)
        df = df.selectExpr(*FAMILIES, *([] if key is None else [f"{key} AS key"]))
        as_they_are, made, plan = both(df)
        assert made == as_they_are
        assert (plan.is_packed, len(made)) == (True, 100)

    def test_rows_with_other_columns_for_kafka_and_of_odd_sessions_are_not_packed(self, spark: "SparkSession") -> None:
        df = spark.sql("SELECT 1 AS i, 'x' AS t")
        for others in ("'orders' AS topic", "1 AS partition", "'mine' AS value"):
            chosen = {"topic": None} if "topic" in others else {}
            as_they_are, made, plan = both(df.selectExpr("*", others), **chosen)
            assert made == as_they_are
            assert not plan.is_packed
        spark.conf.set("spark.sql.function.concatBinaryAsString", "true")
        try:
            as_they_are, made, plan = both(df)
        finally:
            spark.conf.unset("spark.sql.function.concatBinaryAsString")
        assert made == as_they_are
        assert not plan.is_packed

    def test_packed_rows_stay_in_their_partitions_and_in_their_order(self, spark: "SparkSession") -> None:
        df = spark.range(0, 1000, 1, 7).selectExpr("CAST(id AS INT) AS i").repartition(3, "i")
        plan = plan_of(df.schema.jsonValue(), options(), "UTC")
        into = match_columns(plan, table(column("i", Family.WHOLE)), options())
        parts = rdd_of(*packed(*prepared(df, plan, into))).glom().collect()
        lines = [
            [int(row.values) for row in unpacked(part, "orders") if isinstance(row.values, bytes)] for part in parts
        ]
        assert lines == [[row[0] for row in part] for part in df.rdd.glom().collect()]
