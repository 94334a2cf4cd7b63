"""Notifies waiting requests that the broker stops, so that they do not delay the stop."""

import asyncio


class Stopping:
    """Set once, when the broker begins to stop. Belongs to the event loop's thread."""

    def __init__(self) -> None:
        self.has_begun = False
        """True once the broker stops. A request must then answer with the data that it has, and not wait."""
        self._waiting: set[asyncio.Event] = set()

    def begin(self) -> None:
        """Wake all waiters."""
        self.has_begun = True
        for event in self._waiting:
            event.set()

    def add_waiter(self, event: asyncio.Event) -> None:
        """Set ``event`` when the broker begins to stop. Check ``has_begun`` before waiting for it."""
        self._waiting.add(event)

    def remove_waiter(self, event: asyncio.Event) -> None:
        """Forget ``event``."""
        self._waiting.discard(event)
