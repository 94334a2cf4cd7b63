"""One helper that acts in a forked process."""

import os
import signal
from collections.abc import Callable

from tests.support.waiting import PATIENCE_SECONDS


def in_child(action: Callable[[], bool]) -> bool:
    """Run ``action`` in a forked process; True if it returned True. A child that hangs is ended, and gives False."""
    child = os.fork()
    if child == 0:
        signal.alarm(round(PATIENCE_SECONDS))
        status = 1
        try:
            status = 0 if action() else 1
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
