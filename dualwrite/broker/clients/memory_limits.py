"""Which connections are closed if the memory of requests or of answers is full, and which request gets free memory.

Kafka's memory pool (queued.max.request.bytes; SimpleMemoryPool) lets every client wait until there is memory. Clients
that stop in the middle of large requests, or that do not read their answers, would thus lock the others out. Here such
connections are closed, those of the address that holds the most memory first, and only if the memory is needed.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from typing import Protocol, TypeVar

STALLED_SECONDS = 1.0
"""How long a client may send nothing in the middle of a large request, if another request waits for the memory."""
LONGEST_SECONDS = 30.0
"""How long a large request may take to arrive and be handled, if another request waits for the memory: a client that
sends one byte at a time does not stop. Clients give up after the same time (request.timeout.ms)."""
_SHARE = 4
"""The part of the free memory that one answer may take, as a fraction, so that there is some left for other answers."""


class RequestHolder(Protocol):
    """A connection that holds memory for large requests, or waits for it."""

    @property
    def address(self) -> str:
        """The client's address, without its port."""

    @property
    def held_bytes(self) -> int:
        """The bytes that it holds for large requests."""

    @property
    def held_since(self) -> float:
        """When its first large request began, or one was last answered, in monotonic seconds."""

    @property
    def is_receiving(self) -> bool:
        """True in the middle of a large request."""

    @property
    def active_at(self) -> float:
        """When bytes last came or went, in monotonic seconds."""


class AnswerHolder(Protocol):
    """A connection with an answer that the client does not read."""

    @property
    def address(self) -> str:
        """The client's address, without its port."""

    @property
    def active_at(self) -> float:
        """When bytes last came or went, in monotonic seconds."""


H = TypeVar("H", bound=RequestHolder)
A = TypeVar("A", bound=AnswerHolder)


def stalled(connections: Iterable[H], now: float) -> list[H]:
    """The connections to close while a request waits for memory: of the address that holds the most memory among the
    connections that make no progress. Empty if all of them make progress."""
    idle = [connection for connection in connections if _is_stalled(connection, now)]
    if not idle:
        return []
    held: Counter[str] = Counter()
    for connection in idle:
        held[connection.address] += connection.held_bytes
    address = max(held, key=held.__getitem__)
    return [connection for connection in idle if connection.address == address]


def _is_stalled(connection: RequestHolder, now: float) -> bool:
    waits = connection.is_receiving and now - connection.active_at >= STALLED_SECONDS
    return waits or now - connection.held_since >= LONGEST_SECONDS


def next_in_line(waiting: Sequence[H], connections: Iterable[RequestHolder]) -> H:
    """The connection that gets memory next: of the address that holds the least, the one that has waited for longest.
    So an address with many requests does not delay the requests of others.

    :param waiting: those that wait, at least one, in the order in which they began to wait.
    """
    held: Counter[str] = Counter()
    for connection in connections:
        held[connection.address] += connection.held_bytes
    return min(waiting, key=lambda connection: held[connection.address])


def slowest(connections: Collection[tuple[A, int]]) -> A:
    """The connection to close if the memory of answers is full: of the address with the most bytes that are not read,
    the one without progress for longest.

    :param connections: at least one connection, each with the bytes of its answer.
    """
    unread: Counter[str] = Counter()
    for connection, size in connections:
        unread[connection.address] += size
    address = max(unread, key=unread.__getitem__)
    slow = (connection for connection, _ in connections if connection.address == address)
    return min(slow, key=lambda connection: connection.active_at)


def answer_share(most: float, used: int) -> float:
    """How many bytes of records the next answer should have, if ``used`` of ``most`` bytes are in use. The more answers
    are not read, the smaller the next ones get."""
    return max(0.0, most - used) / _SHARE
