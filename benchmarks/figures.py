"""What is measured: each figure, how one broker does at it once, and which direction is better."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import count

from confluent_kafka import Producer

from benchmarks.clients import LIBRDKAFKA, NATIVE, produce_one
from benchmarks.contenders import Contender, create_topic, processor_seconds, resident_mib
from benchmarks.processes import Result, run

MEGABYTE = 1_000_000
MEBIBYTE = 1024 * 1024
_numbers = count()


@dataclass(frozen=True)
class Scale:
    """How much is done for one round of a figure."""

    seconds: float = 5.0
    """Of transactions, and of single records."""
    megabytes: int = 200
    """Written and read for throughput."""
    restart_mebibytes: int = 1024
    """In the log that a restart finds."""
    producers: tuple[int, ...] = (1, 4, 16)
    """Of transactions."""
    loaded_megabytes: int = 100
    """In and out before a broker's memory is looked at again."""


Sample = dict[str, float]
"""One round: a value for each line of the figure; and how many processors the broker and its clients kept busy."""

Measure = Callable[[Contender, Scale], Sample]


@dataclass(frozen=True)
class FigureUnit:
    """What a line's values are in, and whether more of it is better."""

    name: str
    more_is_better: bool = False
    is_load: bool = False
    """It explains the other lines, and is not compared."""


LOADS = ("broker", "clients")

UNITS: Mapping[str, FigureUnit] = {
    "per second": FigureUnit("transactions", more_is_better=True),
    "MB/s": FigureUnit("MB/s", more_is_better=True),
    "p50": FigureUnit("ms"),
    "p99": FigureUnit("ms"),
    "s": FigureUnit("s"),
    "MiB": FigureUnit("MiB"),
    "CPU": FigureUnit("µs of the client"),
    "broker CPU": FigureUnit("µs of the broker"),
    **dict.fromkeys(LOADS, FigureUnit("processors", is_load=True)),
}
"""By the last word or words of a line's name, after a comma."""


def unit_of(line: str) -> FigureUnit:
    """The unit of a line called ``line``."""
    return UNITS[line.rpartition(", ")[2]]


def transactions(contender: Contender, scale: Scale, client: str = LIBRDKAFKA) -> Sample:
    """Transactions of one 200-byte record, by number of producers."""
    sample: Sample = {}
    for producers in scale.producers:
        topic = new_topic(contender)
        settings = {"topic": topic, "producers": producers, "seconds": scale.seconds, "client": client}
        results, load = run_clients(contender, "transactions", [settings])
        name = f"{producers} producer{'s' * (producers > 1)}"
        took, elapsed, loads = sorted(results[0]["milliseconds"]), elapsed_seconds(results), load(name)
        sample |= {f"{name}, per second": len(took) / elapsed, **percentiles(name, took)}
        sample |= {f"{name}, broker CPU": loads[f"{name}, broker"] * elapsed / len(took) * 1e6, **loads}
    return sample


def native_transactions(contender: Contender, scale: Scale) -> Sample:
    """The same by the native producer."""
    return transactions(contender, scale, NATIVE)


def throughput(contender: Contender, scale: Scale) -> Sample:
    """Records in bulk, in and out again."""
    sample: Sample = {}
    total = scale.megabytes * MEGABYTE
    for size, kind in ((1000, "1 KB"), (100, "100 B")):
        # A client in Python makes and reads about half a million records a second: fewer bytes of the small ones.
        amount = total if size == 1000 else total // 4
        for producers in (4, 1):
            topic = new_topic(contender)
            settings = [{"topic": topic, "total": amount // producers, "size": size} for _ in range(producers)]
            results, load = run_clients(contender, "produce", settings)
            name = f"produce {kind}, {producers} producer{'s' * (producers > 1)}"
            sample |= {f"{name}, MB/s": _megabytes_per_second(results), **load(name)}
        results, load = run_clients(contender, "consume", [{"topic": topic, "total": amount, "size": size}])
        name = f"consume {kind}"
        sample |= {f"{name}, MB/s": _megabytes_per_second(results), **load(name)}
    return sample


def guarantees(contender: Contender, scale: Scale) -> Sample:
    """Records of 1 KB in bulk, with each guarantee of KIP-98 and without: what idempotence, transactions and
    read_committed cost."""
    work = {"topic": new_topic(contender), "total": scale.megabytes * MEGABYTE, "size": 1000}
    sample: Sample = {}

    def measure(name: str, workload: str, **settings: object) -> Result:
        results, load = run_clients(contender, workload, [{**work, **settings}])
        sample.update({f"{name}, MB/s": _megabytes_per_second(results), **load(name)})
        return results[0]

    measure("produce, plain", "produce")
    measure("produce, idempotent", "produce", topic=new_topic(contender), idempotent=True)
    topic = new_topic(contender)
    written = measure("produce, in transactions", "produce_in_transactions", topic=topic)
    measure("consume, read_uncommitted", "consume", topic=topic, isolation="read_uncommitted")
    measure("consume, read_committed", "consume", topic=topic, total=written["committed"])
    return sample


def latency(contender: Contender, scale: Scale) -> Sample:
    """Single records end to end, 200 a second."""
    sample: Sample = {}
    for name, transactional in (("plain", False), ("each in a transaction", True)):
        settings = {"topic": new_topic(contender), "seconds": scale.seconds, "rate": 200}
        results, load = run_clients(contender, "end_to_end", [{**settings, "transactional": transactional}])
        sample |= {**percentiles(name, sorted(results[0]["milliseconds"])), **load(name)}
    return sample


def start(contender: Contender, scale: Scale) -> Sample:
    """A broker without data started until its first record is acknowledged, and its memory before and after a load."""
    contender.stop()
    sample = {"start to first produce, s": _seconds_to_first_produce(contender)}
    sample["memory idle, MiB"] = resident_mib(contender)
    settings = {"topic": new_topic(contender), "total": scale.loaded_megabytes * MEGABYTE, "size": 1000}
    run_clients(contender, "produce", [settings])
    run_clients(contender, "consume", [settings])
    return sample | {f"memory after {scale.loaded_megabytes} MB in and out, MiB": resident_mib(contender)}


def restart(contender: Contender, scale: Scale) -> Sample:
    """A broker with a long log, stopped or killed, until its next record is acknowledged."""
    settings = {"topic": new_topic(contender), "total": scale.restart_mebibytes * MEBIBYTE, "size": 1000}
    run_clients(contender, "produce", [settings])
    contender.stop()
    sample = {"restart after a clean stop, s": _seconds_to_first_produce(contender)}
    contender.kill()
    return sample | {"restart after kill -9, s": _seconds_to_first_produce(contender)}


@dataclass(frozen=True)
class Figure:
    """One figure.

    :param durabilities: where it says something.
    :param is_fresh: each round needs a broker on an empty directory.
    :param is_usual: False if it is measured only if it is asked for.
    """

    measure: Measure
    durabilities: tuple[str, ...] = ("os",)
    is_fresh: bool = False
    is_usual: bool = True


FIGURES: Mapping[str, Figure] = {
    "transactions": Figure(transactions, ("os", "fsync")),
    "native-transactions": Figure(native_transactions, ("os", "fsync"), is_usual=False),
    "throughput": Figure(throughput),
    "guarantees": Figure(guarantees, is_usual=False),
    "latency": Figure(latency, ("os", "fsync")),
    "start": Figure(start, is_fresh=True),
    "restart": Figure(restart, is_fresh=True),
}


def new_topic(contender: Contender, partitions: int = 1) -> str:
    """A topic that nothing has been measured in."""
    topic = f"benchmark-{next(_numbers)}"
    create_topic(contender.bootstrap, topic, partitions)
    return topic


def _seconds_to_first_produce(contender: Contender) -> float:
    began = time.monotonic()
    contender.start()
    produce_one(Producer({"bootstrap.servers": contender.bootstrap, "linger.ms": 0}), "first")
    return time.monotonic() - began


def run_clients(
    contender: Contender, workload: str, settings: list[dict[str, object]]
) -> tuple[list[Result], Callable[[str], Sample]]:
    """The clients' results, and a function that gives their load and the broker's as lines."""
    before: list[float] = []
    results = run(
        "benchmarks.clients",
        workload,
        [{"bootstrap": contender.bootstrap, **each} for each in settings],
        on_go=lambda: before.append(processor_seconds(contender)),
    )
    used = processor_seconds(contender) - before[0]

    def load(name: str) -> Sample:
        elapsed = elapsed_seconds(results)
        clients = sum(result["cpu"] for result in results)
        return {f"{name}, broker": used / elapsed, f"{name}, clients": clients / elapsed}

    return results, load


def elapsed_seconds(results: list[Result]) -> float:
    """From when the first client began to when the last had ended."""
    elapsed: float = max(result["ended"] for result in results) - min(result["began"] for result in results)
    return elapsed


def _megabytes_per_second(results: list[Result]) -> float:
    moved: float = sum(result["bytes"] for result in results) / 1e6
    return moved / elapsed_seconds(results)


def percentiles(name: str, ordered: list[float]) -> Sample:
    """Two lines of ``name``."""
    return {f"{name}, {line}": value for line, value in percentiles_of(ordered).items()}


def percentiles_of(ordered: list[float]) -> Sample:
    """Two lines without a name."""

    def at(share: float) -> float:
        return ordered[min(len(ordered) - 1, int(len(ordered) * share))]

    return {"p50": at(0.5), "p99": at(0.99)}
