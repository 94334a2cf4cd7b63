"""Translates errors of a task, or of the database, for the user."""

import re
from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy.exc import DataError, DBAPIError, IntegrityError, InternalError, ProgrammingError

from dualwrite import errors
from dualwrite.errors import (
    ConfigurationError,
    DatabaseUnavailableError,
    DualWriteError,
    InputError,
    KafkaRefusedError,
)

_NO_MODULE = re.compile(r"^ModuleNotFoundError: No module named '(\w+)", re.MULTILINE)
_IN_A_COPY = re.compile(r'COPY .*, line \d+, column (.+?)(?:: "|: null input|$)', re.MULTILINE)
REFUSALS = (DataError, IntegrityError, InternalError, ProgrammingError)
"""SQLAlchemy's errors for bad values, for constraints, and for refusals by triggers, policies, views and rights."""
_REFUSED_BY_KAFKA = re.compile(r"(.*): (\w+) \((-?\d+)\)")
_IN_A_TASK = re.compile(r"^dualwrite\.errors\.(\w+): (.*)$", re.MULTILINE)


@contextmanager
def told(what: str) -> Iterator[None]:
    """Translate errors of the database in ``what``, which is not decided yet, to errors with a one-line message.

    :raises InputError: if the database refuses a row.
    :raises DatabaseUnavailableError: if the connection was lost. Every other error passes unchanged.
    """
    try:
        yield
    except REFUSALS as error:
        raise refused(what, error) from error
    except DBAPIError as error:
        if not error.connection_invalidated:
            raise
        raise DatabaseUnavailableError(
            f"{what}: the database was lost: {first_line(error)}; nothing of it is committed, run it again"
        ) from error


def refused(what: str, error: DBAPIError) -> InputError:
    """The error for a row of ``what`` that the database refuses, with the reason in one line."""
    column = _column(error)
    in_column = f" (column {column!r})" if column else ""
    return InputError(f"{what}: the database refuses a row: {first_line(error)}{in_column}")


def _column(error: DBAPIError) -> str | None:
    """The column of the value that PostgreSQL refuses, if it tells."""
    diagnostics = getattr(error.orig, "diag", None)
    context = _IN_A_COPY.match(getattr(diagnostics, "context", None) or "")
    return context[1] if context else None


def first_line(error: DBAPIError) -> str:
    """The first line of the driver's message, without SQLAlchemy's statement and link."""
    return str(error.orig).strip().partition("\n")[0]


@contextmanager
def as_raised_in_the_task() -> Iterator[None]:
    """Raise the error that a task raised. It arrives as text, at the end of Python's traceback. For a job over an RDD,
    PySpark 4.0 passes on Java's exception unchanged."""
    from py4j.protocol import Py4JJavaError
    from pyspark.errors import PySparkException

    try:
        yield
    except (PySparkException, Py4JJavaError) as error:
        text = str(error)
        raised = max((*_IN_A_TASK.finditer(text), *_NO_MODULE.finditer(text)), key=re.Match.start, default=None)
        if raised is None:
            raise
        if raised.re is _NO_MODULE:
            raise ConfigurationError(
                f"the executors' Python has no module {raised[1]}: install there what the driver has, "
                "or let PYSPARK_PYTHON name an interpreter that has it"
            ) from error
        raise _remade(*raised.groups()) from error


def _remade(name: str, message: str) -> DualWriteError:
    """The error of that class name and text; DualWriteError, if the class cannot be made from the text."""
    kind = getattr(errors, name, DualWriteError)
    if kind is KafkaRefusedError:
        said = _REFUSED_BY_KAFKA.fullmatch(message)
        return KafkaRefusedError(said[1], int(said[3]), said[2]) if said else DualWriteError(message)
    made: DualWriteError = kind(message)
    return made
