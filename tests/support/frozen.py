"""Processes that are frozen by SIGSTOP, and thawed."""

import os
import signal
from pathlib import Path

from tests.support.waiting import eventually


def is_frozen(pid: int) -> bool:
    """True if no thread of the process runs."""
    states = [path.read_text().rpartition(")")[2].split()[0] for path in Path(f"/proc/{pid}/task").glob("*/stat")]
    return set(states) == {"T"}


def freeze(pid: int) -> None:
    """Stop every thread of the process, and wait until each has stopped: on a busy machine one may work on after the
    signal was sent."""
    os.kill(pid, signal.SIGSTOP)
    assert eventually(lambda: is_frozen(pid)), f"process {pid} runs on"


def thaw(pid: int) -> None:
    """Let it go on."""
    os.kill(pid, signal.SIGCONT)
