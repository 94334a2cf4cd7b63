"""A DataFrame into a table and a topic in one transaction, beside Spark's own two sinks, in alternating rounds.

    python -m benchmarks.spark_batches [--figures rate cost driver] [--contenders NAME ...] [--durabilities os fsync]
                                       [--rows 200000] [--partitions 4] [--many 1 10 50 200] [--rounds 3] [--warm-up 1]
                                       [--json FILE] [--markdown FILE] [--directory DIR]

rate: rows per second of one batch of so many rows in so many partitions, on PostgreSQL.
cost: how long a batch takes that has ten rows in each of 1, 10, 50 and 200 partitions: what is paid for each of them.
driver: with a prepared transaction in each of 200 partitions, how long the driver's decision takes, and what follows it
in Kafka; and how long recovery takes if the driver was killed after the decision, or before it.

The two sinks are Spark's Kafka sink and then its JDBC sink, with their defaults: atomic in nothing. Spark is local[2]
in this process, so that all of it shares the machine's processors: a JVM that compiles what runs often needs a round
to warm up. After every batch the rows of the table and the committed records are counted.
"""

import time
from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping
from itertools import count
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812  as Spark's users write it
from sqlalchemy import Table, func, select

from benchmarks.contenders import create_topic
from benchmarks.figures import Sample
from benchmarks.rounds import Rounds, WithKafka, at_least, measure, ordered, parser_of
from benchmarks.spark_driver import commit_seconds, recovery_seconds
from benchmarks.spark_places import TOPIC_PARTITIONS, SparkSite, count_committed, site_of
from benchmarks.standings import Standings
from dualwrite.spark import partition_writer, write_batch

WHOLE, WHOLE_LIBRDKAFKA = "whole batch", "whole batch, librdkafka"
EACH, SINKS = "each partition", "Kafka sink, then JDBC sink"
_ROWS_EACH = 10
"""In a partition, where only the number of partitions is to be seen."""
_numbers = count()


def _options(site: SparkSite, name: str) -> dict[str, Any]:
    kafka = {"bootstrap.servers": site.broker.bootstrap}
    return {"url": site.url, "dbtable": name, "topic": name, "kafka": kafka, "application": "batches", "job": name}


def whole(site: SparkSite, frame: DataFrame, table: Table) -> None:
    """One act."""
    write_batch(frame, 0, **_options(site, table.name))


def whole_librdkafka(site: SparkSite, frame: DataFrame, table: Table) -> None:
    """One act, with librdkafka's producers."""
    write_batch(frame, 0, **_options(site, table.name), producer="librdkafka")


def each(site: SparkSite, frame: DataFrame, table: Table) -> None:
    """A dual write for each partition."""
    frame.foreachPartition(partition_writer(frame, batch_id=0, **_options(site, table.name)))


def sinks(site: SparkSite, frame: DataFrame, table: Table) -> None:
    """What Spark has: first the records, then the rows."""
    columns = table.columns.keys()
    records = frame.select("key", F.to_json(F.struct(*columns)).alias("value"))
    kafka = records.write.format("kafka").option("kafka.bootstrap.servers", site.broker.bootstrap)
    kafka.option("topic", table.name).save()
    jdbc = frame.select(*columns).write.format("jdbc").mode("append").option("url", site.jdbc_url)
    jdbc.option("driver", "org.postgresql.Driver").option("user", "dualwrite").option("dbtable", table.name).save()


CONTENDERS: Mapping[str, Callable[[SparkSite, DataFrame, Table], None]] = {
    WHOLE: whole,
    WHOLE_LIBRDKAFKA: whole_librdkafka,
    EACH: each,
    SINKS: sinks,
}


def seconds_of(site: SparkSite, contender: str, rows: int, partitions: int) -> float:
    """How long one batch took.

    :raises SystemExit: if its rows are not on both sides: what was measured is not what it says.
    """
    table = site.table(f"batch_{next(_numbers)}")
    create_topic(site.broker.bootstrap, table.name, TOPIC_PARTITIONS)
    frame = site.frame(rows, partitions)
    began = time.monotonic()
    CONTENDERS[contender](site, frame, table)
    took = time.monotonic() - began
    require_rows(site, table, rows, contender)
    site.drop(table)
    return took


def require_rows(site: SparkSite, table: Table, wanted: int, who: str) -> None:
    """Pass if there are as many rows as ``wanted`` on both sides.

    :raises SystemExit: if there are not.
    """
    with site.engine.connect() as connection:
        stored = connection.scalar(select(func.count()).select_from(table))
    sent = count_committed(site.broker.bootstrap, table.name)
    if (stored, sent) != (wanted, wanted):
        raise SystemExit(f"{who}: {wanted} rows are {stored} in the table and {sent} in the topic")


def rate(site: SparkSite, durability: str, options: Namespace, rounds: Rounds) -> Iterator[Standings]:
    """Rows per second, all contenders in turn."""
    samples: dict[str, list[Sample]] = {name: [] for name in options.contenders}
    for number in range(-rounds.warm_up, rounds.count):
        for name in ordered(options.contenders, number):
            took = seconds_of(site, name, options.rows, options.partitions)
            if number >= 0:
                samples[name].append({"per second": options.rows / took})
    title = f"rate: {options.rows:,} rows in {options.partitions} partitions, PostgreSQL"
    yield Standings(title, durability, samples, WHOLE, ("per second",))


def cost(site: SparkSite, durability: str, options: Namespace, rounds: Rounds) -> Iterator[Standings]:
    """Seconds of a batch by its partitions, all contenders in turn."""
    for partitions in options.many:
        samples: dict[str, list[Sample]] = {name: [] for name in options.contenders}
        for number in range(-rounds.warm_up, rounds.count):
            for name in ordered(options.contenders, number):
                took = seconds_of(site, name, partitions * _ROWS_EACH, partitions)
                if number >= 0:
                    samples[name].append({"s": took})
        title = f"cost: {_ROWS_EACH} rows in each of {partitions} partitions, PostgreSQL"
        yield Standings(title, durability, samples, WHOLE, ("s",))


def driver(site: SparkSite, durability: str, options: Namespace, rounds: Rounds) -> Iterator[Standings]:
    """Seconds of what the driver does by itself."""
    partitions = max(options.many)
    samples: list[Sample] = []
    for number in range(-rounds.warm_up, rounds.count):
        tables = [site.table(f"batch_{next(_numbers)}") for _ in range(3)]
        for table in tables:
            create_topic(site.broker.bootstrap, table.name, TOPIC_PARTITIONS)
        given = [_options(site, table.name) for table in tables]
        sample = {
            **commit_seconds(given[0], partitions),
            "recovery to commit, s": recovery_seconds(given[1], partitions, "COMPLETE_KAFKA"),
            "recovery to abort, s": recovery_seconds(given[2], partitions, "COMMIT_DATABASE"),
        }
        for table, wanted in zip(tables, (partitions, partitions, 0), strict=True):
            require_rows(site, table, wanted, "the driver")
            site.drop(table)
        if number >= 0:
            samples.append(sample)
    yield Standings(f"driver: {partitions} prepared transactions, PostgreSQL", durability, {WHOLE: samples})


FIGURES = {"rate": rate, "cost": cost, "driver": driver}


def compare_all(options: Namespace, rounds: Rounds) -> Iterator[Standings]:
    """All of it, at one durability of the broker after the other."""
    for durability in options.durabilities:
        with rounds.running(rounds.contenders(durability)) as brokers, site_of(brokers[0]) as site:
            for figure in options.figures:
                yield from FIGURES[figure](site, durability, options, rounds)


def main() -> None:
    """Measure and print."""
    parser = parser_of((__doc__ or "").partition("\n")[0], list(FIGURES), warm_up=1, kafka=WithKafka.NEVER)
    parser.set_defaults(durabilities=["os"], rounds=3)
    parser.add_argument("--contenders", nargs="+", choices=list(CONTENDERS), default=list(CONTENDERS))
    parser.add_argument("--rows", type=at_least(1), default=200_000)
    parser.add_argument("--partitions", type=at_least(1), default=4)
    parser.add_argument("--many", type=at_least(1), nargs="+", default=[1, 10, 50, 200])
    options = parser.parse_args()
    measure(options, lambda rounds: compare_all(options, rounds))


if __name__ == "__main__":
    main()
