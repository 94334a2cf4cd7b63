"""Imposes a deadline on calls that may not keep their own.

librdkafka's send_offsets_to_transaction waits without limit for the group's coordinator: it passes its timeout to a
request that never reads it. Its abort_transaction waits without limit for each broker's thread, which may be looking up
a name. Such a call runs in a thread of its own. If it does not return in time, the thread is abandoned, and the caller
must not use the producer again.
"""

import logging
import queue
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from dualwrite.client.threads import start_thread
from dualwrite.errors import KafkaUnavailableError

_LOG = logging.getLogger("dualwrite.librdkafka")


class WedgedError(KafkaUnavailableError):
    """A call into librdkafka did not return. Its producer cannot be used any more. Close it and make a new one: the new
    epoch fences requests that the old call may still send."""


class DeadlineCalls:
    """Runs calls, one at a time, in a thread that it keeps for them.

    :param grace: seconds beyond its own timeout that a call may take.
    """

    def __init__(self, grace: float) -> None:
        self._grace = grace
        self._todo: queue.SimpleQueue[tuple[Callable[[], Any], queue.SimpleQueue[Any]] | None] | None = None
        self.is_wedged = False
        """True once a call did not return."""

    def call(self, operation: str, timeout: float, act: Callable[[], Any]) -> Any:
        """The result of ``act``; an error of ``act`` is raised here.

        :param operation: a description of the call, for the error message.
        :param timeout: seconds that the call should take at most by itself.
        :raises WedgedError: if it has not returned after ``timeout`` and the grace; at once, if an earlier call has
            not.
        """
        if self.is_wedged:
            raise WedgedError(f"{operation}: an earlier call of this producer has not returned")
        todo = self._todo or self._begin()
        answer: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.is_wedged = True  # an interrupt of the wait abandons the call, too
        todo.put((act, answer))
        try:
            returned, error = answer.get(timeout=timeout + self._grace)
        except queue.Empty:
            limit = timeout + self._grace
            _LOG.warning("%s: librdkafka has not returned after %g s: its producer is abandoned", operation, limit)
            raise WedgedError(
                f"{operation}: librdkafka did not return within {limit:g} s; the library replaces its producer"
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
            todo.put(None)  # after an interrupt the thread may or may not run; the next call starts another
            raise
        self._todo = todo
        return todo

    def close(self) -> None:
        """Let the thread end as soon as it can."""
        if self._todo is not None:
            self._todo.put(None)
            self._todo = None


def _work(todo: "queue.SimpleQueue[tuple[Callable[[], Any], queue.SimpleQueue[Any]] | None]") -> None:
    while (task := todo.get()) is not None:
        act, answer = task
        try:
            answer.put((act(), None))
        except BaseException as error:  # noqa: BLE001 - raised in the caller's thread
            answer.put((None, error))
        # Keep no reference to this call while waiting for the next: the last reference destroys a producer.
        del task, act, answer


class HeldCallbacks:
    """Holds users' delivery callbacks, so that they run only in the thread that calls the producer."""

    def __init__(self) -> None:
        self._held: list[Callable[[], Any]] | None = None

    def to(self, on_delivery: Callable[[Any, Any], None]) -> Callable[[Any, Any], None]:
        """A callback that calls ``on_delivery`` at once, or after the hold ends."""

        def tell(error: Any, message: Any) -> None:
            held = self._held
            if held is None:
                on_delivery(error, message)
            else:
                held.append(lambda: on_delivery(error, message))

        return tell

    @contextmanager
    def held(self, calls: DeadlineCalls) -> Iterator[None]:
        """Hold callbacks while ``calls`` calls the producer in its thread. They are called after the call, also after
        one that has failed, and each even if another one raises. Callbacks of an abandoned call are never called: it
        would call them in its own thread."""
        held: list[Callable[[], Any]] = []
        self._held = held
        try:
            yield
        finally:
            if not calls.is_wedged:
                self._held = None
                with ExitStack() as due:
                    while held:
                        due.callback(held.pop())  # it calls the last one first
