"""Runs a coroutine at once, as far as it has not to wait, and measures its waits. Python's own eager tasks need Python
3.12."""

from collections.abc import Awaitable, Coroutine, Generator
from time import monotonic
from types import coroutine
from typing import Any

from dualwrite.broker.runtime.flusher import Flusher


class Waits:
    """How long the request in progress of a connection has waited.

    :param flusher: tells a wait for the disk from the others.
    """

    __slots__ = ("_began", "_flusher", "_is_for_disk", "disk_seconds", "seconds")

    def __init__(self, flusher: Flusher) -> None:
        self._flusher = flusher
        self._began = 0.0
        self._is_for_disk = False
        self.seconds = 0.0
        """All of its waits."""
        self.disk_seconds = 0.0
        """Those for the disk alone."""

    def clear(self) -> None:
        """Another request begins."""
        self.seconds = self.disk_seconds = 0.0

    def begin(self, waits_for: Any) -> None:
        """The request has just begun to wait for ``waits_for``."""
        self._began = monotonic()
        self._is_for_disk = waits_for is not None and waits_for is self._flusher.latest_waiter

    def end(self) -> None:
        """The wait is over."""
        waited = monotonic() - self._began
        self.seconds += waited
        if self._is_for_disk:
            self.disk_seconds += waited


def begun(work: Coroutine[Any, Any, None], waits: Waits) -> Awaitable[None] | None:
    """Run ``work`` until it has to wait, and return the rest of it, which a task must await; None if it is done.

    Until then ``work`` runs outside of any task, so it must not ask for the current one, as ``asyncio.timeout`` does.
    The rest adds its waits to ``waits``: between two waits a coroutine does nothing but its own work.
    """
    try:
        waits_for = work.send(None)
    except StopIteration:
        return None
    waits.begin(waits_for)  # the task that awaits the rest may come to it much later
    return _rest_of(work, waits_for, waits)


@coroutine
def _rest_of(work: Coroutine[Any, Any, None], waits_for: Any, waits: Waits) -> Generator[Any, Any, None]:
    """``work`` from the point where it waits for the future ``waits_for``, or only for its next turn."""
    while True:
        try:
            try:
                value = yield waits_for
            except BaseException as error:  # noqa: BLE001  a cancellation, too, is for the work
                waits_for = None  # a failed future refers to this frame by its error's traceback
                waits.end()
                waits_for = work.throw(error)
            else:
                waits.end()
                waits_for = work.send(value)
        except StopIteration:
            return
        waits.begin(waits_for)
