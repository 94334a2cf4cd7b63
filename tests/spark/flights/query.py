"""The query of the example as a batch, under either isolation level: its rows as JSON, in a file named as the level."""

import sys
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from examples import spark_flights


def rows(spark: SparkSession, kafka: str) -> DataFrame:
    """Those of the table."""
    fields = "carrier STRING, origin STRING, dep_delay INT, time_hour TIMESTAMP"
    flights = spark_flights.records(spark.read, kafka, "flights", fields)
    airlines = spark_flights.records(spark.read, kafka, "airlines", "carrier STRING, name STRING")
    airports = spark_flights.records(spark.read, kafka, "airports", "faa STRING, name STRING")
    return spark_flights.delays_of(flights, airlines, airports).drop("key")


if __name__ == "__main__":
    with SparkSession.builder.config("spark.sql.session.timeZone", "UTC").getOrCreate() as spark:
        for level in ("read_committed", "read_uncommitted"):
            spark_flights.ISOLATION_LEVEL = level
            Path(level).write_text("\n".join(rows(spark, sys.argv[1]).toJSON().collect()), encoding="utf-8")
