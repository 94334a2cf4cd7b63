"""One step of a group, while it is being decided: a copy of the group that the rules change, and what they want done.

Everything that changes a group is here, so that who leaves is always answered and no timer is left behind.
"""

from dataclasses import replace

from dualwrite.broker.core.group_commands import (
    GroupAnswer,
    GroupDecision,
    GroupReply,
    JoinReply,
    SetTimer,
    SyncReply,
    TimerKey,
    TimerKind,
)
from dualwrite.broker.core.groups import Group, GroupState, Member
from dualwrite.broker.facts.groups import GroupFact, encode_fact
from dualwrite.wire.error_codes import ErrorCode

SHORTEST_WAIT_MS = 1_000
"""How long absent static members are waited for at least, whatever they say: not to try again at once for ever."""

LARGEST_GROUP_BYTES = 16 * 1024 * 1024
"""What a generation may take in the journal, where it is one record. Kafka's limit is the offsets topic's 1 MiB."""


class GroupStep:
    """The working copy of ``group`` at ``now_ms``."""

    def __init__(self, group: Group, now_ms: int, initial_delay_ms: int) -> None:
        self.group = group.copy()
        self._before = group
        self._now_ms = now_ms
        self._initial_delay_ms = initial_delay_ms
        self._facts: list[GroupFact] = []
        self._answers: list[GroupAnswer] = []
        self._timers: dict[TimerKey, int | None] = {}

    def decision(self) -> GroupDecision:
        """What the step came to."""
        timers = tuple(SetTimer(key, delay_ms) for key, delay_ms in self._timers.items())
        changed = self.group if self.group != self._before else None
        return GroupDecision(changed, tuple(self._facts), tuple(self._answers), timers)

    # --- what is wanted

    def answer(self, ticket: int, reply: GroupReply) -> None:
        """Let ``reply`` go to whoever holds ``ticket``."""
        self._answers.append(GroupAnswer(ticket, reply))

    def record(self) -> None:
        """Remember the present generation."""
        self._facts.append(self.group.recorded())

    def start_session(self, member_id: str, timeout_ms: int | None = None) -> None:
        """Wait for a sign of the member's life, for its session.timeout.ms unless told otherwise."""
        own = self.group.members[member_id].session_timeout_ms if timeout_ms is None else timeout_ms
        self._timers[TimerKey(self.group.group_id, TimerKind.SESSION, member_id)] = own

    def stop(self, kind: TimerKind, member_id: str = "") -> None:
        """Wait no longer."""
        self._timers[TimerKey(self.group.group_id, kind, member_id)] = None

    def _start(self, kind: TimerKind, delay_ms: int) -> None:
        self._timers[TimerKey(self.group.group_id, kind)] = delay_ms

    # --- who is in

    def expect(self, member_id: str, timeout_ms: int) -> None:
        """Somebody was given ``member_id`` and is to come back with it."""
        self.group.pending.add(member_id)
        self.start_session(member_id, timeout_ms)

    def add(self, member: Member, protocol_type: str, ticket: int) -> None:
        """Take a new member in, which waits under ``ticket``."""
        group = self.group
        group.pending.discard(member.member_id)
        if not group.members:
            group.protocol_type = protocol_type
        if group.leader is None:
            group.leader = member.member_id
        group.newcomers = group.newcomers or group.is_initial
        group.members[member.member_id] = member
        group.joining[member.member_id] = ticket

    def rejoin(self, member: Member, ticket: int) -> None:
        """A member waits for the next generation, as ``member`` and under ``ticket``."""
        self._release_join(member.member_id, ErrorCode.REBALANCE_IN_PROGRESS)  # of a connection that it has given up
        self.group.members[member.member_id] = member
        self.group.joining[member.member_id] = ticket

    def remove(self, member_id: str) -> None:
        """The member, or who was expected, is gone; a new leader is chosen if it was the leader."""
        group = self.group
        self._release_join(member_id, ErrorCode.UNKNOWN_MEMBER_ID, told="")
        self._release_sync(member_id, ErrorCode.UNKNOWN_MEMBER_ID)
        self.stop(TimerKind.SESSION, member_id)
        group.pending.discard(member_id)
        group.unsynced.discard(member_id)
        group.members.pop(member_id, None)
        if group.leader == member_id:
            group.leader = next(iter(group.members), None)

    def leave_out(self, member_id: str) -> None:
        """There is no room for a member that wants to stay."""
        if member_id in self.group.members or member_id in self.group.pending:
            self.remove(member_id)

    def replace_member(self, old_id: str, member_id: str) -> None:
        """A static member has come back under another id; whoever still uses the old one is fenced."""
        group = self.group
        self._release_join(old_id, ErrorCode.FENCED_INSTANCE_ID)
        self._release_sync(old_id, ErrorCode.FENCED_INSTANCE_ID)
        self.stop(TimerKind.SESSION, old_id)
        renamed = (
            replace(member, member_id=member_id) if member.member_id == old_id else member
            for member in group.members.values()
        )
        group.members = {member.member_id: member for member in renamed}
        if group.leader == old_id:
            group.leader = member_id
        if old_id in group.unsynced:
            group.unsynced.remove(old_id)
            group.unsynced.add(member_id)

    def _release_join(self, member_id: str, error: ErrorCode, told: str | None = None) -> None:
        ticket = self.group.joining.pop(member_id, None)
        if ticket is not None:
            self.answer(ticket, JoinReply(error, member_id if told is None else told))

    def _release_sync(self, member_id: str, error: ErrorCode) -> None:
        ticket = self.group.syncing.pop(member_id, None)
        if ticket is not None:
            self.answer(ticket, SyncReply(error))

    # --- the first half of a rebalance

    def rebalance_or_complete(self) -> None:
        """Begin a rebalance; if one is being prepared, end its first half if nobody is missing."""
        group = self.group
        if group.state is GroupState.PREPARING_REBALANCE:
            if not group.is_initial and group.has_everybody_joined:
                self.complete_join()
            return
        if group.state is GroupState.EMPTY and not group.members:
            return  # somebody went who had not come yet
        if group.state is GroupState.COMPLETING_REBALANCE:
            for member_id in list(group.syncing):
                self._release_sync(member_id, ErrorCode.REBALANCE_IN_PROGRESS)
                self.start_session(member_id)  # it could send no heartbeat while it waited
            group.members = {key: replace(member, assignment=b"") for key, member in group.members.items()}
        group.unsynced.clear()
        self.stop(TimerKind.SYNC)
        group.is_initial = group.state is GroupState.EMPTY
        group.move_to(GroupState.PREPARING_REBALANCE, self._now_ms)
        if group.is_initial:  # those who start together are to be in one generation
            group.newcomers = False
            group.delay_ms = max(group.rebalance_timeout_ms - self._initial_delay_ms, 0)
            self._start(TimerKind.JOIN, self._initial_delay_ms)
        elif group.has_everybody_joined:
            self.complete_join()
        else:
            self._start(TimerKind.JOIN, group.rebalance_timeout_ms)

    def wait_for_more(self) -> None:
        """Somebody has joined a group that was about to have its first generation: others may follow."""
        delay_ms = min(self._initial_delay_ms, self.group.delay_ms)
        self.group.newcomers = False
        self.group.delay_ms -= delay_ms
        self._start(TimerKind.JOIN, delay_ms)

    def complete_join(self) -> None:
        """End the first half: whoever has not joined is left out, static members excepted."""
        group = self.group
        for member in list(group.members.values()):
            if member.instance_id is None and member.member_id not in group.joining:
                self.remove(member.member_id)
        if group.members and not group.joining:  # only the ends of their sessions will tell
            self._start(TimerKind.JOIN, max(group.rebalance_timeout_ms, SHORTEST_WAIT_MS))
            return
        self.stop(TimerKind.JOIN)
        if group.leader not in group.joining:
            group.leader = next((member_id for member_id in group.members if member_id in group.joining), None)
        group.generation += 1
        group.is_initial = group.newcomers = False
        group.delay_ms = 0
        group.unsynced.clear()
        if not group.members:
            group.protocol = None
            group.move_to(GroupState.EMPTY, self._now_ms)
            self.record()
            return
        group.protocol = group.elected_protocol()
        group.move_to(GroupState.COMPLETING_REBALANCE, self._now_ms)
        tickets, group.joining = group.joining, {}
        for member_id, member in list(group.members.items()):
            if member_id in tickets:
                self.answer(tickets[member_id], self.join_reply(member_id))
            group.members[member_id] = replace(member, is_new=False)
            group.unsynced.add(member_id)
            self.start_session(member_id)
        self._start(TimerKind.SYNC, group.rebalance_timeout_ms)

    def join_reply(self, member_id: str) -> JoinReply:
        """What the present generation is to ``member_id``."""
        group = self.group
        members = group.subscriptions() if group.leader == member_id else ()
        return JoinReply(
            ErrorCode.NONE,
            member_id,
            group.generation,
            group.protocol_type,
            group.protocol,
            group.leader or "",
            members,
        )

    # --- the second half

    def park_sync(self, member_id: str, ticket: int) -> None:
        """The member waits for the leader."""
        self._release_sync(member_id, ErrorCode.REBALANCE_IN_PROGRESS)  # of a connection that it has given up
        self.group.syncing[member_id] = ticket

    def assign(self, assignments: dict[str, bytes]) -> None:
        """The leader has decided: the generation is complete. Who is not in ``assignments`` gets nothing.

        A generation that is too large to be remembered is none: everybody is told, and may join again (Kafka:
        resetAndPropagateAssignmentWithError).
        """
        group = self.group
        group.members = {
            key: replace(member, assignment=assignments.get(key, b"")) for key, member in group.members.items()
        }
        _, remembered = encode_fact(group.recorded())
        if len(remembered or b"") > LARGEST_GROUP_BYTES:
            for member_id in list(group.syncing):
                self._release_sync(member_id, ErrorCode.UNKNOWN_SERVER_ERROR)
                self.start_session(member_id)
            self.rebalance_or_complete()
            return
        group.move_to(GroupState.STABLE, self._now_ms)
        self.record()
        tickets, group.syncing = group.syncing, {}
        for member_id, ticket in tickets.items():
            self.answer(ticket, self.sync_reply(member_id))
            self.start_session(member_id)

    def sync_reply(self, member_id: str) -> SyncReply:
        """The member's part of the present generation."""
        group = self.group
        return SyncReply(ErrorCode.NONE, group.protocol_type, group.protocol, group.members[member_id].assignment)
