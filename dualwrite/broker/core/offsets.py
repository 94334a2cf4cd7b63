"""The committed offsets of groups, and the rules of a commit (KIP-98, KIP-345, KIP-447, KIP-848, KIP-1251).

Who may commit: members of the current generation, members of a consumer group in their epoch, clients outside any
generation while the group is empty, and transactions. A transaction's commit is pending until its marker. Between a
pending and a plain offset, the one later in the log wins, in whichever order they become valid. (Kafka:
OffsetMetadataManager, and validateOffsetCommit of ClassicGroup and of ConsumerGroup.)
"""

import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import chain

from dualwrite.broker.core.consumer_groups.group import ConsumerGroup
from dualwrite.broker.core.group_rules import identity_error
from dualwrite.broker.core.groups import Group, GroupState
from dualwrite.broker.facts.assignments import TopicIdPartition
from dualwrite.broker.facts.fields import LONGEST_STRING
from dualwrite.broker.facts.offsets import OffsetCommitted, OffsetFact
from dualwrite.ids import TopicPartition
from dualwrite.wire.error_codes import ErrorCode

LONGEST_METADATA = 4096
"""Kafka's default of offset.metadata.max.bytes. In spite of its name it counts Java's characters (UTF-16 units)."""

NO_GENERATION = -1


@dataclass(frozen=True, slots=True)
class CommittedPosition:
    """A consumer's position in one partition; the fields are those of ``OffsetCommitted``."""

    offset: int
    leader_epoch: int = -1
    metadata: str = ""


@dataclass(frozen=True, slots=True)
class CommitOffsets:
    """Store a consumer's positions under its group's name (OffsetCommit, TxnOffsetCommit).

    :param generation: the generation, or the member epoch, that the client expects to be in; negative outside any.
    :param is_transactional: True if the positions become valid with the commit of a transaction.
    :param knows_epochs: False for versions of OffsetCommit in which no member of a consumer group may commit.
    """

    group: str
    positions: Mapping[TopicPartition, CommittedPosition]
    generation: int = NO_GENERATION
    member_id: str = ""
    instance_id: str | None = None
    is_transactional: bool = False
    knows_epochs: bool = True


@dataclass(frozen=True, slots=True)
class CommitDecision:
    """The answer for every partition, and the facts about those that were accepted."""

    errors: Mapping[TopicPartition, ErrorCode]
    facts: tuple[OffsetCommitted, ...]


_Key = tuple[str, TopicPartition]
_Logged = tuple[OffsetCommitted, int]


@dataclass(slots=True)
class CommittedOffsets:
    """The latest committed offset of each partition by group, and the pending offsets of open transactions."""

    groups: dict[str, dict[TopicPartition, OffsetCommitted]] = field(default_factory=dict)
    logged_at: dict[_Key, int] = field(default_factory=dict)
    """The log offset of each committed offset."""
    pending: dict[int, dict[str, dict[TopicPartition, _Logged]]] = field(default_factory=dict)
    """Producer id -> group -> the pending offsets of its open transaction, with their log offsets."""

    def apply(self, fact: OffsetFact, at: int = -1) -> None:
        """Apply a fact at offset ``at`` of the log. A position may go back: consumers rewind."""
        key = fact.group, fact.partition
        if isinstance(fact, OffsetCommitted):
            self.groups.setdefault(fact.group, {})[fact.partition] = fact
            self.logged_at[key] = at
            return
        self.logged_at.pop(key, None)
        committed = self.groups.get(fact.group, {})
        committed.pop(fact.partition, None)
        if not committed:
            self.groups.pop(fact.group, None)
        for groups in self.pending.values():
            groups.get(fact.group, {}).pop(fact.partition, None)

    def apply_pending(self, fact: OffsetCommitted, at: int, producer_id: int) -> None:
        """Apply an offset of a transaction whose marker comes later in the log."""
        self.pending.setdefault(producer_id, {}).setdefault(fact.group, {})[fact.partition] = fact, at

    def end_transaction(self, producer_id: int, is_committed: bool) -> None:
        """Apply the marker of ``producer_id``'s transaction: its pending offsets become valid, or are discarded."""
        groups = self.pending.pop(producer_id, {})
        if is_committed:
            for fact, at in chain.from_iterable(positions.values() for positions in groups.values()):
                if at > self.logged_at.get((fact.group, fact.partition), -1):
                    self.apply(fact, at)

    def pending_in(self, group: str) -> set[TopicPartition]:
        """The partitions in which open transactions have pending offsets of ``group``."""
        return {partition for groups in self.pending.values() for partition in groups.get(group, ())}

    def known(self) -> set[tuple[str, TopicPartition]]:
        """All pairs of a group and a partition in which the group has a committed or a pending offset."""
        names = {name for groups in self.pending.values() for name in groups}
        return self.logged_at.keys() | {(name, partition) for name in names for partition in self.pending_in(name)}

    def known_in(self, group: str) -> set[TopicPartition]:
        """The partitions in which ``group`` has a committed or a pending offset."""
        return self.groups.get(group, {}).keys() | self.pending_in(group)


def decide_commit(
    group: Group | ConsumerGroup | None,
    command: CommitOffsets,
    known: Mapping[TopicPartition, uuid.UUID],
    now_ms: int,
    longest_metadata: int = LONGEST_METADATA,
) -> CommitDecision:
    """Decide each of the command's positions separately.

    :param group: the group, None if it is unknown.
    :param known: the partitions of the command that exist in the cluster, with their topics' ids.
    :param longest_metadata: offset.metadata.max.bytes.
    """
    if isinstance(group, ConsumerGroup):
        refusal = consumer_commit_error(group, command, known)
    else:
        refusal = commit_error(group, command)
    errors = {
        partition: _partition_error(position, refusal, longest_metadata)
        if partition in known
        else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        for partition, position in command.positions.items()
    }
    facts = tuple(
        OffsetCommitted(
            command.group, partition, position.offset, position.leader_epoch, position.metadata, committed_ms=now_ms
        )
        for partition, position in command.positions.items()
        if errors[partition] is ErrorCode.NONE
    )
    return CommitDecision(errors, facts)


def commit_error(group: Group | None, command: CommitOffsets) -> ErrorCode:
    """The error of the whole command, from the group's members and generation; NONE if it may commit."""
    size = len(command.group.encode())
    if size > LONGEST_STRING or (command.is_transactional and size == 0):
        return ErrorCode.INVALID_GROUP_ID
    if group is None:
        if command.generation < 0:
            return ErrorCode.NONE
        return ErrorCode.GROUP_ID_NOT_FOUND
    if command.generation < 0 and group.state is GroupState.EMPTY:
        return ErrorCode.NONE  # with or without a member id: Kafka accepts both in a group without members
    if command.generation >= 0 or command.member_id or command.instance_id is not None:
        error = identity_error(group, command.member_id, command.instance_id)
        if error is not ErrorCode.NONE:
            return error
        if command.generation != group.generation:
            return ErrorCode.ILLEGAL_GENERATION
    elif not command.is_transactional:
        return ErrorCode.UNKNOWN_MEMBER_ID
    if group.state is GroupState.COMPLETING_REBALANCE and not command.is_transactional:
        return ErrorCode.REBALANCE_IN_PROGRESS
    return ErrorCode.NONE


def consumer_commit_error(
    group: ConsumerGroup, command: CommitOffsets, known: Mapping[TopicPartition, uuid.UUID]
) -> ErrorCode:
    """The error of a whole command for a consumer group; NONE if it may commit.

    A member may be late: it may commit in an older epoch for partitions that it held in that epoch, and has not given
    up since (KIP-1251). A member of the classic protocol may not.
    """
    if command.generation < 0 and not group.subscriptions:
        return ErrorCode.NONE
    is_outside = command.generation == NO_GENERATION and not command.member_id and command.instance_id is None
    if command.is_transactional and is_outside:
        return ErrorCode.NONE
    if command.member_id not in group.subscriptions:
        return ErrorCode.UNKNOWN_MEMBER_ID
    current = group.current(command.member_id)
    if group.subscriptions[command.member_id].classic is not None:
        return ErrorCode.NONE if command.generation == current.epoch else ErrorCode.ILLEGAL_GENERATION
    if not command.knows_epochs:
        return ErrorCode.UNSUPPORTED_VERSION
    if command.generation == current.epoch:
        return ErrorCode.NONE
    held = {**current.revoking, **current.assigned}
    names = (
        TopicIdPartition(known[partition], partition.partition) for partition in command.positions if partition in known
    )
    may_be_late = command.generation < current.epoch and all(
        name in held and command.generation >= held[name] for name in names
    )
    return ErrorCode.NONE if may_be_late else ErrorCode.STALE_MEMBER_EPOCH


def fetch_error(group: Group | ConsumerGroup | None, member_id: str | None, epoch: int) -> ErrorCode:
    """The error of an OffsetFetch by a member of a consumer group (v9, KIP-848). Other clients name no member."""
    if not isinstance(group, ConsumerGroup) or (member_id is None and epoch < 0):
        return ErrorCode.NONE
    if member_id is None or member_id not in group.subscriptions:
        return ErrorCode.UNKNOWN_MEMBER_ID
    return ErrorCode.NONE if epoch == group.current(member_id).epoch else ErrorCode.STALE_MEMBER_EPOCH


def _partition_error(position: CommittedPosition, refusal: ErrorCode, longest_metadata: int) -> ErrorCode:
    if refusal is ErrorCode.NONE and len(position.metadata.encode("utf-16-le")) > 2 * longest_metadata:
        return ErrorCode.OFFSET_METADATA_TOO_LARGE
    return refusal
