"""A clock that a test moves."""

from tests.support.broker.token_makers import SECOND_MS


class ScriptedClock:
    """Moves only when the test says so."""

    def __init__(self) -> None:
        self.now = 1000.0

    def wall_ms(self) -> int:
        return SECOND_MS * 1000

    def monotonic(self) -> float:
        return self.now
