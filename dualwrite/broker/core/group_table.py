"""Every group and its committed offsets: the replay of ``__consumer_offsets``, and decisions that need all of it.

A group exists as soon as a member has joined it or an offset was committed under its name.
"""

from collections.abc import Callable, Container, Iterator
from dataclasses import dataclass, field
from functools import partial

from dualwrite.broker.core.consumer_groups.group import ConsumerGroup
from dualwrite.broker.core.group_commands import GroupDecision
from dualwrite.broker.core.groups import CONSUMER_PROTOCOL, Group, GroupState, IllegalGroupError, group_of
from dualwrite.broker.core.offsets import CommittedOffsets
from dualwrite.broker.core.subscriptions import read_among, subscribed_topics
from dualwrite.broker.facts.consumer_groups import ConsumerGroupFact, ConsumerGroupPartForgotten, RecordType
from dualwrite.broker.facts.groups import GroupFact, GroupForgotten, GroupRecorded
from dualwrite.broker.facts.offsets import OffsetCommitted, OffsetFact, OffsetForgotten
from dualwrite.ids import TopicPartition
from dualwrite.wire.error_codes import ErrorCode

ConsumerOffsetsFact = GroupFact | ConsumerGroupFact | OffsetFact
"""Any fact in a record of ``__consumer_offsets``."""


@dataclass(slots=True)
class GroupTable:
    """Groups and their offsets, by name. A name is that of a classic group or of a consumer group, not of both."""

    groups: dict[str, Group] = field(default_factory=dict)
    """The classic groups."""
    consumers: dict[str, ConsumerGroup] = field(default_factory=dict)
    """The groups of the consumer protocol (KIP-848)."""
    offsets: CommittedOffsets = field(default_factory=CommittedOffsets)

    def group(self, name: str) -> Group | ConsumerGroup | None:
        """The group called ``name``, of either protocol."""
        return self.consumers.get(name) or self.groups.get(name)

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
        elif not isinstance(fact, OffsetCommitted):
            self._apply_to_consumers(fact)
        else:
            if fact.group not in self.consumers:
                self.groups.setdefault(fact.group, Group(fact.group))
            if producer_id < 0:
                self.offsets.apply(fact, at)
            else:
                self.offsets.apply_pending(fact, at, producer_id)

    def _apply_to_consumers(self, fact: ConsumerGroupFact) -> None:
        name = fact.group
        is_tombstone = isinstance(fact, ConsumerGroupPartForgotten)
        if is_tombstone and name not in self.consumers:
            return
        if isinstance(fact, ConsumerGroupPartForgotten) and fact.type is RecordType.GROUP:
            del self.consumers[name]
            if self.offsets.known_in(name):
                self.groups.setdefault(name, Group(name))
            return
        if name not in self.consumers:
            self.groups.pop(name, None)  # it had only offsets
            self.consumers[name] = ConsumerGroup(name)
        self.consumers[name].apply(fact)

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
        group, consumers = self.groups.get(name), self.consumers.get(name)
        if group is None and consumers is None:
            return ErrorCode.GROUP_ID_NOT_FOUND, ()
        if (group is not None and group.state is not GroupState.EMPTY) or (consumers and consumers.subscriptions):
            return ErrorCode.NON_EMPTY_GROUP, ()
        partitions = self.offsets.known_in(name)
        return ErrorCode.NONE, (
            *(OffsetForgotten(name, partition) for partition in sorted(partitions)),
            *(consumers.end() if consumers else (GroupForgotten(name),)),
        )

    def decide_offset_deletion(
        self, name: str, partitions: tuple[TopicPartition, ...]
    ) -> tuple[ErrorCode, dict[TopicPartition, ErrorCode], tuple[OffsetForgotten, ...]]:
        """OffsetDelete (KIP-496): the error of the request, the error of each partition, and the tombstones of the
        deleted offsets. A topic to which a member is subscribed keeps its offsets."""
        if not name:
            return ErrorCode.INVALID_GROUP_ID, {}, ()
        topics = frozenset(partition.topic for partition in partitions)
        if name in self.consumers:
            subscribed = topics & self.consumers[name].subscribed_topics()
        else:
            group = self.groups.get(name)
            if group is None:
                return ErrorCode.GROUP_ID_NOT_FOUND, {}, ()
            if group.state is not GroupState.EMPTY and group.protocol_type != CONSUMER_PROTOCOL:
                return ErrorCode.NON_EMPTY_GROUP, {}, ()
            subscribed = read_among(group, topics)
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
        """The tombstones of expired offsets and groups, group by group (KIP-211); none for a group without any.

        Offsets of a consumer group expire ``retention_ms`` after their commit, if no member is subscribed to the topic.
        Offsets of an empty classic group expire ``retention_ms`` after the group became empty. Two kinds of offsets
        expire ``retention_ms`` after their commit: those of topics that a stable classic group no longer reads, and
        those of groups that never had members. Pending offsets never expire. An empty group without offsets is
        forgotten too. The table may change between two groups.
        """
        moment_ms = now_ms - retention_ms
        for name in list(self.groups):
            group = self.groups.get(name)
            if group is not None:
                end = (GroupForgotten(name),) if group.is_vacant else ()
                yield self._expired_in(name, end, _expiry(group, moment_ms))
        for name in list(self.consumers):
            consumers = self.consumers.get(name)
            if consumers is not None:
                consumers_end = () if consumers.subscriptions else consumers.end()
                has_expired = partial(_is_unread, consumers.subscribed_topics(), moment_ms=moment_ms)
                yield self._expired_in(name, consumers_end, has_expired)

    def _expired_in(
        self, name: str, end: tuple[ConsumerOffsetsFact, ...], has_expired: Callable[[OffsetCommitted], bool]
    ) -> tuple[ConsumerOffsetsFact, ...]:
        """The tombstones of one group's expired offsets, with ``end`` if no offset is left."""
        committed, pending = self.offsets.groups.get(name, {}), self.offsets.pending_in(name)
        expired = [partition for partition, fact in committed.items() if partition not in pending and has_expired(fact)]
        facts: tuple[ConsumerOffsetsFact, ...] = tuple(OffsetForgotten(name, partition) for partition in expired)
        return facts + end if not pending and len(expired) == len(committed) else facts


def _expiry(group: Group, moment_ms: int) -> Callable[[OffsetCommitted], bool]:
    """Which offsets of a classic group have expired. The subscriptions of its members are read once for all offsets."""
    if group.protocol_type is None:
        return lambda fact: fact.committed_ms <= moment_ms
    if group.state is GroupState.EMPTY:
        return lambda fact: (group.since_ms if group.since_ms >= 0 else fact.committed_ms) <= moment_ms
    is_stable = group.state is GroupState.STABLE and group.protocol_type == CONSUMER_PROTOCOL
    topics = subscribed_topics(group) if is_stable else None
    return (lambda _: False) if topics is None else partial(_is_unread, topics, moment_ms=moment_ms)


def _is_unread(topics: Container[str], fact: OffsetCommitted, moment_ms: int) -> bool:
    return fact.partition.topic not in topics and fact.committed_ms <= moment_ms
