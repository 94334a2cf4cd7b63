"""The objects that a request handler may use."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from dualwrite.broker.access.acls import CLUSTER_NAME, AclOperation, ResourceType
from dualwrite.broker.access.needs import Need
from dualwrite.broker.api.operations import OPERATIONS
from dualwrite.broker.runtime.access_control import AccessControl
from dualwrite.broker.runtime.cluster import Cluster
from dualwrite.broker.runtime.coordinator import TransactionCoordinator
from dualwrite.broker.runtime.flusher import Flusher
from dualwrite.broker.runtime.groups.classic import GroupCoordinator
from dualwrite.broker.runtime.groups.consumer import ConsumerGroupCoordinator
from dualwrite.broker.runtime.groups.offsets import GroupOffsets
from dualwrite.broker.runtime.long_polls import LongPolls
from dualwrite.broker.runtime.meters import Meters
from dualwrite.broker.runtime.stopping import Stopping
from dualwrite.ports import Clock

if TYPE_CHECKING:
    from dualwrite.broker.config import BrokerOptions
    from dualwrite.broker.net.connection_memory import ConnectionMemory


class UnanswerableError(Exception):
    """A request without an answer failed. The broker closes the connection instead, as Apache Kafka does."""


ANONYMOUS = "User:ANONYMOUS"
"""The principal of a client that has not authenticated (Kafka: KafkaPrincipal.ANONYMOUS)."""


class Client(NamedTuple):
    """The sender of a request: its client.id, its address as Kafka writes it (``/127.0.0.1``), and its principal."""

    client_id: str
    host: str
    principal: str = ANONYMOUS


NO_CLIENT = Client("", "")


@dataclass(frozen=True, slots=True)
class BrokerContext:
    """The parts of the broker that handlers may use, and the client of the request."""

    cluster: Cluster
    access: AccessControl
    coordinator: TransactionCoordinator
    groups: GroupCoordinator
    consumer_groups: ConsumerGroupCoordinator
    offsets: GroupOffsets
    flusher: Flusher
    clock: Clock
    host: str
    port: int
    auto_create_topics: bool
    options: "BrokerOptions"
    """The settings that the broker was started with."""
    memory: "ConnectionMemory"
    meters: Meters = field(default_factory=Meters)
    stopping: Stopping = field(default_factory=Stopping)
    client: Client = NO_CLIENT
    polls: LongPolls = field(default_factory=lambda: LongPolls(Stopping()))
    """The waiting request of the client's connection."""

    @property
    def node_id(self) -> int:
        """The id of the one node: leader of every partition, and coordinator of every transactional id and group."""
        return self.cluster.node_id

    def may(self, need: Need, name: str = CLUSTER_NAME) -> bool:
        """True if the client has the right ``need`` on the resource ``name``."""
        if not self.access.is_enabled:
            return True
        allowed = self._holds(need.operation, need.resource_type, name)
        if not allowed and need.is_refused:
            self.meters.refusals[need.operation, need.resource_type] += 1
        return allowed

    def _holds(self, operation: AclOperation, resource_type: ResourceType, name: str) -> bool:
        _, host, principal = self.client
        return self.access.may(principal, host[1:], operation, resource_type, name)

    def may_somewhere(self, need: Need) -> bool:
        """True if the client has the right ``need`` on at least one resource."""
        _, host, principal = self.client
        return self.access.may_somewhere(principal, host[1:], need.operation, need.resource_type)

    def operations(self, resource_type: ResourceType, name: str = CLUSTER_NAME) -> frozenset[int]:
        """The operations that the client may perform on the resource ``name`` (KIP-430)."""
        return frozenset(
            operation for operation in OPERATIONS[resource_type] if self._holds(operation, resource_type, name)
        )
