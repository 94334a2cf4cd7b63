"""Distinguishes a step's own errors from exceptions that come from outside (time limits, interrupts)."""

import functools
import signal
from traceback import walk_tb
from types import CodeType

from sqlalchemy.exc import DBAPIError, SQLAlchemyError, StatementError

from dualwrite.errors import DualWriteError

_DRIVERS = frozenset(
    {"sqlite3", "aiosqlite", "psycopg", "psycopg2", "asyncpg", "pymysql", "MySQLdb", "aiomysql", "asyncmy"}
)
_ROOTS = frozenset({"Error", "PostgresError", "InterfaceError"})
"""The base classes of the drivers' errors; asyncpg's have two."""


def is_own(error: BaseException) -> bool:
    """True if ``error`` is a step's own. Any other is a time limit or an interrupt from a signal handler, and is raised
    to the caller in every step. Many time limits are a TimeoutError."""
    if isinstance(error, OSError):
        return not isinstance(error, TimeoutError)
    if isinstance(error, StatementError) and not isinstance(error, DBAPIError):
        # SQLAlchemy wraps exceptions in this way while it prepares a statement.
        return error.orig is None or is_own(error.orig)
    return isinstance(error, DualWriteError | SQLAlchemyError) or _is_of_a_driver(error)


def _is_of_a_driver(error: BaseException) -> bool:
    """True for PEP 249's errors, which SQLAlchemy does not wrap when it calls a driver outside a statement."""
    return any(
        base.__name__ in _ROOTS and base.__module__.partition(".")[0] in _DRIVERS for base in type(error).__mro__
    )


def is_from_signal_handler(error: BaseException) -> bool:
    """True if a Python signal handler has raised ``error``, at any place: its frame is in the traceback."""
    codes = {_code_of(signal.getsignal(number)) for number in signal.valid_signals()} - {None}
    return any(frame.f_code in codes for frame, _ in walk_tb(error.__traceback__))


def _code_of(handler: object) -> CodeType | None:
    """The code of a function, a method, a partial of one, or a callable object; None if it is implemented in C."""
    while isinstance(handler, functools.partial):
        handler = handler.func
    function = handler if hasattr(handler, "__code__") else getattr(handler, "__call__", None)  # noqa: B004 - for its code
    code: CodeType | None = getattr(function, "__code__", None)
    return code
