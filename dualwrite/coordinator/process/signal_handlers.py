"""Whether a signal handler has raised an exception."""

import functools
import signal
from traceback import walk_tb
from types import CodeType


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
