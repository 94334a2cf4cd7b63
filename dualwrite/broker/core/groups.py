"""A group of the classic protocol: its members, its generation, and the only transitions that it can make.

The table ``TRANSITIONS`` is complete: a state, the states that may precede it, and the cause of the step. The durable
part of a group is its last complete generation (``facts.groups.GroupRecorded``). A rebalance in progress is in memory
only, as in Apache Kafka: after a restart the members of the last generation continue, or join again. (Kafka:
ClassicGroup, ClassicGroupState.)
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum

from dualwrite.broker.facts.groups import GroupRecorded, MemberRecorded

NO_MEMBER = ""
"""The member id of a client that has none yet."""

CONSUMER_PROTOCOL = "consumer"
"""The protocol type of consumers, whose subscriptions the broker can read (Kafka: ConsumerProtocol)."""


class GroupState(Enum):
    """Kafka's ClassicGroupState; the values are the names that ListGroups and DescribeGroups use."""

    EMPTY = "Empty"
    PREPARING_REBALANCE = "PreparingRebalance"
    COMPLETING_REBALANCE = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


_REBALANCING = "JoinGroup, LeaveGroup, or the end of a session"

TRANSITIONS: Mapping[GroupState, Mapping[GroupState, str]] = {
    GroupState.EMPTY: {GroupState.PREPARING_REBALANCE: "no member has joined when the time is up"},
    GroupState.PREPARING_REBALANCE: {
        GroupState.EMPTY: "JoinGroup",
        GroupState.COMPLETING_REBALANCE: f"{_REBALANCING}, or a member that does not sync",
        GroupState.STABLE: f"{_REBALANCING}, or a member that does not sync",
    },
    GroupState.COMPLETING_REBALANCE: {GroupState.PREPARING_REBALANCE: "every member has joined, or the time is up"},
    GroupState.STABLE: {GroupState.COMPLETING_REBALANCE: "SyncGroup of the leader"},
    GroupState.DEAD: {GroupState.EMPTY: "DeleteGroups, or the last offset's expiry"},
}
"""state -> {previous state: cause of the step}. A group begins as EMPTY. A dead group is forgotten."""


class IllegalGroupError(AssertionError):
    """A group would get into an illegal state. The broker stops, because its memory would be wrong."""


@dataclass(frozen=True, slots=True)
class Member:
    """A member of a group; its protocols are in the order of its preference, by name."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    protocols: tuple[tuple[str, bytes], ...]
    assignment: bytes = b""
    is_new: bool = False
    """True until the answer to its first JoinGroup. Until then the member cannot send heartbeats."""

    def metadata(self, protocol: str | None) -> bytes | None:
        """The member's metadata for ``protocol``, None if it does not support it."""
        return next((data for name, data in self.protocols if name == protocol), None)


@dataclass(slots=True)
class Group:
    """One group. ``group_rules`` decides; this class checks what must be true of every group at any time."""

    group_id: str
    state: GroupState = GroupState.EMPTY
    generation: int = 0
    protocol_type: str | None = None
    protocol: str | None = None
    leader: str | None = None
    since_ms: int = -1
    """When the group entered its state, in milliseconds since the epoch; -1 if only its offsets are known."""
    members: dict[str, Member] = field(default_factory=dict)
    pending: set[str] = field(default_factory=set)
    """Member ids that clients got and have not used yet to join (KIP-394)."""
    joining: dict[str, int] = field(default_factory=dict)
    """member id -> the ticket of its JoinGroup that is not answered yet."""
    syncing: dict[str, int] = field(default_factory=dict)
    """member id -> the ticket of its SyncGroup that is not answered yet."""
    unsynced: set[str] = field(default_factory=set)
    """Members that have not asked for their assignment in this generation."""
    is_initial: bool = False
    """True while the group prepares its first rebalance, for which it waits a while for more members."""
    newcomers: bool = False
    """True if a member joined since the wait for the first rebalance was last extended."""
    delay_ms: int = 0
    """How long the wait for the first rebalance may still take: the rest of rebalance.timeout.ms."""

    def copy(self) -> "Group":
        """A working copy of the group."""
        return replace(
            self,
            members=dict(self.members),
            pending=set(self.pending),
            joining=dict(self.joining),
            syncing=dict(self.syncing),
            unsynced=set(self.unsynced),
        )

    def static_member(self, instance_id: str) -> str | None:
        """The current member id of a static member."""
        members = self.members.values()
        return next((member.member_id for member in members if member.instance_id == instance_id), None)

    @property
    def rebalance_timeout_ms(self) -> int:
        """The longest time that a member has to join again."""
        return max((member.rebalance_timeout_ms for member in self.members.values()), default=0)

    @property
    def have_all_joined(self) -> bool:
        """True if a rebalance has no member to wait for."""
        return len(self.joining) == len(self.members) and not self.pending

    @property
    def is_vacant(self) -> bool:
        """True if the group has no members, and no client is about to join."""
        return self.state is GroupState.EMPTY and not self.pending

    def supports(self, protocol_type: str, names: tuple[str, ...]) -> bool:
        """True if a client with these protocols can be a member."""
        if self.state is GroupState.EMPTY:
            return bool(protocol_type and names)
        if protocol_type != self.protocol_type:
            return False
        return any(all(member.metadata(name) is not None for member in self.members.values()) for name in names)

    def elected_protocol(self) -> str:
        """The protocol that all members support and most of them prefer."""
        first, *others = self.members.values()
        common = [name for name, _ in first.protocols if all(other.metadata(name) is not None for other in others)]
        votes = [next(name for name, _ in member.protocols if name in common) for member in self.members.values()]
        return max(common, key=votes.count)

    def subscriptions(self) -> tuple[tuple[str, str | None, bytes], ...]:
        """Member id, instance id and metadata of every member, from which the leader makes the assignment."""
        return tuple(
            (member.member_id, member.instance_id, member.metadata(self.protocol) or b"")
            for member in self.members.values()
        )

    def move_to(self, state: GroupState, now_ms: int) -> None:
        """Enter ``state``.

        :raises IllegalGroupError: if the table has no step from the current state.
        """
        if self.state not in TRANSITIONS[state]:
            raise IllegalGroupError(f"group {self.group_id}: illegal transition from {self.state} to {state}")
        self.state, self.since_ms = state, now_ms

    def check(self) -> None:
        """Check that the group is legal.

        :raises IllegalGroupError: if it is not.
        """
        preparing = self.state is GroupState.PREPARING_REBALANCE
        rules = {
            "only members and a rebalance have parked JoinGroups": self.joining.keys() <= self.members.keys()
            and (preparing or not self.joining),
            "only members and a completing rebalance have parked SyncGroups": self.syncing.keys() <= self.members.keys()
            and (self.state is GroupState.COMPLETING_REBALANCE or not self.syncing),
            "an empty group has no members": bool(self.members) != (self.state is GroupState.EMPTY)
            or (preparing and not self.members),
            "the leader is a member": (self.leader in self.members) == bool(self.members)
            or (preparing and self.leader is None),
            "a member is not pending": not self.pending & self.members.keys(),
            "only members owe a SyncGroup": self.unsynced <= self.members.keys(),
            "a generation has a protocol": (self.protocol is not None)
            or self.state not in (GroupState.STABLE, GroupState.COMPLETING_REBALANCE),
        }
        broken = [rule for rule, holds in rules.items() if not holds]
        if broken:
            raise IllegalGroupError(f"{'; '.join(broken)}: {self}")

    def recorded(self) -> GroupRecorded:
        """The fact about the present generation."""
        members = tuple(
            MemberRecorded(
                member.member_id,
                member.instance_id,
                member.client_id,
                member.client_host,
                member.rebalance_timeout_ms,
                member.session_timeout_ms,
                member.metadata(self.protocol) or b"",
                member.assignment,
            )
            for member in self.members.values()
        )
        return GroupRecorded(
            self.group_id, self.protocol_type, self.generation, self.protocol, self.leader, self.since_ms, members
        )


def group_of(fact: GroupRecorded) -> Group:
    """The group after a restart. Its members have their assignments, and are known to support one protocol.

    A generation without a leader is the broker's: a consumer group that has become a classic one (KIP-848). Its members
    have to join again.
    """
    members = {
        member.member_id: Member(
            member.member_id,
            member.instance_id,
            member.client_id,
            member.client_host,
            member.rebalance_timeout_ms,
            member.session_timeout_ms,
            ((fact.protocol or "", member.subscription),),
            member.assignment,
        )
        for member in fact.members
    }
    state = GroupState.EMPTY
    if members:
        state = GroupState.PREPARING_REBALANCE if fact.leader is None else GroupState.STABLE
    return Group(
        fact.group, state, fact.generation, fact.protocol_type, fact.protocol, fact.leader, fact.since_ms, members
    )
