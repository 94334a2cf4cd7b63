"""``dualwrite demo``: load real flights into a table and a topic through kill -9, and compare both sides row by row."""

import argparse
import random
import shutil
import sys
import tempfile
import time
from pathlib import Path

from sqlalchemy import make_url

from dualwrite.broker.embedded import EmbeddedBroker
from dualwrite.cli.database import database
from dualwrite.cli.db import upgrade
from dualwrite.cli.producer import add_producer
from dualwrite.cli.progress import ProgressReport
from dualwrite.comparison.compare import compare
from dualwrite.comparison.job import Comparison, ComparisonJob, Difference, Verdict
from dualwrite.comparison.key_text import shown
from dualwrite.comparison.topic import read_topic
from dualwrite.coordinator.rules.producer_names import ProducerName
from dualwrite.coordinator.sql.dialects.url_text import url_text
from dualwrite.demo.flights import KEY, MOST_ROWS, create_table, write_flights
from dualwrite.demo.supervisor import Window, plan, run_to_death, run_to_end
from dualwrite.demo.victim import VictimTask
from dualwrite.errors import ConfigurationError, InputError
from dualwrite.loader.job import Progress

_TABLE = _TOPIC = "flights"
_LARGEST_BATCH = 500
_FEWEST_UNITS = 20
_FEWEST_ROWS = 500
_SHOWN = 5


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the verb's arguments."""
    parser.add_argument(
        "--rows", type=int, default=20_000, help=f"flights to load, {_FEWEST_ROWS} to {MOST_ROWS:,} (20000)"
    )
    parser.add_argument("--kills", type=int, default=8, help="how many times to kill the loader, at least 3 (8)")
    parser.add_argument("--seed", type=int, help="repeat the choices, but not the timing, of an earlier run")
    parser.add_argument("--db", metavar="URL", help="load into this database instead of a new SQLite file")
    add_producer(parser)
    parser.add_argument("--keep", type=Path, metavar="DIR", help="work in DIR, an empty directory, and leave it there")


def run(arguments: argparse.Namespace) -> int:
    """Run the demo; 1 if the two sides differ."""
    if not _FEWEST_ROWS <= arguments.rows <= MOST_ROWS:
        raise ConfigurationError(f"--rows {arguments.rows}: use {_FEWEST_ROWS} to {MOST_ROWS}")
    if arguments.kills < len(Window):
        raise ConfigurationError(f"--kills {arguments.kills}: use at least {len(Window)}, one before each step")
    keep: Path | None = arguments.keep
    directory = Path(tempfile.mkdtemp(prefix="dualwrite-demo-")) if keep is None else _empty(keep)
    seed = arguments.seed if arguments.seed is not None else random.SystemRandom().randrange(10**6)
    try:
        with EmbeddedBroker(directory / "broker") as broker:
            demo = _Demo(directory, broker.bootstrap_servers, arguments.rows, arguments.db, arguments.producer)
            return demo.run(arguments.kills, seed)
    finally:
        if keep is None:
            shutil.rmtree(directory)


def _empty(directory: Path) -> Path:
    """``directory``, which is made if it does not exist.

    :raises InputError: if it is not empty, or cannot be made or read.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True)
        if any(directory.iterdir()):
            raise InputError(f"--keep {directory}: the directory is not empty")
    except OSError as error:
        raise InputError(f"--keep {directory}: {error.strerror}") from None
    return directory


class _Demo:
    """One run of the demo, with its files in ``directory``."""

    def __init__(
        self, directory: Path, bootstrap_servers: str, rows: int, url: str | None, producer: ProducerName | None
    ) -> None:
        self._file = directory / "flights.csv"
        self._bootstrap_servers = bootstrap_servers
        self._rows = write_flights(self._file, rows)
        batch_size = min(_LARGEST_BATCH, max(1, self._rows // _FEWEST_UNITS))
        url = url or f"sqlite:///{directory / 'flights.db'}"
        self._task = VictimTask(str(self._file), url, _TABLE, _TOPIC, bootstrap_servers, batch_size, producer)
        self._report = ProgressReport("flights", sys.stdout)

    def run(self, kills: int, seed: int) -> int:
        """Load the flights despite ``kills`` kills, then compare both sides."""
        self._prepare()
        units = -(-self._rows // self._task.batch_size)
        database_name = url_text(make_url(self._task.database_url))
        print(f"1. A broker runs at {self._bootstrap_servers}, a process of its own. The database is {database_name}.")
        print(
            f"2. Loading {self._rows:,} flights into table '{_TABLE}' and topic '{_TOPIC}' in {units} units of work of "
            f"{self._task.batch_size} rows.\n   Each must be in both or in neither. The loader will be killed with "
            f"SIGKILL {kills} times (--seed {seed})."
        )
        began = time.monotonic()
        self._load(kills, units, random.Random(seed))  # noqa: S311  places to die, not secrets
        print(f"   Loaded in {time.monotonic() - began:.1f} s, restarts included.")
        print(
            "3. Comparing: a read_committed consumer (confluent-kafka) reads the topic, row by row against the table."
        )
        return self._compare()

    def _prepare(self) -> None:
        with database(self._task.database_url, must_exist=False) as engine:
            create_table(engine)
        upgrade(self._task.database_url)

    def _load(self, kills: int, units: int, chance: random.Random) -> None:
        for number, kill in enumerate(plan(kills, units, chance), start=1):
            death = run_to_death(self._task, kill, self._on_rows)
            if death is None:
                if kill.window is not None:
                    raise InputError(
                        f"the load was done before it could be killed {kill.window.where}: use more --rows"
                    )
                self._say(f"   kill {number}, at a random moment, came too late: the load was done")
                continue
            self._say(f"   kill {number} at row {death.rows:,}, {death.describe()}")
        run_to_end(self._task, self._on_rows)
        self._report.close()

    def _on_rows(self, rows: int) -> None:
        self._report(Progress(rows, 0, rows / self._rows))

    def _say(self, line: str) -> None:
        """Print a line above the progress bar."""
        print(f"\r\x1b[K{line}" if sys.stdout.isatty() else line, flush=True)

    def _compare(self) -> int:
        job = ComparisonJob(_TABLE, _TOPIC, (KEY,), values=True)
        kafka = {"bootstrap.servers": self._bootstrap_servers}
        with database(self._task.database_url, must_exist=True) as engine:
            result = compare(engine, kafka, job, limit=_SHOWN)
        in_log = sum(1 for _ in read_topic(self._bootstrap_servers, _TOPIC, "read_uncommitted"))
        for line in _report_lines(result, in_log - result.records):
            print(f"   {line}")
        complete = result.rows == self._rows
        if not complete:
            print(f"   the table has {result.rows:,} rows of {self._rows:,}")
        if result.verdict is Verdict.SAME and complete:
            print("Both sides are the same, to the row.")
            return 0
        is_known = result.verdict is not Verdict.UNKNOWN
        print("THE TWO SIDES DIFFER." if is_known else "NOT KNOWN whether both sides are the same.")
        return 1


def _report_lines(result: Comparison, aborted: int) -> list[str]:
    return [
        f"rows in the table                {result.rows:>9,}",
        f"records visible in the topic     {result.records:>9,}",
        f"records of aborted units, hidden {aborted:>9,}",
        *(f"{difference.value:<32} {result.differing.get(difference, 0):>9,}" for difference in Difference),
        *(f"{example.difference.value}: {shown(example.key)}" for example in result.examples),
    ]
