"""What an engine must be for units of work: connections of their own, to a database that outlives the process."""

from collections.abc import Mapping

from sqlalchemy import URL, Connection, Engine
from sqlalchemy.pool import AssertionPool, Pool, SingletonThreadPool, StaticPool

from dualwrite.coordinator.databases.supported import database_of
from dualwrite.errors import ConfigurationError

_SHARING: Mapping[type[Pool], str] = {
    StaticPool: "it hands one connection to every user, and the library's commits would commit half of a unit of work",
    SingletonThreadPool: "it hands one connection to all users in a thread, and the library's commits would commit "
    "half of a unit of work",
    AssertionPool: "it has one connection, and a unit of work needs another beside its own",
}

_MEMORY = "a SQLite database in memory forgets every decision with the process: use a file"


def require_own_connections(engine: Engine) -> None:
    """Pass if each user of ``engine`` gets a connection of its own, to a database that is not in memory.

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
    """Pass if no transaction is open on ``connection``, which has just been checked out: as far as its driver knows.

    :raises ConfigurationError: if one is.
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
    """True if ``url`` is one of SQLite's for a database in memory, however it is spelled."""
    if url.get_backend_name() != "sqlite":
        return False
    database = str(url.database or "")
    path, _, query = database.partition("?")
    settings = [f"{name}={value}" for name, value in url.query.items()] + query.split("&")
    return path in ("", ":memory:", "file:", "file::memory:") or any(
        each in settings for each in ("mode=memory", "vfs=memdb")
    )
