"""The contract between the native producer's engine and its drivers: events in, commands out.

An engine is pure: it knows no socket, no clock and no loop. A driver owns all of these and nothing else::

    operation = engine.prepare_transaction(now)
    while not operation.is_done:
        for command in engine.step(now):   # carry them out, in their order
            ...
        # wait until a socket has something, or until engine.wake_at(); then tell the engine: opened, answered, lost

``now`` is always monotonic seconds. A driver calls :meth:`Drivable.step` after every verb and every event (once for a
batch of events is enough), and whenever :attr:`Drivable.wake_at` has passed.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

from dualwrite.client.terms.endpoint import Endpoint
from dualwrite.client.terms.versions import Versions
from dualwrite.errors import DualWriteError
from dualwrite.wire.apis import ApiKey, Message

NEVER = float("inf")
"""A time that never comes."""


class Request(NamedTuple):
    """One request to one broker.

    :param tag: returned with the answer; no two requests of an engine have the same tag.
    :param message: one of kafka-python's messages, or an object with their ``encode(version=…)`` and
        ``flexible_version_q(version)``.
    """

    tag: int
    api_key: ApiKey
    version: int
    message: Message


class Open(NamedTuple):
    """Connect to ``endpoint``: TCP, TLS, ApiVersions, SASL. Then the driver calls ``opened``, or ``lost`` if that
    failed. The driver enforces the configured limit (socket.connection.setup.timeout.ms)."""

    endpoint: Endpoint


class Send(NamedTuple):
    """Send ``request`` to ``endpoint``, which is open. Requests are sent in the order of the commands, without waiting
    for answers. The driver reports each answer by ``answered``; ``lost`` says that no more answers come."""

    endpoint: Endpoint
    request: Request


class Close(NamedTuple):
    """Close ``endpoint``, whether it is open or being opened. ``lost`` does not follow: the engine has already given up
    the requests there. The driver must report nothing more of that connection."""

    endpoint: Endpoint


Command = Open | Send | Close


class Operation:
    """The result of a verb: done now, or after later events, with a result or an error."""

    __slots__ = ("_callback", "error", "is_done", "result")

    def __init__(self) -> None:
        self.is_done = False
        self.result: Any = None
        self.error: DualWriteError | None = None
        self._callback: Callable[[Operation], None] | None = None

    def when_done(self, callback: Callable[["Operation"], None]) -> None:
        """Call ``callback(operation)`` once the operation is done, or now if it is. At most one callback. It must not
        call the engine, but may note that the engine should be called."""
        if self.is_done:
            callback(self)
        else:
            self._callback = callback

    def succeed(self, result: Any = None) -> None:
        """Called by the engine: the operation is done."""
        self.result = result
        self._finish()

    def fail(self, error: DualWriteError) -> None:
        """Called by the engine: the operation is done, with an error."""
        self.error = error
        self._finish()

    def outcome(self) -> Any:
        """The result of an operation that is done.

        :raises DualWriteError: the error, if it failed.
        """
        assert self.is_done, "asked before it was done"
        if self.error is not None:
            raise self.error
        return self.result

    def _finish(self) -> None:
        assert not self.is_done, "done twice"
        self.is_done = True
        if self._callback is not None:
            self._callback(self)


class Drivable(Protocol):
    """The driver's side of an engine. ``Engine`` in ``engine.py`` is the only one."""

    def step(self, now: float) -> list[Command]:
        """The commands to carry out now. Empty most of the time."""

    def wake_at(self) -> float | None:
        """When :meth:`step` must be called again even if no event comes; None: only after an event."""

    def opened(self, endpoint: Endpoint, versions: Versions, now: float) -> None:
        """``Open`` has succeeded."""

    def answered(self, endpoint: Endpoint, tag: int, message: Message, now: float) -> None:
        """The broker has answered the request with ``tag``. The engine ignores answers of connections that were closed
        or lost meanwhile."""

    def lost(self, endpoint: Endpoint, error: DualWriteError, now: float) -> None:
        """``endpoint`` could not be opened, or its connection was lost. Its unanswered requests will get no answer; the
        broker may have carried them out or not.

        :param error: KafkaUnavailableError if another attempt may help. Any other error, such as ConfigurationError for
            a certificate that is not trusted or a wrong password, ends the operation in progress.
        """

    def interrupted(self) -> None:
        """An exception from outside, such as a signal handler's, interrupted the engine or its driver: the step in
        progress may be half done. The driver has closed every connection, and reports nothing more of them."""


class Driver(Protocol):
    """The operations that a blocking producer needs of its driver. One thread at a time uses it and its engine.

    The driver does not read between two calls, perhaps for minutes. So each call first takes in what has arrived, and
    then steps: otherwise the engine would give up requests whose answers have already arrived.
    """

    def wait(self, operation: Operation) -> Any:
        """Carry out the engine's commands until ``operation`` is done. Return its result or raise its error. If the
        wait is interrupted, the operation has failed."""

    def pump(self) -> None:
        """Do everything that needs no waiting: step, write what sockets take, take in what has arrived."""

    def close(self) -> None:
        """Close every connection, without notifying the engine. Never raises."""
