"""Threads that are started where a signal handler may raise."""

import threading
from collections.abc import Callable
from typing import Any

import pytest

from dualwrite.client.threads import start_thread


class LimitError(Exception):
    """As Celery's SoftTimeLimitExceeded."""


def test_a_limit_that_strikes_the_start_of_a_thread_is_raised_and_not_cpythons_own_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The thread runs by then, and ``Thread.start`` fails to take it off its list."""
    start, ran = threading._start_new_thread, threading.Event()  # type: ignore[attr-defined]

    def struck(function: Callable[..., object], *args: Any) -> None:
        start(function, *args)
        ran.wait()
        raise LimitError

    monkeypatch.setattr(threading, "_start_new_thread", struck)
    with pytest.raises(LimitError):
        start_thread(ran.set, "struck")


def test_a_thread_that_the_system_refuses_is_the_systems_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading, "_start_new_thread", refuse)
    with pytest.raises(RuntimeError, match="can't start"):
        start_thread(print, "refused")


def test_a_refused_thread_in_an_except_block_raises_the_systems_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*_: Any) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading, "_start_new_thread", refuse)
    try:
        raise LimitError
    except LimitError:
        with pytest.raises(RuntimeError, match="can't start"):
            start_thread(print, "refused")
