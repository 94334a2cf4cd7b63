"""Exceptions out of a signal handler, at every point at which CPython runs one, one point after the other.

CPython looks for signals after a call of a C function, at the entry of a Python function and at a backward jump, and
nowhere else. A trace function sees every instruction of the code that is to be struck. Before the chosen one it makes
a signal pending by PyErr_SetInterruptEx, in a way that the interpreter looks for no signal before that instruction.
So the interpreter itself decides where the handler runs, and which ``except`` and ``with`` cover that place.
"""

import contextlib
import ctypes
import dis
import functools
import signal
import sys
import threading
import weakref
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import dualwrite

PACKAGE = str(Path(dualwrite.__file__).parent)
_STANDARD = {module.__file__ for module in (contextlib, functools, threading, weakref)}
"""What the package's code calls, and is struck like it: whose locks and generators a strike may leave behind."""
_SIGNAL = signal.SIGUSR1
_set_pending = ctypes.pythonapi.PyErr_SetInterruptEx


class Striker:
    """Has ``error`` raised at the ``at``-th place at which this thread, the main one, looks for signals in ``package``.

    A context manager; what is struck is its block. ``where`` is empty if there are fewer places.
    """

    def __init__(self, at: int, error: BaseException, package: str = PACKAGE) -> None:
        self.where = ""
        self.is_entry_of = ""
        """The name of the function that was struck at its entry, if it was."""
        self._left = at
        self._error: BaseException | None = error
        self._package = package
        self._before: Any = None

    def __enter__(self) -> "Striker":
        self._before = signal.signal(_SIGNAL, self._strike)
        sys.settrace(self._call)
        return self

    def forget(self) -> None:
        """Hold the exception no longer, and with it the frames that it left."""
        self._error = None

    def __exit__(self, *_: object) -> None:
        sys.settrace(None)
        signal.signal(_SIGNAL, self._before)

    def _call(self, frame: FrameType, what: str, argument: Any) -> Any:
        if not self._is_ours(frame):
            return None
        frame.f_trace_opcodes = True
        frame.f_trace_lines = False
        caller = frame.f_back
        if caller is None or caller.f_trace is None or caller.f_lasti not in _places(caller.f_code):
            self._count(frame)  # called by C: no call of the caller's was counted
        return self._step

    def _step(self, frame: FrameType, what: str, argument: Any) -> Any:
        if what == "opcode" and frame.f_lasti in _places(frame.f_code):
            self._count(frame)
        return self._step

    def _count(self, frame: FrameType) -> None:
        self._left -= 1
        if self._left == 0 and not _is_finalizing(frame):
            # Not by a call, after which this function would be struck itself.
            (_,) = map(_set_pending, (int(_SIGNAL),))

    def _strike(self, number: int, frame: FrameType | None) -> None:
        sys.settrace(None)
        assert frame is not None
        code = frame.f_code
        self.where = f"{Path(code.co_filename).name}:{frame.f_lineno} ({code.co_name}+{frame.f_lasti})"
        if _names(code).get(frame.f_lasti) == "RESUME":
            self.is_entry_of = code.co_qualname
        self._handle()

    def _handle(self) -> None:
        """What the handler does there."""
        assert self._error is not None
        raise self._error

    def _is_ours(self, frame: FrameType) -> bool:
        """True for code of the package, and for what it calls of the standard library's."""
        at: FrameType | None = frame
        while at is not None and at.f_code.co_filename in _STANDARD:
            at = at.f_back
        return at is not None and at.f_code.co_filename.startswith(self._package)


class Caller(Striker):
    """Has ``act`` called by a signal handler, which raises nothing, at such a place."""

    def __init__(self, at: int, act: Callable[[], object]) -> None:
        super().__init__(at, AssertionError())
        self._handle = act  # type: ignore[method-assign, assignment]


@functools.cache
def _names(code: CodeType) -> dict[int, str]:
    return {instruction.offset: instruction.opname for instruction in dis.get_instructions(code)}


@functools.cache
def _places(code: CodeType) -> frozenset[int]:
    """The offsets of the instructions after which signals are looked for, in the callee first; RESUME is seen as a
    call."""
    return frozenset(
        offset for offset, name in _names(code).items() if name.startswith("CALL") or "JUMP_BACKWARD" in name
    )


def _is_finalizing(frame: FrameType | None) -> bool:
    """True inside of ``__del__``, out of which nothing is raised."""
    while frame is not None and frame.f_code.co_name != "__del__":
        frame = frame.f_back
    return frame is not None
