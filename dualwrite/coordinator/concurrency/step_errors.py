"""Distinguishes a step's own errors from exceptions that come from outside (time limits, interrupts)."""

from traceback import walk_tb

from sqlalchemy.exc import DBAPIError, SQLAlchemyError, StatementError

from dualwrite.errors import DualWriteError

_OF_PEP_249 = frozenset({"InterfaceError", "DatabaseError"})
_OF_ASYNCPG = frozenset({"PostgresError", "InterfaceError", "InternalClientError"})
"""The base classes of the errors of asyncpg, which is no driver of PEP 249's."""

_ENDING = frozenset({"commit", "rollback", "close"})
"""Functions of sqlalchemy.engine.base that end a transaction, and assert in a ``finally`` that it has ended."""


def unmasked(error: BaseException) -> BaseException:
    """The exception that ``error`` hides, or ``error`` itself. A time limit or an interrupt that strikes SQLAlchemy
    before a transaction has ended comes out as the context of an AssertionError; see _ENDING."""
    if isinstance(error, AssertionError) and error.__context__ is not None:
        *_, (frame, _) = walk_tb(error.__traceback__)
        if frame.f_globals["__name__"] == "sqlalchemy.engine.base" and frame.f_code.co_name in _ENDING:
            return error.__context__
    return error


def as_sqlalchemy(error: Exception) -> Exception:
    """``error`` as SQLAlchemy would raise it, if it is a driver's own: of the driver's cursor, for example. ``error``
    itself otherwise."""
    if not _is_of_a_driver(error):
        return error
    wrapped = DBAPIError.instance(None, None, error, Exception)
    return wrapped if isinstance(wrapped, DBAPIError) else error


def database_error_of(error: Exception) -> DBAPIError | None:
    """The database's error that ``error`` is, or from which a listener of ``handle_error`` or the application has
    raised it: SQLAlchemy raises what the listener raises from the driver's own. None if there is none."""
    found = as_sqlalchemy(error)
    if not isinstance(found, DualWriteError | DBAPIError) and isinstance(error.__cause__, Exception):
        found = as_sqlalchemy(error.__cause__)
    return found if isinstance(found, DBAPIError) else None


def is_step_error(error: BaseException) -> bool:
    """True if ``error`` is a step's own. Any other is a time limit or an interrupt from a signal handler, and is raised
    to the caller in every step. Many time limits are a TimeoutError."""
    if isinstance(error, OSError):
        return not isinstance(error, TimeoutError)
    if isinstance(error, StatementError) and not isinstance(error, DBAPIError):
        # SQLAlchemy wraps exceptions in this way while it prepares a statement.
        return error.orig is None or is_step_error(error.orig)
    return isinstance(error, DualWriteError | SQLAlchemyError) or _is_of_a_driver(error)


def _is_of_a_driver(error: BaseException) -> bool:
    """True for a driver's errors, which SQLAlchemy does not wrap when it calls the driver outside a statement."""
    return any(_is_root(base) for base in type(error).__mro__)


def _is_root(kind: type) -> bool:
    """True for the base class of a driver's errors. PEP 249 calls it Error, and derives the others from it."""
    if kind.__name__ == "Error":
        derived: list[type] = kind.__subclasses__()
        return {kind.__name__ for kind in derived} >= _OF_PEP_249
    return kind.__name__ in _OF_ASYNCPG and kind.__module__.partition(".")[0] == "asyncpg"
