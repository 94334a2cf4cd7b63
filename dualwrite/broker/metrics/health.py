"""Whether the broker is healthy, and whether it is ready: for the probes of a supervisor and of a load balancer.

The probes run in threads of the HTTP server, because a recovery occupies the event loop, and a hanging disk may.
"""

import asyncio
import os
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from enum import Enum
from pathlib import Path
from threading import Event, Lock, Thread
from time import monotonic

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
    """Tries whether ``directory`` can be written. Any thread may ask."""

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
                trial = self._trial = Future()
                self._began = monotonic()
                Thread(target=self._try, args=(trial,), name="disk-probe", daemon=True).start()
        try:
            return trial.result(patience)
        except FutureTimeoutError:
            return f"no answer within {patience:g} s"

    def _try(self, trial: "Future[str | None]") -> None:
        try:
            with open(self._path, "wb", opener=private) as file:
                file.write(_PROBE_BYTES)
                file.flush()
                os.fsync(file.fileno())
            self._path.unlink()
        except OSError as error:
            trial.set_result(error.strerror or str(error))
        else:
            trial.set_result(None)


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
        return {"event_loop": self._loop_trouble(), "disk": self._disk.trouble()}

    def ready(self) -> Checks:
        """``/readyz``: would the broker answer a client now?"""
        recovering = self.stage is BrokerStage.RECOVERING
        return {
            "recovery": "in progress" if recovering else None,
            "listeners": None
            if self.stage is BrokerStage.SERVING
            else f"not accepting: the broker is {self.stage.value}",
            "event_loop": self._loop_trouble(),
        }

    def _loop_trouble(self) -> str | None:
        if self.stage is BrokerStage.RECOVERING:
            return None
        turned = Event()
        self._loop.call_soon_threadsafe(turned.set)
        return None if turned.wait(PATIENCE_SECONDS) else f"no turn within {PATIENCE_SECONDS:g} s"
