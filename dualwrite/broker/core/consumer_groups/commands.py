"""The commands of a consumer group and their consequences."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum

from dualwrite.broker.core.group_commands import GroupDecision, GroupReply
from dualwrite.broker.core.group_rules import GroupSettings
from dualwrite.broker.core.groups import Group
from dualwrite.broker.facts.assignments import TopicIdPartition
from dualwrite.broker.facts.cluster import TopicCreated
from dualwrite.broker.facts.consumer_groups import ConsumerGroupFact
from dualwrite.broker.facts.groups import GroupFact
from dualwrite.wire.error_codes import ErrorCode

UNIFORM, RANGE = "uniform", "range"
ASSIGNORS = (UNIFORM, RANGE)
"""The assignors that this broker has, by their names in requests."""

SAME_TIMEOUT = -1
"""The rebalance timeout of a request that does not change it."""


class MigrationPolicy(Enum):
    """group.consumer.migration.policy: which protocol a group with members may change to.

    Members of the classic protocol may join a consumer group in any case but DISABLED.
    """

    DISABLED = "disabled"
    UPGRADE = "upgrade"
    DOWNGRADE = "downgrade"
    BIDIRECTIONAL = "bidirectional"

    @property
    def allows_upgrade(self) -> bool:
        """True if a classic group may become a consumer group."""
        return self in (MigrationPolicy.UPGRADE, MigrationPolicy.BIDIRECTIONAL)

    @property
    def allows_downgrade(self) -> bool:
        """True if a consumer group may become a classic group."""
        return self in (MigrationPolicy.DOWNGRADE, MigrationPolicy.BIDIRECTIONAL)


@dataclass(frozen=True, slots=True)
class Limits:
    """The least and the most that a group may set for itself."""

    least: int
    most: int

    def nearest(self, value: int) -> int:
        """``value``, or the limit that it exceeds."""
        return min(max(value, self.least), self.most)


@dataclass(frozen=True, slots=True)
class ConsumerGroupSettings:
    """The settings that the rules depend on, under Kafka's names and in its units: the broker's, or those of one
    group."""

    session_timeout_ms: int = 45_000
    """group.consumer.session.timeout.ms"""
    heartbeat_interval_ms: int = 5_000
    """group.consumer.heartbeat.interval.ms"""
    session_timeout_limits: Limits = Limits(45_000, 60_000)
    """group.consumer.min.session.timeout.ms and group.consumer.max.session.timeout.ms"""
    heartbeat_interval_limits: Limits = Limits(5_000, 15_000)
    """group.consumer.min.heartbeat.interval.ms and group.consumer.max.heartbeat.interval.ms"""
    max_size: int = 2_147_483_647
    """group.consumer.max.size"""
    assignors: tuple[str, ...] = ASSIGNORS
    """group.consumer.assignors"""
    migration_policy: MigrationPolicy = MigrationPolicy.BIDIRECTIONAL
    """group.consumer.migration.policy"""
    classic: GroupSettings = field(default_factory=GroupSettings)
    """Of classic groups, and of members of the classic protocol."""


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
    JOIN = "join again"
    """For members of the classic protocol, as SYNC."""
    SYNC = "ask for its assignment"


@dataclass(frozen=True, slots=True)
class ConsumerTimerKey:
    """One timer of a member, and the command that is issued when it fires."""

    group: str
    kind: ConsumerTimerKind
    member_id: str


ConsumerGroupCommand = ConsumerHeartbeat | RemoveMembers | ConsumerTimerKey


@dataclass(frozen=True, slots=True)
class SetConsumerTimer:
    """An effect: issue ``key`` as a command after ``delay_ms``, and not earlier. None cancels the timer.

    :param keeps: True to change nothing if the timer is running.
    """

    key: ConsumerTimerKey
    delay_ms: int | None
    keeps: bool = False


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
    :param fresh_id: a text that no member id contains yet.
    :param now_ms: the time in milliseconds since the epoch.
    :param ticket: of the request, if it is of the classic protocol.
    """

    topics: Mapping[str, TopicCreated]
    topics_version: int
    may_see: Callable[[str], bool] = lambda _: True
    fresh_id: str = ""
    now_ms: int = -1
    ticket: int = -1


@dataclass(frozen=True, slots=True)
class ConsumerGroupDecision:
    """The consequences of a command. The caller applies and appends the facts first, all or none.

    :param answer: the answer to a request of the classic protocol; None if it waits in the classic group.
    :param removed: for ``RemoveMembers``, the error of each member in the order of the command.
    :param matches: the topics that match the members' patterns at ``topics_version``, for the group to remember; None
        if the command did not look at them.
    :param upgraded: the classic group that has become this consumer group. Its members must join again.
    :param downgraded: the first step of the classic group that this consumer group has become.
    """

    reply: ConsumerHeartbeatReply = ConsumerHeartbeatReply()
    facts: tuple[ConsumerGroupFact | GroupFact, ...] = ()
    timers: tuple[SetConsumerTimer, ...] = ()
    answer: GroupReply | None = None
    removed: tuple[ErrorCode, ...] = ()
    matches: Mapping[str, frozenset[str]] | None = None
    topics_version: int = -1
    upgraded: Group | None = None
    downgraded: GroupDecision | None = None
