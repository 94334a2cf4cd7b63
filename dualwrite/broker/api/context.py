"""What a request handler has at hand."""

from dataclasses import dataclass, field

from dualwrite.broker.config import BrokerOptions
from dualwrite.broker.runtime.cluster import Cluster
from dualwrite.broker.runtime.coordinator import TransactionCoordinator
from dualwrite.broker.runtime.flusher import Flusher
from dualwrite.broker.runtime.meters import Meters
from dualwrite.broker.runtime.offsets import GroupOffsets
from dualwrite.broker.runtime.stopping import Stopping
from dualwrite.ports import Clock

NODE_ID = 0
"""The one node of the cluster: leader of every partition and coordinator of every transactional id and group."""


class UnanswerableError(Exception):
    """A request failed that has no answer to say so in. The connection is closed, as Apache Kafka does."""


@dataclass(frozen=True, slots=True)
class BrokerContext:
    """The rooms of the broker that handlers may enter."""

    cluster: Cluster
    coordinator: TransactionCoordinator
    offsets: GroupOffsets
    flusher: Flusher
    clock: Clock
    host: str
    port: int
    auto_create_topics: bool
    options: BrokerOptions
    """What the broker was started with."""
    meters: Meters = field(default_factory=Meters)
    stopping: Stopping = field(default_factory=Stopping)
