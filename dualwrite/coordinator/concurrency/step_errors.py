"""Which errors a step of a unit of work raises by itself; any other struck it from outside."""

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
"""The classes that their errors inherit from; asyncpg's have two."""


def is_own(error: BaseException) -> bool:
    """True if ``error`` is one that a step raises by itself. Any other is a time limit or an interrupt out of a signal
    handler, and is raised to the caller, whatever the step was. Many limits are a TimeoutError."""
    if isinstance(error, OSError):
        return not isinstance(error, TimeoutError)
    if isinstance(error, StatementError) and not isinstance(error, DBAPIError):
        # SQLAlchemy wraps so what strikes it while it prepares a statement.
        return error.orig is None or is_own(error.orig)
    return isinstance(error, DualWriteError | SQLAlchemyError) or _is_of_a_driver(error)


def _is_of_a_driver(error: BaseException) -> bool:
    """True for PEP 249's errors, which reach past SQLAlchemy where it asks a driver outside of a statement."""
    return any(
        base.__name__ in _ROOTS and base.__module__.partition(".")[0] in _DRIVERS for base in type(error).__mro__
    )


def is_from_signal_handler(error: BaseException) -> bool:
    """True if a signal handler of Python's has raised ``error``, whatever it struck: its frame is in the traceback."""
    codes = {_code_of(signal.getsignal(number)) for number in signal.valid_signals()} - {None}
    return any(frame.f_code in codes for frame, _ in walk_tb(error.__traceback__))


def _code_of(handler: object) -> CodeType | None:
    """The code of a function, a method, a partial of one, or an object that can be called; None if it is C's."""
    while isinstance(handler, functools.partial):
        handler = handler.func
    function = handler if hasattr(handler, "__code__") else getattr(handler, "__call__", None)  # noqa: B004 - for its code
    code: CodeType | None = getattr(function, "__code__", None)
    return code
