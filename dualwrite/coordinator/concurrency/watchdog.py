"""A limit in time for what the library itself asks of the database.

A driver that waits for a server that has gone silent waits for ever, unless it was given a timeout of its own. So one
daemon thread of the process looks at the limits of all steps and transactions that are under way. When one is over, the
thread shuts the socket of that connection down; the driver takes this for a server that has hung up, and raises its
OperationalError in the thread, or the task, that waits.

To begin and to end a limit costs a microsecond: nobody is woken, and no lock is taken unless the limit is over. An
exception from a signal handler may strike anywhere: a limit that was not ended is ended by its owner's next step.
"""

import functools
import logging
import math
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from types import TracebackType
from typing import Any, Protocol, TypeVar
from weakref import ref

from sqlalchemy import Engine
from sqlalchemy.exc import StatementError

from dualwrite.coordinator.concurrency.waiting import TaskThread

_LOG = logging.getLogger("dualwrite")

_LOOKS = 10
"""That the thread takes in the time of the shortest limit."""
_LONGEST_PAUSE = 1.0
"""Seconds between two looks, at most."""

_LEFT_BEHIND = 5.0
"""Seconds after which a limit that is over, and around another one still, was left behind: an exception from a signal
handler has struck as its block ended. Its connection was cut long ago, and what begins now has a time of its own."""

R = TypeVar("R")

_current: "ContextVar[ref[Limit] | None]" = ContextVar("dualwrite_limit", default=None)
"""Weakly: a limit whose end an exception from a signal handler has struck is gone with that exception."""
_unreachable: set[str] = set()
"""The drivers whose sockets were not found, which the log has named."""


class Limit:
    """The time that the database may take for a step or a transaction: ``with limit:``, again and again.

    Inside of another limit it is over when that one is over, if that is earlier. For one thread or task at a time.

    :param seconds: that each use may take; infinity for no limit.
    :param name: whose it is, for the log.
    :param setting: that says so, for the user.
    """

    __slots__ = (
        "__weakref__",
        "_before",
        "_binding",
        "_connection",
        "_deadline",
        "_is_late",
        "_name",
        "_setting",
        "is_over",
        "seconds",
    )

    def __init__(self, seconds: float, name: str, setting: str = "database_timeout") -> None:
        self.seconds = seconds
        self.is_over = False
        """True if the last use took too long."""
        self._name = name
        self._setting = setting
        self._binding: Limit | None = None
        """The one around it that is over first; None if this one is."""
        self._before: Limit | None = None
        """The one around it."""
        self._connection: Any = None
        self._deadline: float | None = None
        self._is_late = False
        """The watchdog's, while it looks whether to cut."""
        if seconds != math.inf:
            _watchdog.add(self)

    def __enter__(self) -> "Limit":
        before = _around()
        if before is not self:
            self._before = before
        _current.set(ref(self))
        self.begin()  # last: nothing may strike between the beginning of the time and the block
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.rest()
        before = self._before
        _current.set(None if before is None else ref(before))
        if error is not None:
            self.explain(error)

    @property
    def text(self) -> str:
        """What is said of a use that took too long."""
        return f"the database had not answered after {self.allowed}: its connection was cut"

    @property
    def allowed(self) -> str:
        """The time of the last use, and the setting that says so."""
        binding = self._binding or self
        return f"{binding.seconds:g} s ({binding._setting})"

    def begin(self) -> None:
        """The time begins, anew if it has begun before. For a use in which no connection is made; ``with`` does the
        rest of what it takes."""
        now = time.monotonic()
        # No calls from here on: an exception from a signal handler strikes at one, and would leave the time running.
        deadline = now + self.seconds
        self._binding = None
        self.is_over = False
        outer = self._before
        if outer is not None and outer._deadline is not None and outer._deadline < deadline:
            if outer._deadline + _LEFT_BEHIND < now:
                self._before = None
            else:
                deadline, self._binding = outer._deadline, outer._binding or outer
        self._deadline = deadline

    def rest(self) -> None:
        """The time does not count any more. From here on the connection is not cut."""
        self._deadline = None
        if self._is_late:
            with _watchdog.cutting:  # it may be about to cut
                pass

    @contextmanager
    def resting(self) -> Iterator[None]:
        """In a use, a block whose time does not count; what follows has all of the time again."""
        self.rest()
        try:
            yield
        finally:
            self.begin()

    def explain(self, error: BaseException) -> None:
        """Let ``error``, which a use has raised, say that the connection was cut, if it was."""
        if self.is_over and isinstance(error, StatementError) and self.text not in error.detail:
            error.add_detail(self.text)

    def watch(self, connection: Any) -> None:
        """The connection that is cut when the time is over: the driver's, or what SQLAlchemy has around it."""
        self._connection = connection

    def remaining(self) -> float:
        """Seconds that are left of the use that is under way; infinity outside of one."""
        deadline = self._deadline
        return math.inf if deadline is None else max(0.0, deadline - time.monotonic())

    def cut_if_over(self) -> None:
        """The watchdog's."""
        if self.remaining():
            return
        with _watchdog.cutting:
            self._is_late = True  # before the last look: its owner says first that it rests, and looks at this then
            if not self.remaining():
                is_news, self.is_over = not self.is_over and self._connection is not None, True
                if self._connection is not None:
                    cut(self._connection)
                if is_news:
                    _LOG.warning("%s: %s", self._name, self.text)
            self._is_late = False


class _Limited(Protocol):
    limit: Limit


L = TypeVar("L", bound=_Limited)


def within_limit(act: Callable[[L], R]) -> Callable[[L], R]:
    """The method ``act``, on a connection that is there, within the ``limit`` of its object."""

    @functools.wraps(act)
    def limited(owner: L) -> R:
        limit = owner.limit
        limit.begin()
        try:
            return act(owner)
        except BaseException as error:
            limit.explain(error)
            raise
        finally:
            limit.rest()

    return limited


class Watchdog:
    """The thread that looks at the limits of this process; a child that is forked begins with none."""

    def __init__(self) -> None:
        self._renew()
        os.register_at_fork(after_in_child=self._renew)

    def _renew(self) -> None:
        self.cutting = threading.Lock()
        """Held while a connection is being cut. For ``with`` alone: an interrupt cannot leave it locked."""
        self._limits: set[ref[Limit]] = set()
        self._pause = _LONGEST_PAUSE
        self._worker = TaskThread(self._run, "dualwrite-watchdog")

    def add(self, limit: Limit) -> None:
        """Look at ``limit`` until it is collected."""
        if limit.seconds < self._pause * _LOOKS:
            self._pause = limit.seconds / _LOOKS
        self._limits.add(ref(limit, self._limits.discard))
        if not self._worker.is_running:
            self._worker.start()

    def _run(self) -> None:
        while True:
            time.sleep(self._pause)
            for each in self._limits.copy():  # in one step, as others add to it and take from it
                limit = each()
                if limit is not None:
                    limit.cut_if_over()
                del limit


_watchdog = Watchdog()


def _around() -> Limit | None:
    held = _current.get()
    return None if held is None else held()


def current_limit() -> Limit | None:
    """The limit that is under way in this thread or task; None if there is none, or it has no end."""
    limit = _around()
    return None if limit is None or limit.remaining() == math.inf else limit


def limit_on(engine: Engine, seconds: float, name: str) -> Limit:
    """A Limit for the database of ``engine``. SQLite is a file of this machine, and needs none."""
    return Limit(math.inf if engine.dialect.name == "sqlite" else seconds, name)


def cut(connection: Any) -> None:
    """Shut the socket of ``connection`` down, from whatever thread: whoever waits on it is told that the server has
    hung up. The socket itself is left for its owner to close.

    :param connection: the driver's, or what SQLAlchemy has around it.
    """
    driver = getattr(connection, "driver_connection", connection)
    try:
        number = _file_number(driver)
        if number is None:
            return
        with socket.socket(fileno=os.dup(number)) as copy:
            if _file_number(driver) == number:  # else it was closed meanwhile, and the number may be another file's
                copy.shutdown(socket.SHUT_RDWR)
    except Exception as error:  # noqa: BLE001 - a driver says in its own way that the connection is closed
        _LOG.debug("the connection that was to be cut is gone: %s", error)


def _file_number(driver: Any) -> int | None:
    """The file descriptor of the socket of a driver's connection; None if it has none, or it is not known."""
    if hasattr(driver, "fileno"):  # psycopg, psycopg2, mysqlclient
        return int(driver.fileno())
    writer = getattr(driver, "_writer", None)  # aiomysql, asyncmy
    transport = getattr(driver, "_transport", None) or getattr(writer, "transport", None)  # asyncpg's comes first
    found = getattr(driver, "_sock", None) if transport is None else transport.get_extra_info("socket")  # PyMySQL
    if found is None:
        kind = f"{type(driver).__module__}.{type(driver).__qualname__}"
        if driver is not None and kind not in _unreachable:
            _unreachable.add(kind)
            _LOG.warning("the socket of a %s is not known, or is closed: database_timeout cannot cut it", kind)
        return None
    return int(found.fileno())
