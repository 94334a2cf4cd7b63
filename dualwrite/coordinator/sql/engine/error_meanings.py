"""The meaning of a database's errors: which are likely to pass, and which have an error of this library."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from sqlalchemy import Dialect, Engine
from sqlalchemy.exc import DBAPIError

from dualwrite.coordinator.concurrency.step_errors import database_error_of
from dualwrite.coordinator.sql.dialects.base import FAILED, ErrorMeaning
from dualwrite.coordinator.sql.dialects.supported import database_of
from dualwrite.coordinator.sql.engine.database_errors import first_line
from dualwrite.coordinator.sql.engine.shown_url import command_on
from dualwrite.coordinator.sql.tables import kafka_transaction_state as table
from dualwrite.errors import (
    DatabaseBusyError,
    DatabaseNotReadyError,
    DatabaseUnavailableError,
    DualWriteError,
    InvalidTransactionStateError,
)

_PASSING = (ErrorMeaning.BUSY, ErrorMeaning.CONFLICT)


def is_transient(error: Exception, dialect: Dialect) -> bool:
    """True if a unit of work that ended with ``error`` was rolled back on both sides and may succeed if run again.

    These are the library's errors that are ``retriable``, and the database's errors for a deadlock, a serialization
    failure or a lock that was not free in time; also as the driver's own cursor raises them, and errors that were
    raised from them. A lost connection is not among them: if it was lost in the COMMIT of a unit without records, the
    outcome is unknown.
    """
    if isinstance(error, DualWriteError):
        return error.retriable
    raised = database_error_of(error)
    if raised is None or raised.connection_invalidated:
        return False
    return database_of(dialect).meaning_of(raised) in _PASSING


def is_read_only(error: BaseException | None, dialect: Dialect) -> bool:
    """True if the server of the connection accepts no writes, as ``error`` says: one of the database's, or what
    :func:`clear_errors` has made of it."""
    cause = error.__cause__ if isinstance(error, DatabaseUnavailableError) else error
    return isinstance(cause, DBAPIError) and database_of(dialect).meaning_of(cause) is ErrorMeaning.READ_ONLY


def transient_errors_of(dialect: Dialect) -> Callable[[Exception], bool]:
    """:func:`is_transient` for the errors of one database."""
    return lambda error: is_transient(error, dialect)


@contextmanager
def clear_errors(engine: Engine) -> Iterator[None]:
    """Translate database errors that have a meaning for the library.

    :raises DatabaseNotReadyError: if a table is missing, or older than this release needs.
    :raises DatabaseBusyError: if another transaction holds a lock for too long, or the server has ended a statement
        that took too long; the caller may retry.
    :raises DatabaseUnavailableError: if the server accepts no writes: after a failover another one may.
    :raises InvalidTransactionStateError: if an earlier statement's failure has ended the transaction. Every other error
        passes as SQLAlchemy's.
    """
    try:
        yield
    except Exception as error:
        _raise_clear(engine, database_error_of(error))
        raise


def _raise_clear(engine: Engine, error: DBAPIError | None) -> None:
    if error is None:
        return
    database = database_of(engine.dialect)
    meaning = database.meaning_of(error)
    if meaning is ErrorMeaning.NOT_READY:
        raise DatabaseNotReadyError(
            "a table of dualwrite's is missing, or older than this release needs; run: "
            + command_on(engine, "db upgrade")
        ) from error
    if meaning is ErrorMeaning.BUSY:
        raise DatabaseBusyError(
            f"the database is locked: another transaction holds {table.name!r} or its database for too long; try "
            f"again, and if the error persists, {database.lock_advice}"
        ) from error
    if meaning is ErrorMeaning.TOO_LONG:
        raise DatabaseBusyError(
            f"the database has ended a statement on {table.name!r} ({first_line(error)}), most likely because "
            "another transaction holds that for longer than the session's time limit of a statement; try again, "
            f"and if the error persists, {database.lock_advice}"
        ) from error
    if meaning is ErrorMeaning.READ_ONLY:
        raise DatabaseUnavailableError(
            f"the database server accepts no writes ({str(error.orig).strip()}): let the URL lead to the one that "
            "does (PostgreSQL: target_session_attrs=read-write), unless a setting of the session, the engine or "
            "the block makes the transaction read-only"
        ) from error
    if meaning is ErrorMeaning.FAILED:
        raise InvalidTransactionStateError(FAILED) from error
