"""The process that the demo kills: an ordinary load that reports its progress on stdout.

Its lines are ``rows N`` after every batch, ``step NAME`` before every step of a unit of work, and ``paused`` before the
step at which it is to be killed. There it waits on stdin, to which its parent never writes.
"""

import json
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

from sqlalchemy import create_engine

from dualwrite.coordinator.dual_write import DualWrite
from dualwrite.coordinator.rules.producer_names import ProducerName
from dualwrite.demo.flights import KEY, NULL
from dualwrite.errors import DualWriteError
from dualwrite.loader.job import LoadJob, Progress
from dualwrite.loader.load import load

APPLICATION = "demo"
FIRST_STEP = "BEGIN_DATABASE"


@dataclass(frozen=True, slots=True)
class VictimTask:
    """The load, and where it pauses: before step ``pause_step`` of the ``pause_unit``-th unit of work (from 1 on)."""

    file: str
    database_url: str
    table: str
    topic: str
    bootstrap_servers: str
    batch_size: int
    producer: ProducerName | None = None
    pause_step: str = ""
    pause_unit: int = 0

    def command(self) -> list[str]:
        """The command that runs this task in its own process."""
        return [sys.executable, "-m", __spec__.name, json.dumps(asdict(self))]


class VictimObserver:
    """Reports every step, and pauses before the step at which the process is to be killed."""

    def __init__(self, task: VictimTask) -> None:
        self._task = task
        self._unit = 0

    def __call__(self, step: str) -> None:
        """Called right before ``step``."""
        self._unit += step == FIRST_STEP
        say(f"step {step}")
        if step == self._task.pause_step and self._unit == self._task.pause_unit:
            say("paused")
            sys.stdin.read()


def say(line: str) -> None:
    """Print one line for the parent, and flush it: a killed process flushes nothing."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def run(task: VictimTask) -> None:
    """Load until the end, or until the process is killed."""

    def report(progress: Progress) -> None:
        say(f"rows {progress.rows}")

    engine = create_engine(task.database_url)
    job = LoadJob(Path(task.file), task.table, task.topic, KEY, task.batch_size, NULL)
    config = {"bootstrap.servers": task.bootstrap_servers}
    observer = VictimObserver(task)
    with DualWrite(engine, config, application=APPLICATION, producer=task.producer, on_step=observer) as dual_write:
        load(job, engine, dual_write, report)


if __name__ == "__main__":
    try:
        run(VictimTask(**json.loads(sys.argv[1])))
    except DualWriteError as error:
        sys.exit(f"{type(error).__name__}: {error}")
