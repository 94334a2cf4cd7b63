"""One step of a group while it is being decided: a working copy of the group, and the effects of the rules.

Every change of a group is in this file. So a member that leaves is always answered, and no timer is left behind.
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
"""The shortest wait for absent static members. Without it a group would retry at once for ever."""

LARGEST_GROUP_BYTES = 16 * 1024 * 1024
"""The largest generation in bytes: it is one record of the journal. Kafka's limit is the offsets topic's 1 MiB."""


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
        """The decision that results from the step."""
        timers = tuple(SetTimer(key, delay_ms) for key, delay_ms in self._timers.items())
        changed = self.group if self.group != self._before else None
        return GroupDecision(changed, tuple(self._facts), tuple(self._answers), timers)

    # --- the results of the step

    def answer(self, ticket: int, reply: GroupReply) -> None:
        """Send ``reply`` to the request with ``ticket``."""
        self._answers.append(GroupAnswer(ticket, reply))

    def record(self) -> None:
        """Record the current generation."""
        self._facts.append(self.group.recorded())

    def start_session(self, member_id: str, timeout_ms: int | None = None) -> None:
        """Wait for the member's next heartbeat, for its session.timeout.ms unless a timeout is given."""
        own = self.group.members[member_id].session_timeout_ms if timeout_ms is None else timeout_ms
        self._timers[TimerKey(self.group.group_id, TimerKind.SESSION, member_id)] = own

    def stop(self, kind: TimerKind, member_id: str = "") -> None:
        """Cancel a timer."""
        self._timers[TimerKey(self.group.group_id, kind, member_id)] = None

    def _start(self, kind: TimerKind, delay_ms: int) -> None:
        self._timers[TimerKey(self.group.group_id, kind)] = delay_ms

    # --- members

    def expect(self, member_id: str, timeout_ms: int) -> None:
        """Expect a client to join again with ``member_id``, which it just got."""
        self.group.pending.add(member_id)
        self.start_session(member_id, timeout_ms)

    def add(self, member: Member, protocol_type: str, ticket: int) -> None:
        """Add a new member, which waits under ``ticket``."""
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
        """Replace a member by ``member``, which waits for the next generation under ``ticket``."""
        self._release_join(member.member_id, ErrorCode.REBALANCE_IN_PROGRESS)  # the client gave up that connection
        self.group.members[member.member_id] = member
        self.group.joining[member.member_id] = ticket

    def remove(self, member_id: str) -> None:
        """Remove the member, or the expected one; choose a new leader if it was the leader."""
        group = self.group
        self._release_join(member_id, ErrorCode.UNKNOWN_MEMBER_ID, answered_id="")
        self._release_sync(member_id, ErrorCode.UNKNOWN_MEMBER_ID)
        self.stop(TimerKind.SESSION, member_id)
        group.pending.discard(member_id)
        group.unsynced.discard(member_id)
        group.members.pop(member_id, None)
        if group.leader == member_id:
            group.leader = next(iter(group.members), None)

    def leave_out(self, member_id: str) -> None:
        """Remove a member that wants to stay, because there is no room."""
        if member_id in self.group.members or member_id in self.group.pending:
            self.remove(member_id)

    def replace_member(self, old_id: str, member_id: str) -> None:
        """Give a static member that has come back its new id. Clients with the old id are fenced."""
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

    def _release_join(self, member_id: str, error: ErrorCode, answered_id: str | None = None) -> None:
        ticket = self.group.joining.pop(member_id, None)
        if ticket is not None:
            self.answer(ticket, JoinReply(error, member_id if answered_id is None else answered_id))

    def _release_sync(self, member_id: str, error: ErrorCode) -> None:
        ticket = self.group.syncing.pop(member_id, None)
        if ticket is not None:
            self.answer(ticket, SyncReply(error))

    # --- the first half of a rebalance

    def rebalance_or_complete(self) -> None:
        """Begin a rebalance. If one is being prepared and no member is missing, end its first phase instead."""
        group = self.group
        if group.state is GroupState.PREPARING_REBALANCE:
            if not group.is_initial and group.have_all_joined:
                self.complete_join()
            return
        if group.state is GroupState.EMPTY and not group.members:
            return  # a member that had not joined yet has left
        if group.state is GroupState.COMPLETING_REBALANCE:
            for member_id in list(group.syncing):
                self._release_sync(member_id, ErrorCode.REBALANCE_IN_PROGRESS)
                self.start_session(member_id)  # it could not send heartbeats while it waited
            group.members = {key: replace(member, assignment=b"") for key, member in group.members.items()}
        group.unsynced.clear()
        self.stop(TimerKind.SYNC)
        group.is_initial = group.state is GroupState.EMPTY
        group.move_to(GroupState.PREPARING_REBALANCE, self._now_ms)
        if group.is_initial:  # members that start together should be in one generation
            group.newcomers = False
            group.delay_ms = max(group.rebalance_timeout_ms - self._initial_delay_ms, 0)
            self._start(TimerKind.JOIN, self._initial_delay_ms)
        elif group.have_all_joined:
            self.complete_join()
        else:
            self._start(TimerKind.JOIN, group.rebalance_timeout_ms)

    def wait_for_more(self) -> None:
        """Wait for more members, after one has joined a group that prepares its first generation."""
        delay_ms = min(self._initial_delay_ms, self.group.delay_ms)
        self.group.newcomers = False
        self.group.delay_ms -= delay_ms
        self._start(TimerKind.JOIN, delay_ms)

    def complete_join(self) -> None:
        """End the first phase: remove members that have not joined, except static ones."""
        group = self.group
        for member in list(group.members.values()):
            if member.instance_id is None and member.member_id not in group.joining:
                self.remove(member.member_id)
        if group.members and not group.joining:  # only static members are left: wait until their sessions end
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
        """The answer for ``member_id`` about the current generation."""
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
        """Park the member's SyncGroup until the leader has assigned."""
        self._release_sync(member_id, ErrorCode.REBALANCE_IN_PROGRESS)  # the old request's connection was given up
        self.group.syncing[member_id] = ticket

    def assign(self, assignments: dict[str, bytes]) -> None:
        """Complete the generation with the leader's ``assignments``. A member that is missing there gets an empty one.

        A generation that is too large for a record is discarded: all members get an error, and may join again (Kafka:
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
        """The member's assignment in the current generation."""
        group = self.group
        return SyncReply(ErrorCode.NONE, group.protocol_type, group.protocol, group.members[member_id].assignment)
