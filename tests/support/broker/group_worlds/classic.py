"""Builders for the groups' rules: one group without a disk; tests send its members' requests and fire its timers."""

from dataclasses import replace

from dualwrite.broker.core.group_commands import (
    GroupCommand,
    GroupDecision,
    GroupReply,
    Heartbeat,
    HeartbeatReply,
    JoinGroup,
    JoinReply,
    LeaveGroup,
    LeaveReply,
    SyncGroup,
    SyncReply,
    TimerKey,
    TimerKind,
)
from dualwrite.broker.core.group_rules import GroupMoment, GroupSettings, decide
from dualwrite.broker.core.group_table import GroupTable
from dualwrite.broker.core.groups import Group, GroupState
from dualwrite.broker.facts.groups import GroupFact
from dualwrite.wire.error_codes import ErrorCode

GROUP = "g"
SESSION_MS, REBALANCE_MS = 10_000, 60_000
RANGE = (("range", b"r"),)
BOTH = (("range", b"r"), ("sticky", b"s"))
START_MS = 1_000_000


def join(member_id: str = "", instance_id: str | None = None, **more: object) -> JoinGroup:
    """A JoinGroup of a consumer, as of v3: no member id is needed beforehand."""
    command = JoinGroup(GROUP, member_id, instance_id, "client", "/host", SESSION_MS, REBALANCE_MS, "consumer", RANGE)
    return replace(command, **more)  # type: ignore[arg-type]


class GroupWorld:
    """One group, the answers that were given by ticket, and the timers that run, by key with their delays."""

    def __init__(self, **settings: int) -> None:
        self.settings = GroupSettings(**{"initial_rebalance_delay_ms": 3000, **settings})
        self.table = GroupTable()
        self.now_ms = START_MS
        self.answers: dict[int, GroupReply] = {}
        self.timers: dict[TimerKey, int] = {}
        self.facts: list[GroupFact] = []
        self.asked = 0

    @property
    def group(self) -> Group:
        return self.table.groups[GROUP]

    @property
    def state(self) -> GroupState:
        return self.group.state

    def step(self, command: GroupCommand) -> GroupDecision:
        moment = GroupMoment(self.now_ms, self.asked, f"id{self.asked}")
        before = self.table.groups.get(GROUP)
        kept = None if before is None else before.copy()
        decision = decide(before, command, moment, self.settings)
        assert before == kept, "deciding changes nothing"
        self.table.adopt(decision)
        for timer in decision.timers:
            self.timers.pop(timer.key, None)
            if timer.delay_ms is not None:
                self.timers[timer.key] = timer.delay_ms
        for answer in decision.answers:
            assert answer.ticket not in self.answers, "a request is answered once"
            self.answers[answer.ticket] = answer.reply
        self.facts += decision.facts
        return decision

    def ask(self, command: GroupCommand) -> int:
        """Send ``command``; its ticket."""
        self.asked += 1
        self.step(command)
        return self.asked

    def fire(self, kind: TimerKind, member_id: str = "") -> None:
        """Let the time of a timer be up."""
        key = TimerKey(GROUP, kind, member_id)
        self.now_ms += self.timers.pop(key)
        self.step(key)

    def delay(self, kind: TimerKind, member_id: str = "") -> int | None:
        return self.timers.get(TimerKey(GROUP, kind, member_id))

    # --- what members do

    def joined(self, ticket: int) -> JoinReply:
        reply = self.answers[ticket]
        assert isinstance(reply, JoinReply)
        return reply

    def synced(self, ticket: int) -> SyncReply:
        reply = self.answers[ticket]
        assert isinstance(reply, SyncReply)
        return reply

    def sync(self, member_id: str, assignments: dict[str, bytes] | None = None, **more: object) -> int:
        command = SyncGroup(GROUP, member_id, None, self.group.generation, tuple((assignments or {}).items()))
        return self.ask(replace(command, **more))  # type: ignore[arg-type]

    def heartbeat(self, member_id: str, instance_id: str | None = None, generation: int | None = None) -> ErrorCode:
        present = self.group.generation if generation is None else generation
        reply = self.answers[self.ask(Heartbeat(GROUP, member_id, instance_id, present))]
        assert isinstance(reply, HeartbeatReply)
        return reply.error

    def leave(self, *members: tuple[str, str | None]) -> list[ErrorCode]:
        reply = self.answers[self.ask(LeaveGroup(GROUP, members))]
        assert isinstance(reply, LeaveReply)
        return [error for _, _, error in reply.members]

    # --- situations

    def with_members(self, *commands: JoinGroup) -> list[str]:
        """The member ids of those who join, in a group that is completing its rebalance; the first is the leader."""
        tickets = [self.ask(command) for command in commands]
        while self.state is GroupState.PREPARING_REBALANCE:
            self.fire(TimerKind.JOIN)
        return [self.joined(ticket).member_id for ticket in tickets]

    def stable(self, *commands: JoinGroup) -> list[str]:
        """The member ids of those who are in a stable group, each assigned its own id."""
        members = self.with_members(*commands)
        for member in members[1:]:
            self.sync(member)
        self.sync(members[0], {member: member.encode() for member in members})
        assert self.state is GroupState.STABLE
        return members
