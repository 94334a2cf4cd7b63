"""Who is in charge: the leaders of partitions and the coordinators, as Metadata and FindCoordinator told last.

What is known may be out of date at any time. Whoever finds that it is says so, and asks again.
"""

from collections.abc import Callable, Iterable
from typing import NamedTuple

from dualwrite.client.encoding.partitioners import Partitioner, StickyChoice, make_partitioner
from dualwrite.client.engine.contract import EngineSettings
from dualwrite.client.terms.endpoint import Endpoint
from dualwrite.wire.apis import APIS, ApiKey, Message
from dualwrite.wire.error_codes import ErrorCode

TRANSACTION = 1
GROUP = 0
"""Kinds of coordinators (FindCoordinator's key types)."""


_NOT_YET = frozenset(
    {
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,  # it is being made, perhaps by this very request
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.REQUEST_TIMED_OUT,
    }
)
_NO_LEADER = -1
_MAX_IDLE = 300.0
"""Seconds after which a topic that nobody writes to is not asked for any more (Kafka: metadata.max.idle.ms)."""


class CoordinatorOf(NamedTuple):
    """Whose coordinator: of the transactional id or of the group that ``key`` names."""

    kind: int
    key: str


class Topic:
    """What is known of one topic."""

    __slots__ = ("choose", "epochs", "leaders", "sticky", "used_at")

    def __init__(self, choose: Partitioner, sticky: StickyChoice) -> None:
        self.choose = choose
        self.sticky = sticky
        self.leaders: list[int] = []
        """The leader's node id of each partition, -1 where there is none."""
        self.epochs: list[int] = []
        """The epoch of each leader."""
        self.used_at = 0.0
        """When a record for it came last."""


class ProducerMetadata:
    """Nodes, topics and coordinators.

    :param settings: whom to ask when nothing is known, and how partitions are chosen.
    :param randrange: the source of what is random in that.
    """

    def __init__(self, settings: EngineSettings, randrange: Callable[[int], int]) -> None:
        self.coordinators: dict[CoordinatorOf, Endpoint] = {}
        self.topics: dict[str, Topic] = {}
        """Those that are known; :attr:`wanted` are all that should be."""
        self.wanted: dict[str, None] = {}
        self.is_stale = False
        """True if Metadata is to be asked for."""
        self.fetched_at = 0.0
        self._settings = settings
        self._randrange = randrange
        self._nodes: dict[int, Endpoint] = {}
        self._missing: set[str] = set()
        """Those that were asked for last, and that there were not."""

    def want(self, topic: str) -> None:
        """``topic`` is written to, and should be known."""
        self.wanted[topic] = None
        self.is_stale = True

    def forget_unused(self) -> None:
        """No record waits for any topic. Those that are not known, or are gone, or had not been written to for long
        when Metadata was asked for last, are wanted again when they are written to again."""
        idle_since = self.fetched_at - _MAX_IDLE
        for topic in list(self.wanted):
            known = self.topics.get(topic)
            if known is None or topic in self._missing or known.used_at <= idle_since:
                del self.wanted[topic]
                self.topics.pop(topic, None)
        self._missing.clear()
        self.is_stale = self.is_stale and bool(self.wanted)

    def want_nothing(self) -> None:
        """No topic will be written to any more."""
        self.wanted.clear()
        self.is_stale = False

    def candidates(self) -> Iterable[Endpoint]:
        """Whom to ask what anybody knows."""
        return (*self._nodes.values(), *self._settings.bootstrap)

    def endpoints(self) -> set[Endpoint]:
        """Everybody who is known to be there, or was given to begin with."""
        return {*self.candidates(), *self.coordinators.values()}

    def leader(self, topic: str, partition: int) -> Endpoint | None:
        """The leader of a partition; None if nobody knows it now."""
        known = self.topics.get(topic)
        if known is None or partition >= len(known.leaders):
            return None
        return self._nodes.get(known.leaders[partition])

    def hear(self, topic: str, partition: int, hint: Message | None, nodes: Iterable[Message]) -> Endpoint | None:
        """A broker that does not lead a partition says who does (KIP-951); the leader, if it is known thereby.

        :param hint: its id and epoch; one that is older than what is known is passed over.
        :param nodes: where the nodes are that hints name.
        """
        known = self.topics.get(topic)
        if hint is None or known is None or partition >= len(known.leaders):
            return None
        if hint.leader_epoch < known.epochs[partition]:
            return None
        self._nodes.update({node.node_id: Endpoint(node.host, node.port) for node in nodes})
        known.leaders[partition], known.epochs[partition] = hint.leader_id, hint.leader_epoch
        return self.leader(topic, partition)

    def renew_choices(self) -> None:
        """Records without a key go to a partition chosen anew."""
        for topic in self.topics.values():
            topic.sticky.renew()

    def is_unreachable(self, endpoint: Endpoint) -> None:
        """``endpoint`` has gone, and with it whoever was in charge there."""
        for key in [key for key, where in self.coordinators.items() if where == endpoint]:
            del self.coordinators[key]
        if endpoint in self._nodes.values():
            self.is_stale = bool(self.wanted)

    def metadata_request(self) -> Message:
        """The question about every topic that is wanted."""
        request = APIS[ApiKey.METADATA].request
        topics = [request.MetadataRequestTopic(name=name) for name in self.wanted]
        return request(
            topics=topics,
            allow_auto_topic_creation=self._settings.allow_auto_create_topics,
            include_cluster_authorized_operations=False,
            include_topic_authorized_operations=False,
        )

    def learn(self, answer: Message, now: float) -> dict[str, int]:
        """Take an answer to Metadata. The error codes of topics that will not come to be by waiting; :attr:`is_stale`
        stays if something is missing still."""
        self.fetched_at = now
        self._nodes = {broker.node_id: Endpoint(broker.host, broker.port) for broker in answer.brokers}
        refused: dict[str, int] = {}
        self.is_stale = False
        self._missing.clear()
        for entry in answer.topics:
            if entry.name not in self.wanted:
                continue  # it was forgotten while the answer was on its way
            if entry.error_code in _NOT_YET:
                self._missing.add(entry.name)
                self.is_stale = True
            elif entry.error_code:
                refused[entry.name] = entry.error_code
                if entry.name not in self.topics:  # what is known is written to, and asked for again
                    self.wanted.pop(entry.name, None)
            else:
                self._learn_topic(entry, now)
        return refused

    def _learn_topic(self, entry: Message, now: float) -> None:
        leaders = [_NO_LEADER] * (1 + max((each.partition_index for each in entry.partitions), default=-1))
        epochs = leaders.copy()
        for each in entry.partitions:
            leaders[each.partition_index], epochs[each.partition_index] = each.leader_id, each.leader_epoch
        if not leaders:
            self._missing.add(entry.name)
            self.is_stale = True
            return
        topic = self.topics.get(entry.name)
        if topic is None:
            sticky = StickyChoice(self._randrange)
            partitioner = make_partitioner(
                self._settings.partitioner, sticky if self._settings.is_sticky else self._randrange
            )
            topic = self.topics[entry.name] = Topic(partitioner, sticky)
            topic.used_at = now
        topic.leaders, topic.epochs = leaders, epochs


def find_coordinator_request(of: CoordinatorOf) -> Message:
    """The question who coordinates."""
    return APIS[ApiKey.FIND_COORDINATOR].request(key=of.key, key_type=of.kind)
