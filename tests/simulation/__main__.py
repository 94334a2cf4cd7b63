"""``python -m tests.simulation --seeds 1000``: the simulation of the whole; prints what it found, and how fast.

``--seed K`` runs one seed again and prints its events. ``--ablations`` runs the seeds without each safeguard.
``--replays N`` runs failing seeds so often, and compares the hashes of the runs. Fails at an anomaly; and, with enough
seeds, if something that must happen in some run has happened in none.
"""

import argparse
import os
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path

from tests.support.simulation.ablation_table import ablation_rows, markdown_of
from tests.support.simulation.ablations import ABLATIONS
from tests.support.simulation.faults import PlannedFault
from tests.support.simulation.replays import failing_seeds, replayed_in_processes
from tests.support.simulation.search import Found, minimised, search, search_in_processes
from tests.support.simulation.sometimes import SOMETIMES, missing_in, table_of
from tests.support.simulation.timeline import as_svg, as_text
from tests.support.simulation.world import SimulatedWorld

_REPLAYED = 20
"""So many failing seeds are replayed."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what the arguments say; the exit code: 1 if an anomaly was found in the product as it is, or if the runs had
    too little in them."""
    options = _parsed(arguments)
    if options.seed is not None:
        return _replay(options.seed, options.ablation, options.svg)
    if options.replays:
        return _replays(options)
    if options.ablations:
        rows = ablation_rows(options.first, options.seeds, options.processes)
        text = markdown_of(rows)
        sys.stdout.write(text)
        if options.markdown is not None:
            options.markdown.write_text(text, encoding="utf-8")
        return 0
    if options.processes == 1:
        found = search(options.first, options.seeds, options.ablation)
    else:
        found = search_in_processes(options.first, options.seeds, options.processes, options.ablation)
    _print(found, options.processes)
    if options.markdown is not None:
        options.markdown.write_text(table_of(found.seen, found.seeds), encoding="utf-8")
    missing = missing_in(found.seen, found.seeds)
    for name in missing:
        print(f"never happened: {name} ({SOMETIMES[name]})")
    if found.anomalies:
        seed = min(found.anomalies)
        _show(seed, found.anomalies[seed], options.ablation, options.svg)
    return int(bool(found.anomalies or missing) and options.ablation is None)


def _parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seeds", type=int, default=1000, help="how many (%(default)s)")
    parser.add_argument("--first", type=int, default=0, help="the first seed (%(default)s)")
    parser.add_argument("--processes", type=int, default=os.cpu_count(), help="how many at once (%(default)s)")
    parser.add_argument("--seed", type=int, help="run this seed alone, and print its events")
    parser.add_argument("--ablation", choices=ABLATIONS, help="without this safeguard")
    parser.add_argument("--ablations", action="store_true", help="without each safeguard, one after the other")
    parser.add_argument("--replays", type=int, default=0, help=f"run {_REPLAYED} seeds that fail so often")
    parser.add_argument("--markdown", type=Path, help="write what happened there, or the table of --ablations")
    parser.add_argument("--svg", type=Path, help="draw the timeline of a failing run there")
    return parser.parse_args(arguments)


def _print(found: Found, processes: int) -> None:
    print(f"{found.seeds} seeds in {found.seconds:.1f} s: {found.rate:.1f} a second, {processes} at once")
    print("seeds that had it:")
    for what, meaning in SOMETIMES.items():
        print(f"{found.seen[what]:8} {what}: {meaning}")
    for what, count in sorted(found.seen.items()):
        if what not in SOMETIMES:
            print(f"{count:8} {what}")
    print(f"hash of all runs: {found.digest}")
    for seed, anomaly in sorted(found.anomalies.items()):
        print(f"seed {seed}: {anomaly}")


def _show(seed: int, anomaly: str, ablation: str | None, svg: Path | None) -> None:
    faults = minimised(seed, anomaly, ablation)
    print(f"\nseed {seed} with the fewest faults that still show it:")
    for fault in faults:
        print(f"  {fault}")
    _draw(seed, ablation, svg, faults)


def _replay(seed: int, ablation: str | None, svg: Path | None) -> int:
    anomaly = _draw(seed, ablation, svg, None)
    print(anomaly or "no anomaly")
    return int(bool(anomaly))


def _replays(options: argparse.Namespace) -> int:
    """Find the first failing seeds, and run them again and again; the exit code: 1 if two runs of one seed differ."""
    seeds = failing_seeds(options.ablation, _REPLAYED, options.first, options.seeds)
    if not seeds:
        print(f"none of {options.seeds} seeds fails: choose an --ablation")
        return 1
    results = replayed_in_processes(seeds, options.replays, options.processes, options.ablation)
    for each in results:
        print(f"seed {each.seed}: {each.runs} runs, {', '.join(sorted(each.digests))}; {'; '.join(each.anomalies)}")
    same = sum(each.is_same for each in results)
    print(f"{same} of {len(seeds)} failing seeds were the same run {options.replays} times")
    return int(same < len(seeds))


def _draw(seed: int, ablation: str | None, svg: Path | None, faults: Sequence[PlannedFault] | None) -> str:
    """Run the seed and print its events; the anomaly."""
    with ABLATIONS[ablation].applied() if ablation else nullcontext():
        world = SimulatedWorld(seed, faults)
        result = world.run()
    print(as_text(world.events))
    if svg is not None:
        svg.write_text(as_svg(world.events, f"seed {seed}: {result.anomaly or 'no anomaly'}"), encoding="utf-8")
    return result.anomaly


if __name__ == "__main__":
    sys.exit(main())
