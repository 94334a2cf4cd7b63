"""Starts of threads that fail, or that an exception strikes.

``Thread.start`` calls a function of the interpreter, and then waits until the thread runs. Only a stand-in for that
function can fail as the system does, or be struck between the two; CPython has no public name for it.
"""

import threading
from collections.abc import Callable
from typing import Any

import pytest


def fail_starts(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    """Let the system refuse every further thread with ``error``."""

    def refuse(*_: Any, **__: Any) -> None:
        raise error

    monkeypatch.setattr(threading, "_start_new_thread", refuse)


def strike_starts(monkeypatch: pytest.MonkeyPatch, error: type[BaseException], ran: threading.Event) -> None:
    """Let every further start raise ``error`` once ``ran`` is set, by the thread that was started."""
    start: Any = threading._start_new_thread  # type: ignore[attr-defined]

    def struck(function: Callable[..., object], *arguments: Any) -> None:
        start(function, *arguments)
        ran.wait()
        raise error

    monkeypatch.setattr(threading, "_start_new_thread", struck)
