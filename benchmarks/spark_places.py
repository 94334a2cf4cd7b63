"""Where spark_batches.py measures: a Spark session, a PostgreSQL that JDBC reaches, and what came to both sides."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  as Spark's users write it
from sqlalchemy import BigInteger, Column, DateTime, Engine, MetaData, Numeric, String, Table, create_engine, text

from benchmarks.contenders import Contender
from dualwrite.cli.db import upgrade
from tests.support.apache_kafka.jars import jdbc_jars, spark_source_jars
from tests.support.apache_kafka.process import free_ports
from tests.support.peer_clients.consumers import messages
from tests.support.servers.postgresql import PostgreSQL, find_binaries

TOPIC_PARTITIONS = 4


@dataclass(frozen=True)
class Site:
    """Where a batch is written to, and by which Spark."""

    spark: SparkSession
    broker: Contender
    engine: Engine
    url: str
    jdbc_url: str

    def table(self, name: str) -> Table:
        """A new table for the rows of :func:`frame`."""
        metadata = MetaData()
        table = Table(
            name,
            metadata,
            Column("id", BigInteger, primary_key=True),
            Column("customer", String(40), nullable=False),
            Column("amount", Numeric(12, 2), nullable=False),
            Column("placed_at", DateTime(timezone=True), nullable=False),
            Column("note", String(200), nullable=False),
        )
        metadata.create_all(self.engine)
        return table

    def frame(self, rows: int, partitions: int) -> DataFrame:
        """``rows`` orders of about 200 bytes as JSON, made where they are read: they cost next to nothing."""
        number = F.col("id")
        return self.spark.range(0, rows, 1, partitions).select(
            number.cast("string").alias("key"),
            "id",
            F.concat(F.lit("customer "), number % 9973).alias("customer"),
            (number % 1_000_003 / 100).cast("decimal(12,2)").alias("amount"),
            F.timestamp_seconds(F.lit(1_760_000_000) + number).alias("placed_at"),
            F.rpad(F.concat(F.lit("order "), number), 80, " and so on").alias("note"),
        )

    def drop(self, table: Table) -> None:
        """Remove ``table``, and wait until nothing of it is left to be written."""
        table.drop(self.engine)
        with self.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            connection.execute(text("CHECKPOINT"))


@contextmanager
def site_of(broker: Contender) -> Iterator[Site]:
    """All of it, on a PostgreSQL with its defaults: commits are on the disk.

    :raises SystemExit: if there is no PostgreSQL on this machine.
    """
    binaries = find_binaries()
    if binaries is None:
        raise SystemExit("there is no PostgreSQL on this machine: install it")
    server = PostgreSQL(binaries, durable=True, port=free_ports(1)[0])
    try:
        server.start()
        upgrade(server.url)
        engine = create_engine(server.url)
        with _session([*spark_source_jars(), *jdbc_jars()]) as spark:
            yield Site(spark, broker, engine, server.url, f"jdbc:postgresql://127.0.0.1:{server.port}/postgres")
        engine.dispose()
    finally:
        server.close()


@contextmanager
def _session(jars: list[Path]) -> Iterator[SparkSession]:
    os.environ["PYSPARK_PYTHON"] = sys.executable  # and not the first python3 of PATH
    builder = SparkSession.builder.master("local[2]").appName("benchmarks").config("spark.ui.enabled", "false")
    builder = builder.config("spark.jars", ",".join(map(str, jars))).config("spark.sql.session.timeZone", "UTC")
    spark = builder.config("spark.driver.memory", "2g").getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    try:
        yield spark
    finally:
        spark.stop()


def count_committed(bootstrap: str, topic: str) -> int:
    """How many records a read_committed consumer finds."""
    return sum(1 for _ in messages(bootstrap, topic, TOPIC_PARTITIONS))
