"""The objects that a request handler may use."""

from dataclasses import dataclass, field
from typing import NamedTuple

from dualwrite.broker.config import BrokerOptions
from dualwrite.broker.runtime.cluster import Cluster
from dualwrite.broker.runtime.coordinator import TransactionCoordinator
from dualwrite.broker.runtime.flusher import Flusher
from dualwrite.broker.runtime.groups import GroupCoordinator
from dualwrite.broker.runtime.meters import Meters
from dualwrite.broker.runtime.offsets import GroupOffsets
from dualwrite.broker.runtime.stopping import Stopping
from dualwrite.ports import Clock

NODE_ID = 0
"""The one node of the cluster: leader of every partition and coordinator of every transactional id and group."""


class UnanswerableError(Exception):
    """A request failed that has no answer to report it in. The connection is closed, as in Apache Kafka."""


class Client(NamedTuple):
    """The sender of a request: its client.id, and its address as Kafka writes it (``/127.0.0.1``)."""

    client_id: str
    host: str


NOBODY = Client("", "")


@dataclass(frozen=True, slots=True)
class BrokerContext:
    """The parts of the broker that handlers may use, and the client of the request."""

    cluster: Cluster
    coordinator: TransactionCoordinator
    groups: GroupCoordinator
    offsets: GroupOffsets
    flusher: Flusher
    clock: Clock
    host: str
    port: int
    auto_create_topics: bool
    options: BrokerOptions
    """The settings that the broker was started with."""
    meters: Meters = field(default_factory=Meters)
    stopping: Stopping = field(default_factory=Stopping)
    client: Client = NOBODY
