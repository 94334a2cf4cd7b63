"""How code that blocks works with a database driver for asyncio: SQLAlchemy's own way, by greenlets.

``greenlet_spawn(f)`` runs ``f`` until it comes to something that must be awaited, awaits that, and goes on with ``f``.
So there is one coordinator, and asyncio is a way to call it. Connections of such a driver belong to one event loop: the
user's connections to the user's, and whatever the library's own threads open to a loop that each of them has.
"""

import asyncio
import threading
from collections.abc import Awaitable, Callable
from typing import TypeVar

from sqlalchemy import Engine
from sqlalchemy.pool import NullPool
from sqlalchemy.util import await_only, greenlet_spawn
from sqlalchemy.util.concurrency import in_greenlet

T = TypeVar("T")

__all__ = ["current_task", "greenlet_spawn", "in_greenlet", "own_engine", "run_in_loop", "wait_for"]


def wait_for(awaitable: Awaitable[T]) -> T:
    """The outcome of ``awaitable``, inside of what ``greenlet_spawn`` runs."""
    return await_only(awaitable)


def current_task() -> object:
    """The task that runs here; in a thread without an event loop, the thread."""
    try:
        return asyncio.current_task() or threading.current_thread()
    except RuntimeError:
        return threading.current_thread()


def run_in_loop(act: Callable[[], T]) -> T:
    """Call ``act`` in this thread, with an event loop for what it awaits, unless it has one already.

    Whatever it opens it must close: the loop ends with it.
    """
    return act() if in_greenlet() else asyncio.run(greenlet_spawn(act))


def own_engine(engine: Engine) -> Engine:
    """For the library's own threads: ``engine`` itself; if its driver is one for asyncio, one that differs from it in
    nothing but that it keeps no connections. What the user has set for connections, and the listeners, hold there too.
    """
    if not engine.dialect.is_async:
        return engine
    pool = engine.pool
    own = Engine.__new__(Engine)
    own.__dict__.update(vars(engine))
    own._has_events = engine._has_events
    own.pool = NullPool(
        pool._creator,
        recycle=pool._recycle,
        echo=pool.echo,
        logging_name=pool._orig_logging_name,
        reset_on_return=pool._reset_on_return,
        pre_ping=pool._pre_ping,
        _dispatch=pool.dispatch,
        dialect=pool._dialect,
    )
    return own
