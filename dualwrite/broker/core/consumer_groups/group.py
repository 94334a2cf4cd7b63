"""A consumer group: what the records in ``__consumer_offsets`` say about it.

Every change is a fact, and a restart replays the facts. So a restarted broker fences and continues as before. Three
epochs rule the group: the group's own, which changes of members, subscriptions and topics raise; that of the target
assignments; and each member's, which reaches the target's once the member has given up what it has to. (Kafka:
ConsumerGroup, ModernGroup.)
"""

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum

from dualwrite.broker.facts.assignments import TopicIdPartition
from dualwrite.broker.facts.consumer_groups import (
    ConsumerGroupFact,
    ConsumerGroupPartForgotten,
    ConsumerGroupRecorded,
    MemberAssigned,
    MemberState,
    MemberSubscribed,
    RecordType,
    TargetAssigned,
    TargetEpochRecorded,
)

LEFT = -1
"""The epoch of a request by which a member leaves the group."""

LEFT_FOR_A_WHILE = -2
"""The epoch of a static member that has left, and will come back: it keeps its partitions until its session ends."""

NO_TOPICS = -1


class ConsumerGroupState(Enum):
    """Kafka's ConsumerGroupState; the values are the names that ListGroups and ConsumerGroupDescribe use."""

    EMPTY = "Empty"
    ASSIGNING = "Assigning"
    RECONCILING = "Reconciling"
    STABLE = "Stable"


class PartitionConflictError(AssertionError):
    """Two members would hold one partition. The broker stops, because its memory would be wrong."""


@dataclass(slots=True)
class ConsumerGroup:
    """One group. Its three mappings are by member id; a member exists while it is in ``subscriptions``."""

    group_id: str
    epoch: int = 1
    metadata_hash: int = 0
    target_epoch: int = 0
    subscriptions: dict[str, MemberSubscribed] = field(default_factory=dict)
    targets: dict[str, frozenset[TopicIdPartition]] = field(default_factory=dict)
    currents: dict[str, MemberAssigned] = field(default_factory=dict)
    topics_version: int = NO_TOPICS
    """The version of the cluster's topics that the group last looked at. In memory only."""
    matches: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """Pattern -> the names of the topics that match it, in ``topics_version``. In memory only."""

    def copy(self) -> "ConsumerGroup":
        """A working copy of the group."""
        return replace(
            self,
            subscriptions=dict(self.subscriptions),
            targets=dict(self.targets),
            currents=dict(self.currents),
        )

    def apply(self, fact: ConsumerGroupFact) -> None:
        """Apply ``fact``, which is about this group."""
        if isinstance(fact, ConsumerGroupRecorded):
            assert fact.epoch >= self.epoch, f"group {self.group_id} goes back to epoch {fact.epoch}"
            self.epoch, self.metadata_hash = fact.epoch, fact.metadata_hash
        elif isinstance(fact, TargetEpochRecorded):
            assert fact.epoch >= self.target_epoch, f"group {self.group_id} goes back to target epoch {fact.epoch}"
            self.target_epoch = fact.epoch
        elif isinstance(fact, MemberSubscribed):
            self.subscriptions[fact.member_id] = fact
        elif isinstance(fact, TargetAssigned):
            self.targets[fact.member_id] = fact.partitions
        elif isinstance(fact, MemberAssigned):
            self.currents[fact.member_id] = fact
        else:
            self._forget(fact)

    def _forget(self, fact: ConsumerGroupPartForgotten) -> None:
        """Apply a tombstone. Those of the epochs come with the end of the whole group."""
        if fact.type is RecordType.MEMBER:
            self.subscriptions.pop(fact.member_id, None)
        elif fact.type is RecordType.TARGET:
            self.targets.pop(fact.member_id, None)
        elif fact.type is RecordType.CURRENT:
            self.currents.pop(fact.member_id, None)

    @property
    def state(self) -> ConsumerGroupState:
        """The state, which follows from the epochs."""
        if not self.subscriptions:
            return ConsumerGroupState.EMPTY
        if self.epoch > self.target_epoch:
            return ConsumerGroupState.ASSIGNING
        if all(self.is_reconciled(member_id) for member_id in self.subscriptions):
            return ConsumerGroupState.STABLE
        return ConsumerGroupState.RECONCILING

    def is_reconciled(self, member_id: str) -> bool:
        """True if the member has its target assignment, and knows the target's epoch."""
        current = self.current(member_id)
        return current.state is MemberState.STABLE and current.epoch == self.target_epoch

    def current(self, member_id: str) -> MemberAssigned:
        """What the member holds; a new member holds nothing."""
        return self.currents.get(member_id) or MemberAssigned(self.group_id, member_id, 0, -1, MemberState.STABLE)

    def target(self, member_id: str) -> frozenset[TopicIdPartition]:
        """What the member is to hold."""
        return self.targets.get(member_id, frozenset())

    def static_member(self, instance_id: str | None) -> str | None:
        """The current member id of a static member."""
        if instance_id is None:
            return None
        members = self.subscriptions.values()
        return next((member.member_id for member in members if member.instance_id == instance_id), None)

    @property
    def classic_members(self) -> list[str]:
        """The members that speak the classic protocol."""
        return [member_id for member_id, member in self.subscriptions.items() if member.classic is not None]

    def supports_classic(self, names: Collection[str]) -> bool:
        """True if a client with these assignors can join: all members of the classic protocol have one of them, too."""
        members = [member.classic.protocols for member in self.subscriptions.values() if member.classic is not None]
        return any(all(name in dict(protocols) for protocols in members) for name in names)

    def waits_for_others(self, member_id: str) -> bool:
        """True if other members hold a part of the member's target."""
        missing = self.target(member_id) - self.current(member_id).assigned.keys()
        return not missing.isdisjoint(self.held_by_others(member_id))

    def held_by_others(self, member_id: str) -> set[TopicIdPartition]:
        """The partitions that other members hold, or have not given up yet."""
        return {
            partition
            for current in self.currents.values()
            if current.member_id != member_id
            for partition in (*current.assigned, *current.revoking)
        }

    def topics_of(self, member: MemberSubscribed) -> frozenset[str]:
        """The names to which ``member`` is subscribed, whether such topics exist or not."""
        return frozenset(member.topics) | self.matches.get(member.pattern or "", frozenset())

    def subscribed_topics(self) -> frozenset[str]:
        """The names to which any member is subscribed."""
        return frozenset().union(*map(self.topics_of, self.subscriptions.values()))

    def patterns(self) -> set[str]:
        """The patterns by which members are subscribed."""
        return {member.pattern for member in self.subscriptions.values() if member.pattern}

    def assignor(self, available: Sequence[str]) -> str:
        """The assignor that most members prefer; the first of ``available`` if none has a preference."""
        votes = Counter(member.assignor for member in self.subscriptions.values() if member.assignor in available)
        return max(available, key=lambda name: votes[name])

    def tombstones(self, member_id: str) -> Iterator[ConsumerGroupPartForgotten]:
        """The facts that remove the member and all that is stored of it."""
        for kind in (RecordType.CURRENT, RecordType.TARGET, RecordType.MEMBER):
            yield ConsumerGroupPartForgotten(kind, self.group_id, member_id)

    def end(self) -> tuple[ConsumerGroupPartForgotten, ...]:
        """The facts that remove the group and its members."""
        members = (fact for member_id in self.subscriptions for fact in self.tombstones(member_id))
        kinds = (RecordType.TARGET_EPOCH, RecordType.GROUP)
        return (*members, *(ConsumerGroupPartForgotten(kind, self.group_id) for kind in kinds))

    def check(self, changed: Collection[str] = ()) -> None:
        """Check that no partition is held by two members.

        :param changed: the members that may hold something new; empty: all of them.
        :raises PartitionConflictError: if one is.
        """
        for member_id in changed or self.currents:
            held = self.currents[member_id].assigned.keys() if member_id in self.currents else set()
            conflicts = held & self.held_by_others(member_id)
            if conflicts:
                raise PartitionConflictError(f"group {self.group_id}: {member_id} and another hold {sorted(conflicts)}")
