"""Keeps a short task from waiting for a delayed acknowledgement of TCP.

Spark sends a task to its Python worker over a TCP connection of the same machine: first what is to be done, then the
rows. If both are small, the rows wait until the worker's kernel has acknowledged the first part (Nagle's algorithm),
and Linux delays that by 40 ms, because the worker sends nothing in return. That is longer than the rest of a task with
few rows. An object that is sent to a task arrives between the two parts, and so can hurry the acknowledgement.
"""

import os
import socket
import stat
from contextlib import suppress
from pathlib import Path
from typing import Any

_OPEN_FILES = Path("/proc/self/fd")


class SentToTask:
    """An object that is sent to a task, as a part of what is to be done. Not for classes with slots."""

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        acknowledge_at_once()


def acknowledge_at_once() -> None:
    """Let the kernel acknowledge now what this process's TCP connections have received. Does nothing on another system
    than Linux, or outside of a Python worker of Spark."""
    option = getattr(socket, "TCP_QUICKACK", None)
    if option is None or "PYTHON_WORKER_FACTORY_SECRET" not in os.environ:
        return
    with suppress(OSError):  # the only loss is time
        for entry in list(_OPEN_FILES.iterdir()):
            with suppress(OSError):  # the descriptor of the directory itself is closed by now
                acknowledge(int(entry.name), option)


def acknowledge(descriptor: int, option: int) -> None:
    """Let the kernel acknowledge at once what has arrived at the TCP socket ``descriptor``; others are left alone."""
    if not stat.S_ISSOCK(os.fstat(descriptor).st_mode):
        return
    connection = socket.socket(fileno=descriptor)
    try:
        if connection.family in (socket.AF_INET, socket.AF_INET6) and connection.type == socket.SOCK_STREAM:
            connection.setsockopt(socket.IPPROTO_TCP, option, 1)
    finally:
        connection.detach()  # it belongs to another object
