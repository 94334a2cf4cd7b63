"""The beginning and the end of a transaction whose statements are the user's."""

from sqlalchemy import Connection

from dualwrite.coordinator.rules.lease import Lease
from dualwrite.coordinator.sql.dialects.supported import database_of
from dualwrite.coordinator.sql.dialects.unit_transactions import Fate
from dualwrite.coordinator.sql.engine.error_meanings import clear_errors
from dualwrite.coordinator.sql.fencing import require_lease
from dualwrite.coordinator.sql.row_lock import lock_row


def make_durable(connection: Connection) -> None:
    """Let a crash of the machine undo no COMMIT on ``connection``, where no transaction has begun; see
    Database.make_durable."""
    with clear_errors(connection.engine):
        database_of(connection.dialect).make_durable(connection)


def begin_writing(connection: Connection) -> None:
    """Make sure that ``connection``, whose SQLAlchemy transaction has begun, is in a real transaction of the database.

    :raises ConfigurationError: if the driver is in autocommit mode.
    :raises DatabaseBusyError: if SQLite's write lock was not free within the engine's ``timeout``.
    """
    with clear_errors(connection.engine):
        database_of(connection.dialect).begin(connection)


def begin_unit(connection: Connection, lease: Lease | None, *, checked: bool = False) -> None:
    """Like :func:`begin_writing`, for a transaction whose statements are the user's; :func:`require_unit` ends it.

    If the transaction is going to read a snapshot, this locks the state row first: otherwise a long unit of work could
    not write the row after a renewal of the lease.

    :param lease: None for a transaction that is not going to write the row.
    :param checked: read the fencing token, for a participant whose successor does not fence it in Kafka: it must not
        begin a transaction once another process has taken over (unprepared_predecessor.py).
    :raises LeaseLostError: if another process has taken over, if the row is locked here, or ``checked``.
    """
    begin_writing(connection)
    database = database_of(connection.dialect)
    database.begin_unit(connection)
    if lease is None:
        return
    if database.reads_a_snapshot(connection):
        with clear_errors(connection.engine):
            database.find_by_key(connection, on=True)
            lock_row(connection, lease)
            database.find_by_key(connection, on=False)
    elif checked:
        with clear_errors(connection.engine):
            require_lease(connection, lease)


def require_unit(connection: Connection, mark: str, *, storing: bool) -> None:
    """Require that a COMMIT would commit the transaction of :func:`begin_unit`; see Database.require_unit."""
    database_of(connection.dialect).require_unit(connection, mark, storing=storing)


def fate_of_unit(connection: Connection, mark: str) -> Fate:
    """How the transaction of :func:`begin_unit` ended; see Database.fate."""
    return database_of(connection.dialect).fate(connection, mark)
