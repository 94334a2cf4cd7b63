"""``@transactional(get)``: a function as a unit of work of a DualWrite that is made later than the function.

An application's factory, a web framework's request or an object may have the DualWrite; the module that defines the
function has not.
"""

import functools
import inspect
from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar, overload

from dualwrite.coordinator.steps.retry import require_plain, require_tx
from dualwrite.coordinator.unit.transaction import BaseTransaction
from dualwrite.errors import ConfigurationError

P = ParamSpec("P")
R = TypeVar("R")
S = TypeVar("S")
T = TypeVar("T", bound=BaseTransaction)


class LateDecorator(Protocol):
    """What :func:`transactional` returns."""

    @overload
    def __call__(self, function: Callable[Concatenate[T, P], R], /) -> Callable[P, R]: ...

    @overload
    def __call__(self, function: Callable[Concatenate[S, T, P], R], /) -> Callable[Concatenate[S, P], R]: ...


def transactional(get: Callable[..., Any], /, *, retries: int = 0) -> LateDecorator:
    """Decorate ``function(tx, …)`` so that each call is a unit of work of the DualWrite that ``get`` returns then.

    Otherwise as DualWrite.transactional and, for a coroutine function, AsyncDualWrite.transactional.

    :param get: called without arguments, as in ``@transactional(lambda: current_app.dual_write)``; or with the first
        argument of the call, as in a method with ``@transactional(lambda self: self.dual_write)``.
    :param retries: see DualWrite.transactional.
    :raises ConfigurationError: if ``get`` is not such a function. A call raises it if ``get`` returns no DualWrite, or
        one of the other kind.
    """
    takes_first = _takes_first(get)

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        is_coroutine = inspect.iscoroutinefunction(function)
        (require_tx if is_coroutine else require_plain)(function)

        def of_call(args: tuple[Any, ...]) -> Callable[..., Any]:
            dual_write = get(*args[:1]) if takes_first else get()
            return _bound(dual_write, function, retries, is_coroutine=is_coroutine)

        if is_coroutine:

            @functools.wraps(function)
            async def awaited_unit(*args: Any, **kwargs: Any) -> Any:
                return await of_call(args)(*args, **kwargs)

            return awaited_unit

        @functools.wraps(function)
        def unit(*args: Any, **kwargs: Any) -> Any:
            return of_call(args)(*args, **kwargs)

        return unit

    return decorate


def _takes_first(get: Callable[..., Any]) -> bool:
    """True if ``get`` takes the first argument of a call."""
    if not callable(get):
        raise ConfigurationError(f"transactional({get!r:.100}): give a function that returns the DualWrite")
    try:
        parameters = inspect.signature(get).parameters.values()
    except (TypeError, ValueError):
        return False
    required = [each for each in parameters if each.default is each.empty and each.kind not in _MANY]
    if required and required[0].name == "tx":
        raise ConfigurationError(
            "@transactional on a function of tx: write @transactional(get) with a function that returns the DualWrite"
        )
    if len(required) > 1 or any(each.kind is each.KEYWORD_ONLY for each in required):
        raise ConfigurationError(
            "transactional(get): get takes no argument, or one: the first argument of the decorated function's call"
        )
    return bool(required)


_MANY = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def _bound(dual_write: Any, function: Callable[..., Any], retries: int, *, is_coroutine: bool) -> Callable[..., Any]:
    """``function`` as a unit of work of ``dual_write``."""
    has_blocks = hasattr(dual_write, "__aexit__" if is_coroutine else "__exit__")
    if not (has_blocks and hasattr(dual_write, "transactional")):
        wanted = "an AsyncDualWrite" if is_coroutine else "a DualWrite"
        name = getattr(function, "__qualname__", repr(function))
        raise ConfigurationError(f"{name}: transactional(get) needs {wanted}, and get returned {dual_write!r:.100}")
    made: Callable[..., Any] = dual_write.transactional(retries=retries)(function)
    return made
