"""Every group and its committed offsets: the replay of ``__consumer_offsets``, and decisions that need all of it.

A group exists as soon as a member has joined it or an offset was committed under its name.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from dualwrite.broker.core.group_commands import GroupDecision
from dualwrite.broker.core.groups import CONSUMER_PROTOCOL, Group, GroupState, IllegalGroupError, group_of
from dualwrite.broker.core.offsets import CommittedOffsets
from dualwrite.broker.core.subscriptions import is_subscribed, subscribed_topics
from dualwrite.broker.facts.groups import GroupFact, GroupForgotten, GroupRecorded
from dualwrite.broker.facts.offsets import OffsetCommitted, OffsetFact, OffsetForgotten
from dualwrite.ids import TopicPartition
from dualwrite.wire.error_codes import ErrorCode

ConsumerOffsetsFact = GroupFact | OffsetFact
"""Any fact in a record of ``__consumer_offsets``."""


@dataclass(slots=True)
class GroupTable:
    """Groups and their offsets, by name."""

    groups: dict[str, Group] = field(default_factory=dict)
    offsets: CommittedOffsets = field(default_factory=CommittedOffsets)

    def apply(self, fact: ConsumerOffsetsFact, at: int = -1, producer_id: int = -1) -> None:
        """Apply a fact.

        :param at: the fact's offset in the log.
        :param producer_id: the producer of the transaction that the fact belongs to; negative if there is none.
        """
        if isinstance(fact, GroupRecorded):
            self.groups[fact.group] = group_of(fact)
        elif isinstance(fact, GroupForgotten):
            self.groups.pop(fact.group, None)
        elif isinstance(fact, OffsetForgotten):
            self.offsets.apply(fact, at)
        else:
            self.groups.setdefault(fact.group, Group(fact.group))
            if producer_id < 0:
                self.offsets.apply(fact, at)
            else:
                self.offsets.apply_pending(fact, at, producer_id)

    def adopt(self, decision: GroupDecision) -> None:
        """Replace a group by the one of ``decision``.

        :raises IllegalGroupError: if the group is illegal, or contradicts the facts.
        """
        group = decision.group
        if group is None:
            return
        group.check()
        before = self.groups.get(group.group_id)
        if before is not None and before.generation > group.generation:
            raise IllegalGroupError(f"group {group.group_id} goes back to generation {group.generation}")
        if any(fact != group.recorded() for fact in decision.facts):
            raise IllegalGroupError(f"{decision.facts} is not {group}")
        self.groups[group.group_id] = group

    # --- deletion and expiry of groups and offsets

    def decide_deletion(self, name: str) -> tuple[ErrorCode, tuple[ConsumerOffsetsFact, ...]]:
        """DeleteGroups: the error for ``name``, or the tombstones of the group and of all its offsets."""
        group = self.groups.get(name)
        if group is None:
            return ErrorCode.GROUP_ID_NOT_FOUND, ()
        if group.state is not GroupState.EMPTY:
            return ErrorCode.NON_EMPTY_GROUP, ()
        partitions = self.offsets.known_in(name)
        return ErrorCode.NONE, (
            *(OffsetForgotten(name, partition) for partition in sorted(partitions)),
            GroupForgotten(name),
        )

    def decide_offset_deletion(
        self, name: str, partitions: tuple[TopicPartition, ...]
    ) -> tuple[ErrorCode, dict[TopicPartition, ErrorCode], tuple[OffsetForgotten, ...]]:
        """OffsetDelete (KIP-496): the error of the request, the error of each partition, and the tombstones of the
        deleted offsets. A topic to which a member is subscribed keeps its offsets."""
        if not name:
            return ErrorCode.INVALID_GROUP_ID, {}, ()
        group = self.groups.get(name)
        if group is None:
            return ErrorCode.GROUP_ID_NOT_FOUND, {}, ()
        if group.state is not GroupState.EMPTY and group.protocol_type != CONSUMER_PROTOCOL:
            return ErrorCode.NON_EMPTY_GROUP, {}, ()
        subscribed = {topic for topic in {partition.topic for partition in partitions} if is_subscribed(group, topic)}
        errors = {
            partition: ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC if partition.topic in subscribed else ErrorCode.NONE
            for partition in partitions
        }
        with_offset = self.offsets.known_in(name)
        facts = (
            OffsetForgotten(name, partition)
            for partition in partitions
            if partition.topic not in subscribed and partition in with_offset
        )
        return ErrorCode.NONE, errors, tuple(facts)

    def without(self, is_deleted: Callable[[TopicPartition], bool]) -> tuple[OffsetForgotten, ...]:
        """The tombstones of every group's offsets, also pending ones, in partitions that were deleted."""
        deleted = (key for key in self.offsets.known() if is_deleted(key[1]))
        return tuple(OffsetForgotten(*key) for key in sorted(deleted))

    def expired(self, now_ms: int, retention_ms: int) -> Iterator[tuple[ConsumerOffsetsFact, ...]]:
        """The tombstones of expired offsets and groups, group by group (KIP-211).

        Offsets of an empty group expire ``retention_ms`` after the group became empty. Two kinds of offsets expire
        ``retention_ms`` after their commit: those of topics that a stable group of consumers no longer reads, and those
        of groups that never had members. Pending offsets never expire. An empty group without offsets is forgotten too.
        The table may change between two groups.
        """
        for name in list(self.groups):
            group = self.groups.get(name)
            if group is None:
                continue
            committed = self.offsets.groups.get(name, {})
            pending = self.offsets.pending_in(name)
            expired_partitions = [
                partition
                for partition, fact in committed.items()
                if partition not in pending and _has_expired(group, fact, now_ms - retention_ms)
            ]
            facts: list[ConsumerOffsetsFact] = [OffsetForgotten(name, partition) for partition in expired_partitions]
            if group.is_vacant and not pending and len(expired_partitions) == len(committed):
                facts.append(GroupForgotten(name))
            if facts:
                yield tuple(facts)


def _has_expired(group: Group, fact: OffsetCommitted, moment_ms: int) -> bool:
    if group.protocol_type is None:
        return fact.committed_ms <= moment_ms
    if group.state is GroupState.EMPTY:
        return (group.since_ms if group.since_ms >= 0 else fact.committed_ms) <= moment_ms
    if group.state is GroupState.STABLE and group.protocol_type == CONSUMER_PROTOCOL:
        topics = subscribed_topics(group)
        return topics is not None and fact.partition.topic not in topics and fact.committed_ms <= moment_ms
    return False
