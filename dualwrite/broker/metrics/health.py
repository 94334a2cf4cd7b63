"""Whether the broker is healthy, and whether it is ready: for the probes of a supervisor and of a load balancer.

A process that is not healthy is killed, so health is only what a new process would mend. A full or broken disk is none
of that: the broker is not ready.

The probes run in threads of the HTTP server, because a recovery occupies the event loop, and a hanging disk may.
"""

import asyncio
import os
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from contextlib import suppress
from enum import Enum
from pathlib import Path
from threading import Event, Lock, Thread
from time import monotonic
from typing import NamedTuple

from dualwrite.broker.process.data_dir import private

PATIENCE_SECONDS = 5.0
"""A probe that gets no answer within this time has failed."""
FRESH_SECONDS = 1.0
"""A look at the disk answers all probes of this time: a flood of probes must not keep the disk busy."""
_PROBE_FILE = ".health-probe"
_PROBE_BYTES = bytes(4096)
"""One block of most file systems: a full disk refuses it."""

Checks = dict[str, str | None]
"""What was looked at, each with its trouble; None if there is none."""


class BrokerStage(Enum):
    """What the broker is doing."""

    RECOVERING = "recovering"
    SERVING = "serving"
    STOPPING = "stopping"


class DiskProbe:
    """Tries whether ``directory`` can be written. Any thread may ask.

    Reads do not tell: a file system that has become read-only answers them.
    """

    def __init__(self, directory: Path) -> None:
        self._path = directory / _PROBE_FILE
        self._lock = Lock()
        self._began = 0.0
        self._trial: Future[str | None] | None = None

    def trouble(self, patience: float = PATIENCE_SECONDS) -> str | None:
        """Why nothing can be written; None if it can.

        :param patience: the longest wait in seconds. A disk that hangs keeps its thread, and no second one is started.
        """
        with self._lock:
            trial = self._trial
            if trial is None or (trial.done() and monotonic() - self._began >= FRESH_SECONDS):
                trial, self._began = Future(), monotonic()
                Thread(target=self._try, args=(trial,), name="disk-probe", daemon=True).start()
                self._trial = trial  # only now: a trial without a thread would never end
        try:
            return trial.result(patience)
        except FutureTimeoutError:
            return f"no answer within {patience:g} s"

    def _try(self, trial: "Future[str | None]") -> None:
        trial.set_result(self._failure())

    def _failure(self) -> str | None:
        try:
            try:
                with open(self._path, "wb", opener=private) as file:
                    file.write(_PROBE_BYTES)
                    file.flush()
                    os.fsync(file.fileno())
            finally:
                self._path.unlink(missing_ok=True)  # a full disk has taken its name
        except OSError as error:
            return error.strerror or str(error)
        return None


class Health:
    """The state of this process, for probes.

    :param disk: looks at the data directory.
    :param loop: the broker's event loop.
    """

    def __init__(self, disk: DiskProbe, loop: asyncio.AbstractEventLoop) -> None:
        self.stage = BrokerStage.RECOVERING
        """Set by the broker."""
        self._disk = disk
        self._loop = loop

    def alive(self) -> Checks:
        """``/healthz``: is a restart needed? A recovery occupies the event loop for as long as it takes, so the loop is
        not looked at meanwhile."""
        return {"event_loop": self._loop_trouble(self._call_loop())}

    def ready(self) -> Checks:
        """``/readyz``: would the broker answer a client now, and take its records? Both looks take PATIENCE_SECONDS
        together at most."""
        recovering = self.stage is BrokerStage.RECOVERING
        call = self._call_loop()
        return {
            "recovery": "in progress" if recovering else None,
            "listeners": None
            if self.stage is BrokerStage.SERVING
            else f"not accepting: the broker is {self.stage.value}",
            "disk": self.disk_trouble(),
            "event_loop": self._loop_trouble(call),
        }

    def disk_trouble(self) -> str | None:
        """Why the data directory cannot be written; None if it can. The call takes PATIENCE_SECONDS at most."""
        return self._disk.trouble(PATIENCE_SECONDS)

    def _call_loop(self) -> "_Call | None":
        """A call that waits for its turn of the event loop; None during the recovery."""
        if self.stage is BrokerStage.RECOVERING:
            return None
        call = _Call(Event(), monotonic() + PATIENCE_SECONDS)
        with suppress(RuntimeError):  # the loop is closed, and has no turn
            self._loop.call_soon_threadsafe(call.answered.set)
        return call

    @staticmethod
    def _loop_trouble(call: "_Call | None") -> str | None:
        if call is None or call.answered.wait(max(0.0, call.ends_at - monotonic())):
            return None
        return f"no turn within {PATIENCE_SECONDS:g} s"


class _Call(NamedTuple):
    answered: Event
    ends_at: float
    """The end of the wait, in monotonic seconds."""
