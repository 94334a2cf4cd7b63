"""The thread that renews the leases of a DualWrite as long as its process lives."""

import logging
from collections.abc import Callable

from dualwrite.coordinator.concurrency.waiting import Flag, TaskThread
from dualwrite.coordinator.ports.runtime import Runtime

_LOG = logging.getLogger("dualwrite")


class LeaseRenewal:
    """Calls ``beat`` every ``interval`` seconds in a daemon thread, from :meth:`start` to :meth:`stop`.

    :param beat: its errors are logged, and it is called again.
    :param name: name of the thread, also for the log.
    """

    def __init__(self, runtime: Runtime, beat: Callable[[], None], interval: float, name: str) -> None:
        self._beat = beat
        self._interval = interval
        self._name = name
        self._stopped = Flag(runtime)
        self._worker = TaskThread(runtime, self._run, f"dualwrite-{name}-leases")

    @property
    def is_beating(self) -> bool:
        """True once it has begun."""
        return self._worker.is_running

    def start(self) -> bool:
        """Begin, unless it has begun or was stopped; True if it begins now."""
        return not self._stopped.is_set() and self._worker.start()

    def stop(self, timeout: float) -> None:
        """End, and wait up to ``timeout`` seconds for a beat in progress."""
        self._stopped.set()
        self._worker.join(timeout)

    def _run(self) -> None:
        while not self._stopped.wait(self._interval):
            try:
                self._beat()
            except Exception as error:  # noqa: BLE001 - after every error the leases must be renewed
                whose = {"application": self._name}
                _LOG.warning("%s: the leases were not renewed: %s; trying again", self._name, error, extra=whose)
