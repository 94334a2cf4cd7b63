"""One step of a consumer group while it is decided: a working copy of the group, and the facts that change it."""

import hashlib
import uuid
from collections.abc import Collection, Iterable
from dataclasses import replace

from dualwrite.broker.core.consumer_groups.assignors import ASSIGN, MemberToAssign
from dualwrite.broker.core.consumer_groups.commands import (
    ConsumerGroupMoment,
    ConsumerGroupSettings,
    ConsumerTimerKey,
    ConsumerTimerKind,
    SetConsumerTimer,
)
from dualwrite.broker.core.consumer_groups.group import ConsumerGroup
from dualwrite.broker.core.consumer_groups.patterns import matching
from dualwrite.broker.core.consumer_groups.reconciling import Goal, reconcile
from dualwrite.broker.facts.assignments import TopicIdPartition
from dualwrite.broker.facts.consumer_groups import (
    ConsumerGroupFact,
    ConsumerGroupRecorded,
    MemberAssigned,
    MemberState,
    MemberSubscribed,
    TargetAssigned,
    TargetEpochRecorded,
)
from dualwrite.broker.facts.groups import GroupFact, GroupForgotten
from dualwrite.ids import TopicPartition


class ConsumerGroupStep:
    """The working copy of ``group``, which stays as it is."""

    def __init__(self, group: ConsumerGroup, moment: ConsumerGroupMoment, settings: ConsumerGroupSettings) -> None:
        self.group = group.copy()
        self.facts: list[ConsumerGroupFact | GroupFact] = []
        self.moment = moment
        self.settings = settings
        self._timers: dict[ConsumerTimerKey, SetConsumerTimer] = {}

    @property
    def timers(self) -> tuple[SetConsumerTimer, ...]:
        """The effects on timers."""
        return tuple(self._timers.values())

    def emit(self, fact: ConsumerGroupFact) -> None:
        """Change the group by ``fact``."""
        self.group.apply(fact)
        self.facts.append(fact)

    def convert(self) -> None:
        """Remove the classic group of this name, which becomes a consumer group."""
        self.facts.append(GroupForgotten(self.group.group_id))

    def set_timer(self, kind: ConsumerTimerKind, member_id: str, delay_ms: int | None, *, keeps: bool = False) -> None:
        """Set a timer of the member, or cancel it. With ``keeps`` one that is running stays."""
        key = ConsumerTimerKey(self.group.group_id, kind, member_id)
        self._timers[key] = SetConsumerTimer(key, delay_ms, keeps)

    # --- members

    def start_session(self, member_id: str) -> None:
        """Wait for the member's next heartbeat."""
        classic = self.group.subscriptions[member_id].classic
        own_ms = self.settings.session_timeout_ms if classic is None else classic.session_timeout_ms
        self.set_timer(ConsumerTimerKind.SESSION, member_id, own_ms)

    def remove(self, member_ids: Iterable[str]) -> None:
        """Remove members. The caller raises the epoch if others are left."""
        for member_id in member_ids:
            self._forget(member_id)
        if not self.group.subscriptions:
            self.raise_epoch()
            self.emit(TargetEpochRecorded(self.group.group_id, self.group.epoch))

    def stop_timers(self) -> None:
        """Cancel all timers of the group."""
        for member_id in self.group.subscriptions:
            for kind in ConsumerTimerKind:
                self.set_timer(kind, member_id, None)

    def replace_member(self, old_id: str, member_id: str) -> None:
        """Give a static member that has come back its new id. It keeps its partitions."""
        group = self.group
        subscribed, current, target = group.subscriptions[old_id], group.current(old_id), group.target(old_id)
        self._forget(old_id)
        self.emit(replace(subscribed, member_id=member_id))
        self.emit(TargetAssigned(group.group_id, member_id, target))
        self.emit(replace(current, member_id=member_id, epoch=0, previous_epoch=0))

    def _forget(self, member_id: str) -> None:
        for fact in self.group.tombstones(member_id):
            self.emit(fact)
        for kind in ConsumerTimerKind:
            self.set_timer(kind, member_id, None)

    # --- topics

    def look_at_topics(self) -> bool:
        """Find the topics of the members' patterns, if the topics or the patterns have changed since the last look.
        True if they have."""
        group, topics_version = self.group, self.moment.topics_version
        patterns = group.patterns()
        if group.topics_version == topics_version and patterns <= group.matches.keys():
            return False
        group.topics_version = topics_version
        group.matches = {
            pattern: frozenset(filter(self.moment.may_see, matching(pattern, self.moment.topics)))
            for pattern in patterns
        }
        return True

    def raise_epoch(self) -> None:
        """Raise the group's epoch: the members need new targets."""
        self.emit(ConsumerGroupRecorded(self.group.group_id, self.group.epoch + 1, self.metadata_hash()))

    def metadata_hash(self) -> int:
        """Stands for the existing topics that members are subscribed to, and for the numbers of their partitions."""
        topics = self.moment.topics
        known = sorted(name for name in self.group.subscribed_topics() if name in topics)
        if not known:
            return 0
        text = "".join(f"{name} {topics[name].topic_id} {topics[name].partitions}\n" for name in known)
        return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big", signed=True)

    def topic_ids(self, member: MemberSubscribed) -> frozenset[uuid.UUID]:
        """The ids of the existing topics to which ``member`` is subscribed."""
        topics = self.moment.topics
        return frozenset(topics[name].topic_id for name in self.group.topics_of(member) if name in topics)

    # --- assignments

    def assign(self) -> None:
        """Make new targets, if the group's epoch has changed since the last ones."""
        group, topics = self.group, self.moment.topics
        if group.epoch == group.target_epoch:
            return
        members = {
            member_id: MemberToAssign(self.topic_ids(member), group.target(member_id), member.instance_id)
            for member_id, member in group.subscriptions.items()
        }
        sizes = {topics[name].topic_id: topics[name].partitions for name in group.subscribed_topics() if name in topics}
        targets = ASSIGN[group.assignor(self.settings.assignors)](members, sizes)
        for member_id, target in targets.items():
            if member_id not in group.targets or group.targets[member_id] != target:
                self.emit(TargetAssigned(group.group_id, member_id, target))
        self.emit(TargetEpochRecorded(group.group_id, group.epoch))

    def hold(self, current: MemberAssigned) -> None:
        """Record what a member holds now."""
        self.emit(current)
        self.group.check([current.member_id])

    def reconcile(self, member_id: str, owned: frozenset[TopicIdPartition] | None) -> None:
        """Let the member come closer to its target.

        :param owned: the partitions that the member says to hold; None if it does not say.
        """
        group, member = self.group, self.group.subscriptions[member_id]
        before = group.current(member_id)
        if group.is_reconciled(member_id):
            return
        target, others = group.target(member_id), group.held_by_others(member_id)
        current = reconcile(before, Goal(group.target_epoch, target, self.topic_ids(member), owned, others))
        if current == before:
            return
        self.hold(current)
        if member.classic is None:  # the others have timers of their own: to join again, and to sync
            revokes = current.state is MemberState.UNREVOKED_PARTITIONS
            delay_ms = max(member.rebalance_timeout_ms, 0) if revokes else None
            self.set_timer(ConsumerTimerKind.REBALANCE, member_id, delay_ms)

    # --- partitions by name, as members of the classic protocol know them

    def with_ids(self, partitions: Iterable[TopicPartition]) -> frozenset[TopicIdPartition]:
        """Those of ``partitions`` that exist, by their topics' ids."""
        topics = self.moment.topics
        return frozenset(
            TopicIdPartition(topics[topic].topic_id, number)
            for topic, number in partitions
            if topic in topics and 0 <= number < topics[topic].partitions
        )

    def with_names(self, partitions: Collection[TopicIdPartition]) -> list[TopicPartition]:
        """Those of ``partitions`` whose topics exist, by their topics' names."""
        wanted = {partition.topic_id for partition in partitions}
        names = {topic.topic_id: name for name, topic in self.moment.topics.items() if topic.topic_id in wanted}
        return [TopicPartition(names[topic_id], number) for topic_id, number in partitions if topic_id in names]
