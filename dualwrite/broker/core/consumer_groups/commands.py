"""The commands of a consumer group and their consequences."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum

from dualwrite.broker.facts.assignments import TopicIdPartition
from dualwrite.broker.facts.cluster import TopicCreated
from dualwrite.broker.facts.consumer_groups import ConsumerGroupFact
from dualwrite.broker.facts.groups import GroupForgotten
from dualwrite.wire.error_codes import ErrorCode

UNIFORM, RANGE = "uniform", "range"
ASSIGNORS = (UNIFORM, RANGE)
"""The assignors that this broker has, by their names in requests."""

SAME_TIMEOUT = -1
"""The rebalance timeout of a request that does not change it."""


@dataclass(frozen=True, slots=True)
class ConsumerGroupSettings:
    """The broker settings that the rules depend on, under Kafka's names and in its units."""

    session_timeout_ms: int = 45_000
    """group.consumer.session.timeout.ms"""
    heartbeat_interval_ms: int = 5_000
    """group.consumer.heartbeat.interval.ms"""
    max_size: int = 2_147_483_647
    """group.consumer.max.size"""
    assignors: tuple[str, ...] = ASSIGNORS
    """group.consumer.assignors"""


@dataclass(frozen=True, slots=True)
class ConsumerHeartbeat:
    """A member joins (epoch 0), is alive, or leaves (-1; -2 if it is static and will come back).

    None, and SAME_TIMEOUT, stand for what the member said last.

    :param names_itself: the client must choose its member id (v1, KIP-1082).
    :param owned: the partitions that the member holds.
    """

    group: str
    member_id: str
    epoch: int
    client_id: str = ""
    client_host: str = ""
    instance_id: str | None = None
    rack_id: str | None = None
    rebalance_timeout_ms: int = SAME_TIMEOUT
    topics: tuple[str, ...] | None = None
    pattern: str | None = None
    assignor: str | None = None
    owned: frozenset[TopicIdPartition] | None = None
    names_itself: bool = True


@dataclass(frozen=True, slots=True)
class RemoveMembers:
    """An administrator removes members (LeaveGroup): (member id, instance id), one of them may be missing."""

    group: str
    members: tuple[tuple[str, str | None], ...]


class ConsumerTimerKind(Enum):
    """The kinds of events that a consumer group waits for."""

    SESSION = "send a heartbeat"
    REBALANCE = "give up its partitions"


@dataclass(frozen=True, slots=True)
class ConsumerTimerKey:
    """One timer of a member, and the command that is issued when it fires."""

    group: str
    kind: ConsumerTimerKind
    member_id: str


ConsumerGroupCommand = ConsumerHeartbeat | RemoveMembers | ConsumerTimerKey


@dataclass(frozen=True, slots=True)
class SetConsumerTimer:
    """An effect: issue ``key`` as a command after ``delay_ms``, and not earlier. None cancels the timer."""

    key: ConsumerTimerKey
    delay_ms: int | None


@dataclass(frozen=True, slots=True)
class ConsumerHeartbeatReply:
    """The answer to a heartbeat.

    :param assigned: the partitions that the member may use; None if they are as before.
    """

    error: ErrorCode = ErrorCode.NONE
    message: str | None = None
    member_id: str | None = None
    epoch: int = 0
    heartbeat_interval_ms: int = 0
    assigned: frozenset[TopicIdPartition] | None = None


@dataclass(frozen=True, slots=True)
class ConsumerGroupMoment:
    """The outside input of a decision.

    :param topics: the cluster's topics by name.
    :param topics_version: a number that is higher after each change of the topics, and of the rights on them.
    :param may_see: tells if the client that sent the command may know of a topic.
    :param fresh_id: a member id that no member has.
    """

    topics: Mapping[str, TopicCreated]
    topics_version: int
    may_see: Callable[[str], bool] = lambda _: True
    fresh_id: str = ""


@dataclass(frozen=True, slots=True)
class ConsumerGroupDecision:
    """The consequences of a command. The caller applies and appends the facts first, all or none.

    :param removed: for ``RemoveMembers``, the error of each member in the order of the command.
    :param matches: the topics that match the members' patterns at ``topics_version``, for the group to remember; None
        if the command did not look at them.
    """

    reply: ConsumerHeartbeatReply
    facts: tuple[ConsumerGroupFact | GroupForgotten, ...] = ()
    timers: tuple[SetConsumerTimer, ...] = ()
    removed: tuple[ErrorCode, ...] = ()
    matches: Mapping[str, frozenset[str]] | None = None
    topics_version: int = -1
