"""Completes work in the background that could not be completed at once: one thread, one task, with backoff."""

import logging
from collections.abc import Callable

from dualwrite.coordinator.concurrency.waiting import Flag, TaskThread
from dualwrite.coordinator.ports.runtime import Runtime
from dualwrite.coordinator.rules.lease import LeaseLostError
from dualwrite.errors import DualWriteError

_LOG = logging.getLogger("dualwrite")
_FIRST_DELAY = 0.05
LONGEST_DELAY = 5.0
"""The most seconds between two attempts."""


class Background:
    """Runs ``act`` in a daemon thread until it succeeds, raises a lasting error, or :meth:`close` is called. Logs an
    error if the attempt before raised another one.

    :param act: returns when the work is done. This class never runs it twice at the same time.
    :param name: name of the thread, also for the log.
    :param when_idle: called each time that no work is left.
    :param first_delay: seconds before the second attempt; each further delay is twice as long, up to five seconds.
    :param lasting: classes of errors that do not pass.
    """

    def __init__(
        self,
        runtime: Runtime,
        act: Callable[[], object],
        name: str,
        when_idle: Callable[[], None] = lambda: None,
        first_delay: float = _FIRST_DELAY,
        lasting: tuple[type[Exception], ...] = (LeaseLostError,),
    ) -> None:
        self._act = act
        self._name = name
        self._first_delay = first_delay
        self._lasting = lasting
        self._runtime = runtime
        self._hurry = Flag(runtime)
        self._closed = False
        self._requested = False
        self._worker = TaskThread(runtime, self._attempt_until_done, f"dualwrite-{name}", self._has_more, when_idle)
        self.last_error: Exception | None = None

    @property
    def closed(self) -> bool:
        """True once :meth:`close` was called."""
        return self._closed

    @property
    def is_running(self) -> bool:
        """True while the work is not done."""
        return self._has_more() or self._worker.is_running

    def start(self) -> None:
        """Begin, unless closed. A call while the work is in progress makes it run once more afterwards.

        If this raises (an interrupt, or the process cannot start a thread), the work is still to be done: call again.
        """
        if not self._closed:
            self._requested = True
            self._worker.start()

    def start_or_leave(self) -> None:
        """As :meth:`start`. But if the process can start no thread, leave that to the next :meth:`resume`."""
        if not self._closed:
            self._requested = True
            self.resume()

    def resume(self) -> None:
        """Begin if the work was requested and no thread does it: its start was interrupted, or refused. If the process
        can start no thread now either, that is logged, and the work is still to be done: call again."""
        if not self._has_more():
            return
        try:
            self._worker.start(if_more=True)
        except RuntimeError as error:
            if self._runtime.is_interrupt(error):
                raise
            _LOG.warning("%s: the work in the background could not begin: %s; it begins later", self._name, error)

    def hurry(self) -> None:
        """Try at once if it was sleeping, and begin as :meth:`resume` does."""
        if self.is_running:
            self.resume()
            self._hurry.set()

    def wait(self, timeout: float) -> bool:
        """Hurry, and wait up to ``timeout`` seconds; True if no work is left."""
        self.hurry()
        return self._worker.join(timeout) and not self._has_more()

    def close(self, timeout: float) -> bool:
        """Wait up to ``timeout`` seconds for the work, then stop it; True if no work is left."""
        done = self.wait(timeout)
        self._closed = True
        self._hurry.set()
        return done

    def _has_more(self) -> bool:
        return self._requested and not self._closed

    def _attempt_until_done(self) -> None:
        self._requested = False
        delay = self._first_delay
        while not self._closed:
            try:
                self._act()
            except self._lasting as error:
                self.last_error = error
                _LOG.error("%s: %s", self._name, error)
                return
            except Exception as error:  # noqa: BLE001 - every error is logged, kept, and tried again
                self._log(error, self.last_error)
                self.last_error = error
            else:
                if self.last_error is not None:
                    _LOG.info("%s: done, after errors", self._name)
                self.last_error = None
                return
            self._hurry.wait(delay)
            self._hurry.clear()
            delay = min(2 * delay, LONGEST_DELAY)

    def _log(self, error: Exception, before: Exception | None) -> None:
        """Log ``error``, which will be tried again unless this is closed, if the attempt before raised another."""
        if repr(error) == repr(before):
            return
        is_known = isinstance(error, DualWriteError)
        follows = f"trying again until it succeeds, at intervals of up to {LONGEST_DELAY:g} s"
        if self._closed:
            follows = "not tried again, as it is closed"
        level = logging.INFO if self._closed and is_known else logging.WARNING
        _LOG.log(level, "%s: %s; %s", self._name, error, follows, exc_info=None if is_known else error)
