"""``python -m tests.soak --seconds 3600``: units of work for an hour under faults, while everything stays flat.

Worker processes of one application run units on the bundled broker and PostgreSQL. Every few seconds a worker is killed
or stopped past its lease, all connections to the broker are cut, or a session of the database is ended. Rows are
matched with records all the time. The broker and two workers live through it. Memory, open files and threads of these,
the broker's data and the tables of dualwrite must not grow; a soak of less than a minute cannot tell. Writes
``samples.json``, ``soak.svg`` and ``soak.md``.
"""

import argparse
import json
import random
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.matrix.context import machine_and_versions
from tests.matrix.servers import MissingServerError
from tests.soak.growth import Growth, growth_of
from tests.soak.matching import Matching
from tests.soak.plots import draw
from tests.soak.samples import ALLOWANCES, deletes_segments, sample
from tests.soak.stage import SoakStage
from tests.support.crash.application import LEFT, RIGHT

SAMPLES = 900
"""At most so many: the time between two is a second or more."""
FAULTS_SECONDS = (1.0, 5.0)
"""Between two faults."""
SHORTEST_SLOPE = 60.0
"""A soak of fewer seconds looks only for anomalies."""
_FILLS_WITHIN = 900.0
"""Seconds until the broker deletes as much as it gets."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Soak; the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument(
        "--seconds", type=float, default=3600.0, help="how long, once the broker's log is full (%(default)s)"
    )
    parser.add_argument("--workers", type=int, default=8, help="processes (%(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="of the faults (%(default)s)")
    parser.add_argument("--directory", type=Path, default=Path("build/soak"), help="of what is written")
    options = parser.parse_args(arguments)
    options.directory.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="dw-soak-") as directory:
        try:
            result = soak(Path(directory), options)
        except MissingServerError as error:
            print(error, file=sys.stderr)
            return 2
    return report(result, options)


def soak(directory: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Run it; the samples, counts and anomalies."""
    stage = SoakStage(directory, options.workers, options.seed)
    matching = Matching(stage.bootstrap_servers, stage.engine)
    try:
        seconds, series = _watch(stage, matching, options)
        code = stage.end()
        matching.end()
        return {
            "seconds": seconds,
            "series": series,
            "faults": dict(stage.faults),
            "told": dict(stage.said),
            "matched": matching.matched,
            "anomalies": [
                *matching.anomalies,
                *([f"recovery ended with {code}"] if code else []),
                *([f"{stage.ended} workers have ended by themselves"] if stage.ended else []),
            ],
        }
    finally:
        matching.close()
        stage.close()


Series = dict[str, list[float]]
"""What was measured, by name."""


def _watch(stage: SoakStage, matching: Matching, options: argparse.Namespace) -> tuple[list[float], Series]:
    chance = random.Random(options.seed + 1)
    seconds: list[float] = []
    series: Series = {name: [] for name in ALLOWANCES}
    every = max(1.0, options.seconds / SAMPLES)
    if options.seconds >= SHORTEST_SLOPE:
        _fill(stage, matching)
    began = time.monotonic()
    next_fault = next_sample = 0.0
    while (now := time.monotonic() - began) < options.seconds:
        stage.wake(now)
        stage.replace_ended()
        if now >= next_fault:
            stage.strike(now)
            next_fault = now + chance.uniform(*FAULTS_SECONDS)
        if now >= next_sample and stage.broker.pid is not None:
            matching.look()
            measured = sample(stage.broker.pid, stage.broker.data_dir, stage.living, stage.engine)
            seconds.append(now)
            for name, value in measured.items():
                series[name].append(value)
            next_sample = now + every
        time.sleep(0.1)
    return seconds, series


def _fill(stage: SoakStage, matching: Matching) -> None:
    """Work without faults and samples until the data has the size that it keeps."""
    until = time.monotonic() + _FILLS_WITHIN
    while not deletes_segments(stage.broker.data_dir, (LEFT, RIGHT)):
        if time.monotonic() > until:
            raise TimeoutError(f"the broker has deleted no segment for {_FILLS_WITHIN:g} s")
        stage.replace_ended()
        matching.look()
        time.sleep(0.1)


def report(result: dict[str, Any], options: argparse.Namespace) -> int:
    """Write the files; the exit code."""
    found = [growth_of(name, result["seconds"], values, ALLOWANCES[name]) for name, values in result["series"].items()]
    directory: Path = options.directory
    (directory / "samples.json").write_text(json.dumps(result) + "\n", encoding="utf-8")
    has_picture = draw(directory / "soak.svg", result["seconds"], result["series"], found)
    text = page_of(result, found, options, has_picture)
    (directory / "soak.md").write_text(text, encoding="utf-8")
    growing = [each.name for each in found if not each.is_flat and options.seconds >= SHORTEST_SLOPE]
    print(
        f"{options.seconds:g} s, {sum(result['faults'].values())} faults, {result['told'].get('ok', 0)} units, "
        f"{result['matched']} rows matched, {len(result['anomalies'])} anomalies, "
        f"growing: {', '.join(growing) or 'nothing'}: {directory}"
    )
    return 1 if result["anomalies"] or growing else 0


def page_of(result: dict[str, Any], found: Sequence[Growth], options: argparse.Namespace, has_picture: bool) -> str:
    """The result in Markdown."""
    command = f"python -m tests.soak --seconds {options.seconds:g} --workers {options.workers} --seed {options.seed}"
    lines = [_INTRODUCTION, "| | |\n|---|---|", f"| command | `{command}` |"]
    lines += [f"| {name} | {value} |" for name, value in machine_and_versions().items()]
    lines += [f"| {name} | {count:,} |" for name, count in sorted(result["faults"].items())]
    lines += [f"| units of work that {what} | {result['told'].get(word, 0):,} |" for word, what in _WORDS.items()]
    lines += [f"| rows matched with records | {result['matched']:,} |", f"| anomalies | {len(result['anomalies'])} |"]
    lines += [_GROWTH, "| | median | per hour | grown after the warm-up | allowed |", "|---|--:|--:|--:|--:|"]
    lines += [
        f"| {each.name} | {each.typical:,.1f} | {each.per_hour:+,.2f} | {each.grown:+,.2f} | {each.allowed:,.1f} |"
        for each in found
    ]
    lines += ["", "![The measured things over time](soak.svg)"] if has_picture else []
    lines += [f"- {anomaly}" for anomaly in result["anomalies"][:50]]
    return "\n".join([*lines, ""])


_WORDS = {"ok": "were committed", "no": "were rolled back", "doubt": "ended in doubt"}
"""What the word of a worker says about its unit of work."""

_INTRODUCTION = """\
# Soak

Eight worker processes of one application run units of work on the bundled broker and PostgreSQL, under a fault every
one to five seconds. Rows are matched with records all the time. The broker and two of the workers live through it, and
nothing of theirs may grow. PostgreSQL's autovacuum looks every five seconds, so that dead rows do not fill the tables
in a short soak. `make soak` writes this page again, in an hour, into `build/soak/`.
"""

_GROWTH = """
The first quarter is the warm-up, in which caches fill and pools reach their size. *Per hour* is the slope of a line
through the samples after it, which single peaks do not move. *Grown* is that slope over the time after the warm-up, and
*allowed* what still counts as flat.
"""


if __name__ == "__main__":
    sys.exit(main())
