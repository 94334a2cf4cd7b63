"""The requests of one connection that wait for something that may never come: a Fetch, a JoinGroup, a SyncGroup.

A long poll is answered early if the broker stops, if the client has gone, and if so many requests wait behind it that
the connection is no longer read: the broker would then not notice that the client has gone. So a client that has
disconnected leaves no task behind. Nothing is cancelled: the handler wakes up and answers, and is never torn in its
middle.
"""

from collections.abc import Callable

from dualwrite.broker.runtime.stopping import Stopping

Wake = Callable[[], None]


def _never() -> bool:
    return False


class LongPolls:
    """Belongs to the event loop's thread.

    :param stopping: the end of the broker.
    :param is_over: True if the connection's requests must not wait. The code that changes it to True must call
        :meth:`wake`.
    """

    def __init__(self, stopping: Stopping, is_over: Callable[[], bool] = _never) -> None:
        self._stopping = stopping
        self._is_over = is_over
        self._waiting: set[Wake] = set()

    @property
    def must_answer(self) -> bool:
        """True if a request must answer with the data that it has, and not wait."""
        return self._stopping.has_begun or self._is_over()

    @property
    def are_waiting(self) -> bool:
        """True while the connection's request in progress waits."""
        return bool(self._waiting)

    def add(self, wake: Wake) -> None:
        """Call ``wake`` when :attr:`must_answer` becomes true. Check it before waiting."""
        self._waiting.add(wake)
        self._stopping.add_waiter(wake)

    def remove(self, wake: Wake) -> None:
        """The request waits no longer."""
        self._waiting.discard(wake)
        self._stopping.remove_waiter(wake)

    def wake(self) -> None:
        """Let the waiting requests look at :attr:`must_answer` again."""
        for wake in list(self._waiting):
            wake()
