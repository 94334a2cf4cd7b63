"""Builders for groups that change their protocol: one group of either protocol, and clients of both in it."""

import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from dualwrite.broker.core.consumer_groups.classic_rules import decide_classic
from dualwrite.broker.core.consumer_groups.commands import (
    ConsumerGroupDecision,
    ConsumerGroupMoment,
    ConsumerTimerKey,
    ConsumerTimerKind,
)
from dualwrite.broker.core.consumer_protocol import read_assignment, read_subscription, write_assignment
from dualwrite.broker.core.group_commands import (
    GroupCommand,
    GroupDecision,
    GroupReply,
    Heartbeat,
    HeartbeatReply,
    JoinGroup,
    JoinReply,
    LeaveGroup,
    SyncGroup,
    SyncReply,
    TimerKey,
    TimerKind,
)
from dualwrite.broker.core.group_rules import GroupMoment, decide
from dualwrite.broker.core.groups import GroupState
from dualwrite.broker.facts.assignments import TopicIdPartition
from dualwrite.broker.facts.cluster import TopicCreated
from dualwrite.broker.facts.consumer_groups import MemberState
from dualwrite.ids import TopicPartition
from dualwrite.wire.error_codes import ErrorCode
from tests.support.broker.group_worlds.consumer import GROUP, REBALANCE_MS, ConsumerWorld

CLASSIC_SESSION_MS = 10_000
EAGER, COOPERATIVE = "range", "cooperative-sticky"
START_MS = 1_000_000


def metadata(topics: Iterable[str], owned: Iterable[TopicPartition] = (), generation: int = -1) -> bytes:
    """A subscription of version 2."""
    by_topic: dict[str, list[int]] = {}
    for topic, number in sorted(owned):
        by_topic.setdefault(topic, []).append(number)
    names = list(topics)
    parts = [struct.pack(">hi", 2, len(names))]
    parts += [struct.pack(">h", len(name)) + name.encode() for name in names]
    parts.append(struct.pack(">ii", -1, len(by_topic)))
    for topic, numbers in by_topic.items():
        parts.append(
            struct.pack(f">h{len(topic)}si{len(numbers)}i", len(topic), topic.encode(), len(numbers), *numbers)
        )
    return b"".join([*parts, struct.pack(">i", generation)])


def classic_join(member_id: str = "", *topics: str, **more: object) -> JoinGroup:
    """A JoinGroup of a consumer that needs no member id beforehand."""
    protocols = ((EAGER, metadata(topics)),)
    command = JoinGroup(
        GROUP, member_id, None, "client", "/host", CLASSIC_SESSION_MS, REBALANCE_MS, "consumer", protocols
    )
    return replace(command, **more)  # type: ignore[arg-type]


class MixedWorld(ConsumerWorld):
    """One group of either protocol, the answers that were given by ticket, and the timers of both protocols."""

    def __init__(self, topics: dict[str, int] | None = None, **settings: object) -> None:
        super().__init__(topics, **settings)
        self.answers: dict[int, GroupReply] = {}
        self.topics_then: dict[int, dict[str, TopicCreated]] = {}
        """The topics at the time of each answer, which names them."""
        self.classic_timers: dict[TimerKey, int] = {}
        self.asked = 0

    @property
    def is_consumer_group(self) -> bool:
        return GROUP in self.table.consumers

    def members(self) -> set[str]:
        """The member ids of the group, of whichever protocol it is."""
        if self.is_consumer_group:
            return set(self.group.subscriptions)
        classic = self.table.groups.get(GROUP)
        return set() if classic is None else set(classic.members)

    def moment(self) -> ConsumerGroupMoment:
        return replace(super().moment(), fresh_id=f"id{self.asked}", now_ms=START_MS, ticket=self.asked)

    def carry_out(self, decision: ConsumerGroupDecision) -> None:
        super().carry_out(decision)
        if decision.upgraded is not None:
            self.classic_timers.clear()
            for member_id, ticket in decision.upgraded.joining.items():
                self.answer(ticket, JoinReply(ErrorCode.REBALANCE_IN_PROGRESS, member_id))
            for ticket in decision.upgraded.syncing.values():
                self.answer(ticket, SyncReply(ErrorCode.REBALANCE_IN_PROGRESS))
        if decision.downgraded is not None:
            self.carry_out_classic(decision.downgraded)

    def carry_out_classic(self, decision: GroupDecision) -> None:
        self.table.adopt(decision)
        self.facts += decision.facts
        for timer in decision.timers:
            self.classic_timers.pop(timer.key, None)
            if timer.delay_ms is not None:
                self.classic_timers[timer.key] = timer.delay_ms
        for answer in decision.answers:
            self.answer(answer.ticket, answer.reply)

    def answer(self, ticket: int, reply: GroupReply) -> None:
        assert ticket not in self.answers, "a request is answered once"
        self.answers[ticket] = reply
        self.topics_then[ticket] = dict(self.topics)

    def step_classic(self, command: GroupCommand) -> None:
        """As the coordinator of classic groups does it."""
        consumers = self.table.consumers.get(GROUP)
        if consumers is not None and (consumers.subscriptions or not isinstance(command, JoinGroup)):
            assert isinstance(command, JoinGroup | SyncGroup | Heartbeat)
            decision = decide_classic(consumers, command, self.moment(), self.settings)
            self.carry_out(decision)
            if decision.answer is not None:
                self.answer(self.asked, decision.answer)
            return
        moment = GroupMoment(START_MS, self.asked, f"id{self.asked}")
        first = decide(self.table.groups.get(GROUP), command, moment, self.settings.classic)
        if consumers is not None and first.group is not None:
            self.apply(*consumers.end())
        self.carry_out_classic(first)

    def ask_classic(self, command: GroupCommand) -> int:
        """Send ``command``; its ticket."""
        self.asked += 1
        self.step_classic(command)
        return self.asked

    def joined(self, command: JoinGroup) -> JoinReply:
        reply = self.answers[self.ask_classic(command)]
        assert isinstance(reply, JoinReply)
        return reply

    def synced(self, member_id: str, generation: int, **more: object) -> SyncReply:
        command = SyncGroup(GROUP, member_id, None, generation, (), "consumer", EAGER)
        reply = self.answers[self.ask_classic(replace(command, **more))]  # type: ignore[arg-type]
        assert isinstance(reply, SyncReply)
        return reply

    def heartbeat(self, member_id: str, generation: int, instance_id: str | None = None) -> ErrorCode:
        reply = self.answers[self.ask_classic(Heartbeat(GROUP, member_id, instance_id, generation))]
        assert isinstance(reply, HeartbeatReply)
        return reply.error

    def fire_classic(self, kind: TimerKind, member_id: str = "") -> None:
        key = TimerKey(GROUP, kind, member_id)
        del self.classic_timers[key]
        self.asked += 1
        self.step_classic(key)

    def restart(self, *, compacted: bool = False) -> None:
        """Forget everything that is not in the records, and start the timers that a start starts."""
        super().restart(compacted=compacted)
        self.timers, self.classic_timers = {}, {}
        if self.is_consumer_group:
            for member_id, member in self.group.subscriptions.items():
                self.timers[ConsumerTimerKey(GROUP, ConsumerTimerKind.SESSION, member_id)] = 1
                if member.classic is None and self.group.current(member_id).state is MemberState.UNREVOKED_PARTITIONS:
                    self.timers[ConsumerTimerKey(GROUP, ConsumerTimerKind.REBALANCE, member_id)] = 1
        classic = self.table.groups.get(GROUP)
        for member_id in () if classic is None else classic.members:
            self.classic_timers[TimerKey(GROUP, TimerKind.SESSION, member_id)] = 1
        if classic is not None and classic.state is GroupState.PREPARING_REBALANCE:
            self.classic_timers[TimerKey(GROUP, TimerKind.JOIN)] = 1


@dataclass
class ClassicClient:
    """A consumer of the classic protocol. It does one thing at a time, and holds what it reads meanwhile.

    :param assignor: EAGER: it gives everything up before it joins; COOPERATIVE: only what it is told to give up.
    :param needs_member_id: it asks for a member id before it joins, as every client of today does (KIP-394).
    """

    topics: tuple[str, ...]
    assignor: str = EAGER
    instance_id: str | None = None
    needs_member_id: bool = False
    member_id: str = ""
    generation: int = -1
    held: frozenset[TopicIdPartition] = frozenset()
    leaving: frozenset[TopicIdPartition] = frozenset()
    """What it has to give up, and still holds."""
    joining: int | None = None
    """The ticket of its JoinGroup."""
    syncing: int | None = None
    is_member: bool = False
    """True while its generation goes on, as far as it knows."""
    led: int | None = None
    """The version of the topics that it assigned, if it led the generation."""
    errors: list[ErrorCode] = field(default_factory=list)

    def act(self, world: MixedWorld) -> None:
        """Do the next thing."""
        if self.leaving:
            self.held, self.leaving = self.held - self.leaving, frozenset()
            self.is_member = False  # and joins again
        elif self.joining is not None:
            if self.joining in world.answers:
                self._on_join(world, self._answer(world, self.joining))
        elif self.syncing is not None:
            if self.syncing in world.answers:
                topics = world.topics_then[self.syncing]
                self._on_sync(topics, self._answer(world, self.syncing))
        elif self.is_member and self.led is not None and self.led != world.version:
            self.is_member = False
        elif self.is_member:
            command = Heartbeat(GROUP, self.member_id, self.instance_id, self.generation)
            self._on_heartbeat(self._answer(world, world.ask_classic(command)))
        else:
            self._join(world)

    def lose_requests(self) -> None:
        """The connection is gone: what was asked is asked again."""
        if self.joining is not None or self.syncing is not None:
            self.joining = self.syncing = None
            self.is_member = False

    def leave(self, world: MixedWorld) -> None:
        """Give everything up, and leave the group."""
        self.held = frozenset()
        if self.member_id and self.instance_id is None:
            if world.is_consumer_group:
                world.remove(self.member_id)
            else:
                world.ask_classic(LeaveGroup(GROUP, ((self.member_id, None),)))

    def _answer(self, world: MixedWorld, ticket: int) -> GroupReply:
        self.joining = self.syncing = None
        reply = world.answers[ticket]
        assert not isinstance(reply, type(None))
        self.errors.append(reply.error)
        return reply

    def _join(self, world: MixedWorld) -> None:
        if self.assignor == EAGER:
            self.held = frozenset()
        data = metadata(self.topics, world.names_of(self.held), self.generation)
        protocols, needs_member_id = ((self.assignor, data),), self.needs_member_id and self.instance_id is None
        command = classic_join(
            self.member_id, protocols=protocols, instance_id=self.instance_id, needs_member_id=needs_member_id
        )
        self.joining = world.ask_classic(command)

    def _on_join(self, world: MixedWorld, reply: GroupReply) -> None:
        assert isinstance(reply, JoinReply)
        if reply.error is ErrorCode.NONE:
            self.member_id, self.generation = reply.member_id, reply.generation
            leads = reply.leader == self.member_id
            self.led = world.version if leads else None
            assignments = assignments_of(world, reply, self.assignor) if leads else ()
            command = SyncGroup(
                GROUP, self.member_id, self.instance_id, self.generation, assignments, "consumer", reply.protocol
            )
            self.syncing = world.ask_classic(command)
        elif reply.error in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_INSTANCE_ID):
            self._lose()  # fenced after a restart, which forgets the last ids of a rebalance: its application restarts
        elif reply.error is ErrorCode.MEMBER_ID_REQUIRED:
            self.member_id = reply.member_id
        elif reply.error is not ErrorCode.REBALANCE_IN_PROGRESS:
            raise AssertionError(reply.error)

    def _on_sync(self, topics: Mapping[str, TopicCreated], reply: GroupReply) -> None:
        assert isinstance(reply, SyncReply)
        if reply.error is ErrorCode.NONE:
            places = read_assignment(reply.assignment).partitions
            assigned = frozenset(TopicIdPartition(topics[name].topic_id, at) for name, at in places if name in topics)
            self.leaving = self.held - assigned
            self.held |= assigned
            self.is_member = True
        elif reply.error is not ErrorCode.REBALANCE_IN_PROGRESS:
            self._lose()

    def _on_heartbeat(self, reply: GroupReply) -> None:
        if reply.error is ErrorCode.REBALANCE_IN_PROGRESS:
            self.is_member = False
        elif reply.error is not ErrorCode.NONE:
            self._lose()

    def _lose(self) -> None:
        if self.errors[-1] is not ErrorCode.ILLEGAL_GENERATION:
            self.member_id = ""
        self.generation, self.held, self.leaving, self.is_member = -1, frozenset(), frozenset(), False


def assignments_of(world: MixedWorld, reply: JoinReply, assignor: str) -> tuple[tuple[str, bytes], ...]:
    """What a leader makes of the members in ``reply``: a fair share for each. With COOPERATIVE nobody gets what another
    member still owns."""
    members = {member_id: read_subscription(data) for member_id, _, data in reply.members}
    shares: dict[str, set[TopicPartition]] = {member_id: set() for member_id in members}
    owners = {partition: member_id for member_id, known in members.items() for partition in known.owned}
    for name, topic in sorted(world.topics.items()):
        readers = sorted(member_id for member_id, known in members.items() if name in known.topics)
        for number in range(topic.partitions if readers else 0):
            partition = TopicPartition(name, number)
            chosen = readers[number % len(readers)]
            if assignor == EAGER or owners.get(partition, chosen) == chosen:
                shares[chosen].add(partition)
    return tuple((member_id, write_assignment(1, share)) for member_id, share in shares.items())
