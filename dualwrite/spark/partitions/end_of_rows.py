"""Tells a partition that was read to its end from one that was cut off.

Spark sends the rows to its Python worker over a connection, and then a mark of their end. If it cannot send all of them
(the task is killed, a file of a shuffle is lost, an expression fails at a row), it closes the connection. PySpark takes
both for the end of the rows, and does not end the worker. Without this the worker would commit the first part of the
partition, and the partition would count as written.
"""

import sys
from collections.abc import Iterable, Iterator
from types import FrameType
from typing import Any

from dualwrite.errors import ConfigurationError


def up_to_the_end(rows: Iterable[Any]) -> Iterator[Any]:
    """``rows`` of the task that runs in this process.

    :raises ConnectionError: instead of the end of the rows, if Spark has not sent all of them. It has ended the task,
        and so ignores this error.
    :raises ConfigurationError: if PySpark does not show its connection, so that the two cannot be told apart.
    """
    return _up_to_the_end(rows, _connection())


def _up_to_the_end(rows: Iterable[Any], connection: Any) -> Iterator[Any]:
    yield from rows
    if not connection.peek(1):  # behind the last row there are two marks; PySpark has read only the first one by now
        raise ConnectionError("Spark has ended this task before it has sent all rows of the partition")


def _connection() -> Any:
    """The buffered file from which PySpark's ``main`` reads what Spark sends to this task. The writer may be in another
    thread."""
    for innermost in sys._current_frames().values():
        frame: FrameType | None = innermost
        while frame is not None:
            if frame.f_code.co_name == "main" and "infile" in frame.f_locals:
                return frame.f_locals["infile"]
            frame = frame.f_back
    raise ConfigurationError(
        "this release of PySpark does not show whether a partition was sent to its end, so a part of it could be "
        "written: use write_batch or format('dualwrite')"
    )
