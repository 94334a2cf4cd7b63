"""``python -m tests.proof``: the simulation, the crash matrix and the soak, as a bundle that a stranger can check.

Writes commit, machine, versions, commands, seeds, counts, logs and the SHA-256 of each file into one directory.
``--check`` checks such a directory.
"""

import argparse
import shutil
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from tests.proof.bundle import ProofStep, problems_of, run_step, steps_of, write_facts


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the bundle or check one; the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.proof", description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("--directory", type=Path, default=Path("build/proof"), help="of the bundle (%(default)s)")
    parser.add_argument("--check", type=Path, metavar="DIRECTORY", help="check the bundle there, and no more")
    parser.add_argument("--seed", type=int, default=1, help="of the matrix and the soak (%(default)s)")
    parser.add_argument("--seeds", type=int, default=5000, help="of the simulation (%(default)s)")
    parser.add_argument("--kills", type=int, default=500, help="of the matrix (%(default)s)")
    parser.add_argument("--matrix-seconds", type=float, default=600.0, help="at most (%(default)s)")
    parser.add_argument("--soak-seconds", type=float, default=120.0, help="(%(default)s)")
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", help="of simulation, matrix, soak")
    options = parser.parse_args(arguments)
    if options.check is None:
        steps = steps_of(
            options.directory,
            seed=options.seed,
            seeds=options.seeds,
            kills=options.kills,
            seconds=options.matrix_seconds,
            soak=options.soak_seconds,
        )
        write_bundle([step for step in steps if not options.only or step.name in options.only], options.directory)
    return check(options.check or options.directory)


def write_bundle(steps: Sequence[ProofStep], directory: Path) -> None:
    """Run ``steps``, and write the bundle in place of a former one."""
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    started_at = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime())
    results = []
    for step in steps:
        if step.is_there:
            print(step.command, flush=True)
            results.append(run_step(step, directory))
            print(results[-1].output, flush=True)
    write_facts(directory, started_at, results, [step.module for step in steps if not step.is_there])


def check(directory: Path) -> int:
    """Print what is wrong with the bundle; the exit code."""
    problems = list(problems_of(directory))
    print("\n".join(problems) or f"{directory}: sound", file=sys.stderr if problems else sys.stdout)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
