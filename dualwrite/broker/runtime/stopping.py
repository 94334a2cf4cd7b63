"""Notifies waiting requests that the broker stops, so that they do not delay the stop."""

from collections.abc import Callable


class Stopping:
    """Set once, when the broker begins to stop. Belongs to the event loop's thread."""

    def __init__(self) -> None:
        self.has_begun = False
        """True once the broker stops. A request must then answer with the data that it has, and not wait."""
        self._waiting: set[Callable[[], None]] = set()

    def begin(self) -> None:
        """Wake all waiters."""
        self.has_begun = True
        for wake in list(self._waiting):
            wake()

    def add_waiter(self, wake: Callable[[], None]) -> None:
        """Call ``wake`` when the broker begins to stop. Check ``has_begun`` before waiting for it."""
        self._waiting.add(wake)

    def remove_waiter(self, wake: Callable[[], None]) -> None:
        """Forget ``wake``."""
        self._waiting.discard(wake)
