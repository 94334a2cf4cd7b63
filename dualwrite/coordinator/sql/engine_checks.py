"""Checks of an engine for units of work: separate connections, to a database that outlives the process. Also setting
such a connection's isolation level, and dropping one."""

import logging
from collections.abc import Mapping

from sqlalchemy import URL, Connection, Engine
from sqlalchemy.exc import DBAPIError
from sqlalchemy.pool import AssertionPool, Pool, SingletonThreadPool, StaticPool

from dualwrite.coordinator.sql.dialects.supported import database_of
from dualwrite.errors import ConfigurationError

_LOG = logging.getLogger("dualwrite")

_SHARING: Mapping[type[Pool], str] = {
    StaticPool: "it hands one connection to every user, and the library's commits would commit half of a unit of work",
    SingletonThreadPool: "it hands one connection to all users in a thread, and the library's commits would commit "
    "half of a unit of work",
    AssertionPool: "it has one connection, and a unit of work needs another beside its own",
}

_MEMORY = "a SQLite database in memory forgets every decision with the process: use a file"


def require_own_connections(engine: Engine) -> None:
    """Require that each user of ``engine`` gets its own connection, to a database that is not in memory.

    :raises ConfigurationError: naming the pool, or the database, and what to do.
    """
    if is_in_memory(engine.url):
        raise ConfigurationError(_MEMORY)
    for kind, reason in _SHARING.items():
        if isinstance(engine.pool, kind):
            own = "" if type(engine.pool) is kind else f", a {kind.__name__}"
            raise ConfigurationError(
                f"the engine's pool is {type(engine.pool).__name__}{own}: {reason}; leave out poolclass, or use "
                "QueuePool or NullPool (with SQLite, on a file)"
            )


def require_idle(connection: Connection) -> None:
    """Require that no transaction is open on ``connection``, just checked out, as far as its driver knows.

    :raises ConfigurationError: if one is open.
    """
    dialect = connection.dialect
    try:
        is_open = connection.in_transaction() or database_of(dialect).is_in_transaction(connection)
    except dialect.loaded_dbapi.Error:
        return  # the driver's connection is closed, and the first statement says so
    if is_open:
        raise ConfigurationError(
            "a connection of the engine's is inside a transaction when it is checked out: a listener (connect, "
            "checkout, engine_connect) leaves it open, and is to end it; or the engine's pool or creator hands out a "
            "connection that another user has"
        )


def is_in_memory(url: URL) -> bool:
    """True if ``url`` is a SQLite URL, in any spelling, of a database in memory."""
    if url.get_backend_name() != "sqlite":
        return False
    database = str(url.database or "")
    path, _, query = database.partition("?")
    settings = [f"{name}={value}" for name, value in url.query.items()] + query.split("&")
    return path in ("", ":memory:", "file:", "file::memory:") or any(
        each in settings for each in ("mode=memory", "vfs=memdb")
    )


def of_its_own_level(connection: Connection) -> None:
    """Use ``connection`` at READ COMMITTED this time, regardless of the engine's isolation level: no read uses an old
    snapshot, and reading takes no locks, as it would at SERIALIZABLE. SQLite has no levels."""
    if connection.dialect.name == "sqlite":
        return
    dialect = connection.dialect
    try:
        connection.execution_options(isolation_level="READ COMMITTED")
    except dialect.loaded_dbapi.Error as error:  # SQLAlchemy lets it pass as it is
        raise DBAPIError.instance(
            "SET SESSION TRANSACTION", None, error, dialect.loaded_dbapi.Error, dialect=dialect
        ) from error


def discard(connection: Connection) -> None:
    """End any open transaction on ``connection`` and drop the driver's connection. Raises no error of its own.

    SQLAlchemy sends no ROLLBACK once a COMMIT has raised; an open transaction would keep its locks.
    """
    if connection.closed:
        return
    try:
        connection.dialect.do_rollback(connection.connection)
    except Exception as error:  # noqa: BLE001 - the driver's, SQLAlchemy's, asyncio's: it is dropped, whatever it was
        _LOG.debug("rollback on a connection that is being dropped: %s", error)
    connection.invalidate()
