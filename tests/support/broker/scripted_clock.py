"""A clock that a test moves."""


class ScriptedClock:
    """Moves only when the test says so."""

    def __init__(self) -> None:
        self.now = 1000.0

    def wall_ms(self) -> int:
        return 1_000_000

    def monotonic(self) -> float:
        return self.now
