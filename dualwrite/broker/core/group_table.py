"""Every group and its committed offsets: the replay of ``__consumer_offsets``, and decisions that follow from it.

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
        """Apply a fact at offset ``at`` of the log; in a transaction of ``producer_id`` unless that is negative."""
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

    # --- the ends of groups and offsets

    def decide_deletion(self, name: str) -> tuple[ErrorCode, tuple[ConsumerOffsetsFact, ...]]:
        """DeleteGroups: whether ``name`` can be deleted, and the tombstones of everything known of it."""
        group = self.groups.get(name)
        if group is None:
            return ErrorCode.GROUP_ID_NOT_FOUND, ()
        if group.state is not GroupState.EMPTY:
            return ErrorCode.NON_EMPTY_GROUP, ()
        partitions = self.offsets.known_in(name)
        return ErrorCode.NONE, (*(OffsetForgotten(name, each) for each in sorted(partitions)), GroupForgotten(name))

    def decide_offset_deletion(
        self, name: str, partitions: tuple[TopicPartition, ...]
    ) -> tuple[ErrorCode, dict[TopicPartition, ErrorCode], tuple[OffsetForgotten, ...]]:
        """OffsetDelete (KIP-496): the error of all, the error of each, and the tombstones of those that can be deleted.
        A topic to which a member is subscribed keeps its offsets."""
        if not name:
            return ErrorCode.INVALID_GROUP_ID, {}, ()
        group = self.groups.get(name)
        if group is None:
            return ErrorCode.GROUP_ID_NOT_FOUND, {}, ()
        if group.state is not GroupState.EMPTY and group.protocol_type != CONSUMER_PROTOCOL:
            return ErrorCode.NON_EMPTY_GROUP, {}, ()
        read = {topic for topic in {each.topic for each in partitions} if is_subscribed(group, topic)}
        errors = {
            each: ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC if each.topic in read else ErrorCode.NONE for each in partitions
        }
        there = self.offsets.known_in(name)
        facts = (OffsetForgotten(name, each) for each in partitions if each.topic not in read and each in there)
        return ErrorCode.NONE, errors, tuple(facts)

    def without(self, are_gone: Callable[[TopicPartition], bool]) -> tuple[OffsetForgotten, ...]:
        """The tombstones of every group's offsets, with pending ones, in partitions that do not exist any more."""
        gone = (key for key in self.offsets.known() if are_gone(key[1]))
        return tuple(OffsetForgotten(*key) for key in sorted(gone))

    def expired(self, now_ms: int, retention_ms: int) -> Iterator[tuple[ConsumerOffsetsFact, ...]]:
        """The tombstones of expired offsets and groups, group by group (KIP-211).

        Offsets of an empty group expire ``retention_ms`` after it became empty. After their last commit expire: offsets
        of topics that a stable group of consumers does not read any more, and offsets of groups without members that
        only ever committed. Pending offsets never expire. An empty group without offsets is forgotten itself. The table
        may change between two groups.
        """
        for name in list(self.groups):
            group = self.groups.get(name)
            if group is None:
                continue
            committed = self.offsets.groups.get(name, {})
            pending = self.offsets.pending_in(name)
            gone = [
                partition
                for partition, fact in committed.items()
                if partition not in pending and _has_expired(group, fact, now_ms - retention_ms)
            ]
            facts: list[ConsumerOffsetsFact] = [OffsetForgotten(name, partition) for partition in gone]
            if group.is_nobodys and not pending and len(gone) == len(committed):
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
