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
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from dualwrite.client.terms.endpoint import Endpoint
from dualwrite.client.terms.versions import Versions
from dualwrite.errors import DualWriteError
from dualwrite.records.compression import Codec
from dualwrite.wire.apis import ApiKey, Message


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """What an engine is to do. Durations are in seconds, sizes in bytes; the names in the comments are librdkafka's.

    :param linger: seconds that a batch may wait for more records; None: until it is full, or the records are flushed.
    :param batch_size: past which a batch takes no more records; one record alone may be larger.
    """

    bootstrap: tuple[Endpoint, ...]
    transactional_id: str
    two_phase_commit: bool = True
    """transaction.two.phase.commit.enable"""
    transaction_timeout_ms: int = 60_000
    """transaction.timeout.ms, for transactions that are not in two-phase commit"""
    codec: Codec = Codec.NONE
    """compression.type"""
    compression_level: int | None = None
    partitioner: str = "consistent_random"
    is_sticky: bool = True
    """True if records without a key share a partition for a batch (sticky.partitioning.linger.ms)"""
    linger: float | None = None
    """linger.ms"""
    batch_size: int = 1_000_000
    batch_records: int = 10_000
    """batch.num.messages"""
    max_message_bytes: int = 1_000_000
    """message.max.bytes: of one record, and of one request"""
    buffer_bytes: int = 1_048_576 * 1024
    """queue.buffering.max.kbytes: records that are not acknowledged yet"""
    buffer_records: int = 100_000
    """queue.buffering.max.messages: the same, counted"""
    max_in_flight: int = 5
    """max.in.flight.requests.per.connection; five at most, as a broker remembers so many batches (KIP-98)"""
    request_timeout: float = 60.0
    """socket.timeout.ms: until an answer is given up, and its connection with it"""
    ack_timeout_ms: int = 30_000
    """request.timeout.ms: how long a leader may wait for its followers"""
    delivery_timeout: float = 30.0
    """delivery.timeout.ms: until a batch that was to be sent must be acknowledged"""
    operation_timeout: float = 30.0
    """Until init, commit, abort and send_offsets must have ended"""
    topic_propagation: float = 30.0
    """topic.metadata.propagation.max.ms: until a topic must be known"""
    retries: int = 2_147_483_647
    """retries: of a batch"""
    retry_backoff: float = 0.1
    """retry.backoff.ms, doubled with each attempt"""
    retry_backoff_max: float = 1.0
    reconnect_backoff: float = 0.1
    """reconnect.backoff.ms, doubled with each attempt"""
    reconnect_backoff_max: float = 1.0
    metadata_max_age: float | None = 300.0
    """topic.metadata.refresh.interval.ms; None: only when something has changed"""
    max_idle: float | None = None
    """connections.max.idle.ms; None: for ever"""
    allow_auto_create_topics: bool = True
    """allow.auto.create.topics"""

    def pause_after(self, attempts: int) -> float:
        """Seconds until something is tried again that was tried ``attempts`` times."""
        return min(self.retry_backoff * 2.0 ** min(attempts - 1, 30), self.retry_backoff_max)


NEVER = float("inf")
"""The time of what does not come by itself."""


class Request(NamedTuple):
    """One question to one broker.

    :param tag: comes back with the answer; no two requests of an engine have the same.
    :param message: one of kafka-python's messages, or anything with their ``encode(version=…)`` and
        ``flexible_version_q(version)``.
    """

    tag: int
    api_key: ApiKey
    version: int
    message: Message


class Open(NamedTuple):
    """Connect to ``endpoint``: TCP, TLS, ApiVersions, SASL; then say ``opened``, or ``lost`` if that failed. The driver
    holds it to the time that the configuration gives (socket.connection.setup.timeout.ms)."""

    endpoint: Endpoint


class Send(NamedTuple):
    """Ask ``request`` of ``endpoint``, which is open. Requests go out in the order in which they are commanded, without
    waiting for answers; each is answered by ``answered``, or ``lost`` says that no more answers come."""

    endpoint: Endpoint
    request: Request


class Close(NamedTuple):
    """Close ``endpoint``, whether it is open or being opened. It is not followed by ``lost``: the engine has already
    given up what was asked there, and must be told nothing more of that connection."""

    endpoint: Endpoint


Command = Open | Send | Close


class Operation:
    """What a verb returns: done now or some events later, with a result or an error."""

    __slots__ = ("_callback", "error", "is_done", "result")

    def __init__(self) -> None:
        self.is_done = False
        self.result: Any = None
        self.error: DualWriteError | None = None
        self._callback: Callable[[Operation], None] | None = None

    def when_done(self, callback: Callable[["Operation"], None]) -> None:
        """Call ``callback(operation)`` once it is done, or now if it is. One callback at most; it must not call the
        engine, but may note that it should be called."""
        if self.is_done:
            callback(self)
        else:
            self._callback = callback

    def succeed(self, result: Any = None) -> None:
        """The engine's: it is done."""
        self.result = result
        self._finish()

    def fail(self, error: DualWriteError) -> None:
        """The engine's: it is done, with an error."""
        self.error = error
        self._finish()

    def outcome(self) -> Any:
        """The result of what is done.

        :raises DualWriteError: what went wrong, if something did.
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
    """The driver's side of an engine. ``Engine`` in ``engine.py`` is the one that there is."""

    def step(self, now: float) -> list[Command]:
        """What to do now. Empty most of the time."""

    def wake_at(self) -> float | None:
        """When :meth:`step` must be called again though nothing has happened; None: only after an event."""

    def opened(self, endpoint: Endpoint, versions: Versions, now: float) -> None:
        """``Open`` has succeeded."""

    def answered(self, endpoint: Endpoint, tag: int, message: Message, now: float) -> None:
        """The broker has answered the request with ``tag``. What was closed or lost meanwhile may be told; it is
        passed over."""

    def lost(self, endpoint: Endpoint, error: DualWriteError, now: float) -> None:
        """``endpoint`` could not be opened, or the connection broke: none of its unanswered requests will be answered,
        and whether they were carried out is unknown.

        :param error: KafkaUnavailableError if trying again may help; any other, as ConfigurationError for a certificate
            that is not trusted or a password that is wrong, ends the operation under way.
        """

    def interrupted(self) -> None:
        """An exception that is nobody's answer, as a signal's, struck inside of the engine or of its driver: whatever
        was being done may be half done. Every connection is closed, and nothing of them will be told any more."""


class Driver(Protocol):
    """What a blocking face needs of its driver. One thread at a time uses it, and the engine that it drives.

    Nobody listens between two calls, perhaps for minutes. So each call first takes in what has arrived, and then steps:
    otherwise the engine would give up requests whose answers are there.
    """

    def wait(self, operation: Operation) -> Any:
        """Do what the engine says until ``operation`` is done; its outcome, or its error raised. Interrupted in the
        middle, it has failed."""

    def pump(self) -> None:
        """Do what can be done now without waiting: step, write what sockets take, take in what has arrived."""

    def close(self) -> None:
        """Close every connection, without a word to the engine. Never raises."""
