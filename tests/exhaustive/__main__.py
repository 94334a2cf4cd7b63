"""``python -m tests.exhaustive --minutes 10``: exhaustive search over the product's own pure functions.

Breadth-first, so that the bound that it prints is exact. Prints the states of each model, the properties that held in
all of them, and how often each of those was met that must be met sometimes. Fails if a property is broken, with the
shortest history that shows it, or if one of the others was never met.
"""

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.support.exhaustive.models import MODELS
from tests.support.exhaustive.results import ModelResult, as_lines, as_markdown
from tests.support.exhaustive.running import MOST_STATES, SearchJob, jobs_of, search_all


def main(arguments: Sequence[str] | None = None) -> int:
    """Search; the exit code: 1 if a property is broken, or one that must be met sometimes was not."""
    options = _parsed(arguments)
    jobs = jobs_of(options.models)
    found: dict[SearchJob, ModelResult] = {}
    in_order: list[ModelResult] = []
    for job, result in search_all(jobs, options.minutes, options.processes, options.states):
        found[job] = result
        print(as_lines(result), end="\n\n", flush=True)
        in_order = [found[job] for job in sorted(found, key=lambda job: (list(MODELS).index(job.name), job.size))]
        if options.markdown is not None:  # after each, as an interrupt must not lose the others
            options.markdown.write_text(as_markdown(in_order), encoding="utf-8")
    failed = [result for result in in_order if result.has_failed]
    for result in failed:
        why = "a property is broken" if result.broken else f"never met within its bound: {', '.join(result.missing)}"
        print(f"{result.name} ({result.about}): {why}")
    return int(bool(failed))


def _parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.exhaustive", description=(__doc__ or "").partition("\n\n")[0]
    )
    parser.add_argument("--minutes", type=float, default=10.0, help="for all of it (%(default)s)")
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS), help="these alone")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1, help="how many at once (%(default)s)")
    parser.add_argument("--states", type=int, default=MOST_STATES, help="that a search may keep (%(default)s)")
    parser.add_argument("--markdown", type=Path, help="write the tables of the documentation there")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
