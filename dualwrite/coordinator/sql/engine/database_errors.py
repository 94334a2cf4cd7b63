"""The library's errors for a database that cannot be reached now, or that refuses one of the library's own steps.

A caller of a unit of work must learn whether to run it again. SQLAlchemy's errors do not say so, and asyncio drivers
raise their own, or the operating system's, where no connection could be made.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from sqlalchemy import Connection, Dialect, Engine, Table
from sqlalchemy.exc import DataError, DBAPIError, IntegrityError, InternalError, ProgrammingError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError

from dualwrite.coordinator.concurrency.step_errors import is_step_error, unmasked
from dualwrite.coordinator.sql.dialects.base import IN_USE, ErrorMeaning, sqlstate_of
from dualwrite.coordinator.sql.dialects.supported import database_of
from dualwrite.coordinator.sql.dialects.url_text import url_text
from dualwrite.errors import (
    ConfigurationError,
    DatabaseBusyError,
    DatabaseUnavailableError,
    DualWriteError,
    InvalidTransactionStateError,
)

_MEANINGS: dict[ErrorMeaning | None, str] = {
    ErrorMeaning.BUSY: "another transaction held a lock for too long",
    ErrorMeaning.CONFLICT: "it conflicted with another transaction",
}

_REFUSALS = (DataError, IntegrityError, InternalError, ProgrammingError)
"""SQLAlchemy's errors for bad values, for constraints, and for refusals by triggers, policies, views and rights."""
_REFUSED_ROWS = frozenset({1292, 1364, 1526, 1644, 3140, 3819, 4025})
"""MySQL's and MariaDB's errors of a wrong value (1292, such as a time that a TIMESTAMP cannot hold), of a missing value
(1364), of a value without a partition (1526), of a trigger's SIGNAL (1644), of wrong JSON (3140) and of a CHECK
constraint (3819, 4025), for which PyMySQL and its relatives raise OperationalError."""

_OF_THE_SERVER = frozenset({"25006", "25P03", "25P04", "26000", "42P05"})
"""PostgreSQL's SQLSTATEs of a server that accepts no writes (25006), of a session or a transaction that a timeout has
ended (25P03, 25P04), and of prepared statements that are another client's behind a pooler. SQLAlchemy's classes are
those of refusals."""

LOOK_FOR_ADDITIONS = "look for a constraint, a trigger or a rule that was added to that table of dualwrite's"


def refuses_row(error: DBAPIError) -> bool:
    """True if the database refuses what a statement writes: its values, or because of a constraint, a trigger, a
    policy, a view or a right. False for an error of the server's operation, such as a lock that was not free in
    time, or a connection that it has ended."""
    if error.connection_invalidated or sqlstate_of(error) in _OF_THE_SERVER:
        return False
    arguments: Sequence[Any] = getattr(error.orig, "args", ())
    return isinstance(error, _REFUSALS) or (bool(arguments) and arguments[0] in _REFUSED_ROWS)


def first_line(error: BaseException) -> str:
    """The first line of the driver's message, without SQLAlchemy's statement and link; with what was added to it."""
    added = "; ".join(error.detail) if isinstance(error, DBAPIError) else ""
    line = str(getattr(error, "orig", None) or error).strip().partition("\n")[0] or type(error).__name__
    return f"{line} ({added})" if added else line


def refused_own_row(table: Table, error: Exception) -> ConfigurationError:
    """The error for a row of ``table``, which is one of the library's: the database refuses it as ``error`` says, and
    not because the row is there."""
    return ConfigurationError(f"the database refuses a row of {table.name}: {first_line(error)}: {LOOK_FOR_ADDITIONS}")


def connected(engine: Engine) -> Connection:
    """A connection from the pool of ``engine``.

    :raises DatabaseUnavailableError: if the server cannot be reached now, or the pool has no connection in time.
    :raises ConfigurationError: if a retry cannot help: the host or the database does not exist, or the database refuses
        the user. It has no cause: its message has the driver's reason, and the tracebacks of SQLAlchemy and the driver
        would hide that.
    """
    try:
        return engine.connect()
    except DualWriteError:
        raise
    except PoolTimeoutError as error:
        raise DatabaseUnavailableError(_pool(error)) from error
    except Exception as error:
        if not is_step_error(error):
            raise  # a time limit, or a bug in a listener
        database = database_of(engine.dialect)
        message = f"no connection to {url_text(engine.url)}: {first_line(error)}"
        if is_lost(error) or isinstance(error, OSError) or database.is_away(error):
            raise DatabaseUnavailableError(message) from error
        directory = database.missing_directory(engine.url)
        if directory is not None:
            message += f": there is no directory {directory}"
        raise ConfigurationError(message) from None


def raise_as_library_error(error: BaseException, dialect: Dialect) -> None:
    """Raise the library's error for ``error``, if :func:`as_library_error` knows one; otherwise the caller raises
    ``error`` again."""
    translated = as_library_error(error, dialect)
    if translated is not error:
        try:
            raise translated from error
        finally:
            del translated  # a cycle with this frame would keep all callers alive


@contextmanager
def as_library_errors(dialect: Dialect) -> Iterator[None]:
    """Raise the library's error for a database error that leaves the block, if :func:`as_library_error` knows one."""
    try:
        yield
    except Exception as error:
        raise_as_library_error(error, dialect)
        raise


def as_library_error(error: BaseException, dialect: Dialect) -> BaseException:
    """The library's error for ``error``, which one of the library's own steps in the database has raised; ``error``
    itself if it has no meaning for the library. Nothing was committed.

    A DatabaseUnavailableError if the connection was lost, a DatabaseBusyError for a lock that was not free in time, a
    deadlock or a serialization failure; an InvalidTransactionStateError if another task uses the connection; the
    interrupt, if SQLAlchemy hides one.
    """
    if isinstance(error, PoolTimeoutError):
        return DatabaseUnavailableError(_pool(error))
    if is_lost(error):
        return DatabaseUnavailableError(f"the connection to the database was lost: {first_line(error)}")
    meaning = database_of(dialect).meaning_of(error) if isinstance(error, DBAPIError) else None
    if meaning is ErrorMeaning.IN_USE:
        return InvalidTransactionStateError(IN_USE)
    if meaning in _MEANINGS:
        return DatabaseBusyError(f"the transaction was rolled back, as {_MEANINGS[meaning]}: {first_line(error)}")
    return unmasked(error)


def is_lost(error: BaseException) -> bool:
    """True if SQLAlchemy knows by ``error`` that the connection was lost."""
    return isinstance(error, DBAPIError) and error.connection_invalidated


def _pool(error: PoolTimeoutError) -> str:
    return (
        f"the engine's pool had no connection in time: {first_line(error)}; see whether the database answers, or make "
        "the pool larger (pool_size and max_overflow of create_engine)"
    )
