"""A small comparison for every change: does a unit of work cost more than it did, beside the naive pair?

    python -m benchmarks.compare [--against COMMIT] [--databases sqlite postgresql] [--processes 3] [--rounds 60]
                                 [--units 25] [--burden MS] [--recorded FILE] [--record] [--json FILE]
                                 [--directory DIR]

A unit of work is one row and one record of 200 bytes. The same units are written by the naive pair (COMMIT, then an
acknowledged record) and by ``DualWrite`` with the native producer, in turns of some hundredths of a second. The figure
is the processor time of the client and the broker for one unit, as a multiple of the naive pair's in the same run.

It fails if the multiple is a quarter larger than the recorded one, or with ``--against`` if a unit costs a quarter more
than at that commit. It measures again before it fails, and on an overloaded machine only a doubling counts. Without the
programs of a PostgreSQL server it measures on SQLite alone. ``--burden`` makes each unit of ``DualWrite`` slower on
purpose, ``--record`` writes the recorded ratios.
"""

import json
import os
import statistics
import sys
import tempfile
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path

from benchmarks.compare.costs import RatioOfCosts, RecordedRatios, UnitCost, complaint, limit_at
from benchmarks.compare.measuring import ComparedWriter, ComparisonScale, TreeSite, costs_of, running_site
from benchmarks.compare.trees import HERE, is_same_product, tree_of
from benchmarks.report import machine, warn_unless_optimised
from benchmarks.rounds import at_least, made_directory
from benchmarks.unit_contenders import NAIVE, NATIVE
from benchmarks.unit_places import DATABASES
from tests.support.servers.postgresql import find_binaries

RECORDED = Path(__file__).with_name("recorded.json")
_MEMORY = Path("/dev/shm")
_FIRST = -15
"""A nice value: of 2 busy processors, a process gets nearly all that it wants."""


def main() -> None:
    """Measure, print, and end with one line for each ratio that has become worse.

    :raises SystemExit: if one has.
    """
    options = _options()
    _go_first()
    warn_unless_optimised()
    print(", ".join(f"{key} {value}" for key, value in machine().items()) + "\n")
    print("| a unit of work | processor time: client + broker (µs) | beside | ratio | ratio of wall time |")
    print("|---|--:|---|--:|--:|")
    directory = options.directory or (_MEMORY if _MEMORY.is_dir() else None)
    ratios: dict[str, float] = {}
    worse: list[str] = []
    with tempfile.TemporaryDirectory(prefix="dualwrite-compare-", dir=directory) as scratch, ExitStack() as opened:
        sites = list(_sites(options, Path(scratch), opened))
        for name in options.databases:
            ratios[name], complaints = _compare(name, sites, options)
            if complaints:
                print(f"{name}: once more, as this looks worse than it was", file=sys.stderr)
                ratios[name], complaints = _compare(name, sites, options)
            worse += complaints
    if options.json is not None:
        options.json.write_text(json.dumps({"machine": machine(), "ratios": ratios, "worse": worse}, indent=1) + "\n")
    if options.record:
        RecordedRatios(machine(), ratios).write(options.recorded)
    if worse:
        raise SystemExit("\n".join(worse))


def _options() -> Namespace:
    parser = ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--against", metavar="COMMIT", help="measure the product of this commit, too")
    parser.add_argument("--databases", nargs="+", choices=list(DATABASES))
    for name in ("processes", "rounds", "units"):
        parser.add_argument(f"--{name}", type=at_least(1), default=getattr(ComparisonScale, name))
    parser.add_argument("--burden", type=float, default=0.0, help="milliseconds that each unit of ours wastes")
    parser.add_argument("--recorded", type=Path, default=RECORDED, help="the file of the recorded ratios")
    parser.add_argument("--record", action="store_true", help="write that file")
    parser.add_argument("--json", type=Path, help="write the ratios to this file")
    parser.add_argument("--directory", type=made_directory, help="where the data is: in memory if not given")
    options = parser.parse_args()
    if options.databases is None:
        options.databases = list(DATABASES)
        if find_binaries() is None:
            options.databases.remove("postgresql")
            print("there is no PostgreSQL on this machine: SQLite alone", file=sys.stderr)
    return options


def _go_first() -> None:
    """Let this process and all that it starts run before others, where that is permitted: a process that is interrupted
    often finds its caches cold, so the same work takes up to three times the processor time."""
    with suppress(PermissionError):
        os.setpriority(os.PRIO_PROCESS, 0, _FIRST)


def _sites(options: Namespace, scratch: Path, opened: ExitStack) -> Iterator[TreeSite]:
    """This version of the product; and the other one, if there is to be one, and it is another one."""
    yield opened.enter_context(running_site(HERE, scratch / "here", options.databases))
    if options.against is None:
        return
    (home := scratch / "product").mkdir()
    there = tree_of(options.against, home)
    if is_same_product(options.against):
        print(f"the product is the same at {options.against}", file=sys.stderr)
        return
    yield opened.enter_context(running_site(there, scratch / "there", options.databases))


def _compare(database: str, sites: Sequence[TreeSite], options: Namespace) -> tuple[float, list[str]]:
    """The ratio to the naive pair; and a line for each cost that is worse than it was."""
    scale = ComparisonScale(options.processes, options.rounds, options.units)
    ours = [ComparedWriter(sites[0], NAIVE), ComparedWriter(sites[0], NATIVE, options.burden)]
    theirs = [ComparedWriter(site, name) for site in sites[1:] for name in (NAIVE, NATIVE)]
    costs = costs_of([*ours, *theirs], database, scale)
    for writer, found in zip((*ours, *theirs), costs, strict=True):
        _show(f"{database}: {writer.contender}, {writer.site.tree.title}", found, "the naive pair", costs[0])
    ratio = RatioOfCosts(costs[1], costs[0]).of_processor_time
    limit = limit_at(os.getloadavg()[0], os.cpu_count() or 1)
    worse = [] if options.record else list(RecordedRatios.read(options.recorded).complaints({database: ratio}, limit))
    for now, then, found, earlier in zip(ours, theirs, costs, costs[2:], strict=False):
        commit = f"commit {then.site.tree.title}"
        _show(f"{database}: {now.contender}, here", found, commit, earlier)
        change = RatioOfCosts(found, earlier).of_processor_time
        line = complaint(f"{now.contender} on {database}", f"the same at {commit}", change, 1.0, limit)
        worse += [] if line is None else [line]
    return ratio, worse


def _show(what: str, ours: Sequence[UnitCost], beside: str, theirs: Sequence[UnitCost]) -> None:
    client, broker = (statistics.median(each) * 1e6 for each in ([c.client for c in ours], [c.broker for c in ours]))
    ratio = RatioOfCosts(ours, theirs)
    lower, upper = ratio.spread()
    shown = f"{ratio.of_processor_time:.2f} (rounds: {lower:.2f} to {upper:.2f}) | {ratio.of_wall_time:.2f}"
    print(f"| {what} | {client:,.0f} + {broker:,.0f} | {beside} | {shown} |", flush=True)


if __name__ == "__main__":
    main()
