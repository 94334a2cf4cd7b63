"""One helper that waits until something is so."""

import time
from collections.abc import Callable
from typing import TypeVar

PATIENCE_SECONDS = 120.0
"""How long anything is waited for before a test fails."""


ResultT = TypeVar("ResultT")


def eventually(
    look: Callable[[], ResultT],
    until: Callable[[ResultT], bool] = bool,
    patience: float = PATIENCE_SECONDS,
    pause: float = 0.01,
) -> ResultT:
    """What ``look`` sees once ``until`` is true of it; what it sees in the end if that never happens."""
    deadline = time.monotonic() + patience
    while True:
        seen = look()
        if until(seen) or time.monotonic() > deadline:
            return seen
        time.sleep(pause)
