"""The cluster's own state: its id, its topics, and which producer ids are still free."""

import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field

from dualwrite.broker.core.topic_configs import check_topic_config
from dualwrite.broker.core.topic_settings import TopicConfigError
from dualwrite.broker.facts.cluster import ClusterCreated, ClusterFact, ProducerIdsReserved, TopicCreated
from dualwrite.ids import is_legal_topic
from dualwrite.wire.error_codes import ErrorCode

PRODUCER_ID_BLOCK = 1000
"""Producer ids are reserved on disk by the block, and given out from memory (Kafka: ProducerIdsBlock)."""

MAX_PARTITIONS = 10_000
CONSUMER_OFFSETS = "__consumer_offsets"
TRANSACTION_STATE = "__transaction_state"
INTERNAL_TOPICS = frozenset({CONSUMER_OFFSETS, TRANSACTION_STATE})
"""The broker's own topics: clients may read them, and do nothing else with them (Kafka: Topic.isInternal)."""
RESERVED_TOPICS = INTERNAL_TOPICS | {"__cluster_metadata"}
"""Names under which the broker keeps journals."""


@dataclass(frozen=True, slots=True)
class CreateTopic:
    """A request for a topic; ``partitions`` of -1 stands for the broker's num.partitions."""

    name: str
    partitions: int = -1
    replication_factor: int = -1
    has_assignments: bool = False
    configs: Mapping[str, str | None] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TopicDefaults:
    """What a topic gets that does not say: the broker's num.partitions, and ``configs`` by the topics' own names."""

    partitions: int = 1
    configs: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TopicDecision:
    """Either an error with what to do about it, or the fact that creates the topic."""

    error: ErrorCode = ErrorCode.NONE
    message: str | None = None
    fact: TopicCreated | None = None


@dataclass(slots=True)
class ClusterState:
    """What the journal of the cluster has told."""

    cluster_id: str = ""
    topics: dict[str, TopicCreated] = field(default_factory=dict)
    topic_names: dict[uuid.UUID, str] = field(default_factory=dict)
    reserved_before: int = 0

    def apply(self, fact: ClusterFact) -> None:
        """Take ``fact`` in."""
        if isinstance(fact, ClusterCreated):
            assert not self.cluster_id, "a cluster is created once"
            self.cluster_id = fact.cluster_id
        elif isinstance(fact, ProducerIdsReserved):
            assert fact.before > self.reserved_before, f"producer ids below {fact.before} were reserved before"
            self.reserved_before = fact.before
        else:
            assert fact.name not in self.topics, f"topic {fact.name} exists"
            self.topics[fact.name] = fact
            self.topic_names[fact.topic_id] = fact.name

    def decide_topic(
        self, command: CreateTopic, topic_id: uuid.UUID, defaults: TopicDefaults, room: int = MAX_PARTITIONS
    ) -> TopicDecision:
        """Whether a topic can be made as ``command`` wants it; the error codes are CreateTopics' own.

        :param room: how many partitions the broker can still open.
        """
        if not is_legal_topic(command.name):
            return TopicDecision(
                ErrorCode.INVALID_TOPIC_EXCEPTION, "a topic's name has 1 to 249 of the characters a-z A-Z 0-9 . _ -"
            )
        if command.name in RESERVED_TOPICS:
            return TopicDecision(ErrorCode.INVALID_TOPIC_EXCEPTION, f"the broker itself uses '{command.name}'")
        if command.name in self.topics:
            return TopicDecision(ErrorCode.TOPIC_ALREADY_EXISTS, f"Topic '{command.name}' already exists.")
        if command.has_assignments:
            return TopicDecision(ErrorCode.INVALID_REPLICA_ASSIGNMENT, "a single node assigns its replicas by itself")
        partitions = defaults.partitions if command.partitions == -1 else command.partitions
        if not 1 <= partitions <= MAX_PARTITIONS:
            return TopicDecision(ErrorCode.INVALID_PARTITIONS, f"use 1 to {MAX_PARTITIONS} partitions")
        if partitions > room:
            return TopicDecision(
                ErrorCode.INVALID_PARTITIONS,
                f"{partitions} partitions, but the broker may open {room} more; raise its limit of open files",
            )
        if command.replication_factor not in (-1, 1):
            return TopicDecision(ErrorCode.INVALID_REPLICATION_FACTOR, "a single node has replication factor 1")
        try:
            configs = check_topic_config(command.configs, defaults.configs)
        except TopicConfigError as error:
            return TopicDecision(ErrorCode.INVALID_CONFIG, str(error))
        return TopicDecision(fact=TopicCreated(command.name, topic_id, partitions, configs))
