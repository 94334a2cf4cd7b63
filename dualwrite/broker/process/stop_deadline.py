"""Ends a stop that takes too long, for example because the disk hangs. The next start then recovers from the disk."""

import asyncio
import logging
import os
import signal
import threading
import time

from dualwrite.broker.process.ending import STOP_EXIT_CODE

logger = logging.getLogger(__name__)

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)
_REPEATED_SECONDS = 1.0
"""A signal this soon after the first is the same one: some supervisors send it to a process and to its group."""


class StopDeadline:
    """The time that the whole stop may take: requests in progress, compaction, and the last writes.

    :param seconds: ``--stop-timeout``.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._ends_at = 0.0
        self._timer = threading.Timer(seconds, self._give_up)
        self._timer.daemon = True

    def begin(self) -> None:
        """Begin to count. A thread watches, because a hanging disk may block the event loop. Another signal now ends
        the process at once."""
        self._ends_at = time.monotonic() + self._seconds
        self._timer.start()
        asyncio.get_running_loop().call_later(_REPEATED_SECONDS, _let_signals_kill)

    @property
    def seconds_left(self) -> float:
        """The seconds until the process ends, once the stop has begun."""
        return max(0.0, self._ends_at - time.monotonic())

    def end(self) -> None:
        """The stop is complete."""
        self._timer.cancel()

    def _give_up(self) -> None:
        logger.critical(
            "the broker did not stop within %g s (--stop-timeout) and ends now; start it again: it recovers from the "
            "disk", self._seconds,
        )  # fmt: skip
        logging.shutdown()
        os._exit(STOP_EXIT_CODE)


def _let_signals_kill() -> None:
    for number in STOP_SIGNALS:
        asyncio.get_running_loop().remove_signal_handler(number)
        signal.signal(number, signal.SIG_DFL)
