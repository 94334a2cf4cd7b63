"""The cluster's own state: its id, its topics, its dynamic settings, the settings of groups, and the producer ids that
are reserved."""

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from dualwrite.broker.access.acls import Acl
from dualwrite.broker.access.scram_credentials import UserCredentials
from dualwrite.broker.facts.acls import AclCreated, AclDeleted
from dualwrite.broker.facts.cluster import (
    BrokerConfigured,
    ClusterCreated,
    ClusterFact,
    GroupConfigured,
    InternalTopicCreated,
    ProducerIdsReserved,
    TopicCreated,
    TopicDeleted,
)
from dualwrite.broker.facts.credentials import CredentialFact, ScramCredentialDeleted, ScramCredentialSet
from dualwrite.broker.settings.broker_settings import MAX_PARTITIONS
from dualwrite.broker.settings.setting import SettingError
from dualwrite.broker.settings.topic_configs import check_topic_config
from dualwrite.ids import is_legal_topic
from dualwrite.wire.error_codes import ErrorCode

PRODUCER_ID_BLOCK = 1000
"""Producer ids are reserved on disk in blocks, and handed out from memory (Kafka: ProducerIdsBlock)."""

CONSUMER_OFFSETS = "__consumer_offsets"
TRANSACTION_STATE = "__transaction_state"
INTERNAL_TOPICS = frozenset({CONSUMER_OFFSETS, TRANSACTION_STATE})
"""The broker's own topics: clients may only read them (Kafka: Topic.isInternal)."""
CLUSTER_METADATA = "__cluster_metadata"
RESERVED_TOPICS = INTERNAL_TOPICS | {CLUSTER_METADATA}
"""Names under which the broker keeps journals."""


class RefusedError(ValueError):
    """The broker refuses a change. The handler answers ``error`` with the message."""

    def __init__(self, error: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.error = error


def check_replicas(replicas: Sequence[int], node_id: int) -> None:
    """Check that ``replicas`` of a partition are the one node, which has ``node_id``.

    :raises RefusedError: if they are not.
    """
    if tuple(replicas) != (node_id,):
        message = f"the replicas of each partition can only be {[node_id]}, the one node"
        raise RefusedError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, message)


@dataclass(frozen=True, slots=True)
class CreateTopic:
    """A request for a topic; ``partitions`` of -1 stands for the broker's num.partitions."""

    name: str
    partitions: int = -1
    replication_factor: int = -1
    assignments: Sequence[tuple[int, Sequence[int]]] = ()
    """Partition index and assigned nodes; empty unless the client assigns replicas itself."""
    configs: Mapping[str, str | None] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TopicDefaults:
    """The defaults of a topic: the broker's num.partitions, and ``configs`` under the names of topic settings."""

    partitions: int = 1
    configs: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TopicDecision:
    """Either an error with its message, or the fact that creates or changes the topic."""

    error: ErrorCode = ErrorCode.NONE
    message: str | None = None
    fact: TopicCreated | None = None


@dataclass(slots=True)
class ClusterState:
    """The state that results from the cluster's journal."""

    cluster_id: str = ""
    topics: dict[str, TopicCreated] = field(default_factory=dict)
    topic_names: dict[uuid.UUID, str] = field(default_factory=dict)
    reserved_before: int = 0
    broker_configs: dict[str, Mapping[str, str]] = field(default_factory=dict)
    """Dynamic settings by the id of their node; the empty id stands for every node."""
    group_configs: dict[str, Mapping[str, str]] = field(default_factory=dict)
    """The settings that groups have of their own, by the group; no group is there without a setting."""
    deleted: dict[str, int] = field(default_factory=dict)
    """Deleted topics that were not created anew, with the number of partitions whose files a crash may have left."""
    internal: set[str] = field(default_factory=set)
    """The broker's own topics whose directories were created."""
    acls: dict[uuid.UUID, Acl] = field(default_factory=dict)
    credentials: UserCredentials = field(default_factory=UserCredentials, repr=False)
    """The credentials of users."""
    version: int = field(default=0, compare=False)
    """Higher after each change of the topics or of the ACLs, since the broker's start."""
    _by_metric_name: dict[str, set[str]] = field(default_factory=dict, repr=False, compare=False)

    def apply(self, fact: ClusterFact) -> None:
        """Apply ``fact``."""
        if isinstance(fact, TopicCreated | TopicDeleted | AclCreated | AclDeleted):
            self.version += 1
        if isinstance(fact, ClusterCreated):
            assert not self.cluster_id, "a cluster is created once"
            self.cluster_id = fact.cluster_id
        elif isinstance(fact, ProducerIdsReserved):
            assert fact.before > self.reserved_before, f"producer ids below {fact.before} were reserved before"
            self.reserved_before = fact.before
        elif isinstance(fact, InternalTopicCreated):
            self.internal.add(fact.name)
        elif isinstance(fact, BrokerConfigured):
            self.broker_configs[fact.node] = fact.configs
        elif isinstance(fact, GroupConfigured):
            self.group_configs.pop(fact.group, None)
            if fact.configs:
                self.group_configs[fact.group] = fact.configs
        elif isinstance(fact, AclCreated):
            self.acls[fact.acl_id] = fact.acl
        elif isinstance(fact, AclDeleted):
            assert fact.acl_id in self.acls, f"there is no ACL {fact.acl_id} to delete"
            del self.acls[fact.acl_id]
        elif isinstance(fact, TopicDeleted):
            assert fact.name in self.topics, f"there is no topic {fact.name} to delete"
            topic = self.topics.pop(fact.name)
            del self.topic_names[topic.topic_id]
            self._by_metric_name[_metric_name(fact.name)].discard(fact.name)
            self.deleted[fact.name] = topic.partitions
        elif isinstance(fact, TopicCreated):
            self._apply_topic(fact)
        else:
            self._apply_credential(fact)

    def _apply_credential(self, fact: CredentialFact) -> None:
        if isinstance(fact, ScramCredentialSet):
            self.credentials.put(fact.user, fact.credential)
        elif isinstance(fact, ScramCredentialDeleted):
            was_there = self.credentials.discard(fact.user, fact.scram)
            assert was_there, "there is no such credential to delete"
        else:
            assert not self.credentials.decoy_secret, "the secret of the decoys is created once"
            self.credentials.decoy_secret = fact.secret

    def _apply_topic(self, fact: TopicCreated) -> None:
        known = self.topics.get(fact.name)
        if known is None:
            assert fact.topic_id not in self.topic_names, f"topic id {fact.topic_id} is another topic's"
        else:
            assert fact.topic_id == known.topic_id, f"topic {fact.name} exists"
            assert fact.partitions >= known.partitions, f"topic {fact.name} has {known.partitions} partitions"
        self.topics[fact.name] = fact
        self.topic_names[fact.topic_id] = fact.name
        self._by_metric_name.setdefault(_metric_name(fact.name), set()).add(fact.name)
        self.deleted.pop(fact.name, None)

    def decide_topic(
        self,
        command: CreateTopic,
        topic_id: uuid.UUID,
        defaults: TopicDefaults,
        room: int = MAX_PARTITIONS,
        node_id: int = 0,
    ) -> TopicDecision:
        """Decide whether ``command`` may create a topic; the error codes are CreateTopics' own.

        :param room: how many partitions the broker can still open.
        :param node_id: the id of the one node.
        """
        try:
            self._check_name(command.name)
            configs = check_topic_config(command.configs, defaults.configs)
            if command.assignments:
                partitions = _check_assignments(command, node_id)
            else:
                partitions = _check_partitions(command, defaults.partitions)
            if not 1 <= partitions <= MAX_PARTITIONS:
                raise RefusedError(ErrorCode.INVALID_PARTITIONS, f"use 1 to {MAX_PARTITIONS} partitions")
            if partitions > room:
                raise RefusedError(
                    ErrorCode.INVALID_PARTITIONS,
                    f"{partitions} partitions, but the broker may open {room} more; raise its limit of open files",
                )
        except SettingError as error:
            return TopicDecision(ErrorCode.INVALID_CONFIG, str(error))
        except RefusedError as error:
            return TopicDecision(error.error, str(error))
        return TopicDecision(fact=TopicCreated(command.name, topic_id, partitions, configs))

    def _check_name(self, name: str) -> None:
        if not is_legal_topic(name):
            raise RefusedError(
                ErrorCode.INVALID_TOPIC_EXCEPTION, "a topic's name has 1 to 249 of the characters a-z A-Z 0-9 . _ -"
            )
        if name in RESERVED_TOPICS:
            if name in INTERNAL_TOPICS:
                raise RefusedError(ErrorCode.TOPIC_ALREADY_EXISTS, f"Topic '{name}' already exists.")
            raise RefusedError(ErrorCode.INVALID_REQUEST, f"Creation of internal topic {name} is prohibited.")
        if name in self.topics:
            raise RefusedError(ErrorCode.TOPIC_ALREADY_EXISTS, f"Topic '{name}' already exists.")
        alike = self._by_metric_name.get(_metric_name(name))
        if alike:
            raise RefusedError(
                ErrorCode.INVALID_TOPIC_EXCEPTION, f"Topic '{name}' collides with existing topic: {min(alike)}"
            )


def _metric_name(topic: str) -> str:
    """``topic`` in the form of its metrics. The broker refuses a topic whose form equals that of another
    (Topic.hasCollision)."""
    return topic.replace(".", "_")


def _check_partitions(command: CreateTopic, default: int) -> int:
    if command.replication_factor not in (-1, 1):
        raise RefusedError(ErrorCode.INVALID_REPLICATION_FACTOR, "a single node has replication factor 1")
    return default if command.partitions == -1 else command.partitions


def _check_assignments(command: CreateTopic, node_id: int) -> int:
    """The number of partitions that the client assigns to the one node. Refuses any other assignment."""
    if command.replication_factor != -1 or command.partitions != -1:
        raise RefusedError(
            ErrorCode.INVALID_REQUEST,
            "A manual partition assignment was specified, but numPartitions and replication factor were not set to -1.",
        )
    indexes = sorted(index for index, _ in command.assignments)
    if indexes != list(range(len(indexes))):
        raise RefusedError(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT, "partitions should be a consecutive 0-based integer sequence"
        )
    for _, replicas in command.assignments:
        check_replicas(replicas, node_id)
    return len(indexes)
