"""Finishing in the background what could not be finished at once: one thread, one thing to do, patient backoff."""

import logging
import threading
import time
from collections.abc import Callable

from dualwrite.coordinator.participants import LeaseLostError

_LOG = logging.getLogger("dualwrite")
_FIRST_DELAY = 0.05
_LONGEST_DELAY = 5.0


class Background:
    """Runs ``act`` in a daemon thread until it succeeds, raises LeaseLostError, or :meth:`close` is called.

    :param act: returns when the work is done. Never runs twice at the same time in here.
    :param name: of the thread and in the log.
    :param when_idle: called each time that nothing is left to do.
    :param first_delay: seconds before the second attempt; each further delay is twice as long, up to five seconds.
    """

    def __init__(
        self,
        act: Callable[[], object],
        name: str,
        when_idle: Callable[[], None] = lambda: None,
        first_delay: float = _FIRST_DELAY,
    ) -> None:
        self._act = act
        self._when_idle = when_idle
        self._name = name
        self._first_delay = first_delay
        self._lock = threading.Lock()
        self._idle = threading.Event()
        self._idle.set()
        self._hurry = threading.Event()
        self._closed = False
        self._requested = False
        self._thread: threading.Thread | None = None
        self.last_error: Exception | None = None

    @property
    def closed(self) -> bool:
        """True once :meth:`close` was called."""
        return self._closed

    @property
    def running(self) -> bool:
        """True while the work is not done."""
        return not self._idle.is_set()

    def start(self) -> None:
        """Begin, unless closed. A call while the work is under way makes it run once more afterwards."""
        with self._lock:
            if self._closed:
                return
            self._requested = True
            if self._thread is None:
                thread = threading.Thread(target=self._run, name=f"dualwrite-{self._name}", daemon=True)
                thread.start()
                self._thread = thread
                self._idle.clear()

    def hurry(self) -> None:
        """Try at once if it was sleeping."""
        if self.running:
            self._hurry.set()

    def wait(self, timeout: float) -> bool:
        """Hurry, and wait up to ``timeout`` seconds; True if nothing is left to do."""
        self.hurry()
        return self._idle.wait(timeout)

    def close(self, timeout: float) -> bool:
        """Give it up to ``timeout`` seconds, then stop it; True if nothing is left to do. Never raises."""
        deadline = time.monotonic() + timeout
        done = self.wait(timeout)
        with self._lock:
            self._closed = True
            thread = self._thread
        self._hurry.set()
        if thread is not None and thread is not threading.current_thread():
            thread.join(max(0.0, deadline - time.monotonic()))
        return done

    def _run(self) -> None:
        while True:
            with self._lock:
                if self._closed or not self._requested:
                    self._thread = None
                    self._idle.set()
                    break
                self._requested = False
            self._attempt_until_done()
        self._when_idle()

    def _attempt_until_done(self) -> None:
        delay = self._first_delay
        while not self._closed:
            try:
                self._act()
            except LeaseLostError as error:
                self.last_error = error
                _LOG.error("%s: %s", self._name, error)
                return
            except Exception as error:  # noqa: BLE001 - whatever it was, it is logged, kept, and tried again
                self.last_error = error
                _LOG.warning("%s: %s; trying again in %.2f s", self._name, error, delay, exc_info=True)
            else:
                self.last_error = None
                return
            self._hurry.wait(delay)
            self._hurry.clear()
            delay = min(2 * delay, _LONGEST_DELAY)
