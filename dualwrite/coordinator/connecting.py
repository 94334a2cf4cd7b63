"""New connections to the database within a limit.

An attempt to connect has no connection yet that could be cut, and drivers limit it in their own ways, or not at all. So
while a limit is under way (watchdog.py), it is made in a thread of its own, or in a task of its own under asyncio, and
left behind when the limit is over. What it brings after that is closed. The pool's ping finds its connection watched.

Outside of a limit, where the application uses its engine itself, everything is as it was.
"""

import asyncio
import contextvars
import logging
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Any

from sqlalchemy import Engine
from sqlalchemy.util import greenlet_spawn
from sqlalchemy.util.concurrency import in_greenlet

from dualwrite.client.threads import start_thread
from dualwrite.coordinator.awaiting import wait_for
from dualwrite.coordinator.watchdog import Limit, current_limit
from dualwrite.errors import DatabaseUnavailableError

_LOG = logging.getLogger("dualwrite")


def bound_connections(engine: Engine) -> None:
    """Let new connections of ``engine``, and its pool's pings, keep to the limit under which they are made.

    Its pool goes on with the same settings, as do all that are made from it (``engine.dispose()``). SQLite's
    connections are no network's, and stay as they are.
    """
    if engine.dialect.name == "sqlite":
        return
    pool, dialect = engine.pool, engine.dialect
    if not isinstance(getattr(pool, "_creator", None), BoundedCreator):
        pool._creator = BoundedCreator(pool._invoke_creator, is_async=dialect.is_async)  # type: ignore[assignment]
    if not isinstance(dialect.do_ping, WatchedPing):
        dialect.do_ping = WatchedPing(dialect.do_ping)  # type: ignore[method-assign]


class WatchedPing:
    """A dialect's ``do_ping``, whose connection the limit that is under way may cut."""

    def __init__(self, ping: Callable[[Any], bool]) -> None:
        self._ping = ping

    def __call__(self, dbapi_connection: Any) -> bool:
        """Ask ``dbapi_connection`` whether it is alive."""
        limit = current_limit()
        if limit is not None:
            limit.watch(dbapi_connection)
        return self._ping(dbapi_connection)


class BoundedCreator:
    """What makes connections for a pool, within the limit that is under way.

    :param create: the pool's own way, with the user's listeners.
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
        if not self._is_async:
            made = _in_thread(lambda: self._create(connection_record), limit)
        elif in_greenlet():
            made = _in_task(lambda: self._create(connection_record), limit)
        else:
            return self._create(connection_record)
        limit.watch(made)  # the dialect and listeners have questions before anybody else gets it
        return made


def _in_task(create: Callable[[], Any], limit: Limit) -> Any:
    try:
        return wait_for(asyncio.wait_for(greenlet_spawn(create), limit.remaining()))
    except (TimeoutError, asyncio.TimeoutError) as error:
        raise _unavailable(limit) from error


def _in_thread(create: Callable[[], Any], limit: Limit) -> Any:
    answer: SimpleQueue[tuple[Any, BaseException | None]] = SimpleQueue()
    claim = [True]
    """Taken away by the thread that connects when it is done, or by the one that waits when it gives up."""

    def connect() -> None:
        try:
            made, error = create(), None
        except BaseException as raised:  # noqa: BLE001 - it is the caller's
            made, error = None, raised
        if _take(claim):
            answer.put((made, error))
        else:
            _close(made, error)

    context = contextvars.copy_context()
    try:
        start_thread(lambda: context.run(connect), "dualwrite-connecting")
        made, error = answer.get(timeout=limit.remaining())
    except Empty:
        if _take(claim):
            raise _unavailable(limit) from None
        made, error = answer.get()  # it has come at the last moment
    except BaseException:
        if not _take(claim):
            _close(*answer.get())
        raise
    if error is not None:
        raise error
    return made


def _take(claim: list[bool]) -> bool:
    """True for the first who takes ``claim``."""
    try:
        return claim.pop()
    except IndexError:
        return False


def _close(made: Any, error: BaseException | None) -> None:
    """End what nobody waits for any more."""
    if error is not None:
        _LOG.debug("an attempt to connect to the database that was given up has failed: %s", error)
        return
    try:
        made.close()
    except Exception as raised:  # noqa: BLE001 - the driver's own: it is of no use any more
        _LOG.debug("closing a connection that came too late: %s", raised)


def _unavailable(limit: Limit) -> DatabaseUnavailableError:
    return DatabaseUnavailableError(
        f"the database let nobody in within {limit.allowed}: see whether its host is reachable"
    )
