"""Our JSON beside Spark's own ``to_json``, letter for letter."""

import json
import random
import struct
from typing import TYPE_CHECKING

import pytest

from dualwrite.spark.plan.spark_schema import fields_of
from dualwrite.spark.plan.to_json import object_writer, zone_of
from tests.support.spark.random_rows import SCHEMA, ZONES, some

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.slow  # as a second JVM would be


def both(df: "DataFrame", zone: str) -> list[tuple[str, str]]:
    """Spark's JSON and ours, of each row."""
    from pyspark.sql import functions as f

    df.sparkSession.conf.set("spark.sql.session.timeZone", zone)
    write = object_writer(fields_of(df.schema.jsonValue()), zone_of(zone))
    rows = df.withColumn("json_of_spark", f.to_json(f.struct("*"))).collect()
    return [(row[-1], write(row[:-1])) for row in rows]


@pytest.mark.parametrize("zone", ZONES)
def test_rows_of_every_type_are_written_as_spark_writes_them(spark: "SparkSession", zone: str) -> None:
    chance = random.Random(zone)
    rows = [some(chance) for _ in range(200)]
    compared = both(spark.createDataFrame(rows, SCHEMA), zone)
    assert [ours for _, ours in compared] == [theirs for theirs, _ in compared]
    assert len({theirs for theirs, _ in compared}) == 200


def test_edges_are_written_as_spark_writes_them(spark: "SparkSession") -> None:
    df = spark.sql("""
        SELECT d, CAST(d AS float) AS f, CAST(0 AS decimal(12,8)) AS zero, 0.00000001BD AS tiny,
        timestamp'1850-02-28 12:34:56.000001' AS old, CAST(NULL AS int) AS nothing, map() AS empty, `a "b"`,
        map(1.50BD, true) AS m, map(true, NULL) AS n, map(1.5D, 'x') AS o, struct(NULL AS p) AS q
        FROM (SELECT explode(array(0D, -0D, 1D, 0.001D, 0.00099D, 9999999D, 1e7D, -1.25e-7D, 1e300D, double('NaN'),
        double('Infinity'), double('-Infinity'))) AS d, 1 AS `a "b"`)
    """)
    compared = both(df, "Europe/Vienna")
    assert [ours for _, ours in compared] == [theirs for theirs, _ in compared]


def test_a_number_reads_back_equal_with_the_digits_of_any_java(spark: "SparkSession") -> None:
    chance = random.Random(7)
    doubles = [struct.unpack("d", chance.randbytes(8))[0] for _ in range(500)]
    compared = both(spark.createDataFrame([(value,) for value in doubles], "d double"), "UTC")
    assert [json.loads(ours) for _, ours in compared] == [json.loads(theirs) for theirs, _ in compared]
