"""Whether an error is the fault of a record, so that each attempt to use it fails; or of a server, which may pass.

A record that is put aside for an error that passes has lost its place for nothing, so an error that this module does
not know to be the record's is left to the application.
"""

from sqlalchemy import Dialect
from sqlalchemy.exc import DBAPIError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError

from dualwrite.coordinator.concurrency.step_errors import as_sqlalchemy
from dualwrite.coordinator.sql.dialects.base import sqlstate_of
from dualwrite.coordinator.sql.dialects.supported import database_of
from dualwrite.coordinator.sql.engine.database_errors import refuses_row
from dualwrite.errors import DualWriteError, KafkaRefusedError
from dualwrite.wire.error_codes import ErrorCode

_REFUSED_RECORDS = frozenset(
    {
        ErrorCode.MESSAGE_TOO_LARGE,
        ErrorCode.RECORD_LIST_TOO_LARGE,
        ErrorCode.INVALID_TIMESTAMP,
        ErrorCode.INVALID_RECORD,
    }
)
"""Kafka's errors for a record that the unit of work has produced, and that no broker will ever accept."""

_MAY_PASS = (ConnectionError, TimeoutError, MemoryError, PoolTimeoutError)

_OPERATION = frozenset({"08", "26", "40", "53", "55", "57", "58", "XX"})
"""Classes of PostgreSQL's SQLSTATEs that are about the server's operation: connections, names of prepared statements,
conflicts, resources, locks, an operator's intervention, the system. SQLAlchemy's asyncpg raises no OperationalError for
them."""
_STATEMENTS = frozenset({"0A000", "42P05"})
"""SQLSTATEs of other classes: a prepared statement whose result a migration has changed, or whose name is another
client's behind a pooler."""


def is_of_record(error: Exception, dialect: Dialect, may_pass: tuple[type[Exception], ...] = ()) -> bool:
    """True if ``error``, which ended a unit of work, is the fault of the record.

    False for every error of this library's but a refusal of a record that the unit has produced; for a database error
    that is about the server's operation (PEP 249's OperationalError), a table or a column that is missing, a conflict
    and a lost connection; for a network's error, a timeout and a lack of memory; and for ``may_pass``. An error of the
    application's own is judged by its :func:`reason`.

    :param may_pass: classes of the application's own errors that are not the fault of a record.
    """
    error = reason(error, may_pass)
    if isinstance(error, (*may_pass, *_MAY_PASS)):
        return False
    if isinstance(error, DualWriteError):
        return isinstance(error, KafkaRefusedError) and error.code in _REFUSED_RECORDS
    if isinstance(error, DBAPIError):
        has_meaning = database_of(dialect).meaning_of(error) is not None
        return not (error.connection_invalidated or has_meaning or _is_of_operation(error))
    return True


def reason(error: Exception, may_pass: tuple[type[Exception], ...] = ()) -> Exception:
    """The error from which the application has raised ``error`` (``raise … from``), if that is one of this library's,
    of the database's or its driver's, or one that may pass; ``error`` itself otherwise. The causes of such an error say
    no more: those of an InDoubtError, for example."""
    known, seen = (*may_pass, *_MAY_PASS, DualWriteError, DBAPIError), set[int]()
    cause: BaseException | None = error
    while isinstance(cause, Exception) and id(cause) not in seen:
        found = cause if isinstance(cause, known) else as_sqlalchemy(cause)
        if isinstance(found, known):
            return found
        seen.add(id(cause))
        cause = cause.__cause__
    return error


def _is_of_operation(error: DBAPIError) -> bool:
    sqlstate = sqlstate_of(error)
    if sqlstate is not None and (sqlstate[:2] in _OPERATION or sqlstate in _STATEMENTS):
        return True
    return isinstance(error, OperationalError) and not refuses_row(error)
