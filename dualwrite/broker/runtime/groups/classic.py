"""Groups at run time: parks requests that wait for other members, and turns timers into commands.

Every answer waits at the flusher's barrier, so that no client acts on an assignment that a crash could lose.
"""

import asyncio
import logging
import uuid
from collections.abc import Callable
from itertools import count
from typing import Protocol, TypeVar

from dualwrite.broker.clients.shown_text import shown
from dualwrite.broker.core.consumer_groups.classic_rules import ClassicRequest
from dualwrite.broker.core.group_commands import (
    GroupAnswer,
    GroupCommand,
    GroupDecision,
    GroupReply,
    Heartbeat,
    HeartbeatReply,
    JoinGroup,
    JoinReply,
    LeaveGroup,
    LeaveReply,
    SetTimer,
    SyncGroup,
    SyncReply,
    TimerKey,
    TimerKind,
)
from dualwrite.broker.core.group_rules import GroupMoment, GroupSettings, decide
from dualwrite.broker.core.groups import Group, GroupState
from dualwrite.broker.runtime.flusher import Flusher
from dualwrite.broker.runtime.groups.group_log import GroupLog
from dualwrite.broker.runtime.long_polls import LongPolls
from dualwrite.ports import Clock, Entropy
from dualwrite.wire.error_codes import ErrorCode

logger = logging.getLogger(__name__)


class Timer(Protocol):
    """A scheduled call that can be cancelled."""

    def cancel(self) -> None:
        """Cancel the call."""


CallLater = Callable[[float, Callable[[], None]], Timer]
"""Calls a function after a number of seconds: an event loop's ``call_later``, or a simulation's replacement."""
ServeMember = Callable[[ClassicRequest, int], None]
"""Serves a request to a consumer group that has members; the second parameter is the request's ticket."""
R = TypeVar("R", JoinReply, SyncReply, HeartbeatReply, LeaveReply)


def call_later(seconds: float, function: Callable[[], None]) -> Timer:
    """Call ``function`` after ``seconds`` on the running event loop."""
    return asyncio.get_running_loop().call_later(seconds, function)


class GroupCoordinator:
    """Runs the groups' rules. Belongs to the event loop's thread."""

    def __init__(
        self,
        log: GroupLog,
        flusher: Flusher,
        clock: Clock,
        entropy: Entropy,
        settings: GroupSettings | None = None,
        later: CallLater = call_later,
    ) -> None:
        self._log = log
        self._flusher = flusher
        self._clock = clock
        self._entropy = entropy
        self._settings = settings or GroupSettings()
        self._later = later
        self._tickets = count()
        self._parked: dict[int, tuple[asyncio.Future[GroupReply], GroupReply]] = {}
        self._timers: dict[TimerKey, Timer] = {}
        self._is_closed = False
        self.serve_member: ServeMember | None = None
        """Set by the coordinator of consumer groups, which may have members of the classic protocol."""

    def start(self) -> None:
        """Start the sessions, at full length, of the members that the journal has. Members of a consumer group that has
        become a classic one have to join again."""
        for group in self._log.table.groups.values():
            for member in group.members.values():
                key = TimerKey(group.group_id, TimerKind.SESSION, member.member_id)
                self._set_timer(SetTimer(key, member.session_timeout_ms))
            if group.state is GroupState.PREPARING_REBALANCE:
                self._set_timer(SetTimer(TimerKey(group.group_id, TimerKind.JOIN), group.rebalance_timeout_ms))

    async def join(self, command: JoinGroup, polls: LongPolls) -> JoinReply:
        """Wait for the group's next generation, or for the error that keeps the member out of it."""
        return await self._execute(command, JoinReply(ErrorCode.NOT_COORDINATOR, command.member_id), polls)

    async def sync(self, command: SyncGroup, polls: LongPolls) -> SyncReply:
        """Wait for the member's assignment."""
        return await self._execute(command, SyncReply(ErrorCode.NOT_COORDINATOR), polls)

    async def heartbeat(self, command: Heartbeat) -> HeartbeatReply:
        """Check whether the member's generation is still the current one."""
        return await self._execute(command, HeartbeatReply(ErrorCode.NOT_COORDINATOR))

    async def leave(self, command: LeaveGroup) -> LeaveReply:
        """Remove members."""
        return await self._execute(command, LeaveReply(ErrorCode.NOT_COORDINATOR))

    async def _execute(self, command: GroupCommand, at_stop: R, polls: LongPolls | None = None) -> R:
        """Carry out ``command``, and wait for other members if necessary. The caller may send the reply at once.

        :param at_stop: the reply if the broker stops first, or if the client has gone. The member stays what it is for
            the group: only its session ends it, as for every member that is silent.
        :param polls: the connection's long polls, if the command may have to wait.
        """
        if self._is_closed:
            return at_stop
        ticket = next(self._tickets)
        reply: asyncio.Future[GroupReply] = asyncio.get_running_loop().create_future()
        self._parked[ticket] = reply, at_stop
        try:
            self._step(command, ticket)
            result = await (reply if polls is None else _unless_gone(reply, at_stop, polls))
        finally:
            self._parked.pop(ticket, None)
        assert isinstance(result, type(at_stop))
        await self._flusher.barrier()
        return result

    def keep_alive(self, name: str, member_id: str) -> None:
        """Extend the session of a member that commits, as a heartbeat does."""
        group = self._log.table.groups.get(name)
        if group is None or group.state not in (GroupState.STABLE, GroupState.PREPARING_REBALANCE):
            return
        member = group.members.get(member_id)
        if member is not None:
            self._set_timer(SetTimer(TimerKey(name, TimerKind.SESSION, member_id), member.session_timeout_ms))

    def group(self, name: str) -> Group | None:
        """The group called ``name``."""
        return self._log.table.groups.get(name)

    def groups(self) -> list[Group]:
        """Every group."""
        return list(self._log.table.groups.values())

    def close(self) -> None:
        """Answer all parked requests, and cancel all timers; for a clean stop."""
        self._is_closed = True
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
        for reply, at_stop in self._parked.values():
            _settle(reply, at_stop)

    # --- groups that change their protocol

    def hand_over(self, group: Group) -> None:
        """``group`` has become a consumer group: ask the members that wait here to join again, and stop the timers."""
        for key in [key for key in self._timers if key.group == group.group_id]:
            self._set_timer(SetTimer(key, None))
        for member_id, ticket in group.joining.items():
            self.release(GroupAnswer(ticket, JoinReply(ErrorCode.REBALANCE_IN_PROGRESS, member_id)))
        for ticket in group.syncing.values():
            self.release(GroupAnswer(ticket, SyncReply(ErrorCode.REBALANCE_IN_PROGRESS)))

    def carry_out(self, decision: GroupDecision) -> None:
        """Carry out a decision about a classic group, whose facts are appended first."""
        before = None if decision.group is None else self._log.table.groups.get(decision.group.group_id)
        self._log.adopt(decision)
        if decision.group is not None:
            _tell(before, decision.group)
        for timer in decision.timers:
            self._set_timer(timer)
        for answer in decision.answers:
            self.release(answer)

    def release(self, answer: GroupAnswer) -> None:
        """Answer a request, unless its client has gone."""
        reply, _ = self._parked.get(answer.ticket, (None, None))
        if reply is not None:
            _settle(reply, answer.reply)

    def _step(self, command: GroupCommand, ticket: int) -> None:
        consumers = self._log.table.consumers.get(command.group)
        if consumers is not None and (consumers.subscriptions or not isinstance(command, JoinGroup)):
            assert isinstance(command, JoinGroup | SyncGroup | Heartbeat), f"{command} is about a classic group"
            assert self.serve_member is not None, "there is a coordinator of consumer groups"
            self.serve_member(command, ticket)
            return
        fresh = self._new_id() if isinstance(command, JoinGroup) else ""
        moment = GroupMoment(self._clock.wall_ms(), ticket, fresh)
        decision = decide(self._log.table.groups.get(command.group), command, moment, self._settings)
        if consumers is not None and decision.group is not None:
            self._log.record(consumers.end())  # it was empty: the member is the first one of a classic group
        self.carry_out(decision)

    def _new_id(self) -> str:
        return str(uuid.UUID(bytes=self._entropy.random_bytes(16), version=4))

    def _set_timer(self, effect: SetTimer) -> None:
        timer = self._timers.pop(effect.key, None)
        if timer is not None:
            timer.cancel()
        if effect.delay_ms is not None:
            self._timers[effect.key] = self._later(effect.delay_ms / 1000, lambda: self._time_is_up(effect.key))

    def _time_is_up(self, key: TimerKey) -> None:
        self._timers.pop(key, None)
        group = self._log.table.groups.get(key.group)
        if group is None:
            return  # it was deleted while a client was about to join it
        # The first members of an empty group only wait for more members: no member is missing at the end of that wait.
        if key.kind is not TimerKind.JOIN or not group.is_initial:
            logger.info("group %s did not get %s %s in time", shown(key.group), key.kind.value, shown(key.member_id))
        self._step(key, -1)


async def _unless_gone(reply: "asyncio.Future[GroupReply]", at_stop: GroupReply, polls: LongPolls) -> GroupReply:
    """The reply; or ``at_stop``, if the connection's requests must not wait."""

    def wake() -> None:
        if polls.must_answer:
            _settle(reply, at_stop)

    polls.add(wake)
    try:
        wake()
        return await reply
    finally:
        polls.remove(wake)


def _settle(reply: "asyncio.Future[GroupReply]", result: GroupReply) -> None:
    if not reply.done():
        reply.set_result(result)


def _tell(before: Group | None, group: Group) -> None:
    if before is None and group.state is GroupState.EMPTY:
        logger.info("group %s is new", shown(group.group_id))
    elif before is None or (before.state, before.generation) != (group.state, group.generation):
        state, members = group.state.value, len(group.members)
        logger.info(
            "group %s is %s in generation %d with %d members", shown(group.group_id), state, group.generation, members
        )
