"""Makes database connections within a time limit, and closes connections whose pool was disposed of.

An attempt to connect has no connection yet that could be cut. Drivers limit it in their own ways, or not at all. So
under a limit (watchdog.py) the attempt runs in its own thread, or in its own task under asyncio. When the limit
expires, the attempt is abandoned, and a connection that arrives later is closed. The pool's ping is watched, too.

Without a limit, where the application uses its engine itself, nothing changes. The engines of the ``dualwrite`` command
have a longest time for each attempt.

``engine.dispose()`` closes the connections in the engine's pool, and makes a new pool. A connection that is in use at
that time goes back to the old pool, which keeps it open until it is collected. So the library closes its own
connections.
"""

import asyncio
import contextvars
import logging
import math
from collections.abc import Callable
from typing import Any

from sqlalchemy import Connection, Engine
from sqlalchemy.util import greenlet_spawn
from sqlalchemy.util.concurrency import in_greenlet

from dualwrite.client.threads import start_thread
from dualwrite.coordinator.concurrency.waiting import Flag
from dualwrite.coordinator.process.greenlets import wait_for
from dualwrite.coordinator.process.this_process import THIS_PROCESS
from dualwrite.coordinator.process.watchdog import Limit, current_limit
from dualwrite.coordinator.sql.dialects.supported import database_of
from dualwrite.errors import DatabaseUnavailableError

_LOG = logging.getLogger("dualwrite")


CONNECT_SETTING = "connect_timeout"
"""The setting of drivers that limits an attempt to connect."""


def bound_connections(engine: Engine, longest: float = math.inf) -> None:
    """Apply the time limit in progress to new connections of ``engine``, and to its pool's pings.

    Its pool keeps its settings, as do all pools that are made from it (``engine.dispose()``). Connections to a file use
    no network, and stay as they are.

    :param longest: the most seconds that an attempt to connect may take, also if no limit is in progress.
    """
    if database_of(engine.dialect).is_file:
        return
    pool, dialect = engine.pool, engine.dialect
    if not isinstance(getattr(pool, "_creator", None), BoundedCreator):
        pool._creator = BoundedCreator(  # type: ignore[assignment]
            pool._invoke_creator, is_async=dialect.is_async, longest=longest
        )
    if not isinstance(dialect.do_ping, WatchedPing):
        dialect.do_ping = WatchedPing(dialect.do_ping)  # type: ignore[method-assign]


def close_connection(connection: Connection, *, keep: bool = True) -> None:
    """Close ``connection``, whose driver's connection goes back to the pool. If the engine was disposed of meanwhile,
    the driver's connection is closed, too, instead of going back to the old pool.

    :param keep: False to close the driver's connection in any case.
    """
    pool = connection.engine.pool
    is_there = not (connection.closed or connection.invalidated)
    if not is_there or (keep and getattr(connection.connection, "_pool", pool) is pool):
        connection.close()
        return
    dialect, driver = connection.dialect, connection.connection.dbapi_connection
    connection.detach()
    try:
        connection.close()
    finally:
        # SQLAlchemy closes no detached connection of a driver for asyncio that cannot terminate one, as psycopg.
        if driver is not None and dialect.is_async and not dialect.has_terminate:
            driver.close()


class WatchedPing:
    """A dialect's ``do_ping``, whose connection is cut when the limit in progress expires."""

    def __init__(self, ping: Callable[[Any], bool]) -> None:
        self._ping = ping

    def __call__(self, dbapi_connection: Any) -> bool:
        """Ask ``dbapi_connection`` whether it is alive."""
        limit = current_limit()
        if limit is not None:
            limit.watch(dbapi_connection)
        return self._ping(dbapi_connection)


class BoundedCreator:
    """Makes connections for a pool, within the limit in progress.

    :param create: the pool's own creator, with the user's listeners.
    :param longest: the most seconds for an attempt, also outside of a limit.
    """

    def __init__(self, create: Callable[[Any], Any], *, is_async: bool, longest: float = math.inf) -> None:
        self._create = create
        self._is_async = is_async
        self._longest = longest

    def __call__(self, connection_record: Any) -> Any:
        """A new connection.

        :raises DatabaseUnavailableError: if no connection was made within the limit.
        """
        if self._longest == math.inf:
            return self._connect(connection_record)
        with Limit(self._longest, "a new connection", CONNECT_SETTING):
            return self._connect(connection_record)

    def _connect(self, connection_record: Any) -> Any:
        limit = current_limit()
        if limit is None:
            return self._create(connection_record)
        if not limit.remaining():
            raise _unavailable(limit)
        if self._is_async:
            if not in_greenlet():
                return self._create(connection_record)
            connection = _connect_in_task(lambda: self._create(connection_record), limit)
            limit.watch(connection)  # the dialect and listeners use it before the pool returns it
            return connection
        attempt = _Attempt(lambda: self._create(connection_record))
        try:
            attempt.begin()
            limit.watch(attempt.outcome(limit))
        except BaseException:
            attempt.give_up()
            raise
        return attempt.connection


def _connect_in_task(create: Callable[[], Any], limit: Limit) -> Any:
    try:
        return wait_for(asyncio.wait_for(greenlet_spawn(create), limit.remaining()))
    except (TimeoutError, asyncio.TimeoutError) as error:
        raise _unavailable(limit) from error


class _Attempt:
    """An attempt to connect, in its own thread. A connection that arrives after :meth:`give_up` is closed.

    An exception from a signal handler may come anywhere in the waiting thread, and a call's result is then lost. So the
    connection is kept here.
    """

    def __init__(self, create: Callable[[], Any]) -> None:
        self.connection: Any = None
        self._create = create
        self._error: BaseException | None = None
        self._ended = Flag(THIS_PROCESS)
        self._claims = [True]
        """The connecting thread takes the only item when it is done; the waiting thread takes it when it gives up."""

    def begin(self) -> None:
        """Start the thread. Connect in this one if the process starts no more threads: from Python 3.12 on a handler of
        atexit cannot. Then nothing bounds the wait."""
        context = contextvars.copy_context()
        try:
            start_thread(lambda: context.run(self._connect), "dualwrite-connecting")
        except RuntimeError:
            self._connect()

    def outcome(self, limit: Limit) -> Any:
        """The connection.

        :raises DatabaseUnavailableError: if it has not come within ``limit``.
        """
        if not self._ended.wait(limit.remaining()):
            raise _unavailable(limit)
        if self._error is not None:
            raise self._error
        return self.connection

    def give_up(self) -> None:
        """Close the connection, now or when it comes."""
        if not self._take_claim() and self.connection is not None:
            _close(self.connection)

    def _connect(self) -> None:
        try:
            self.connection = self._create()
        except BaseException as error:  # noqa: BLE001 - it is the caller's
            self._error = error
        if self._take_claim():
            self._ended.set()
        elif self._error is not None:
            _LOG.debug("an attempt to connect to the database that was given up has failed: %s", self._error)
        else:
            _close(self.connection)

    def _take_claim(self) -> bool:
        """True for the first caller."""
        try:
            return self._claims.pop()
        except IndexError:
            return False


def _close(connection: Any) -> None:
    """Close a connection whose caller has given up."""
    try:
        connection.close()
    except Exception as error:  # noqa: BLE001 - the driver's own: it is of no use any more
        _LOG.debug("closing a connection that was made too late: %s", error)


def _unavailable(limit: Limit) -> DatabaseUnavailableError:
    return DatabaseUnavailableError(
        f"the database accepted no connection within {limit.allowed}: see whether its host is reachable, and the "
        "server answers"
    )
