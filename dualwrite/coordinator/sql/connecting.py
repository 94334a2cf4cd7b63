"""New database connections within a time limit; and closing connections whose pool was disposed of.

An attempt to connect has no connection yet that could be cut, and drivers limit it in their own ways, or not at all. So
under a limit (watchdog.py) the attempt runs in its own thread, or in its own task under asyncio, and is abandoned when
the limit expires; a connection that arrives later is closed. The pool's ping is watched, too.

Without a limit, where the application uses its engine itself, nothing changes.

``engine.dispose()`` closes the connections in the engine's pool, and makes a new pool. A connection that is in use at
that time goes back to the old pool, which keeps it open until it is collected. So the library closes its own
connections.
"""

import asyncio
import contextvars
import logging
from collections.abc import Callable
from typing import Any

from sqlalchemy import Connection, Engine
from sqlalchemy.util import greenlet_spawn
from sqlalchemy.util.concurrency import in_greenlet

from dualwrite.client.threads import start_thread
from dualwrite.coordinator.concurrency.greenlets import wait_for
from dualwrite.coordinator.concurrency.waiting import Flag
from dualwrite.coordinator.concurrency.watchdog import Limit, current_limit
from dualwrite.errors import DatabaseUnavailableError

_LOG = logging.getLogger("dualwrite")


def bound_connections(engine: Engine) -> None:
    """Apply the time limit in progress to new connections of ``engine``, and to its pool's pings.

    Its pool keeps its settings, as do all pools that are made from it (``engine.dispose()``). SQLite's connections use
    no network, and stay as they are.
    """
    if engine.dialect.name == "sqlite":
        return
    pool, dialect = engine.pool, engine.dialect
    if not isinstance(getattr(pool, "_creator", None), BoundedCreator):
        pool._creator = BoundedCreator(pool._invoke_creator, is_async=dialect.is_async)  # type: ignore[assignment]
    if not isinstance(dialect.do_ping, WatchedPing):
        dialect.do_ping = WatchedPing(dialect.do_ping)  # type: ignore[method-assign]


def take_from_lost_pool(connection: Connection, *, keep: bool = True) -> None:
    """Call it before ``connection`` is closed: if the engine was disposed of meanwhile, that then closes the driver's
    connection instead of returning it to the old pool.

    :param keep: False to close it in any case.
    """
    pool = connection.engine.pool
    is_there = not (connection.closed or connection.invalidated)
    if is_there and not (keep and getattr(connection.connection, "_pool", pool) is pool):
        connection.detach()


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
    """

    def __init__(self, create: Callable[[Any], Any], *, is_async: bool) -> None:
        self._create = create
        self._is_async = is_async

    def __call__(self, connection_record: Any) -> Any:
        """A new connection.

        :raises DatabaseUnavailableError: if there was none within the limit.
        """
        limit = current_limit()
        if limit is None:
            return self._create(connection_record)
        if not limit.remaining():
            raise _unavailable(limit)
        if self._is_async:
            if not in_greenlet():
                return self._create(connection_record)
            made = _in_task(lambda: self._create(connection_record), limit)
            limit.watch(made)  # the dialect and listeners use it before the pool returns it
            return made
        attempt = _Attempt(lambda: self._create(connection_record))
        try:
            attempt.begin()
            limit.watch(attempt.outcome(limit))
        except BaseException:
            attempt.give_up()
            raise
        return attempt.made


def _in_task(create: Callable[[], Any], limit: Limit) -> Any:
    try:
        return wait_for(asyncio.wait_for(greenlet_spawn(create), limit.remaining()))
    except (TimeoutError, asyncio.TimeoutError) as error:
        raise _unavailable(limit) from error


class _Attempt:
    """An attempt to connect, in its own thread. A connection that arrives after it was given up is closed.

    An exception from a signal handler may come anywhere in the waiting thread, and a call's result is then lost. So the
    connection is kept here.
    """

    def __init__(self, create: Callable[[], Any]) -> None:
        self.made: Any = None
        self._create = create
        self._error: BaseException | None = None
        self._ended = Flag()
        self._claim = [True]
        """Taken away by the thread that connects when it is done, or by the one that waits when it gives up."""

    def begin(self) -> None:
        """Start the thread."""
        context = contextvars.copy_context()
        start_thread(lambda: context.run(self._connect), "dualwrite-connecting")

    def outcome(self, limit: Limit) -> Any:
        """The connection.

        :raises DatabaseUnavailableError: if it has not come within ``limit``.
        """
        if not self._ended.wait(limit.remaining()):
            raise _unavailable(limit)
        if self._error is not None:
            raise self._error
        return self.made

    def give_up(self) -> None:
        """Let the connection be closed, whether it is there or comes later."""
        if not self._take_claim() and self.made is not None:
            _close(self.made)

    def _connect(self) -> None:
        try:
            self.made = self._create()
        except BaseException as raised:  # noqa: BLE001 - it is the caller's
            self._error = raised
        if self._take_claim():
            self._ended.set()
        elif self._error is not None:
            _LOG.debug("an attempt to connect to the database that was given up has failed: %s", self._error)
        else:
            _close(self.made)

    def _take_claim(self) -> bool:
        """True for the first caller."""
        try:
            return self._claim.pop()
        except IndexError:
            return False


def _close(made: Any) -> None:
    """Close a connection whose caller has given up."""
    try:
        made.close()
    except Exception as raised:  # noqa: BLE001 - the driver's own: it is of no use any more
        _LOG.debug("closing a connection that came too late: %s", raised)


def _unavailable(limit: Limit) -> DatabaseUnavailableError:
    return DatabaseUnavailableError(
        f"the database let nobody in within {limit.allowed}: see whether its host is reachable"
    )
