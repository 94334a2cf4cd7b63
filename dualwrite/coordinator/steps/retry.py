"""Runs a unit of work again after an error that is likely to pass, once it was rolled back on both sides."""

import inspect
import logging
from collections.abc import Callable
from typing import Any, TypeVar

from dualwrite.errors import ConfigurationError

_LOG = logging.getLogger("dualwrite")
_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 2.0
_DOUBLINGS = 6
"""After so many, a pause is the longest. A float does not hold many more than a thousand."""

_RUN_LATER = (inspect.iscoroutinefunction, inspect.isgeneratorfunction, inspect.isasyncgenfunction)
_POSITIONAL = (
    inspect.Parameter.POSITIONAL_ONLY,
    inspect.Parameter.POSITIONAL_OR_KEYWORD,
    inspect.Parameter.VAR_POSITIONAL,
)

R = TypeVar("R")


def pause_after(number: int) -> float:
    """Seconds between attempt ``number`` and the next one: 0.05 after the first, then twice that, and so on to 2."""
    return min(_LONGEST_PAUSE, _FIRST_PAUSE * float(2 ** min(number - 1, _DOUBLINGS)))


def require_plain(function: object) -> None:
    """Refuse a function that cannot run as a unit of work: its body would run after the commit, or not at all.

    :raises ConfigurationError: naming the function.
    """
    if not callable(function):
        raise ConfigurationError(f"{function!r} is not a function: write @transactional, or @transactional(retries=3)")
    if any(is_later(function) for is_later in _RUN_LATER):
        name = getattr(function, "__qualname__", repr(function))
        raise ConfigurationError(f"{name} is a coroutine or a generator: decorate a plain function")
    require_tx(function)


def require_tx(function: Callable[..., object]) -> None:
    """Refuse a function that cannot be called with the transaction as an argument.

    :raises ConfigurationError: naming the function.
    """
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return  # a builtin that does not say what it takes
    if not any(parameter.kind in _POSITIONAL for parameter in parameters):
        raise ConfigurationError(f"{getattr(function, '__qualname__', repr(function))}: its first parameter must be tx")


def with_tx(function: Callable[..., R]) -> Callable[..., R]:
    """``function``, called with the transaction first.

    The transaction is the parameter ``tx``, wherever it stands (in a method, behind ``self``); without a parameter of
    that name, the first one.
    """
    try:
        parameters = list(inspect.signature(function).parameters)
    except (TypeError, ValueError):
        return function
    place = parameters.index("tx") if "tx" in parameters else 0
    if not place:
        return function

    def call(tx: object, *args: Any, **kwargs: Any) -> R:
        if len(args) < place:  # some before it were given by their names
            return function(*args, tx=tx, **kwargs)
        return function(*args[:place], tx, *args[place:], **kwargs)

    return call


class Retrying:
    """How often a unit of work is run again, and after which pauses.

    :param retries: attempts after the first; 0 for none.
    :param is_transient: True for an error after which the unit may succeed if it is run again.
    :param sleep: waits for a number of seconds.
    :param chance: returns a number from 0 to 1 that shortens a pause: units that failed together do not collide again.
    :raises ConfigurationError: if ``retries`` is not such a number.
    """

    def __init__(
        self,
        retries: int,
        is_transient: Callable[[Exception], bool],
        sleep: Callable[[float], None],
        chance: Callable[[], float],
    ) -> None:
        if not isinstance(retries, int) or isinstance(retries, bool) or retries < 0:
            raise ConfigurationError(f"retries={retries!r}: say how often a unit of work is run again, 0 or more")
        self._retries = retries
        self._may_pass = is_transient
        self._sleep = sleep
        self._chance = chance

    def run(self, attempt: Callable[[], R], is_undone: Callable[[], bool] = lambda: True) -> R:
        """Run ``attempt`` until it does not raise, and return its result.

        ``attempt`` must have ended both sides when it raises: no lock and no slot is held during a pause.

        :param is_undone: False if the last attempt left rows all the same: its block has committed past the library.

        Raises the last attempt's error; at once an error that is not likely to pass.
        """
        for number in range(1, self._retries + 1):
            try:
                return attempt()
            except Exception as error:
                if not self._may_pass(error) or not is_undone():
                    raise
                pause = self._chance() * pause_after(number)
                _LOG.info("a unit of work is run again in %.3f s (%d of %d): %s", pause, number, self._retries, error)
            self._sleep(pause)
        return attempt()
