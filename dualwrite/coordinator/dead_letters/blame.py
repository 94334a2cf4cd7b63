"""Whether an error is the fault of a record, so that each attempt to use it fails; or of a server, which may pass.

A record that is put aside for an error that passes has lost its place for nothing, so an error that this module does
not know to be the record's is left to the application.
"""

from sqlalchemy import Dialect
from sqlalchemy.exc import DBAPIError, InterfaceError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError

from dualwrite.coordinator.sql.engine.error_meanings import is_transient
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

_REFUSED_ROWS = frozenset({1644, 3819, 4025})
"""MySQL's and MariaDB's errors of a trigger's SIGNAL and of a CHECK constraint, for which PyMySQL and its relatives
raise OperationalError."""


def is_of_record(error: Exception, dialect: Dialect, may_pass: tuple[type[Exception], ...] = ()) -> bool:
    """True if ``error``, which ended a unit of work, is the fault of the record.

    False for every error of this library's but a refusal of a record that the unit has produced; for an error of the
    database's operation (PEP 249: OperationalError, InterfaceError), a conflict and a lost connection; for a network's
    error, a timeout and a lack of memory; and for ``may_pass``.

    :param may_pass: classes of the application's own errors that are not the fault of a record.
    """
    if isinstance(error, (*may_pass, *_MAY_PASS)):
        return False
    if isinstance(error, DualWriteError):
        return isinstance(error, KafkaRefusedError) and error.code in _REFUSED_RECORDS
    if isinstance(error, DBAPIError):
        return not (error.connection_invalidated or is_transient(error, dialect) or _is_of_operation(error))
    return True


def _is_of_operation(error: DBAPIError) -> bool:
    if not isinstance(error, OperationalError | InterfaceError):
        return False
    arguments = getattr(error.orig, "args", ())
    return not (arguments and arguments[0] in _REFUSED_ROWS)
