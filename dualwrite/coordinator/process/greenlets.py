"""Runs blocking code with a database driver for asyncio, by greenlets, as SQLAlchemy does.

``greenlet_spawn(f)`` runs ``f`` until it must await something, awaits that, and goes on with ``f``. So there is one
coordinator, and asyncio is a way to call it. Connections of such a driver belong to one event loop: the user's
connections to the user's loop, and connections of the library's own threads to a loop that each thread has.
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
    """The result of ``awaitable``, inside ``greenlet_spawn``."""
    return await_only(awaitable)


def current_task() -> object:
    """The task that runs here; in a thread without an event loop, the thread."""
    try:
        return asyncio.current_task() or threading.current_thread()
    except RuntimeError:
        return threading.current_thread()


def run_in_loop(act: Callable[[], T]) -> T:
    """Call ``act`` in this thread, with a new event loop unless the thread has one already.

    ``act`` must close every connection that it opens: the loop ends with it.
    """
    return act() if in_greenlet() else asyncio.run(greenlet_spawn(act))


def own_engine(engine: Engine) -> Engine:
    """The engine for the library's own threads: ``engine`` itself; for an asyncio driver, a copy that differs only in
    not pooling connections. The user's connection settings and listeners apply there too.
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
