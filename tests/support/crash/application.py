"""The application that gets killed: dual writes of random sizes over two topics, some of which fail on purpose.

It says on stdout what its caller would know: ``ok ID`` after a unit of work, ``no ID`` if it was told that it was
undone, ``doubt ID`` if it was told that nobody knows. ``started`` comes before all of that, and ``begun ID`` before
each unit. Where it was asked to stop it says ``paused`` and waits to be killed; after a line on stdin it goes on.
"""

import os
import random
import sys
import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Column, Engine, Integer, MetaData, String, Table, create_engine, insert
from sqlalchemy.exc import DBAPIError

from dualwrite import DualWrite, DualWriteError, InDoubtError, PreparedTxnState
from dualwrite.client.admin.control_plane import ControlPlane
from dualwrite.client.librdkafka.connecting import CONNECT_AT_ONCE
from dualwrite.client.protocol.requests import InitializedProducer
from dualwrite.ids import OngoingTransaction
from tests.support.forked import Piped

LEFT, RIGHT = "left", "right"
LEFT_PARTITIONS = 3
items = Table(
    "items", MetaData(), Column("unit", String(32), primary_key=True), Column("item", Integer, primary_key=True)
)


@dataclass(frozen=True)
class Task:
    """How the application is to run."""

    url: str
    bootstrap_servers: str
    seed: int = 0
    units: int = 1_000_000
    pause_step: str = ""
    pause_unit: int = 0
    sabotage: str = ""
    producer: str | None = None
    lease_timeout: float = 30.0
    timeout_ms: int = 0
    """Of transactions, which are resumed then; 0 for those that the broker keeps."""
    replay: bool = False
    threads: int = 1
    """That run so many units each, at once."""
    children: int = 0
    """Forked after a first unit of work; each runs so many units, as its parent does."""
    module: str = "tests.support.crash.application"
    """That is run: async_application has tasks for threads."""
    completion: str = "await"
    application: str = "crash"
    lingers: bool = False
    """Says "idle" at the end and goes on holding its slots until its stdin ends."""
    topics: tuple[str, str] = (LEFT, RIGHT)
    prefix: str = ""
    """Of the names of its units, by which they can be told from others."""
    bears_database_errors: bool = False
    """Goes on if one of its own statements fails: the unit was undone then."""
    rest_seconds: float = 0.0
    """Between two units of one thread."""

    def start(self) -> Piped:
        """A process that does it."""
        return Piped(self.module, self)


class OnPurposeError(Exception):
    """The user's code fails."""


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def pauses(task: Task) -> Callable[[str], None]:
    begun = 0

    def on_step(step: str) -> None:
        nonlocal begun
        begun += step == "BEGIN_DATABASE"
        if step == task.pause_step and begun >= task.pause_unit:  # a unit may fail before it comes to that
            say("paused")
            sys.stdin.readline()

    return on_step


def new_unit(task: Task) -> str:
    """The name of a unit, which is about to begin."""
    unit = f"{task.prefix}{uuid.uuid4().hex}"[:32]
    say(f"begun {unit}")
    return unit


def write_unit(task: Task, dual_write: DualWrite, unit: str, count: int, fails: bool) -> None:
    left, right = task.topics
    with dual_write.transaction() as tx:
        for item in range(count):
            tx.execute(insert(items), {"unit": unit, "item": item})
            tx.produce(left, key=f"{unit}:{item}".encode(), partition=item % LEFT_PARTITIONS)
            tx.produce(right, key=f"{unit}:{item}".encode())
        if fails:
            raise OnPurposeError


def run_units(task: Task, dual_write: DualWrite, seed: int) -> None:
    chance = random.Random(seed)
    undoing = (OnPurposeError, DualWriteError, *([DBAPIError] if task.bears_database_errors else []))
    for _ in range(task.units):
        unit = new_unit(task)
        try:
            write_unit(task, dual_write, unit, chance.randint(1, 30), chance.random() < 0.1)
            say(f"ok {unit}")
        except InDoubtError:
            say(f"doubt {unit}")
        except undoing as error:
            say(f"no {unit} {error}")
            if not isinstance(error, OnPurposeError):
                time.sleep(0.05)  # the broker is down: no need to ask it a thousand times a second
        time.sleep(task.rest_seconds)


def fork(task: Task, dual_write: DualWrite) -> list[int]:
    """The children's process ids. Each uses what its parent made, and closes it as its own."""
    unit = new_unit(task)
    write_unit(task, dual_write, unit, 3, fails=False)
    say(f"ok {unit}")
    children = []
    for number in range(task.children):
        pid = os.fork()
        if not pid:
            run_units(task, dual_write, task.seed + number + 1)
            dual_write.close()
            os._exit(0)
        children.append(pid)
    return children


def run(task: Task, engine: Engine) -> None:
    say("started")
    config: dict[str, Any] = {
        **CONNECT_AT_ONCE,
        "bootstrap.servers": task.bootstrap_servers,
        "delivery.timeout.ms": 5000,
    }
    options: Any = {"producer": task.producer, "on_step": pauses(task), "lease_timeout": task.lease_timeout}
    options["completion"] = task.completion
    if task.timeout_ms:
        config |= {"transaction.timeout.ms": task.timeout_ms, "delivery.timeout.ms": min(5000, task.timeout_ms)}
        options |= {"two_phase": "resume", "replay": task.replay}
    with DualWrite(engine, config, application=task.application, **options) as dual_write:
        children = fork(task, dual_write) if task.children else []
        others = [
            threading.Thread(target=run_units, args=(task, dual_write, task.seed + number))
            for number in range(1, task.threads)
        ]
        for thread in others:
            thread.start()
        run_units(task, dual_write, task.seed)
        for thread in others:
            thread.join()
        for child in children:
            assert os.waitpid(child, 0)[1] == 0
        if task.lingers:
            say("idle")
            sys.stdin.read()
        dual_write.recover()


def compare_pairs_only() -> None:
    """Break the identity of transactions: what KIP-939 does is wrong for a client that keeps its epoch."""

    def identifies(self: PreparedTxnState, ongoing: OngoingTransaction) -> bool:
        return bool(self) and self.producer == ongoing.producer

    PreparedTxnState.identifies = identifies  # type: ignore[method-assign]


def keep_nothing() -> None:
    """Break recovery: begin with a plain init, as a producer that knows nothing of a predecessor does."""
    original = ControlPlane.init_producer_id

    def init_producer_id(self: ControlPlane, transactional_id: str, **flags: Any) -> InitializedProducer:
        return original(self, transactional_id, **{**flags, "keep_prepared_txn": False})

    ControlPlane.init_producer_id = init_producer_id  # type: ignore[method-assign]


SABOTAGE: dict[str, Callable[[], None]] = {"pairs-only": compare_pairs_only, "keep-nothing": keep_nothing}


def main(task: Task) -> None:
    """What its process does."""
    if task.sabotage:
        SABOTAGE[task.sabotage]()
    run(task, create_engine(task.url))
