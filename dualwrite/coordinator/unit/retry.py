"""Runs a unit of work again after failures that left nothing on either side and are likely to pass."""

import inspect
import logging
import random
import time
from collections.abc import Callable
from typing import TypeVar

from sqlalchemy import Dialect
from sqlalchemy.exc import DBAPIError

from dualwrite.coordinator.sql.dialects.base import ErrorMeaning
from dualwrite.coordinator.sql.dialects.supported import database_of
from dualwrite.errors import ConfigurationError, DualWriteError

_LOG = logging.getLogger("dualwrite")
_PASSING = (ErrorMeaning.BUSY, ErrorMeaning.CONFLICT)
_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 2.0
"""Seconds, at most; each pause may be twice as long as the one before."""

_RUN_LATER = (inspect.iscoroutinefunction, inspect.isgeneratorfunction, inspect.isasyncgenfunction)

R = TypeVar("R")


def may_pass(error: Exception, dialect: Dialect) -> bool:
    """True if a unit of work that ended with ``error`` was undone on both sides and may succeed when it is run again.

    That is one of this library's errors whose ``retriable`` says so, and the database's own word for a deadlock, a
    serialization failure or a lock that was not free in time. A lost connection is none of them: if it was lost in the
    COMMIT of a unit without records, nobody knows whether that happened.
    """
    if isinstance(error, DualWriteError):
        return error.retriable
    if not isinstance(error, DBAPIError) or error.connection_invalidated:
        return False
    return database_of(dialect).trouble(error) in _PASSING


def require_plain(function: object) -> None:
    """Refuse what cannot be run as a unit of work: its body would run after the commit, or not at all.

    :raises ConfigurationError: naming it.
    """
    if not callable(function):
        raise ConfigurationError(f"{function!r} is no function: write @transactional, or @transactional(retries=3)")
    if any(is_later(function) for is_later in _RUN_LATER):
        name = getattr(function, "__qualname__", repr(function))
        raise ConfigurationError(f"{name} is a coroutine or a generator: decorate a plain function")


class Retrying:
    """How often a unit of work is run again, and after which pauses.

    :param retries: attempts after the first; 0 for none.
    :param dialect: of the database, whose errors are to be understood.
    :param sleep: waits for the seconds that it is given.
    :param chance: a number from 0 to 1, by which a pause is shortened: those who failed together do not meet again.
    :raises ConfigurationError: if ``retries`` is no such number.
    """

    def __init__(
        self,
        retries: int,
        dialect: Dialect,
        sleep: Callable[[float], None] = time.sleep,
        chance: Callable[[], float] = random.random,
    ) -> None:
        if not isinstance(retries, int) or isinstance(retries, bool) or retries < 0:
            raise ConfigurationError(f"retries={retries!r}: say how often a unit of work is run again, 0 or more")
        self._retries = retries
        self._dialect = dialect
        self._sleep = sleep
        self._chance = chance

    def run(self, attempt: Callable[[], R], is_undone: Callable[[], bool] = lambda: True) -> R:
        """What ``attempt`` returns, the first time that it does not raise.

        ``attempt`` must have ended both sides by the time that it raises: a pause holds no lock and no slot.

        :param is_undone: False if the last attempt has left something behind all the same, as one does whose block
            has committed past the library.

        Raises what the last attempt raised; at once what is not likely to pass (:func:`may_pass`).
        """
        for number in range(1, self._retries + 1):
            try:
                return attempt()
            except Exception as error:
                if not may_pass(error, self._dialect) or not is_undone():
                    raise
                pause = self._chance() * min(_LONGEST_PAUSE, _FIRST_PAUSE * 2 ** (number - 1))
                _LOG.info("a unit of work is run again in %.3f s (%d of %d): %s", pause, number, self._retries, error)
            self._sleep(pause)
        return attempt()
