"""The lock of a data directory."""

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from dualwrite.broker.process.data_dir import (
    PRIVATE_DIRECTORY,
    private,
    refuse_foreign,
    refuse_later_format,
    write_format,
)
from dualwrite.broker.runtime.cluster import JOURNAL_DIRECTORY
from dualwrite.errors import ConfigurationError

_LOCK_NAME = ".lock"
_LOCK_POLL_SECONDS = 0.02


@contextmanager
def exclusive(data_dir: Path, wait_seconds: float, advice: str = "") -> Iterator[None]:
    """Lock the data directory, which is created if it is missing: two processes would destroy it. The lock ends with
    the process.

    :param wait_seconds: how long to wait for another process.
    :param advice: the end of the error message.
    :raises ConfigurationError: if another process has the lock, the directory belongs to another program or a later
        release, or it cannot be locked or written.
    """
    try:
        data_dir.mkdir(PRIVATE_DIRECTORY, parents=True, exist_ok=True)
        refuse_foreign(data_dir, JOURNAL_DIRECTORY)
        refuse_later_format(data_dir)
        lock = os.fdopen(private(str(data_dir / _LOCK_NAME), os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC), "w")
    except OSError as error:
        raise ConfigurationError(f"data directory {data_dir}: {error.strerror}") from None
    deadline = time.monotonic() + wait_seconds
    with lock:
        try:
            while not _locks(lock):
                if time.monotonic() >= deadline:
                    raise ConfigurationError(f"data directory {data_dir} is in use by another broker{advice}")
                time.sleep(_LOCK_POLL_SECONDS)
            refuse_later_format(data_dir)  # the process that had the lock may have been of a later release
            write_format(data_dir)
        except OSError as error:
            raise ConfigurationError(f"data directory {data_dir}: {error.strerror}") from None
        yield


def _locks(file: IO[str]) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
