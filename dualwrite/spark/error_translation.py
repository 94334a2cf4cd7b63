"""Translates errors of Spark's tasks and of the database to this library's exceptions, with a one-line message."""

import re
from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy.exc import DBAPIError

from dualwrite import errors
from dualwrite.coordinator.sql.engine.database_errors import first_line, refuses_row
from dualwrite.errors import (
    ConfigurationError,
    DatabaseUnavailableError,
    DualWriteError,
    InputError,
    KafkaRefusedError,
)

_NO_MODULE = re.compile(r"^ModuleNotFoundError: No module named '(\w+)", re.MULTILINE)
_COLUMN_OF_COPY = re.compile(r'COPY .*, line \d+, column (.+?)(?:: "|: null input|$)', re.MULTILINE)
_UNIQUE_VIOLATION = "23505"
"""PostgreSQL's SQLSTATE. The details of other errors may contain the whole row."""
_LONGEST_KEY = 200
_REFUSED_BY_KAFKA = re.compile(r"(.*): (\w+) \((-?\d+)\)")
_RAISED_IN_A_TASK = re.compile(r"^dualwrite\.errors\.(\w+): (.*)$", re.MULTILINE)


@contextmanager
def database_errors_translated(work: str) -> Iterator[None]:
    """Translate the database's errors in this block to errors with a one-line message. The decision is not made yet.

    :param work: a description of the work, for the message.
    :raises InputError: if the database refuses a row.
    :raises DatabaseUnavailableError: if the connection was lost; the caller may run the work again. Every other error
        passes unchanged.
    """
    try:
        yield
    except DBAPIError as error:
        if refuses_row(error):
            raise refused_row(work, error) from error
        if not error.connection_invalidated:
            raise
        raise DatabaseUnavailableError(
            f"{work}: the database was lost: {first_line(error)}; nothing of it is committed, run it again"
        ) from error


def refused_row(work: str, error: DBAPIError) -> InputError:
    """The error for a row that the database refuses, with the reason in one line.

    :param work: a description of the work, for the message.
    """
    column = _column(error)
    in_column = f" (column {column!r})" if column else ""
    key = _duplicate_key(error)
    duplicate = f" ({key})" if key else ""
    return InputError(f"{work}: the database refuses a row: {first_line(error)}{in_column}{duplicate}")


def _duplicate_key(error: DBAPIError) -> str | None:
    """PostgreSQL's words for the key that is there already, in one line. MariaDB and MySQL name it in their first line;
    SQLite names only its columns."""
    diagnostics = getattr(error.orig, "diag", None)
    if diagnostics is None or getattr(diagnostics, "sqlstate", None) != _UNIQUE_VIOLATION:
        return None
    return " ".join((diagnostics.message_detail or "").split())[:_LONGEST_KEY]


def _column(error: DBAPIError) -> str | None:
    """The column of the value that PostgreSQL refuses, if its error names the column."""
    diagnostics = getattr(error.orig, "diag", None)
    copy_context = _COLUMN_OF_COPY.match(getattr(diagnostics, "context", None) or "")
    return copy_context[1] if copy_context else None


@contextmanager
def as_raised_in_the_task() -> Iterator[None]:
    """Raise again the error that a task raised in this block.

    The error arrives as text, at the end of Python's traceback. For a job over an RDD, PySpark 4.0 passes on Java's
    exception unchanged.

    :raises DualWriteError: the task's error, of the same class.
    :raises ConfigurationError: if the executors lack a Python module. Every other error passes unchanged.
    """
    from py4j.protocol import Py4JJavaError
    from pyspark.errors import PySparkException

    try:
        yield
    except (PySparkException, Py4JJavaError) as error:
        text = str(error)
        raised = max((*_RAISED_IN_A_TASK.finditer(text), *_NO_MODULE.finditer(text)), key=re.Match.start, default=None)
        if raised is None:
            raise
        if raised.re is _NO_MODULE:
            raise ConfigurationError(
                f"the executors' Python has no module {raised[1]}: install the driver's packages there, or set "
                "PYSPARK_PYTHON to an interpreter that has them"
            ) from error
        raise _error_of(*raised.groups()) from error


def _error_of(name: str, message: str) -> DualWriteError:
    """The error of the class called ``name``. A plain DualWriteError, if the class cannot be made from ``message``."""
    error_class = getattr(errors, name, DualWriteError)
    if error_class is KafkaRefusedError:
        parts = _REFUSED_BY_KAFKA.fullmatch(message)
        return KafkaRefusedError(parts[1], int(parts[3]), parts[2]) if parts else DualWriteError(message)
    error: DualWriteError = error_class(message)
    return error
