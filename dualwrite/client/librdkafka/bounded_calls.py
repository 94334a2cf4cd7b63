"""A deadline from outside for calls that may not keep their own.

librdkafka's send_offsets_to_transaction waits without any limit for the group's coordinator (it gives its timeout to a
request that never looks at it), and its abort_transaction waits so for each broker's thread, which may be looking up a
name. Such a call is made in a thread of its own. If it does not come back in time, it is left there: nobody waits for
it any more, and whoever made it must not use the producer again.
"""

import logging
import queue
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from dualwrite.client.threads import start_thread
from dualwrite.errors import KafkaUnavailableError

_LOG = logging.getLogger("dualwrite.librdkafka")


class WedgedError(KafkaUnavailableError):
    """A call into librdkafka did not come back. Its producer is of no use any more: close it, and make a new one, whose
    epoch fences whatever that call may still send."""


class BoundedCalls:
    """Makes calls, one at a time, in a thread that it keeps for them.

    :param grace: seconds beyond its own timeout that a call may take.
    """

    def __init__(self, grace: float) -> None:
        self._grace = grace
        self._todo: queue.SimpleQueue[tuple[Callable[[], Any], queue.SimpleQueue[Any]] | None] | None = None
        self.is_wedged = False
        """True once a call did not come back."""

    def call(self, what: str, timeout: float, act: Callable[[], Any]) -> Any:
        """What ``act`` returns; what it raises is raised here.

        :param what: it in words, for the error.
        :param timeout: seconds that it should take at most by itself.
        :raises WedgedError: if it has not come back after them, nor in the grace; at once, if an earlier one has not.
        """
        if self.is_wedged:
            raise WedgedError(f"{what}: an earlier call of this producer has never come back")
        todo = self._todo or self._begin()
        answer: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.is_wedged = True  # an interrupt while it waits leaves the call behind, too
        todo.put((act, answer))
        try:
            returned, error = answer.get(timeout=timeout + self._grace)
        except queue.Empty:
            _LOG.warning("%s: not back after %g s: the producer is abandoned", what, timeout + self._grace)
            raise WedgedError(
                f"{what}: librdkafka did not come back within {timeout + self._grace:g} s; the producer is replaced"
            ) from None
        self.is_wedged = False
        if error is not None:
            raise error
        return returned

    def _begin(self) -> "queue.SimpleQueue[tuple[Callable[[], Any], queue.SimpleQueue[Any]] | None]":
        todo: queue.SimpleQueue[tuple[Callable[[], Any], queue.SimpleQueue[Any]] | None] = queue.SimpleQueue()
        try:
            start_thread(_work, "dualwrite-librdkafka", todo)
        except BaseException:
            todo.put(None)  # an interrupt: whether the thread has begun is not known, and the next call starts another
            raise
        self._todo = todo
        return todo

    def close(self) -> None:
        """Let the thread end, as soon as it can."""
        if self._todo is not None:
            self._todo.put(None)
            self._todo = None


def _work(todo: "queue.SimpleQueue[tuple[Callable[[], Any], queue.SimpleQueue[Any]] | None]") -> None:
    while (task := todo.get()) is not None:
        act, answer = task
        try:
            answer.put((act(), None))
        except BaseException as error:  # noqa: BLE001 - it is the caller's
            answer.put((None, error))
        # Nothing of the call is kept while the next one is waited for: a producer is destroyed with its last reference.
        del task, act, answer


class HeldCallbacks:
    """The delivery callbacks of users, which are called in the thread that calls the producer, and in no other."""

    def __init__(self) -> None:
        self._held: deque[Callable[[], Any]] | None = None

    def to(self, on_delivery: Callable[[Any, Any], None]) -> Callable[[Any, Any], None]:
        """``on_delivery``, at once or after what holds it up."""

        def tell(error: Any, message: Any) -> None:
            held = self._held
            if held is None:
                on_delivery(error, message)
            else:
                held.append(lambda: on_delivery(error, message))

        return tell

    @contextmanager
    def held(self) -> Iterator[None]:
        """Hold them up while another thread calls the producer. If that does not come back, what it has to tell is
        never told."""
        held: deque[Callable[[], Any]] = deque()
        self._held = held
        try:
            yield
        except WedgedError:
            raise
        except BaseException:
            self._held = None
            raise
        self._held = None
        while held:
            held.popleft()()
