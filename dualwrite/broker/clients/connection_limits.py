"""Which connections a broker takes, and which it closes to have room (Kafka: ConnectionQuotas, Selector's idle expiry).

Kafka lets new connections wait at ``max.connections``, so idle ones would lock every client out. Here the connection
that has been idle for longest makes room, of the address that has the most. A client that is closed in this way
connects again when it needs to.
"""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

_AT_ONCE = 100
"""The part of all connections that is closed at once, as a fraction: to look at all of them for each new one would take
longer than to serve it."""


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """The limits of a broker.

    :param most: max.connections, or what the limit of open files allows.
    :param most_per_address: max.connections.per.ip.
    :param idle_seconds: connections.max.idle.ms; negative for no limit.
    """

    most: int
    most_per_address: int
    idle_seconds: float


class OpenConnection(Protocol):
    """A connection as these rules see it."""

    @property
    def address(self) -> str:
        """The client's address, without its port."""

    @property
    def idle_since(self) -> float | None:
        """When it last received or sent bytes, in monotonic seconds; None while a request is in progress."""


C = TypeVar("C", bound=OpenConnection)


def to_make_room(connections: Sequence[C]) -> list[C]:
    """The connections to close when there are too many: those that are idle for longest, of the address that has the
    most connections and an idle one. Empty if none is idle."""
    count = Counter(connection.address for connection in connections)
    idle = [connection for connection in connections if connection.idle_since is not None]
    if not idle:
        return []
    address = max((connection.address for connection in idle), key=count.__getitem__)
    of_address = [connection for connection in idle if connection.address == address]
    return sorted(of_address, key=_idle_since)[: max(1, len(connections) // _AT_ONCE)]


def expired(connections: Sequence[C], limits: ConnectionLimits, now: float) -> list[C]:
    """The connections that have been idle for longer than connections.max.idle.ms."""
    if limits.idle_seconds < 0:
        return []
    return [connection for connection in connections if now - _idle_since(connection) > limits.idle_seconds]


def _idle_since(connection: OpenConnection) -> float:
    """When it became idle; never, if a request is in progress."""
    return math.inf if connection.idle_since is None else connection.idle_since
