"""Checks that an engine has separate connections, to a database that outlives the process. Also sets the isolation
level of a connection, and drops a connection."""

import logging
from collections.abc import Mapping
from typing import Any

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import DBAPIError
from sqlalchemy.pool import AssertionPool, Pool, SingletonThreadPool, StaticPool

from dualwrite.coordinator.sql.dialects.supported import database_of
from dualwrite.errors import ConfigurationError

_LOG = logging.getLogger("dualwrite")

_FORMER_LEVEL = "dualwrite_former_isolation_level"

_SHARED_POOLS: Mapping[type[Pool], str] = {
    StaticPool: "it hands one connection to every user, and the library's commits would commit half of a unit of work",
    SingletonThreadPool: "it hands one connection to all users in a thread, and the library's commits would commit "
    "half of a unit of work",
    AssertionPool: "it has one connection, and a unit of work needs another beside its own",
}


def require_own_connections(engine: Engine) -> None:
    """Require that each user of ``engine`` gets its own connection, to a database that is not in memory.

    :raises ConfigurationError: naming the pool, or the database, and what to do.
    """
    database = database_of(engine.dialect)
    if database.is_in_memory(engine.url):
        raise ConfigurationError(
            f"a {database.title} database in memory forgets every decision with the process: use a file"
        )
    for pool_class, reason in _SHARED_POOLS.items():
        if isinstance(engine.pool, pool_class):
            base_class = "" if type(engine.pool) is pool_class else f", a {pool_class.__name__}"
            raise ConfigurationError(
                f"the engine's pool is {type(engine.pool).__name__}{base_class}: {reason}; leave out poolclass, or use "
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
            "checkout, engine_connect) leaves it open, and must end it; or the engine's pool or creator hands out a "
            "connection that another user has; or MariaDB or MySQL has completion_type = CHAIN, by which each COMMIT "
            "begins another transaction"
        )


def use_own_isolation_level(connection: Connection) -> None:
    """Use ``connection`` at READ COMMITTED this time, regardless of the engine's isolation level: no read uses an old
    snapshot, and reading takes no locks, as it would at SERIALIZABLE. Some databases have no levels.

    When the connection goes back to its pool, SQLAlchemy sets the engine's level, or the server's. If a listener of the
    application's has set another one as the connection was made, it is set again after that.
    """
    dialect = connection.dialect
    level = database_of(dialect).own_isolation_level
    if level is None:
        return
    try:
        former = _level_of_listener(connection)
        record = connection.connection._connection_record
        if former is not None and record is not None:  # its callbacks are called in reverse
            record.finalize_callback.append(lambda driver: dialect.set_isolation_level(driver, former))
        connection.execution_options(isolation_level=level)
    except dialect.loaded_dbapi.Error as error:  # SQLAlchemy lets it pass as it is
        is_lost = dialect.is_disconnect(error, connection.connection.dbapi_connection, None)
        if is_lost:
            connection.invalidate(error)
        raise DBAPIError.instance(
            "SET SESSION TRANSACTION",
            None,
            error,
            dialect.loaded_dbapi.Error,
            connection_invalidated=is_lost,
            dialect=dialect,
        ) from error


def _level_of_listener(connection: Connection) -> Any:
    """The isolation level that ``connection`` had when the library first used it; None if that is the engine's or the
    server's."""
    dialect = connection.dialect
    by_options = connection.get_execution_options().get("isolation_level")
    if by_options is not None or getattr(dialect, "_on_connect_isolation_level", None) is not None:
        return None
    known = connection.info.get(_FORMER_LEVEL)
    if known is None:
        known = connection.get_isolation_level()
        dialect.do_rollback(connection.connection)  # of the transaction of that query
        connection.info[_FORMER_LEVEL] = known
    return None if known == dialect.default_isolation_level else known


def discard(connection: Connection) -> None:
    """End any open transaction on ``connection`` and drop the driver's connection. Raises no error of its own.

    SQLAlchemy sends no ROLLBACK once a COMMIT has raised; an open transaction would keep its locks.
    """
    if connection.closed:
        return
    try:
        connection.dialect.do_rollback(connection.connection)
    except Exception as error:  # noqa: BLE001 - the connection is dropped after every error
        _LOG.debug("rollback on a connection that is being dropped: %s", error)
    connection.invalidate()
