"""Warnings that clients cause are few, and say how many were left out."""

import logging

import pytest

from dualwrite.broker.runtime.limited_log import LimitedLog


class Clock:
    """Seconds that a test sets."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


def test_each_text_is_logged_once_in_a_second(caplog: pytest.LogCaptureFixture) -> None:
    log = LimitedLog(logging.getLogger("limited"), 10, Clock())
    for text in ("a", "b", "a", "a"):
        log.warn(text)
    assert caplog.messages == ["a", "b"]


def test_so_many_texts_are_logged_in_a_second_and_no_more(caplog: pytest.LogCaptureFixture) -> None:
    log = LimitedLog(logging.getLogger("limited"), 2, Clock())
    for text in ("a", "b", "c"):
        log.warn(text)
    assert caplog.messages == ["a", "b"]


def test_the_next_warning_says_how_many_were_left_out(caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    log = LimitedLog(logging.getLogger("limited"), 1, clock)
    for text in ("a", "a", "b"):
        log.warn(text)
    clock.seconds = 1.0
    log.warn("a")
    clock.seconds = 2.0
    log.warn("a")
    assert caplog.messages == ["a", "a (2 warnings of this kind were left out before)", "a"]
