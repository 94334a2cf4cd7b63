"""A broker, a database, and an application: all of them can be killed."""

import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from sqlalchemy import create_engine

from dualwrite.cli.db import upgrade
from tests.support.crash.application import LEFT_PARTITIONS, Task, items
from tests.support.crash.oracle import CallerReports, judge
from tests.support.forked import ForkedBroker, Piped


class MortalBroker(Protocol):
    """What a world needs of its broker, which keeps its port, so that clients find it again."""

    @property
    def bootstrap_servers(self) -> str: ...

    def start(self) -> object: ...

    def stop(self) -> None: ...

    def kill(self) -> None: ...


CONFIG = {"num.partitions": str(LEFT_PARTITIONS)}
"""Of the broker."""


class CrashWorld:
    """What one test kills and then judges.

    :param broker: not started yet; the bundled one if there is none.
    """

    def __init__(
        self, directory: Path, url: str, producer: str | None = None, broker: MortalBroker | None = None
    ) -> None:
        self.broker: MortalBroker = broker or ForkedBroker(
            directory / "broker", listen=f"127.0.0.1:{free_port()}", config=CONFIG
        )
        self.broker.start()
        self.engine = create_engine(url)
        items.create(self.engine, checkfirst=True)  # another world may have the same database
        upgrade(url)
        self.task = Task(url, self.broker.bootstrap_servers, producer=producer)
        self.told = CallerReports()

    def run(
        self,
        task: Task,
        *,
        kill_after: float | None = None,
        kill_after_units: int | None = None,
        on_start: Callable[[], object] = lambda: None,
        on_pause: Callable[[], None] = lambda: None,
    ) -> int:
        """Run the application until it ends, or kill it some seconds after it started, once it has done some units of
        work, or where it pauses; its exit code."""
        before = len(self.told.ok)
        with task.start() as process:
            timer = threading.Timer(kill_after or 0, process.kill)
            for line in process.stdout:
                if line == "started\n":
                    on_start()
                    if kill_after is not None:
                        timer.start()
                self.told.take(line)
                if kill_after_units is not None and len(self.told.ok) >= before + kill_after_units:
                    process.kill()
                if self.told.paused:
                    on_pause()
                    process.kill()
                    self.told.paused = False
            timer.cancel()
            return process.wait()

    @contextmanager
    def running(self, task: Task) -> Iterator["RunningApplication"]:
        """One of several that run at the same time; its stdin ends with the block, and it must end well then."""
        with task.start() as process:
            worker = RunningApplication(process, self.told)
            try:
                yield worker
                worker.end()
            finally:
                process.kill()

    def kill_at(
        self, step: str, unit: int = 1, on_pause: Callable[[], None] = lambda: None, sabotage: str = ""
    ) -> None:
        """Kill the application right before ``step`` of its ``unit``-th unit of work."""
        task = replace(self.task, pause_step=step, pause_unit=unit, sabotage=sabotage)
        assert self.run(task, on_pause=on_pause) < 0

    def recover(self, sabotage: str = "", producer: str | None = None) -> None:
        """A start that does no unit of work, with the application's producer or another."""
        producer = producer or self.task.producer
        assert self.run(replace(self.task, units=0, sabotage=sabotage, producer=producer)) == 0

    def restart_broker(self) -> None:
        """SIGKILL, and a new start on the same data."""
        self.broker.kill()
        self.broker.start()

    def judge(self) -> list[str]:
        """What is wrong."""
        return judge(self.engine, self.broker.bootstrap_servers, self.told)

    def close(self) -> None:
        """Leave nothing running."""
        self.engine.dispose()
        self.broker.stop()


def free_port() -> int:
    """A port that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class RunningApplication:
    """An application that runs beside others."""

    def __init__(self, process: Piped, told: CallerReports) -> None:
        self.process = process
        self._told = told

    def until(self, line: str) -> None:
        """Read what it says until it says ``line``."""
        for said in self.process.stdout:
            self._take(said)
            if said.strip() == line:
                return
        raise AssertionError(f"it ended without {line!r}")

    def end(self) -> None:
        """Let it end, unless it was killed."""
        self.process.stdin.close()
        for said in self.process.stdout:
            self._take(said)
        assert self.process.wait() in (0, -signal.SIGKILL)

    def _take(self, said: str) -> None:
        self._told.take(said)
        self._told.paused = False  # nobody is to be killed for it
