"""Units of work: a dual write beside what people do without one, in alternating rounds of one run.

    python -m benchmarks.units [--figures throughput latency] [--databases sqlite postgresql] [--durabilities os fsync]
                               [--contenders NAME ...] [--rounds 3] [--warm-up 0] [--seconds 1.5] [--workers 1 8]
                               [--processes] [--rate 100] [--rows 1] [--journal delete|wal]
                               [--with-kafka] [--json FILE] [--markdown FILE] [--directory DIR]

throughput: units of work of one row and one record of 200 bytes each, one after another on each of 1 and 8 workers:
rate, how long each took its caller, the processor time of the clients. An outbox is not done before its relay is.
latency: at a steady rate, how long it took until a read_committed consumer had the record, from when the unit began.

The workers are threads of one process, as in a web service; --processes gives each a process of its own. The databases
are as they come: SQLite in a file, and a PostgreSQL server that is started from the binaries of this machine; commits
of both reach the disk. --durabilities is of the broker. After every measurement the rows are compared with the records.
--with-kafka measures on Apache Kafka, too, which has no keepPreparedTxn: so there is no dual write there.
"""

from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count

from benchmarks.contenders import OURS, Contender, create_topic, processor_seconds
from benchmarks.figures import LOADS, Sample, elapsed_seconds, percentiles_of
from benchmarks.processes import ObservedProcess, Result, started
from benchmarks.rounds import Rounds, WithKafka, at_least, measure, ordered, parser_of, positive_seconds
from benchmarks.standings import Standings
from benchmarks.unit_contenders import CONTENDERS, DATABASE, DUAL_WRITES, NATIVE, OUTBOX
from benchmarks.unit_places import DATABASES, JOURNALS, ReadyDatabase, committed_records, require_same

_CLIENTS = "benchmarks.unit_clients"
_numbers = count()


@dataclass(frozen=True)
class UnitsScale:
    """How much is done for one measurement."""

    seconds: float = 1.5
    contenders: tuple[str, ...] = tuple(CONTENDERS)
    workers: tuple[int, ...] = (1, 8)
    """Of the throughput; the latency is that of one."""
    has_processes: bool = False
    rate: int = 100
    """Units per second, of the latency."""
    rows: int = 1
    """Rows, and records, of a unit."""


@dataclass(frozen=True)
class UnitsSite:
    """Where a contender is measured."""

    broker: Contender
    database: ReadyDatabase


@dataclass(frozen=True)
class UnitsFigure:
    """One figure.

    :param compared: the lines in which contenders are compared.
    :param without: contenders of which it says nothing.
    """

    measure: Callable[[UnitsSite, str, UnitsScale, int], Sample]
    compared: tuple[str, ...]
    without: tuple[str, ...] = ()


def throughput(site: UnitsSite, contender: str, scale: UnitsScale, workers: int) -> Sample:
    """As many units as there can be."""
    results, load = _measured(site, contender, scale, workers, observed=False)
    took = sorted(each for result in results for each in result.get("milliseconds", ()))
    cpu = sum(result["cpu"] for result in results)
    rate = {"per second": len(took) / elapsed_seconds(results)}
    return {**rate, **percentiles_of(took), "CPU": cpu / len(took) * 1e6, **load}


def latency(site: UnitsSite, contender: str, scale: UnitsScale, workers: int) -> Sample:
    """Single units, until a consumer has the record."""
    results, load = _measured(site, contender, scale, workers, observed=True)
    return {**percentiles_of(sorted(results[-1]["milliseconds"])), **load}


FIGURES: Mapping[str, UnitsFigure] = {
    "throughput": UnitsFigure(throughput, ("per second",)),
    "latency": UnitsFigure(latency, ("p50", "p99"), without=(DATABASE,)),
}


def _measured(
    site: UnitsSite, contender: str, scale: UnitsScale, workers: int, *, observed: bool
) -> tuple[list[Result], Sample]:
    """The results of the workers, and of the relay and the consumer where there are such; and their load."""
    name = f"units_{next(_numbers)}"
    create_topic(site.broker.bootstrap, name, 1)
    common = {"bootstrap": site.broker.bootstrap, "name": name}
    with site.database.tables(name) as tables:
        rate = scale.rate / workers if observed else 0.0
        sizes = [1] * workers if scale.has_processes else [workers]
        shared = {**common, "url": site.database.url, "contender": contender, "rows": scale.rows, "rate": rate}
        work: list[tuple[str, Mapping[str, object]]] = [
            ("units", {**shared, "seconds": scale.seconds, "workers": size, "first": number})
            for number, size in enumerate(sizes)
        ]
        if contender == OUTBOX:
            work.append(("relay", {**common, "url": site.database.url}))
        if observed:
            work.append(("observer", common))
        with started(_CLIENTS, work) as clients:
            before = processor_seconds(site.broker)
            results = _run(clients, len(sizes), lambda: site.database.count(tables))
            used = processor_seconds(site.broker) - before
        if contender != DATABASE:
            who = f"{contender} on {site.database.title}"
            rows = site.database.rows(tables)
            require_same(rows, committed_records(site.broker.bootstrap, name, len(rows)), who)
    elapsed = elapsed_seconds(results)
    return results, dict(zip(LOADS, (used / elapsed, sum(each["cpu"] for each in results) / elapsed), strict=True))


def _run(clients: Sequence[ObservedProcess], workers: int, count_rows: Callable[[], int]) -> list[Result]:
    """Let all of them go; those that follow the workers end when these have ended, and know how much was written."""
    for client in clients:
        client.say("go")
    results = [client.result() for client in clients[:workers]]
    for client in clients[workers:]:
        client.say(str(count_rows()))
        results.append(client.result())
    return results


def standings(
    figure: str, workers: int, site: UnitsSite, durability: str, scale: UnitsScale, rounds: Rounds
) -> Standings:
    """One table: all contenders in turn, round by round, so that a machine's drift meets all alike."""
    what = FIGURES[figure]
    is_ours = site.broker.name == OURS
    here = [name for name in scale.contenders if name not in what.without and (is_ours or name not in DUAL_WRITES)]
    samples: dict[str, list[Sample]] = {name: [] for name in here}
    for number in range(-rounds.warm_up, rounds.count):
        for name in ordered(here, number):
            sample = what.measure(site, name, scale, workers)
            if number >= 0:
                samples[name].append(sample)
    kind = ("process" if workers == 1 else "processes") if scale.has_processes else f"thread{'s' * (workers > 1)}"
    where = f"{site.database.title}, {'the bundled broker' if is_ours else 'Apache Kafka'}"
    return Standings(f"{figure}: {where}, {workers} {kind}", durability, samples, NATIVE, what.compared)


def compare_all(options: Namespace, scale: UnitsScale, rounds: Rounds) -> Iterator[Standings]:
    """All of it, at one durability after the other."""
    for durability in options.durabilities:
        with rounds.running(rounds.contenders(durability)) as brokers:
            for name in options.databases:
                with DATABASES[name](rounds.directory, options.journal) as database:
                    for broker in brokers:
                        for figure in options.figures:
                            for workers in scale.workers if figure == "throughput" else (1,):
                                site = UnitsSite(broker, database)
                                yield standings(figure, workers, site, durability, scale, rounds)


def main() -> None:
    """Measure and print."""
    parser = parser_of((__doc__ or "").partition("\n")[0], list(FIGURES), warm_up=0, kafka=WithKafka.IF_ASKED)
    parser.set_defaults(durabilities=["os"], rounds=3)
    parser.add_argument("--databases", nargs="+", choices=list(DATABASES), default=list(DATABASES))
    parser.add_argument("--contenders", nargs="+", choices=list(CONTENDERS), default=list(CONTENDERS))
    parser.add_argument("--seconds", type=positive_seconds, default=UnitsScale.seconds, help="of each measurement")
    parser.add_argument("--workers", type=at_least(1), nargs="+", default=list(UnitsScale.workers))
    parser.add_argument("--processes", action="store_true", help="each worker in a process of its own")
    parser.add_argument("--rate", type=at_least(1), default=UnitsScale.rate, help="units per second, of the latency")
    parser.add_argument("--rows", type=at_least(1), default=UnitsScale.rows, help="rows, and records, of a unit")
    parser.add_argument("--journal", choices=JOURNALS, default=JOURNALS[0], help="SQLite's")
    options = parser.parse_args()
    scale = UnitsScale(
        options.seconds,
        tuple(options.contenders),
        tuple(options.workers),
        options.processes,
        options.rate,
        options.rows,
    )
    measure(options, lambda rounds: compare_all(options, scale, rounds))


if __name__ == "__main__":
    main()
