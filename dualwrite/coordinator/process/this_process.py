"""The Runtime that this process is: the system's clocks, threads and locks.

The locks are ``threading``'s own, in C, and most methods are C functions: nothing stands between the recipe and them.
"""

import os
import random
import threading
import time

from dualwrite.client.threads import start_thread
from dualwrite.coordinator.ports.runtime import Runtime
from dualwrite.coordinator.process.owner import is_gone, new_owner
from dualwrite.coordinator.process.signal_handlers import is_from_signal_handler


class ThisProcess:
    """See Runtime."""

    monotonic = staticmethod(time.monotonic)
    sleep = staticmethod(time.sleep)
    lock = staticmethod(threading.Lock)
    reentrant_lock = staticmethod(threading.RLock)
    start_thread = staticmethod(start_thread)
    current_thread = staticmethod(threading.current_thread)
    new_owner = staticmethod(new_owner)
    is_gone = staticmethod(is_gone)
    is_interrupt = staticmethod(is_from_signal_handler)
    chance = staticmethod(random.random)

    @staticmethod
    def process_id() -> int:
        """The number of the process; see Runtime."""
        return os.getpid()

    @staticmethod
    def wall_ms() -> int:
        """Milliseconds since the epoch, as Kafka stamps records; see Clock."""
        return time.time_ns() // 1_000_000


THIS_PROCESS: Runtime = ThisProcess()
"""Also in every process that is forked from this one."""
