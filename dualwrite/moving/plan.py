"""What a move has to do with each topic, and the reasons to refuse it."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from enum import Enum

from dualwrite.errors import InputError
from dualwrite.moving.journal import PREFIX, TopicPair

TIMESTAMP_TYPE = "message.timestamp.type"
CREATE_TIME, APPEND_TIME = "CreateTime", "LogAppendTime"
POLICY, LARGEST_BATCH = "cleanup.policy", "max.message.bytes"
DECISIVE = (
    POLICY,
    "delete.retention.ms",
    "max.compaction.lag.ms",
    LARGEST_BATCH,
    "message.timestamp.after.max.ms",
    "message.timestamp.before.max.ms",
    "min.compaction.lag.ms",
    "retention.bytes",
    "retention.ms",
)
"""The settings that decide which records a topic takes, and how long it keeps them."""
_RESERVED = "__"
_NOT_FLAGGED = ("__remote_log_metadata", "__cluster_metadata")
"""Topics of Kafka itself that its Metadata does not call internal."""


@dataclass(frozen=True, slots=True)
class MoveJob:
    """What to move.

    :param topics: the topics; empty for all, without Kafka's internal ones and those that begin with two underscores.
    :param groups: the consumer groups; empty for all that have offsets in the topics.
    :param replication_factor: of topics that are created; -1 for the default of the target cluster.
    """

    topics: Collection[str] = ()
    groups: Collection[str] = ()
    replication_factor: int = -1


@dataclass(frozen=True, slots=True)
class TopicDescription:
    """A topic of one cluster.

    :param settings: its own settings.
    :param defaults: the cluster's values of the settings that it does not have itself.
    :param is_internal: True if Kafka says so.
    """

    name: str
    topic_id: str
    partitions: int
    settings: Mapping[str, str] = field(default_factory=dict)
    defaults: Mapping[str, str] = field(default_factory=dict)
    is_internal: bool = False

    def value(self, setting: str) -> str | None:
        """The value that is in effect; None if the cluster has no such setting."""
        return self.settings.get(setting, self.defaults.get(setting))

    @property
    def timestamp_type(self) -> str:
        """``CreateTime`` or ``LogAppendTime``."""
        return self.value(TIMESTAMP_TYPE) or CREATE_TIME

    @property
    def is_compacted(self) -> bool:
        """True if the cluster removes records of keys that have later ones."""
        return "compact" in (self.value(POLICY) or "")

    @property
    def largest_batch(self) -> int | None:
        """The largest batch of records that it takes, in bytes; None if that is not known."""
        value = self.value(LARGEST_BATCH)
        return None if value is None else int(value)


@dataclass(frozen=True, slots=True)
class CreationDefaults:
    """What the target would make of a topic with the settings that it has at the source.

    :param settings: all settings that it would have; empty if that is not known.
    :param replicas: how many replicas it would have; None if that is not known.
    :param nodes: how many nodes the cluster has.
    """

    settings: Mapping[str, str] = field(default_factory=dict)
    replicas: int | None = None
    nodes: int = 1


class Preparation(Enum):
    """What is to be done with a topic before its records are copied."""

    CREATE = "to be created"
    ADD_PARTITIONS = "needs more partitions"
    NOTHING = "ready"


@dataclass(frozen=True, slots=True)
class TopicPlan:
    """One topic to move.

    :param target: None if the target cluster does not have it yet.
    :param at_creation: what the target would create, if it was asked.
    """

    source: TopicDescription
    target: TopicDescription | None
    at_creation: CreationDefaults = CreationDefaults()

    @property
    def preparation(self) -> Preparation:
        """What is to be done before records are copied."""
        if self.target is None:
            return Preparation.CREATE
        is_smaller = self.target.partitions < self.source.partitions
        return Preparation.ADD_PARTITIONS if is_smaller else Preparation.NOTHING

    @property
    def moved(self) -> TopicDescription:
        """The topic at the target, which must have it."""
        assert self.target is not None, f"the target has no topic {self.source.name}"
        return self.target

    @property
    def pair(self) -> TopicPair:
        """The topic in both clusters; the target must have it."""
        return TopicPair(self.source.name, self.source.topic_id, self.moved.topic_id)

    @property
    def settings(self) -> dict[str, str]:
        """The settings to create the topic with: its own, and those of DECISIVE that the clusters have other defaults
        for. Records keep the times that they have at the source, so a topic with the broker's times gets these when the
        move is finished."""
        settings, there = dict(self.source.settings), self.at_creation.settings
        for name in DECISIVE:
            value = self.source.value(name)
            if value is not None and name in there and not _is_same(name, value, there[name]):
                settings[name] = value
        if self.source.timestamp_type == APPEND_TIME:
            settings[TIMESTAMP_TYPE] = CREATE_TIME
        return settings

    @property
    def is_on_one_node(self) -> bool:
        """True if it will have a single replica in a cluster of several nodes, and is lost with one node."""
        return self.at_creation.replicas == 1 < self.at_creation.nodes

    @property
    def differences(self) -> dict[str, tuple[str, str]]:
        """Those of DECISIVE that differ, with the values at the source and at the target; none before the target has
        the topic."""
        differing = {}
        for name in DECISIVE if self.target is not None else ():
            here, there = self.source.value(name), self.moved.value(name)
            if here is not None and there is not None and not _is_same(name, here, there):
                differing[name] = here, there
        return differing


def _is_same(setting: str, value: str, other: str) -> bool:
    if setting == POLICY:
        return {word.strip() for word in value.split(",")} == {word.strip() for word in other.split(",")}
    return value == other


def is_movable(topic: TopicDescription) -> bool:
    """False for Kafka's internal topics and the journals of moves."""
    return not (topic.is_internal or topic.name in _NOT_FLAGGED or topic.name.startswith(PREFIX))


def left_out(job: MoveJob, source: Mapping[str, TopicDescription]) -> list[str]:
    """The topics that a job of all topics does not move, although they are not Kafka's own. Their names begin with two
    underscores, as those of monitoring and management do, which each cluster has for itself."""
    if job.topics:
        return []
    return sorted(name for name, topic in source.items() if is_movable(topic) and name.startswith(_RESERVED))


def plan_topics(
    job: MoveJob, source: Mapping[str, TopicDescription], target: Mapping[str, TopicDescription]
) -> list[TopicPlan]:
    """The topics to move, in the order of their names.

    :param source: the topics of the source cluster, by name.
    :param target: those of the target cluster.
    :raises InputError: if a topic cannot be moved.
    """
    movable = {name for name, topic in source.items() if is_movable(topic)}
    names = sorted(set(job.topics) or movable.difference(left_out(job, source)))
    for name in names:
        if name not in source:
            raise InputError(f"--topics: the source cluster has no topic {name!r}, or hides it from this client")
        if name not in movable:
            raise InputError(f"--topics: {name!r} is internal, and is not moved")
    if not names:
        raise InputError("the source cluster has no topic to move, or hides them from this client")
    plans = [TopicPlan(source[name], target.get(name)) for name in names]
    for plan in plans:
        if plan.target is not None and plan.target.partitions > plan.source.partitions:
            raise InputError(
                f"topic {plan.source.name!r} has {plan.target.partitions} partitions at the target and "
                f"{plan.source.partitions} at the source: delete it at the target, or add partitions at the source"
            )
    return plans
