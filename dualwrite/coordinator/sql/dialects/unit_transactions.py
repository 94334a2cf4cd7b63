"""The database transaction of a unit of work: whether it is still the one that the unit began, and how it ended.

SQLAlchemy does not notice when a driver's own commit(), COMMIT as text or a statement that commits by itself ends a
transaction. Each database's module detects it in its own way: by a savepoint, or by a setting that ends with the
transaction.
"""

import logging
from collections.abc import Sequence
from enum import Enum
from typing import Any

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from dualwrite.coordinator.concurrency.step_errors import is_step_error
from dualwrite.coordinator.process.greenlets import wait_for
from dualwrite.errors import InvalidTransactionStateError

_LOG = logging.getLogger("dualwrite")


class Fate(Enum):
    """How the transaction that a unit of work began has ended."""

    OPEN = "it is still open"
    ROLLED_BACK = "an error ended it, and the database rolled it back"
    COMMITTED = "it was committed, not by the library"
    UNKNOWN = "it was ended, not by the library; rows that were written before or after that may be committed"


_WAITS = (
    "Look for its rows. The outcome is not on record in the database yet: this process keeps it, and tries again to "
    "record it at its heartbeats and in close(). The log has the outcome"
)
_LOOK = "Look for its rows: `dualwrite transactions list` and dw.outcomes() show this unit if it may have left any"


class TransactionEndedError(InvalidTransactionStateError):
    """The unit's database transaction ended inside its block without the library: by DDL, by COMMIT on the driver's own
    cursor, by a deadlock whose error was caught. The unit was aborted in Kafka. Check whether it is on record
    (``dw.outcomes()``, ``dualwrite transactions list``): then its rows may be there without records. Correct the block.

    ``fate`` says how the transaction ended, as far as the database shows it.
    """

    def __init__(self, message: str, fate: Fate) -> None:
        super().__init__(message)
        self.fate = fate
        self.record_waits = False
        """True if the unit is to be on record, and the database has refused that."""

    def __str__(self) -> str:
        message = super().__str__()
        if self.fate is Fate.ROLLED_BACK:
            return message
        return f"{message}. {_WAITS if self.record_waits else _LOOK}"


def unit_mark(connection: Connection) -> str | None:
    """The name of the unit of work whose transaction is open on ``connection``, unlike that of any other; None for a
    transaction of another kind."""
    mark: str | None = getattr(connection.get_transaction(), "mark", None)
    return mark


def run_unseen(connection: Connection, statement: str, *, fetch: bool = False) -> Any:
    """Run ``statement`` past SQLAlchemy, which makes a result of it, and refuses it where it believes that there is no
    transaction.

    :param fetch: return the first column of the first row.
    :raises DBAPIError: as ``connection.exec_driver_sql`` does; a connection that was lost is invalidated.
    """
    dialect = connection.dialect
    cursor = connection.connection.cursor()
    try:
        cursor.execute(statement)
        row: Any = cursor.fetchone() if fetch else (None,)
        return row[0]
    except dialect.loaded_dbapi.Error as error:
        is_lost = dialect.is_disconnect(error, connection.connection, cursor)
        if is_lost:
            connection.invalidate(error)
        raise DBAPIError.instance(  # in no variable: a cycle with this frame would keep all callers alive
            statement, None, error, dialect.loaded_dbapi.Error, connection_invalidated=is_lost, dialect=dialect
        ) from error
    finally:
        cursor.close()


def begin_with(connection: Connection, statements: Sequence[str]) -> None:
    """Run ``statements``, which return nothing, first in a transaction of PostgreSQL's: in as few round trips as the
    driver allows, the BEGIN included, which drivers send with the first statement.

    After an error of the driver itself they run again, one by one: so SQLAlchemy notices a lost connection, and raises
    by its own names. The transaction is not rolled back for that: a listener of the engine's may have run statements in
    it (SET LOCAL), which would not run again.

    :param statements: none of them changes more if it is run twice.
    :raises DBAPIError: as ``connection.exec_driver_sql`` does. The driver's first error is its detail: if the server
        refused a statement, it says of the next ones only that the transaction has failed.
    """
    reason = ""
    try:
        if _sent_together(connection, statements):
            return
    except Exception as error:
        if isinstance(error, DBAPIError) or not is_step_error(error):
            raise
        reason = str(error).strip().partition("\n")[0]
        _LOG.debug("the beginning of a transaction failed, and is tried one statement after the other: %r", error)
    for statement in statements:
        try:
            connection.exec_driver_sql(statement)
        except DBAPIError as error:
            if reason:
                error.add_detail(f"first error: {reason}")
            raise


def _sent_together(connection: Connection, statements: Sequence[str]) -> bool:
    dialect = connection.dialect
    adapted: Any = connection.connection.dbapi_connection
    driver: Any = connection.connection.driver_connection
    if dialect.driver == "psycopg":
        _sent_by_psycopg(driver, statements, is_async=dialect.is_async)
        return True
    if dialect.driver == "psycopg2":
        connection.exec_driver_sql("; ".join(statements))
        return True
    if dialect.driver == "asyncpg" and hasattr(adapted, "_start_transaction"):
        # SQLAlchemy would prepare each statement first: a round trip of its own for a text that never comes again.
        if getattr(adapted, "_transaction", None) is None:
            wait_for(adapted._start_transaction())
        wait_for(driver.execute("; ".join(statements)))
        return True
    return False


def _sent_by_psycopg(driver: Any, statements: Sequence[str], *, is_async: bool) -> None:
    """All in one request, with the BEGIN that psycopg would send as one of its own. It asks libpq whether there is a
    transaction, so it knows of this one."""
    from psycopg import errors, generators, pq

    idle = driver.info.transaction_status == pq.TransactionStatus.IDLE
    request = "; ".join([_psycopgs_begin(driver), *statements] if idle else statements)

    def exchange() -> Any:
        driver.pgconn.send_query(request.encode())
        return (yield from generators.execute(driver.pgconn))

    async def wait_in_loop() -> Any:
        async with driver.lock:
            return await driver.wait(exchange())

    if is_async:
        results = wait_for(wait_in_loop())
    else:
        with driver.lock:
            results = driver.wait(exchange())
    for result in results:
        if result.status != pq.ExecStatus.COMMAND_OK:
            raise errors.error_from_result(result)


def _psycopgs_begin(driver: Any) -> str:
    """BEGIN with the characteristics that the connection is set to."""
    words = ["BEGIN"]
    if driver.isolation_level is not None:
        words.append(f"ISOLATION LEVEL {driver.isolation_level.name.replace('_', ' ')}")
    if driver.read_only is not None:
        words.append("READ ONLY" if driver.read_only else "READ WRITE")
    if driver.deferrable is not None:
        words.append("DEFERRABLE" if driver.deferrable else "NOT DEFERRABLE")
    return " ".join(words)
