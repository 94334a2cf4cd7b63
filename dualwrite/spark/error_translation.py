"""Translates errors of Spark's tasks and of the database to this library's exceptions, with a one-line message."""

import importlib
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from operator import itemgetter

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
_RAISED_IN_A_TASK = re.compile(r"^(dualwrite(?:\.[a-z]\w*)+)\.(\w+): (.*)$", re.MULTILINE)


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

    :raises DualWriteError: the task's error, of the same class, or of the nearest base that a message alone makes.
    :raises ConfigurationError: if the executors lack a Python module. Every other error passes unchanged.
    """
    from py4j.protocol import Py4JJavaError
    from pyspark.errors import PySparkException

    try:
        yield
    except (PySparkException, Py4JJavaError) as error:
        text = str(error)
        found: list[tuple[int, DualWriteError]] = []
        for raised in _RAISED_IN_A_TASK.finditer(text):
            translated = _error_of(*raised.groups())
            if translated is not None:
                found.append((raised.start(), translated))
        found += [(missing.start(), _lacks_module(missing[1])) for missing in _NO_MODULE.finditer(text)]
        if not found:
            raise
        raise max(found, key=itemgetter(0))[1] from error


def _lacks_module(name: str) -> ConfigurationError:
    return ConfigurationError(
        f"the executors' Python has no module {name}: install the driver's packages there, or set PYSPARK_PYTHON to an "
        "interpreter that has them"
    )


def _error_of(module: str, name: str, message: str) -> DualWriteError | None:
    """The error of the class called ``name`` in ``module``, made of ``message``; None if that is none of the library's
    errors. A plain DualWriteError for a public error of another release."""
    error_class = _class_of(module, name)
    if error_class is None:
        return DualWriteError(message) if module == errors.__name__ else None
    if error_class is KafkaRefusedError and (parts := _REFUSED_BY_KAFKA.fullmatch(message)):
        return KafkaRefusedError(parts[1], int(parts[3]), parts[2])
    error: DualWriteError = next(filter(_takes_a_message, error_class.__mro__))(message)
    return error


def _takes_a_message(error_class: type) -> bool:
    """True if neither the class nor one of its bases in the library has a constructor of its own."""
    return not any("__init__" in vars(base) for base in error_class.__mro__ if issubclass(base, DualWriteError))


def _class_of(module: str, name: str) -> type[DualWriteError] | None:
    with suppress(ImportError):
        found = getattr(importlib.import_module(module), name, None)
        if isinstance(found, type) and issubclass(found, DualWriteError):
            return found
    return None
