"""The owner of a lease, in a form that another process on the same machine can check.

An owner signs with the identity of its process, unique until the machine reboots: boot, process id namespace, process
id and start time. So after ``kill -9`` the next start need not wait until the lease of the dead process expires. A
wrong answer would be safe: taking a slot over fences its owner, if it is alive, before anything else is done.
"""

import os
import secrets
import socket
from contextlib import suppress
from pathlib import Path

_LONGEST_HOST = 100
PROC = Path("/proc")
_DEAD_STATES = ("Z", "X")
"""A process that has ended and whose parent has not waited for it yet (a zombie)."""


def new_owner() -> str:
    """The signature of one DualWrite in this process: ``host:pid``, then a part that makes it unique."""
    host = socket.gethostname()[:_LONGEST_HOST]
    pid = os.getpid()
    return f"{host}:{pid} {_machine() or '-'} {_start_time(pid) or '-'} {secrets.token_hex(4)}"


def is_gone(owner: str) -> bool:
    """True if ``owner`` was a process of this machine and this process id namespace, and does not run any more.

    False if that cannot be determined: other machines, other containers, systems without /proc.
    """
    words = owner.split(" ")
    if len(words) != 4 or words[1] != _machine() or not words[2].isdigit():
        return False
    pid = int(words[0].rpartition(":")[2])
    try:
        with suppress(PermissionError):  # another user's process, perhaps a later one: its start time tells
            os.kill(pid, 0)
    except ProcessLookupError:
        return True
    started = _start_time(pid)
    return started is not None and started != words[2]


def _machine() -> str | None:
    """This boot of this machine, and the namespace that process ids are of; None where there is no /proc."""
    try:
        boot = (PROC / "sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}/{os.stat(PROC / 'self/ns/pid').st_ino}"
    except OSError:
        return None


def _start_time(pid: int) -> str | None:
    """The start time of process ``pid``, in clock ticks since the boot; "ended" if it is dead; None if not known."""
    try:
        status = (PROC / str(pid) / "stat").read_text()
    except OSError:
        return None
    # The name in parentheses may contain anything; the fields after it are counted by proc(5) from 3 on.
    fields = status.rpartition(")")[2].split()
    return "ended" if fields[0] in _DEAD_STATES else fields[19]
