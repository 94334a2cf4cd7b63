"""``python -m tests.fuzz --seconds 3600``: fuzz all that comes from outside, and print a finding's seed."""

import argparse
import logging
import random
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tests.fuzz.batches import fuzz_batches
from tests.fuzz.data_files import fuzz_files
from tests.fuzz.inputs import fuzz_inputs
from tests.fuzz.request_path import fuzz_requests
from tests.fuzz.rows import fuzz_rows, row_site
from tests.fuzz.states import fuzz_states

Target = Callable[[int], str]


def _requests(seed: int) -> str:
    fuzz_requests(seed)
    return "requests"


TARGETS: dict[str, tuple[Target | None, int]] = {
    "requests": (_requests, 1),
    "files": (fuzz_files, 20),
    "batches": (fuzz_batches, 500),
    "states": (fuzz_states, 500),
    "inputs": (fuzz_inputs, 200),
    "rows": (None, 2),
}
"""What is called, and how often in turn. The rows need a broker of their own."""


def main() -> int:
    """Run until the time is over or something is found; the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0, help="how long (%(default)s)")
    parser.add_argument("--seed", type=int, default=None, help="the first seed (default: a random one)")
    parser.add_argument("--target", choices=(*TARGETS, "all"), default="all")
    arguments = parser.parse_args()
    seed = random.SystemRandom().getrandbits(40) if arguments.seed is None else arguments.seed
    print(f"first seed: {seed}")
    logging.disable(logging.CRITICAL)
    try:
        names = tuple(TARGETS) if arguments.target == "all" else (arguments.target,)
        outcomes = _fuzz(seed, arguments.seconds, names)
    finally:
        logging.disable(logging.NOTSET)
    for outcome, count in sorted(outcomes.items()):
        print(f"{count:8} {outcome}")
    return 0


def _fuzz(seed: int, seconds: float, names: tuple[str, ...]) -> Counter[str]:
    outcomes = Counter[str]()
    with _targets(names) as targets:
        began = time.monotonic()
        while not outcomes or time.monotonic() - began < seconds:
            for target, times in targets:
                for number in range(times):
                    outcomes[target(seed * times + number)] += 1
            seed += 1
    return outcomes


@contextmanager
def _targets(names: tuple[str, ...]) -> Iterator[list[tuple[Target, int]]]:
    plain = [(target, times) for target, times in map(TARGETS.__getitem__, names) if target is not None]
    if "rows" not in names:
        yield plain
        return
    with row_site() as site:
        yield [*plain, (lambda seed: fuzz_rows(seed, site), TARGETS["rows"][1])]


if __name__ == "__main__":
    sys.exit(main())
