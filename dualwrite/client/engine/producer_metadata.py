"""The topics that a producer writes to: the leaders of their partitions, and which topics to ask for."""

from collections.abc import Callable, Iterable

from dualwrite.client.config.producer_settings import ProducerSettings
from dualwrite.client.encoding.partitioners import Partitioner, StickyChoice, make_partitioner
from dualwrite.client.protocol.cluster_metadata import ClusterMetadata
from dualwrite.client.protocol.requests import VersionedRequest, metadata, nodes_in
from dualwrite.client.terms.endpoint import Endpoint
from dualwrite.client.terms.error_classes import class_of
from dualwrite.wire.apis import ApiKey, Message
from dualwrite.wire.error_codes import ErrorCode

_NO_LEADER = -1
_MAX_IDLE = 300.0
"""Seconds after which an unused topic is not asked for any more (Kafka: metadata.max.idle.ms)."""


class Topic:
    """The metadata of one topic."""

    __slots__ = ("choose", "epochs", "leaders", "sticky", "used_at")

    def __init__(self, choose: Partitioner, sticky: StickyChoice) -> None:
        self.choose = choose
        self.sticky = sticky
        self.leaders: list[int] = []
        """The leader's node id of each partition, -1 if there is none."""
        self.epochs: list[int] = []
        """The epoch of each leader."""
        self.used_at = 0.0
        """When a record for the topic was last added."""


class ProducerMetadata(ClusterMetadata):
    """Brokers, coordinators and topics.

    :param settings: the bootstrap brokers, and how partitions are chosen.
    :param randrange: the source of randomness for both.
    """

    def __init__(self, settings: ProducerSettings, randrange: Callable[[int], int]) -> None:
        super().__init__(settings.client.bootstrap)
        self.topics: dict[str, Topic] = {}
        """The topics that are known; :attr:`wanted` holds all that should be."""
        self.wanted: dict[str, None] = {}
        self.is_stale = False
        """True if Metadata must be asked for."""
        self.fetched_at = 0.0
        self._settings = settings
        self._randrange = randrange
        self._missing: set[str] = set()
        """The topics of the last request that do not exist."""

    def want(self, topic: str) -> None:
        """Ask for ``topic``: records are written to it."""
        self.wanted[topic] = None
        self.is_stale = True

    def forget_unused(self) -> None:
        """Forget topics, when no record waits for one: those that are unknown or gone, or were unused for long at the
        last Metadata request. The next record for such a topic asks for it again."""
        idle_since = self.fetched_at - _MAX_IDLE
        for topic in list(self.wanted):
            known = self.topics.get(topic)
            if known is None or topic in self._missing or known.used_at <= idle_since:
                del self.wanted[topic]
                self.topics.pop(topic, None)
        self._missing.clear()
        self.is_stale = self.is_stale and bool(self.wanted)

    def want_nothing(self) -> None:
        """Ask for no more topics: no more records will be written."""
        self.wanted.clear()
        self.is_stale = False

    def leader(self, topic: str, partition: int) -> Endpoint | None:
        """The leader of a partition; None if it is not known now."""
        known = self.topics.get(topic)
        if known is None or partition >= len(known.leaders):
            return None
        return self.nodes.get(known.leaders[partition])

    def hear(self, topic: str, partition: int, hint: Message | None, nodes: Iterable[Message]) -> Endpoint | None:
        """Take the hint of a broker that does not lead a partition about the leader (KIP-951); return the leader, if
        the hint tells it.

        :param hint: the leader's id and epoch; ignored if it is older than the known one.
        :param nodes: the addresses of the nodes that hints name.
        """
        known = self.topics.get(topic)
        if hint is None or known is None or partition >= len(known.leaders):
            return None
        if hint.leader_epoch < known.epochs[partition]:
            return None
        self.nodes.update(nodes_in(nodes))
        known.leaders[partition], known.epochs[partition] = hint.leader_id, hint.leader_epoch
        return self.leader(topic, partition)

    def renew_choices(self) -> None:
        """Choose new partitions for records without a key."""
        for topic in self.topics.values():
            topic.sticky.renew()

    def is_unreachable(self, endpoint: Endpoint) -> None:
        """``endpoint`` is lost; forget the coordinators there."""
        self.forget_coordinators(endpoint)
        if endpoint in self.nodes.values():
            self.is_stale = bool(self.wanted)

    def metadata_request(self) -> VersionedRequest:
        """The Metadata request for every topic that is wanted."""
        return metadata(self.wanted, creates=self._settings.allow_auto_create_topics)

    def learn(self, answer: Message, now: float) -> dict[str, int]:
        """Take an answer to Metadata. Returns the error codes of topics that waiting will not bring; :attr:`is_stale`
        stays True if something is still missing."""
        self.fetched_at = now
        self.learn_brokers(answer)
        refused: dict[str, int] = {}
        self.is_stale = False
        self._missing.clear()
        for entry in answer.topics:
            if entry.name not in self.wanted:
                continue  # it was forgotten while the request was in flight
            is_unknown = entry.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            if is_unknown or class_of(ApiKey.METADATA, entry.error_code).is_retriable:
                # An unknown topic may be being created, perhaps by this very request.
                self._missing.add(entry.name)
                self.is_stale = True
            elif entry.error_code:
                refused[entry.name] = entry.error_code
                if entry.name not in self.topics:  # a known topic is in use: ask for it again
                    self.wanted.pop(entry.name, None)
            else:
                self._learn_topic(entry, now)
        return refused

    def _learn_topic(self, entry: Message, now: float) -> None:
        leaders = [_NO_LEADER] * (1 + max((partition.partition_index for partition in entry.partitions), default=-1))
        epochs = leaders.copy()
        for partition in entry.partitions:
            leaders[partition.partition_index] = partition.leader_id
            epochs[partition.partition_index] = partition.leader_epoch
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
