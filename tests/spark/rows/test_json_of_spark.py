"""Our JSON beside Spark's own ``to_json``, letter for letter."""

import json
import random
import struct
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pytest

from dualwrite.spark.plan.spark_schema import fields_of
from dualwrite.spark.plan.to_json import object_writer, zone_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.slow  # as a second JVM would be

SCHEMA = """
    b boolean, y byte, s short, i int, l long, d double, f float, n decimal(20,6), w decimal(38,0), t string, x binary,
    day date, at timestamp, plain timestamp_ntz, a array<int>, aa array<array<string>>, m map<string,double>,
    mi map<int,string>, st struct<p: string, q: struct<`r r`: timestamp, s: decimal(4,2)>>, ast array<struct<u: int>>
"""
ZONES = ["UTC", "Europe/Vienna", "America/St_Johns", "+05:30", "GMT-3"]


def both(df: "DataFrame", zone: str) -> list[tuple[str, str]]:
    """Spark's JSON and ours, of each row."""
    from pyspark.sql import functions as f

    df.sparkSession.conf.set("spark.sql.session.timeZone", zone)
    write = object_writer(fields_of(df.schema.jsonValue()), zone_of(zone))
    rows = df.withColumn("json_of_spark", f.to_json(f.struct("*"))).collect()
    return [(row[-1], write(row[:-1])) for row in rows]


def some(chance: random.Random) -> list[Any]:
    """A row of SCHEMA. Decimals and doubles have few digits: how many Java 17 writes of others, no newer Java does."""
    text = "".join(chance.choice('aé"\\/\n\t\x01\x1f\x7f😀\u2028 ') for _ in range(chance.randrange(8)))
    at = datetime(1900, 1, 1) + timedelta(microseconds=chance.randrange(6 * 10**15))
    small = round(chance.uniform(-1000, 1000), 3)
    single = struct.unpack("f", struct.pack("f", chance.choice([0.1, 1e7, 123.25, -3e-5, 16777216.0])))[0]
    row = [
        chance.random() < 0.5,
        chance.randrange(-128, 128),
        chance.randrange(-(2**15), 2**15),
        chance.randrange(-(2**31), 2**31),
        chance.randrange(-(2**63), 2**63),
        small * 10.0 ** chance.choice([0, 0, 5, 9]),
        single,
        Decimal(chance.randrange(10**12)).scaleb(-6),
        Decimal(chance.randrange(10**30)),
        text,
        bytearray(chance.randbytes(chance.randrange(5))),
        date(1, 1, 1) + timedelta(days=chance.randrange(3_000_000)),
        at,
        at,
        [1, None, chance.randrange(9)],
        [[text, None], None, []],
        {text: small, "k": None},
        {chance.randrange(9): text},
        (text, (at, Decimal("1.50"))),
        [(None,), None, (3,)],
    ]
    return [None if chance.random() < 0.1 else value for value in row]


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
