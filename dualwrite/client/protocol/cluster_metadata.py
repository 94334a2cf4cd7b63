"""The brokers and the coordinators of a cluster, from the last answers to Metadata and FindCoordinator.

It may be out of date at any time. When a request fails for that reason, the caller removes the stale entry and asks
again.
"""

from collections.abc import Iterable

from dualwrite.client.protocol.requests import CoordinatorOf, nodes_in
from dualwrite.client.terms.endpoint import Endpoint
from dualwrite.wire.apis import Message


class ClusterMetadata:
    """The part of the metadata that both the engine and the control plane use.

    :param bootstrap: the brokers to which a client connects first.
    """

    def __init__(self, bootstrap: tuple[Endpoint, ...]) -> None:
        self.bootstrap = bootstrap
        self.nodes: dict[int, Endpoint] = {}
        """The brokers of the last answer, by node id."""
        self.cluster_id: str | None = None
        self.coordinators: dict[CoordinatorOf, Endpoint] = {}

    def learn_brokers(self, answer: Message) -> None:
        """Take the brokers and the cluster's id from an answer to Metadata."""
        self.nodes = nodes_in(answer.brokers)
        self.cluster_id = answer.cluster_id or None

    def candidates(self) -> Iterable[Endpoint]:
        """The brokers to ask for metadata, in order of preference."""
        return (*self.nodes.values(), *self.bootstrap)

    def endpoints(self) -> set[Endpoint]:
        """Every broker that is known, or was configured for bootstrap."""
        return {*self.candidates(), *self.coordinators.values()}

    def forget_coordinators(self, endpoint: Endpoint) -> None:
        """Forget the coordinators at ``endpoint``, which is lost."""
        for key in [key for key, where in self.coordinators.items() if where == endpoint]:
            del self.coordinators[key]
