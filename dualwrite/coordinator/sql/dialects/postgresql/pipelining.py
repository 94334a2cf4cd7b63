"""A statement and the COMMIT behind it in one message, by psycopg's pipeline mode.

The server carries out the COMMIT only if the statement before it succeeded. An UPDATE that finds no row succeeds, too.
So the UPDATE is made to fail then, by a division by zero.
"""

import logging
from collections.abc import Mapping
from typing import Any

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from dualwrite.coordinator.process.greenlets import wait_for

_LOG = logging.getLogger("dualwrite")

_SAVEPOINT = "dualwrite_store"


def can_pipeline(connection: Connection) -> bool:
    """True if the driver is psycopg, on a libpq with pipelines (version 14), and nobody watches the statements:
    SQLAlchemy's events and its log would not show what a pipeline sends."""
    if connection.dialect.driver != "psycopg":
        return False
    if connection._has_events or connection.engine._has_events or connection._echo:
        return False
    from psycopg import Pipeline

    return Pipeline.is_supported()


def commit_after(connection: Connection, update: str, parameters: Mapping[str, Any]) -> bool:
    """Run ``update`` and COMMIT.

    :returns: False if ``update`` failed or found no row. The transaction is open then, as it was before.
    :raises DBAPIError: if the COMMIT failed, or no answer came: the outcome is unknown.
    """
    from psycopg import pq

    dialect, driver = connection.dialect, connection.connection.driver_connection
    assert driver is not None
    statement = failing_without_a_row(update)
    try:
        if dialect.is_async:
            wait_for(_send_in_loop(driver, statement, parameters))
        else:
            _send(driver, statement, parameters)
    except dialect.loaded_dbapi.Error as error:
        if driver.info.transaction_status != pq.TransactionStatus.INERROR:
            raise DBAPIError.instance(
                update,
                None,
                error,
                dialect.loaded_dbapi.Error,
                connection_invalidated=bool(driver.closed),
                dialect=dialect,
            ) from error
        _LOG.debug("nothing was committed, as the statement before the COMMIT failed: %s", error)
    else:
        return True
    connection.exec_driver_sql(f"ROLLBACK TO SAVEPOINT {_SAVEPOINT}")
    return False


def failing_without_a_row(update: str) -> str:
    """``update`` as a statement that fails if it finds no row."""
    return f"WITH stored AS ({update} RETURNING 1) SELECT 1 / count(*) FROM stored"  # noqa: S608  our own UPDATE


def _send(driver: Any, statement: str, parameters: Mapping[str, Any]) -> None:
    from psycopg import Cursor

    cursor = Cursor(driver)  # the application may have chosen a class of cursors that knows no pipeline
    with driver.pipeline():
        cursor.execute(f"SAVEPOINT {_SAVEPOINT}", prepare=False)
        cursor.execute(statement, parameters)
        cursor.execute("COMMIT", prepare=False)


async def _send_in_loop(driver: Any, statement: str, parameters: Mapping[str, Any]) -> None:
    from psycopg import AsyncCursor

    cursor = AsyncCursor(driver)
    async with driver.pipeline():
        await cursor.execute(f"SAVEPOINT {_SAVEPOINT}", prepare=False)
        await cursor.execute(statement, parameters)
        await cursor.execute("COMMIT", prepare=False)
