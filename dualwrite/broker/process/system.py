"""The clocks, the randomness and the threads of this machine."""

import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import contextmanager

from dualwrite.broker.runtime.flusher import SYNC_THREADS
from dualwrite.broker.runtime.limited_log import LimitedLog

SLOW_ROUND_SECONDS = 3.0
"""A round of fsyncs that took longer is in the log: clients of transactions wait for two rounds or more."""


class SystemClock:
    """The system's clocks, as :class:`~dualwrite.ports.Clock`."""

    def wall_ms(self) -> int:
        """Milliseconds since the epoch."""
        return time.time_ns() // 1_000_000

    def monotonic(self) -> float:
        """Seconds on a clock that never goes back."""
        return time.monotonic()


class SystemEntropy:
    """The system's randomness, as :class:`~dualwrite.ports.Entropy`."""

    def random_bytes(self, count: int) -> bytes:
        """``count`` random bytes."""
        return os.urandom(count)


def sync_threads() -> Executor:
    """The threads in which the Flusher syncs files."""
    return ThreadPoolExecutor(SYNC_THREADS, thread_name_prefix="fsync")


@contextmanager
def timed(observe: Callable[[float], None]) -> Iterator[None]:
    """Call ``observe`` with the seconds that the block took, unless it raises."""
    began = time.perf_counter()  # uvloop's own time is in milliseconds
    yield
    observe(time.perf_counter() - began)


def telling_slow_rounds(observe: Callable[[float], None], log: LimitedLog) -> Callable[[float], None]:
    """``observe`` for the seconds of a round of fsyncs, which also warns of a slow one."""

    def observe_and_warn(seconds: float) -> None:
        observe(seconds)
        if seconds > SLOW_ROUND_SECONDS:
            log.warn(f"a round of fsyncs took {seconds:.1f} s: check the disk, and what else uses it")

    return observe_and_warn
