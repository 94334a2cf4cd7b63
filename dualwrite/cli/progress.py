"""The progress of a long command: a bar on a terminal; elsewhere a line for each tenth of the rows."""

import time
from collections.abc import Callable
from typing import TextIO

from dualwrite.loader.job import Progress

_WIDTH = 30
_REDRAW_SECONDS = 0.1


class ProgressReport:
    """Shows a load's progress on ``stream``; call it with each :class:`Progress`, and :meth:`close` it at the end.

    ``rows`` is the number of rows in the last :class:`Progress`.

    :param label: the name of the data.
    :param clock: a monotonic clock in seconds, for the rate, and to draw the bar at most ten times a second.
    """

    def __init__(self, label: str, stream: TextIO, clock: Callable[[], float] = time.monotonic) -> None:
        self.rows = 0
        self._label = label
        self._stream = stream
        self._clock = clock
        self._on_terminal = stream.isatty()
        self._began = clock()
        self._drawn_at = float("-inf")
        self._tenths = 0

    def __call__(self, progress: Progress) -> None:
        """Show ``progress``."""
        self.rows = progress.rows
        if self._on_terminal:
            if self._clock() - self._drawn_at >= _REDRAW_SECONDS or progress.fraction >= 1:
                self._drawn_at = self._clock()
                self._stream.write(f"\r\x1b[K{self._bar(progress)}")
                self._stream.flush()
        elif progress.rows > progress.earlier_rows and int(progress.fraction * 10) > self._tenths:
            self._tenths = int(progress.fraction * 10)
            print(f"{self._label}: {progress.rows:,} rows, {self._tenths * 10} %", file=self._stream, flush=True)

    def close(self) -> None:
        """End the bar: move the terminal's cursor to a new line."""
        if self._on_terminal and self._drawn_at > float("-inf"):
            print(file=self._stream, flush=True)

    def _bar(self, progress: Progress) -> str:
        filled = round(progress.fraction * _WIDTH)
        seconds = self._clock() - self._began
        rate = f"  {(progress.rows - progress.earlier_rows) / seconds:,.0f} rows/s" if seconds >= 1 else ""
        bar = "#" * filled + "-" * (_WIDTH - filled)
        return f"{self._label} [{bar}] {progress.fraction:4.0%}  {progress.rows:,} rows{rate}"
