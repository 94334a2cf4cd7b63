"""Threads that are started where a signal handler may raise."""

import threading

import pytest

from dualwrite.client.threads import start_thread
from tests.support.thread_starts import fail_starts, strike_starts
from tests.support.user_errors import LimitError


def test_a_limit_that_strikes_the_start_of_a_thread_is_raised_and_not_cpythons_own_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The thread runs by then, and ``Thread.start`` fails to take it off its list."""
    ran = threading.Event()
    strike_starts(monkeypatch, LimitError, ran)
    with pytest.raises(LimitError):
        start_thread(ran.set, "struck")


def test_a_thread_that_the_system_refuses_is_the_systems_error(monkeypatch: pytest.MonkeyPatch) -> None:
    fail_starts(monkeypatch, RuntimeError("can't start new thread"))
    with pytest.raises(RuntimeError, match="can't start"):
        start_thread(print, "refused")


def test_a_refused_thread_in_an_except_block_raises_the_systems_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fail_starts(monkeypatch, RuntimeError("can't start new thread"))
    try:
        raise LimitError
    except LimitError:
        with pytest.raises(RuntimeError, match="can't start"):
            start_thread(print, "refused")
