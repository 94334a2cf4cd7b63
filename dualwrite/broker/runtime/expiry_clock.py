"""The time by which offsets, ids and producers expire. A wall clock that jumps forward deletes nothing."""

from dualwrite.ports import Clock


class ExpiryClock:
    """The earlier of two times: the wall clock; and the wall clock at the start plus the monotonic time since.

    Stored times are times of the wall clock. If the wall clock jumps forward, the second time is the earlier one, and
    no entry expires too early. If it jumps back, the first time is the earlier one, and stored entries stay longer.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._ahead_ms = clock.wall_ms() - _steady_ms(clock)

    def now_ms(self) -> int:
        """Milliseconds since the epoch."""
        return min(self._clock.wall_ms(), _steady_ms(self._clock) + self._ahead_ms)


def _steady_ms(clock: Clock) -> int:
    return round(clock.monotonic() * 1000)
