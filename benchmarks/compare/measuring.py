"""Rounds of units of work in several processes, which take turns: the naive pair and a dual write, here and at another
commit."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path

from benchmarks.compare.costs import UnitCost
from benchmarks.compare.trees import ProductTree
from benchmarks.contenders import create_topic
from benchmarks.processes import ObservedProcess
from benchmarks.rounds import ordered
from benchmarks.unit_contenders import engine_of
from benchmarks.unit_places import ReadyDatabase, committed_records, require_same

_CLIENTS = "benchmarks.compare.clients"
_numbers = count()


@dataclass(frozen=True)
class ComparisonScale:
    """How much is measured.

    :param processes: how many times the processes are started anew: one may have had luck with its memory's layout.
    :param rounds: of each start.
    :param units: of a round.
    """

    processes: int = 3
    rounds: int = 60
    units: int = 25


@dataclass(frozen=True)
class TreeSite:
    """A broker of one version of the product, and databases with its tables: their URLs by name."""

    tree: ProductTree
    bootstrap: str
    broker_pid: int
    urls: Mapping[str, str]


@dataclass(frozen=True)
class ComparedWriter:
    """One way to write, with one version of the product.

    :param burden: milliseconds of processor time that each unit wastes.
    """

    site: TreeSite
    contender: str
    burden: float = 0.0


@contextmanager
def running_site(tree: ProductTree, directory: Path, databases: Sequence[str]) -> Iterator[TreeSite]:
    """A broker and databases, which are stopped in the end."""
    directory.mkdir()
    settings = {"directory": str(directory), "databases": list(databases)}
    process = ObservedProcess(_CLIENTS, "site", settings, home=tree.home)
    try:
        process.await_ready()
        process.say("where")
        result = process.result()
        yield TreeSite(tree, result["bootstrap"], result["broker_pid"], result["urls"])
    finally:
        process.end()


def costs_of(writers: Sequence[ComparedWriter], database: str, scale: ComparisonScale) -> list[list[UnitCost]]:
    """What a unit cost each of the writers, by round: all take turns, so what else the machine does meets all alike."""
    costs: list[list[UnitCost]] = [[] for _ in writers]
    for _ in range(scale.processes):
        with ExitStack() as opened:
            workers = [opened.enter_context(_worker(writer, database, scale.units)) for writer in writers]
            for number in range(scale.rounds):
                for found, worker in ordered(list(zip(costs, workers, strict=True)), number):
                    worker.say("go")
                    result = worker.result()
                    spent = (result[what] / scale.units for what in ("client", "broker", "elapsed"))
                    found.append(UnitCost(*spent))
    return costs


@contextmanager
def _worker(writer: ComparedWriter, database: str, units: int) -> Iterator[ObservedProcess]:
    """A process that is warm. In the end its rows are compared with its records."""
    site, name = writer.site, f"compared_{next(_numbers)}"
    url = site.urls[database]
    where: dict[str, object] = {"url": url, "bootstrap": site.bootstrap, "broker_pid": site.broker_pid, "name": name}
    settings = {**where, "contender": writer.contender, "units": units, "burden": writer.burden}
    create_topic(site.bootstrap, name, 1)
    engine = engine_of(url)
    place = ReadyDatabase(database, url, engine)
    with place.tables(name) as tables:
        process = ObservedProcess(_CLIENTS, "units", settings, home=site.tree.home)
        try:
            process.await_ready()
            yield process
        finally:
            process.kill()
        rows = place.rows(tables)
        require_same(rows, committed_records(site.bootstrap, name, len(rows)), f"{writer.contender} on {database}")
    engine.dispose()
