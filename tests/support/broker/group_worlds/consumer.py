"""Builders for the consumer groups' rules: one group without a disk, and clients that follow what it tells them."""

import uuid
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from dualwrite.broker.core.consumer_groups.commands import (
    ConsumerGroupCommand,
    ConsumerGroupDecision,
    ConsumerGroupMoment,
    ConsumerGroupSettings,
    ConsumerHeartbeat,
    ConsumerHeartbeatReply,
    ConsumerTimerKey,
    ConsumerTimerKind,
    RemoveMembers,
)
from dualwrite.broker.core.consumer_groups.group import ConsumerGroup
from dualwrite.broker.core.consumer_groups.heartbeat_rules import decide_consumer
from dualwrite.broker.core.group_table import ConsumerOffsetsFact, GroupTable
from dualwrite.broker.facts.assignments import TopicIdPartition
from dualwrite.broker.facts.cluster import TopicCreated
from dualwrite.broker.runtime.groups.group_log import decode, encode
from dualwrite.ids import TopicPartition
from dualwrite.wire.error_codes import ErrorCode

GROUP = "g"
REBALANCE_MS = 60_000


def partitions(topic: TopicCreated, *numbers: int) -> frozenset[TopicIdPartition]:
    """Partitions of ``topic``; all of them without ``numbers``."""
    return frozenset(TopicIdPartition(topic.topic_id, number) for number in numbers or range(topic.partitions))


def join(member_id: str, *topics: str, **more: object) -> ConsumerHeartbeat:
    """The first heartbeat of a member that subscribes to ``topics``."""
    first = ConsumerHeartbeat(
        GROUP, member_id, 0, "client", "/host", rebalance_timeout_ms=REBALANCE_MS, topics=topics, owned=frozenset()
    )
    return replace(first, **more)  # type: ignore[arg-type]


class ConsumerWorld:
    """One group, the cluster's topics, and the timers that run, by key with their delays.

    :param topics: the numbers of partitions by topic.
    """

    def __init__(self, topics: dict[str, int] | None = None, **settings: object) -> None:
        self.settings = replace(ConsumerGroupSettings(), **settings)  # type: ignore[arg-type]
        self.table = GroupTable()
        self.topics: dict[str, TopicCreated] = {}
        self.version = 0
        self.may_see: Callable[[str], bool] = lambda _: True
        self.timers: dict[ConsumerTimerKey, int] = {}
        self.facts: list[ConsumerOffsetsFact] = []
        self._topic_ids = 0
        for name, size in ({"t": 4} if topics is None else topics).items():
            self.create(name, size)

    @property
    def group(self) -> ConsumerGroup:
        return self.table.consumers[GROUP]

    def create(self, name: str, size: int) -> TopicCreated:
        """Create a topic, or let it have ``size`` partitions."""
        self._topic_ids += 1
        known = self.topics.get(name)
        topic_id = uuid.UUID(int=self._topic_ids) if known is None else known.topic_id
        self.topics[name] = TopicCreated(name, topic_id, size)
        self.version += 1
        return self.topics[name]

    def delete(self, name: str) -> None:
        del self.topics[name]
        self.version += 1

    def moment(self) -> ConsumerGroupMoment:
        return ConsumerGroupMoment(dict(self.topics), self.version, self.may_see, "fresh")

    def step(self, command: ConsumerGroupCommand) -> ConsumerGroupDecision:
        before, classic = self.table.consumers.get(GROUP), self.table.groups.get(GROUP)
        kept = None if before is None else before.copy()
        decision = decide_consumer(before, classic, command, self.moment(), self.settings)
        assert before == kept, "deciding changes nothing"
        self.carry_out(decision)
        return decision

    def carry_out(self, decision: ConsumerGroupDecision) -> None:
        self.apply(*decision.facts)
        if decision.matches is not None and GROUP in self.table.consumers:
            self.group.matches, self.group.topics_version = decision.matches, decision.topics_version
        for timer in decision.timers:
            if timer.keeps and timer.key in self.timers:
                continue
            self.timers.pop(timer.key, None)
            if timer.delay_ms is not None:
                self.timers[timer.key] = timer.delay_ms

    def remove(self, *member_ids: str) -> tuple[ErrorCode, ...]:
        """LeaveGroup of members by their ids."""
        return self.step(RemoveMembers(GROUP, tuple((member_id, None) for member_id in member_ids))).removed

    def names_of(self, held: Iterable[TopicIdPartition]) -> list[TopicPartition]:
        """``held`` by the names of their topics; those of deleted topics are left out."""
        names = {topic.topic_id: name for name, topic in self.topics.items()}
        return [TopicPartition(names[topic_id], at) for topic_id, at in held if topic_id in names]

    def apply(self, *facts: ConsumerOffsetsFact) -> None:
        for fact in facts:
            self.table.apply(fact)
        self.facts += facts

    def ask(self, command: ConsumerHeartbeat) -> ConsumerHeartbeatReply:
        return self.step(command).reply

    def beat(self, member_id: str, epoch: int, *owned: TopicIdPartition, **more: object) -> ConsumerHeartbeatReply:
        """A heartbeat that says which partitions the member holds, and nothing else."""
        return self.ask(
            replace(ConsumerHeartbeat(GROUP, member_id, epoch, "client", "/host", owned=frozenset(owned)), **more)
        )  # type: ignore[arg-type]

    def fire(self, kind: ConsumerTimerKind, member_id: str) -> None:
        """Let the time of a timer be up."""
        key = ConsumerTimerKey(GROUP, kind, member_id)
        del self.timers[key]
        self.step(key)

    def delay(self, kind: ConsumerTimerKind, member_id: str) -> int | None:
        return self.timers.get(ConsumerTimerKey(GROUP, kind, member_id))

    def replayed(self, *, compacted: bool = False) -> GroupTable:
        """What a broker knows that has read the records, all of them or the last one of each key."""
        records = [encode(fact) for fact in self.facts]
        if compacted:
            last = {key: position for position, (key, _) in enumerate(records)}
            records = [record for position, record in enumerate(records) if last[record[0]] == position]
        table = GroupTable()
        for key, value in records:
            table.apply(decode(key, value))
        return table

    def restart(self, *, compacted: bool = False) -> None:
        """Forget everything that is not in the records."""
        self.table = self.replayed(compacted=compacted)


@dataclass
class FollowingClient:
    """A consumer: it gives up what it is told to give up, and takes what it is told to take, when it gets to it."""

    member_id: str
    topics: tuple[str, ...]
    instance_id: str | None = None
    epoch: int = 0
    held: frozenset[TopicIdPartition] = frozenset()
    told: frozenset[TopicIdPartition] = frozenset()

    def beat(self, world: ConsumerWorld, *, is_answer_lost: bool = False) -> ErrorCode:
        """Send a heartbeat, and remember the answer unless it is lost.

        It says what it holds once it has done what it was told: meanwhile nobody could tell what it is about to take.
        """
        if self.epoch == 0:
            command = join(self.member_id, *self.topics, instance_id=self.instance_id)
        else:
            owned = self.held if self.held == self.told else None
            command = ConsumerHeartbeat(
                GROUP, self.member_id, self.epoch, "client", "/host", self.instance_id, owned=owned
            )
        reply = world.ask(command)
        is_welcome = reply.error is not ErrorCode.GROUP_ID_NOT_FOUND
        assert is_welcome or self.epoch > 0, f"a client that joins gives up for good: {reply.message}"
        if is_answer_lost:
            return reply.error
        if reply.error is ErrorCode.NONE:
            self.epoch = reply.epoch
            self.told = self.told if reply.assigned is None else reply.assigned
        elif reply.error in (ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.GROUP_ID_NOT_FOUND):
            self.abandon()
        return reply.error

    def abandon(self) -> None:
        """Give everything up, to join again."""
        self.epoch, self.held, self.told = 0, frozenset(), frozenset()

    def follow(self) -> None:
        """Hold what the group says."""
        self.held = self.told
