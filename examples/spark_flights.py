"""Delays of flights by day, carrier and airport: from Kafka through Structured Streaming into a table and a topic.

Reads the topics ``flights``, ``airlines`` and ``airports`` (JSON) to their end, batch by batch. The rows that a batch
changes go into the table ``delays``, and as records into the topic ``delays``: both or neither, and once. Killed at any
moment and run again, it goes on where it was.

    spark-submit --packages org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0 examples/spark_flights.py \
        --kafka 127.0.0.1:9092 --db postgresql+psycopg://localhost/flights --checkpoint /var/lib/delays
"""

import argparse

from pyspark.sql import DataFrame, DataFrameReader, SparkSession
from pyspark.sql.functions import coalesce, col, concat_ws, count, count_if, from_json, lit, sum, window  # noqa: A004
from pyspark.sql.streaming import DataStreamReader, StreamingQuery
from sqlalchemy import BigInteger, Column, Date, MetaData, String, Table, create_engine

from dualwrite.schema import upgrade_engine
from dualwrite.spark import write_batch

LATE = 15
"""Minutes after which a departure is late."""

ISOLATION_LEVEL = "read_committed"
"""Of everything that is read. Kafka's own default would count flights whose transaction was aborted."""

delays = Table(
    "delays",
    MetaData(),
    Column("day", Date, primary_key=True),
    Column("carrier", String(2), primary_key=True),
    Column("origin", String(3), primary_key=True),
    Column("airline", String(80), nullable=False),
    Column("airport", String(80), nullable=False),
    Column("flights", BigInteger, nullable=False),
    Column("cancelled", BigInteger, nullable=False),
    Column("late", BigInteger, nullable=False),
    Column("minutes", BigInteger, nullable=False),
)


def records(reader: DataFrameReader | DataStreamReader, kafka: str, topic: str, schema: str) -> DataFrame:
    """The committed records of ``topic``, whose values are JSON of ``schema``."""
    source = reader.format("kafka").option("kafka.bootstrap.servers", kafka).option("subscribe", topic)
    source = source.option("kafka.isolation.level", ISOLATION_LEVEL).option("startingOffsets", "earliest")
    # Where a transaction ends is a marker, which is no record: Spark waits so long for what may be behind it.
    source = source.option("kafka.fetch.max.wait.ms", "20")
    return source.load().select(from_json(col("value").cast("string"), schema).alias("record")).select("record.*")


def delays_of(flights: DataFrame, airlines: DataFrame, airports: DataFrame) -> DataFrame:
    """The rows of the table ``delays``, with the ``key`` of each as a record."""
    airlines = airlines.withColumnRenamed("name", "airline")
    airports = airports.select(col("faa").alias("origin"), col("name").alias("airport"))
    known = flights.join(airlines, "carrier").join(airports, "origin")
    group = known.groupBy(window("time_hour", "1 day"), "carrier", "origin", "airline", "airport")
    sums = group.agg(
        count("*").alias("flights"),
        count_if(col("dep_delay").isNull()).alias("cancelled"),
        count_if(col("dep_delay") >= LATE).alias("late"),
        coalesce(sum("dep_delay"), lit(0)).alias("minutes"),
    )
    rows = sums.withColumn("day", col("window.start").cast("date"))
    return rows.select(concat_ws("/", "day", "carrier", "origin").alias("key"), *delays.columns.keys())


def start(spark: SparkSession, kafka: str, db: str, checkpoint: str, batch: int) -> StreamingQuery:
    """Begin, or go on, to bring what there is in the topics into both sides, ``batch`` flights at a time."""
    stream = spark.readStream.option("maxOffsetsPerTrigger", batch)
    flights = records(stream, kafka, "flights", "carrier STRING, origin STRING, dep_delay INT, time_hour TIMESTAMP")
    airlines = records(spark.read, kafka, "airlines", "carrier STRING, name STRING")
    airports = records(spark.read, kafka, "airports", "faa STRING, name STRING")

    def write(rows: DataFrame, batch_id: int) -> None:
        write_batch(
            rows,
            batch_id,
            url=db,
            dbtable="delays",
            upsert_keys=["day", "carrier", "origin"],
            kafka={"bootstrap.servers": kafka},
            topic="delays",
            application="delays",
            job="delays",
        )

    query = delays_of(flights, airlines, airports).writeStream.outputMode("update").foreachBatch(write)
    return query.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()


def main() -> None:
    """Make the tables if there are none, and run until everything that was in the topics is on both sides."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--kafka", required=True, metavar="HOST:PORT")
    parser.add_argument("--db", required=True, metavar="URL")
    parser.add_argument("--checkpoint", required=True, metavar="DIR")
    parser.add_argument("--batch", type=int, default=20_000, metavar="FLIGHTS")
    arguments = parser.parse_args()
    engine = create_engine(arguments.db)
    delays.create(engine, checkfirst=True)
    upgrade_engine(engine)
    with SparkSession.builder.appName("delays").config("spark.sql.session.timeZone", "UTC").getOrCreate() as spark:
        start(spark, **vars(arguments)).awaitTermination()


if __name__ == "__main__":
    main()
