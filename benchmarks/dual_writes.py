"""Dual writes per second, side by side in one run with what they are made of and with what people do without them.

    python benchmarks/dual_writes.py [--seconds 2] [--rounds 5] [--batches 1 500] [--db URL] [--bootstrap HOST:PORT]

Per batch size, in turn and round by round so that a machine's drift meets all alike:

- ``database``  the unit's INSERT and COMMIT alone
- ``kafka``     the unit's records in a Kafka transaction alone (librdkafka, the same broker)
- ``naive``     COMMIT, then produce and flush without a transaction: what a crash tears apart
- ``librdkafka`` the whole recipe with librdkafka's producer
- ``dualwrite`` the whole recipe with the producer that DualWrite takes by itself: the native one on the bundled broker

Medians of the rounds; read the ratios, not the rates. Without ``--bootstrap`` it starts the bundled broker with
``durability=fsync``; without ``--db`` it uses a SQLite file with ``synchronous=FULL``.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from confluent_kafka import Producer
from sqlalchemy import Column, Engine, Integer, MetaData, String, Table, create_engine, insert

from benchmarks.rounds import at_least, positive_seconds
from dualwrite import DualWrite, EmbeddedBroker
from dualwrite.cli.db import upgrade

ROW = "a row of about one hundred bytes, as an order or a payment has it when it is written down: " + "x" * 10
table = Table("benchmark_rows", MetaData(), Column("id", Integer, primary_key=True), Column("payload", String(255)))
Unit = Callable[[], None]


def rate(unit: Unit, seconds: float) -> float:
    """Units per second."""
    done, began = 0, time.perf_counter()
    while (elapsed := time.perf_counter() - began) < seconds:
        unit()
        done += 1
    return done / elapsed


def database_unit(engine: Engine, size: int) -> Unit:
    """INSERT and COMMIT."""

    def unit() -> None:
        with engine.begin() as connection:
            connection.execute(insert(table), [{"payload": ROW}] * size)

    return unit


def naive_unit(engine: Engine, producer: Producer, size: int) -> Unit:
    """COMMIT, then produce and flush."""
    commit = database_unit(engine, size)

    def unit() -> None:
        commit()
        for _ in range(size):
            producer.produce("naive", ROW.encode())
        producer.flush()

    return unit


def kafka_unit(producer: Producer, size: int) -> Unit:
    """A Kafka transaction."""

    def unit() -> None:
        producer.begin_transaction()
        for _ in range(size):
            producer.produce("kafka", ROW.encode())
        producer.commit_transaction()

    return unit


def dual_unit(dual_write: DualWrite, size: int) -> Unit:
    """The recipe."""

    def unit() -> None:
        with dual_write.transaction() as tx:
            tx.execute(insert(table), [{"payload": ROW}] * size)
            for _ in range(size):
                tx.produce("dual", ROW.encode())

    return unit


@contextmanager
def peers(url: str, bootstrap: str, size: int) -> Iterator[dict[str, Unit]]:
    """All of them, ready to run."""
    engine = create_engine(url)
    table.create(engine, checkfirst=True)
    upgrade(url)
    idempotent = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": 0})
    transactional = Producer({"bootstrap.servers": bootstrap, "transactional.id": f"benchmark-{size}", "linger.ms": 0})
    transactional.init_transactions()
    config = {"bootstrap.servers": bootstrap}
    with (
        DualWrite(engine, config, application=f"benchmark-{size}-librdkafka", producer="librdkafka") as with_librdkafka,
        DualWrite(engine, config, application=f"benchmark-{size}-dualwrite") as dual_write,
    ):
        yield {
            "database": database_unit(engine, size),
            "kafka": kafka_unit(transactional, size),
            "naive": naive_unit(engine, idempotent, size),
            "librdkafka": dual_unit(with_librdkafka, size),
            "dualwrite": dual_unit(dual_write, size),
        }
    engine.dispose()


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seconds", type=positive_seconds, default=2.0)
    parser.add_argument("--rounds", type=at_least(1), default=5)
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 500])
    parser.add_argument("--db")
    parser.add_argument("--bootstrap")
    options = parser.parse_args()
    with ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="dualwrite-benchmark-")))
        url = options.db or f"sqlite:///{scratch}/benchmark.db"
        bootstrap = options.bootstrap or stack.enter_context(EmbeddedBroker(scratch / "broker")).bootstrap_servers
        for size in options.batches:
            measure(url, bootstrap, size, options.rounds, options.seconds)


def measure(url: str, bootstrap: str, size: int, rounds: int, seconds: float) -> None:
    """One batch size."""
    with peers(url, bootstrap, size) as units:
        for unit in units.values():
            unit()
        rates: dict[str, list[float]] = {name: [] for name in units}
        for _ in range(rounds):
            for name, unit in units.items():
                rates[name].append(rate(unit, seconds))
    medians = {name: statistics.median(values) for name, values in rates.items()}
    print(f"batches of {size}: units of work per second, medians of {rounds} rounds of {seconds:g} s")
    for name, median in medians.items():
        ratio = medians["dualwrite"] / median
        low, high = min(rates[name]), max(rates[name])
        rows = f"{median * size:>10,.0f} rows/s" if size > 1 else ""
        print(f"  {name:<11}{median:>9,.0f}  ({low:,.0f} to {high:,.0f}){rows}   dualwrite is {ratio:.2f} of it")


if __name__ == "__main__":
    main()
