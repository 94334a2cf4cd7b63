"""Telling whoever waits that the broker stops, so that a stop is not delayed by requests that wait for something."""

import asyncio


class Stopping:
    """Set once, when the broker begins to stop. Belongs to the event loop's thread."""

    def __init__(self) -> None:
        self.has_begun = False
        """True once no more may be waited for: answer with what there is."""
        self._waiting: set[asyncio.Event] = set()

    def begin(self) -> None:
        """Wake everybody who waits."""
        self.has_begun = True
        for event in self._waiting:
            event.set()

    def add_waiter(self, event: asyncio.Event) -> None:
        """Set ``event`` when the broker begins to stop. Look at ``has_begun`` before waiting for it."""
        self._waiting.add(event)

    def remove_waiter(self, event: asyncio.Event) -> None:
        """Forget ``event``."""
        self._waiting.discard(event)
