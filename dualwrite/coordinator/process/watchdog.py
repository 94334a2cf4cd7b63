"""Time limits for the library's own database requests.

A driver waits forever for a server that does not answer, unless it has a timeout of its own. So one daemon thread per
process checks the limits of all steps and transactions in progress. When a limit has expired, the thread shuts down the
socket of that connection; to the driver the server has closed the connection, and it raises its OperationalError in the
waiting thread or task.

Beginning and ending a limit costs a microsecond: no thread is woken, and no lock is taken unless the limit has expired.
An exception from a signal handler may come anywhere: the owner's next step ends a limit that was not ended.
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
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar
from weakref import ref

from sqlalchemy.exc import StatementError

from dualwrite.coordinator.concurrency.waiting import TaskThread
from dualwrite.coordinator.process.this_process import THIS_PROCESS

_LOG = logging.getLogger("dualwrite")

_LOOKS = 10
"""Checks of the thread within the shortest limit."""
_LONGEST_PAUSE = 1.0
"""Maximum of seconds between two checks."""

LEFT_BEHIND = 5.0
"""Seconds after which an expired limit that still encloses another one counts as abandoned: an exception from a signal
handler came as its block ended. Its connection was cut long ago, and a use that begins now has its full time."""

_current: "ContextVar[ref[Limit] | None]" = ContextVar("dualwrite_limit", default=None)
"""Weak references: a limit whose end an exception from a signal handler interrupted is gone with that exception."""
_unreachable: set[str] = set()
"""The drivers whose sockets were not found, already logged."""


class Limit:
    """The time that the database may take for a step or a transaction: ``with limit:``, reusable.

    Inside another limit, the earlier end counts. For one thread or task at a time.

    :param seconds: time for each use; infinity for no limit.
    :param name: the limit's subject, for the log.
    :param setting: the setting that defines it, for the user.
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
        """The enclosing limit that expires first; None if this one does."""
        self._before: Limit | None = None
        """The enclosing limit."""
        self._connection: Any = None
        self._deadline: float | None = None
        self._is_late = False
        """For the watchdog, while it decides whether to cut."""
        if seconds != math.inf:
            WATCHDOG.add(self)

    def __enter__(self) -> "Limit":
        before = _around()
        if before is not self:
            self._before = before
        _current.set(ref(self))
        self.begin()  # last: no exception may come between the beginning of the time and the block
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
        """The message for a use that took too long."""
        return f"the database had not answered after {self.allowed}: its connection was cut"

    @property
    def allowed(self) -> str:
        """The time of the last use, and the setting that defines it."""
        binding = self._binding or self
        return f"{binding.seconds:g} s ({binding._setting})"

    def begin(self) -> None:
        """Begin the time, anew if it has begun before. For a use in which no connection is made; ``with`` does more."""
        now = time.monotonic()
        # No calls from here on: a signal handler could raise at one, which would leave the time running.
        deadline = now + self.seconds
        self._binding = None
        self.is_over = False
        outer = self._before
        if outer is not None and outer._deadline is not None and outer._deadline < deadline:
            if outer._deadline + LEFT_BEHIND < now:
                self._before = None
            else:
                deadline, self._binding = outer._deadline, outer._binding or outer
        self._deadline = deadline

    def rest(self) -> None:
        """Stop the time. From here on the connection is not cut."""
        self._deadline = None
        if self._is_late:
            with WATCHDOG.cutting:  # it may be about to cut
                pass

    @contextmanager
    def resting(self) -> Iterator[None]:
        """A block inside a use whose time does not count; after it the full time begins again."""
        self.rest()
        try:
            yield
        finally:
            self.begin()

    def explain(self, error: BaseException) -> None:
        """Add to ``error``, which a use has raised, that the connection was cut, if it was."""
        if self.is_over and isinstance(error, StatementError) and self.text not in error.detail:
            error.add_detail(self.text)

    def watch(self, connection: Any) -> None:
        """Set the connection to cut when the time is over: the driver's, or SQLAlchemy's wrapper of it."""
        self._connection = connection

    @property
    def connection(self) -> Any:
        """The connection to cut; None until one is set."""
        return self._connection

    def remaining(self) -> float:
        """Seconds left of the use in progress; infinity outside of one."""
        deadline = self._deadline
        return math.inf if deadline is None else max(0.0, deadline - time.monotonic())

    def cut_if_over(self) -> None:
        """Cut the connection if the time is over. For the watchdog only."""
        if self.remaining():
            return
        with WATCHDOG.cutting:
            self._is_late = True  # before the last check: the owner first notes that it rests, then reads this
            if not self.remaining():
                is_news, self.is_over = not self.is_over and self._connection is not None, True
                if self._connection is not None:
                    cut(self._connection)
                if is_news:
                    _LOG.warning("%s: %s", self._name, self.text)
            self._is_late = False


class Limited(Protocol):
    """An object whose steps share one limit."""

    limit: Limit


P = ParamSpec("P")
R = TypeVar("R")
L = TypeVar("L", bound=Limited)


def within_limit(act: Callable[Concatenate[L, P], R]) -> Callable[Concatenate[L, P], R]:
    """Decorate the method ``act``, which uses an existing connection, with the ``limit`` of its object."""

    @functools.wraps(act)
    def limited(owner: L, /, *args: P.args, **kwargs: P.kwargs) -> R:
        limit = owner.limit
        limit.begin()
        try:
            return act(owner, *args, **kwargs)
        except BaseException as error:
            limit.explain(error)
            raise
        finally:
            limit.rest()

    return limited


class Watchdog:
    """The thread that checks the limits of this process; a forked child begins without limits."""

    def __init__(self) -> None:
        self._renew()
        os.register_at_fork(after_in_child=self._renew)

    def _renew(self) -> None:
        self.cutting = threading.Lock()
        """Held while a connection is being cut. Only for ``with``: an interrupt cannot leave it locked."""
        self._limits: set[ref[Limit]] = set()
        self._pause = _LONGEST_PAUSE
        self._worker = TaskThread(THIS_PROCESS, self._run, "dualwrite-watchdog")

    def add(self, limit: Limit) -> None:
        """Check ``limit`` until it is collected."""
        if limit.seconds < self._pause * _LOOKS:
            self._pause = limit.seconds / _LOOKS
        self._limits.add(ref(limit, self._limits.discard))
        if not self._worker.is_running:
            self._worker.start()

    @property
    def watched(self) -> int:
        """How many limits are checked: those that their owners have not dropped."""
        return len(self._limits)

    def _run(self) -> None:
        while True:
            time.sleep(self._pause)
            for reference in self._limits.copy():  # atomic: other threads add and remove limits
                limit = reference()
                if limit is not None:
                    limit.cut_if_over()
                del limit


WATCHDOG = Watchdog()
"""Checks the limits of this process."""


def _around() -> Limit | None:
    held = _current.get()
    return None if held is None else held()


@contextmanager
def isolated() -> Iterator[None]:
    """A block of this thread or task outside of every limit in progress. A limit that was abandoned in the block is
    forgotten at its end."""
    token = _current.set(None)
    try:
        yield
    finally:
        _current.reset(token)


def current_limit() -> Limit | None:
    """The limit in progress in this thread or task; None if there is none, or it has no end."""
    limit = _around()
    return None if limit is None or limit.remaining() == math.inf else limit


def cut(connection: Any) -> None:
    """Shut down the socket of ``connection``, from any thread: to a thread that waits on it, the server has closed the
    connection. The owner closes the socket itself.

    :param connection: the driver's, or SQLAlchemy's wrapper of it.
    """
    driver = getattr(connection, "driver_connection", connection)
    try:
        number = _file_number(driver)
        if number is None:
            return
        with socket.socket(fileno=os.dup(number)) as copy:
            if _file_number(driver) == number:  # otherwise it was closed, and the number may belong to another file
                copy.shutdown(socket.SHUT_RDWR)
    except Exception as error:  # noqa: BLE001 - a driver says in its own way that the connection is closed
        _LOG.debug("the connection that was to be cut is gone: %s", error)


def _file_number(driver: Any) -> int | None:
    """The file descriptor of the socket of a driver's connection; None if it has none, or it is not known."""
    if hasattr(driver, "fileno"):  # psycopg, psycopg2, mysqlclient
        return int(driver.fileno())
    writer = getattr(driver, "_writer", None)  # aiomysql, asyncmy
    transport = getattr(driver, "_transport", None) or getattr(writer, "transport", None)  # asyncpg's comes first
    its_socket = getattr(driver, "_sock", None) if transport is None else transport.get_extra_info("socket")  # PyMySQL
    if its_socket is None:
        kind = f"{type(driver).__module__}.{type(driver).__qualname__}"
        if driver is not None and kind not in _unreachable:
            _unreachable.add(kind)
            _LOG.warning("the socket of a %s is not known, or is closed: database_timeout cannot cut it", kind)
        return None
    return int(its_socket.fileno())
