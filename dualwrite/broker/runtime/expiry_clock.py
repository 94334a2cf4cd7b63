"""The time by which offsets, ids and producers expire. A wall clock that jumps forward deletes nothing."""

from dualwrite.ports import Clock


class ExpiryClock:
    """The earlier one of two times: the wall clock's, and its time at the start plus the time that has passed since.

    Stored times are of the wall clock. If it jumps forward, the second time is the earlier one, and nothing expires
    before its time. If it jumps back, the first one is the earlier, and what was stored before is kept for longer.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._ahead_ms = clock.wall_ms() - _steady_ms(clock)

    def now_ms(self) -> int:
        """Milliseconds since the epoch."""
        return min(self._clock.wall_ms(), _steady_ms(self._clock) + self._ahead_ms)


def _steady_ms(clock: Clock) -> int:
    return round(clock.monotonic() * 1000)
