"""The thread of the log cleaner, which leaves time to the event loop."""

import asyncio
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from dualwrite.broker.log.cleaner import Cleaned

_WORK_SECONDS, _REST_SECONDS = 0.002, 0.002
_SWITCH_SECONDS = 0.0005


class CleaningThread:
    """The thread of a Compaction; see CleanerThread."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="cleaner")
        self._pace = Pace()

    async def run(self, clean: Callable[[Callable[[], None]], Cleaned]) -> Cleaned:
        """The result of ``clean``; see CleanerThread.

        :raises InterruptedError: if the broker stops meanwhile.
        """
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._clean_at_ease, clean)

    def close(self) -> None:
        """Stop a cleaning in progress, and the thread."""
        self._pace.stop()
        self._thread.shutdown()

    def _clean_at_ease(self, clean: Callable[[Callable[[], None]], Cleaned]) -> Cleaned:
        """Clean with a shorter switch interval, so that the event loop gets its turns sooner."""
        usual = sys.getswitchinterval()
        sys.setswitchinterval(_SWITCH_SECONDS)
        try:
            return clean(self._pace)
        finally:
            sys.setswitchinterval(usual)


class Pace:
    """Called between batches. After some work it sleeps for the same time, so that the broker answers requests."""

    def __init__(self) -> None:
        self._stopped = False
        self._rested = time.monotonic()

    def __call__(self) -> None:
        """Sleep if enough work was done.

        :raises InterruptedError: if the broker stops.
        """
        if self._stopped:
            raise InterruptedError("the broker stops")
        if time.monotonic() - self._rested > _WORK_SECONDS:
            time.sleep(_REST_SECONDS)
            self._rested = time.monotonic()

    def stop(self) -> None:
        """End the work at the next call."""
        self._stopped = True
