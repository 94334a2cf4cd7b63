"""Warnings that clients cause are few, and say how many were left out."""

import logging

import pytest

from dualwrite.broker.runtime.limited_log import LimitedLog


class SetClock:
    """Seconds that a test sets."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


def test_each_text_is_logged_once_in_a_second(caplog: pytest.LogCaptureFixture) -> None:
    log = LimitedLog(logging.getLogger("limited"), 10, SetClock())
    for text in ("a", "b", "a", "a"):
        log.warn(text)
    assert caplog.messages == ["a", "b"]


def test_no_more_than_the_limit_of_texts_is_logged_in_a_second(caplog: pytest.LogCaptureFixture) -> None:
    log = LimitedLog(logging.getLogger("limited"), 2, SetClock())
    for text in ("a", "b", "c"):
        log.warn(text)
    assert caplog.messages == ["a", "b"]


def test_the_next_warning_says_how_many_were_left_out(caplog: pytest.LogCaptureFixture) -> None:
    clock = SetClock()
    log = LimitedLog(logging.getLogger("limited"), 1, clock)
    for text in ("a", "a", "b"):
        log.warn(text)
    clock.seconds = 1.0
    log.warn("a")
    clock.seconds = 2.0
    log.warn("a")
    assert caplog.messages == ["a", "a (2 warnings of this kind were left out before)", "a"]
