"""The thread that keeps the leases of a DualWrite alive, as long as its process is."""

import logging
import threading
from collections.abc import Callable

_LOG = logging.getLogger("dualwrite")


class Heartbeat:
    """Calls ``beat`` every ``interval`` seconds in a daemon thread, from :meth:`start` to :meth:`stop`.

    :param beat: what it raises is logged, and it is called again.
    :param name: of the thread and in the log.
    """

    def __init__(self, beat: Callable[[], None], interval: float, name: str) -> None:
        self._beat = beat
        self._interval = interval
        self._name = name
        self._stopped = threading.Event()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def start(self) -> bool:
        """Begin, unless it has begun or was stopped; True if it begins now."""
        with self._lock:
            if self._thread is not None or self._stopped.is_set():
                return False
            thread = threading.Thread(target=self._run, name=f"dualwrite-{self._name}-leases", daemon=True)
            thread.start()
            self._thread = thread  # after that: an interrupt must not leave it thought begun
            return True

    def stop(self, timeout: float) -> None:
        """End, and wait up to ``timeout`` seconds for a beat that is under way."""
        self._stopped.set()
        with self._lock:
            thread = self._thread
        if thread is not None:
            thread.join(timeout)

    def _run(self) -> None:
        while not self._stopped.wait(self._interval):
            try:
                self._beat()
            except Exception as error:  # noqa: BLE001 - whatever it was, the leases must be renewed
                whose = {"application": self._name}
                _LOG.warning("%s: the leases were not renewed: %s; trying again", self._name, error, extra=whose)
