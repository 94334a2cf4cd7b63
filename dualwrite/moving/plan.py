"""What a move has to do with each topic, and the reasons to refuse it."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from enum import Enum

from dualwrite.errors import InputError
from dualwrite.moving.journal import PREFIX, TopicPair

TIMESTAMP_TYPE = "message.timestamp.type"
CREATE_TIME, APPEND_TIME = "CreateTime", "LogAppendTime"


@dataclass(frozen=True, slots=True)
class MoveJob:
    """What to move.

    :param topics: the topics; empty for all, without Kafka's internal ones.
    :param groups: the consumer groups; empty for all that have offsets in the topics.
    :param replication_factor: of topics that are created; -1 for the default of the target cluster.
    """

    topics: Collection[str] = ()
    groups: Collection[str] = ()
    replication_factor: int = -1


@dataclass(frozen=True, slots=True)
class TopicDescription:
    """A topic of one cluster.

    :param settings: its own settings, without the cluster's defaults.
    :param timestamp_type: ``CreateTime`` or ``LogAppendTime``.
    """

    name: str
    topic_id: str
    partitions: int
    settings: Mapping[str, str] = field(default_factory=dict)
    timestamp_type: str = CREATE_TIME

    @property
    def is_compacted(self) -> bool:
        """True if the cluster removes records of keys that have later ones."""
        return "compact" in self.settings.get("cleanup.policy", "")


class Preparation(Enum):
    """What is to be done with a topic before its records are copied."""

    CREATE = "to be created"
    ADD_PARTITIONS = "needs more partitions"
    NOTHING = "ready"


@dataclass(frozen=True, slots=True)
class TopicPlan:
    """One topic to move.

    :param target: None if the target cluster does not have it yet.
    """

    source: TopicDescription
    target: TopicDescription | None

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
        """The settings to create the topic with. Records keep the times that they have at the source, so a topic with
        the broker's times gets these when the move is finished."""
        settings = dict(self.source.settings)
        if self.source.timestamp_type == APPEND_TIME:
            settings[TIMESTAMP_TYPE] = CREATE_TIME
        return settings


def is_movable(topic: str) -> bool:
    """False for Kafka's internal topics and the journals of moves."""
    return not topic.startswith(("__", PREFIX))


def plan_topics(
    job: MoveJob, source: Mapping[str, TopicDescription], target: Mapping[str, TopicDescription]
) -> list[TopicPlan]:
    """The topics to move, in the order of their names.

    :param source: the topics of the source cluster, by name.
    :param target: those of the target cluster.
    :raises InputError: if a topic cannot be moved.
    """
    names = sorted(set(job.topics)) if job.topics else sorted(filter(is_movable, source))
    for name in names:
        if name not in source:
            raise InputError(f"--topics: the source cluster has no topic {name!r}, or hides it from this client")
        if not is_movable(name):
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
