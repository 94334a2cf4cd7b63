"""Warnings that clients cause, at most a few per second: thousands of connections must not fill the log."""

import logging
from collections.abc import Callable

_SECONDS = 1.0


class LimitedLog:
    """Warnings of one kind. Within a second each text is logged once.

    :param most: the most different texts that are logged within a second.
    :param now: the time in monotonic seconds.
    """

    def __init__(self, logger: logging.Logger, most: int, now: Callable[[], float]) -> None:
        self._now = now
        self._logger = logger
        self._most = most
        self._began = -_SECONDS
        self._logged: set[str] = set()
        self._left_out = 0

    def warn(self, text: str) -> None:
        """Log ``text``, unless it or too many others were logged within this second. The next warning that is logged
        after that says how many were left out."""
        now = self._now()
        if now - self._began >= _SECONDS:
            self._began = now
            self._logged.clear()
        if text in self._logged or len(self._logged) >= self._most:
            self._left_out += 1
            return
        self._logged.add(text)
        suffix = f" ({self._left_out} warnings of this kind were left out before)" if self._left_out else ""
        self._left_out = 0
        self._logger.warning("%s%s", text, suffix)
