"""A driver and its tasks in one process without a JVM, for tests that kill it.

It says "paused" where it is told to pause, and goes on when its stdin says so.
"""

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from dualwrite.errors import DualWriteError
from dualwrite.spark.workers import close_workers
from tests.support.forked import Piped
from tests.support.spark.batches import begun, options_for, rows, written

_pausing = threading.Lock()


@dataclass(frozen=True)
class BatchProcessPlan:
    """What such a process is to do.

    :param pause: the step before which it pauses, the first time.
    :param role: "driver" for a whole batch; "task" for the first partition of a run that somebody else has begun.
    """

    url: str
    servers: str
    options: dict[str, Any]
    batch_id: int
    begin: int
    end: int
    partitions: int = 3
    pause: str = ""


def main(told: BatchProcessPlan) -> None:
    paused: list[str] = []

    def observe(step: str) -> None:
        with _pausing:
            if step != told.pause or paused:
                return
            paused.append(step)
            print("paused", flush=True)
            sys.stdin.readline()

    options = options_for(told.url, told.servers, **told.options)
    size = (told.end - told.begin) // told.partitions
    parts = [rows(told.begin + size * number, told.begin + size * (number + 1)) for number in range(told.partitions)]
    try:
        batch, work = begun(options, told.batch_id, observe)
        batch.commit(work, written(work, parts), told.batch_id)
        print("done", flush=True)
    except DualWriteError as error:
        print(type(error).__name__, error, flush=True)
    finally:
        close_workers()  # as a program does at its end


@contextmanager
def running(told: BatchProcessPlan) -> Iterator[Piped]:
    """Such a process; killed at the end of the block."""
    with Piped(__name__, told) as process:
        try:
            yield process
        finally:
            process.kill()


def said(process: Piped) -> str:
    """Its next line."""
    return process.stdout.readline().strip()


def go_on(process: Piped) -> None:
    process.stdin.write("go on\n")
    process.stdin.flush()
