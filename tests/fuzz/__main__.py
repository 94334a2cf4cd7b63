"""``python -m tests.fuzz --seconds 3600``: fuzz the request path and the data files, and print a finding's seed."""

import argparse
import logging
import random
import sys
import time
from collections import Counter

from tests.fuzz.data_files import fuzz_files
from tests.fuzz.request_path import fuzz_requests


def main() -> int:
    """Run until the time is over or something is found; the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0, help="how long (%(default)s)")
    parser.add_argument("--seed", type=int, default=None, help="the first seed (default: a random one)")
    parser.add_argument("--target", choices=("requests", "files", "both"), default="both")
    arguments = parser.parse_args()
    seed = random.SystemRandom().getrandbits(40) if arguments.seed is None else arguments.seed
    print(f"first seed: {seed}")
    logging.disable(logging.CRITICAL)
    try:
        outcomes = _fuzz(seed, arguments.seconds, arguments.target)
    finally:
        logging.disable(logging.NOTSET)
    for outcome, count in sorted(outcomes.items()):
        print(f"{count:8} {outcome}")
    return 0


def _fuzz(seed: int, seconds: float, target: str) -> Counter[str]:
    began, outcomes = time.monotonic(), Counter[str]()
    while time.monotonic() - began < seconds:
        if target != "files":
            fuzz_requests(seed)
            outcomes["requests"] += 1
        if target != "requests":
            for number in range(20):
                outcomes[fuzz_files(seed * 20 + number)] += 1
        seed += 1
    return outcomes


if __name__ == "__main__":
    sys.exit(main())
