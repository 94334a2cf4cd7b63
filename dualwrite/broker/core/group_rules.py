"""The rules of the classic group protocol: a command becomes a decision (KIP-134, KIP-345, KIP-394, KIP-814).

A rebalance has two phases. First all members join (PreparingRebalance), until none is missing or the time is up. Then
the leader assigns, and every member asks for its assignment (CompletingRebalance). A member that is late for either
phase is removed; a static member is removed only when its session ends. (Kafka: GroupMetadataManager.classicGroup*.)
"""

from dataclasses import dataclass, replace

from dualwrite.broker.core.group_commands import (
    GroupCommand,
    GroupDecision,
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
from dualwrite.broker.core.group_step import GroupStep
from dualwrite.broker.core.groups import NO_MEMBER, Group, GroupState, Member
from dualwrite.broker.facts.fields import LONGEST_STRING
from dualwrite.wire.error_codes import ErrorCode

NEW_MEMBER_JOIN_TIMEOUT_MS = 300_000
"""How long a new member may wait for its first generation; until then it cannot send heartbeats."""

_LONGEST_PREFIX = LONGEST_STRING // 8
"""How many characters of the client id or instance id begin a member id; a character has at most four bytes."""


@dataclass(frozen=True, slots=True)
class GroupSettings:
    """The broker settings that the rules depend on, under Kafka's names and in its units."""

    min_session_timeout_ms: int = 6_000
    """group.min.session.timeout.ms"""
    max_session_timeout_ms: int = 1_800_000
    """group.max.session.timeout.ms"""
    initial_rebalance_delay_ms: int = 3_000
    """group.initial.rebalance.delay.ms"""
    max_size: int = 2_147_483_647
    """group.max.size"""


@dataclass(frozen=True, slots=True)
class GroupMoment:
    """The outside input of a decision: the time in milliseconds since the epoch, the ticket of the request, and a text
    that no member id contains yet."""

    now_ms: int
    ticket: int
    fresh: str


def decide(group: Group | None, command: GroupCommand, moment: GroupMoment, settings: GroupSettings) -> GroupDecision:
    """Decide ``command`` for ``group``, None if there is no such group. Changes nothing."""
    step = GroupStep(group or Group(command.group), moment.now_ms, settings.initial_rebalance_delay_ms)
    if isinstance(command, TimerKey):
        _time_is_up(step, command)
    elif isinstance(command, JoinGroup):
        _join(step, command, moment, settings, exists=group is not None)
    elif isinstance(command, SyncGroup):
        _sync(step, command, moment)
    elif isinstance(command, Heartbeat):
        step.answer(moment.ticket, HeartbeatReply(_heartbeat(step, command)))
    else:
        step.answer(moment.ticket, _leave(step, command))
    return step.decision()


def identity_error(group: Group, member_id: str, instance_id: str | None) -> ErrorCode:
    """NONE if ``member_id`` is a member. FENCED_INSTANCE_ID if another client has taken its instance id (KIP-345)."""
    if instance_id is not None:
        owner = group.static_member(instance_id)
        if owner is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        if owner != member_id:
            return ErrorCode.FENCED_INSTANCE_ID
    return ErrorCode.NONE if member_id in group.members else ErrorCode.UNKNOWN_MEMBER_ID


# --- JoinGroup


def _join(step: GroupStep, command: JoinGroup, moment: GroupMoment, settings: GroupSettings, exists: bool) -> None:
    is_new = command.member_id == NO_MEMBER
    error = _join_error(step.group, command, settings, exists)
    if error is not ErrorCode.NONE:
        answered_id = command.member_id
        if error is ErrorCode.GROUP_MAX_SIZE_REACHED:
            step.leave_out(answered_id)
            answered_id = NO_MEMBER
        step.answer(moment.ticket, JoinReply(error, answered_id))
    elif is_new and command.instance_id is not None:
        _join_as_static(step, command, moment)
    elif is_new:
        member_id = new_member_id(command.client_id, moment.fresh)
        if command.needs_member_id:
            step.expect(member_id, command.session_timeout_ms)
            step.answer(moment.ticket, JoinReply(ErrorCode.MEMBER_ID_REQUIRED, member_id))
        else:
            _add(step, command, member_id, moment.ticket)
    elif command.member_id in step.group.pending:
        _add(step, command, command.member_id, moment.ticket)
    else:
        _join_again(step, command, moment.ticket)


def request_error(command: JoinGroup, settings: GroupSettings) -> ErrorCode:
    """The error of ``command`` in any group; NONE if there is none."""
    size = len(command.group.encode())
    if not 0 < size <= LONGEST_STRING:
        return ErrorCode.INVALID_GROUP_ID
    if any(
        len(text.encode()) > LONGEST_STRING
        for text in (command.protocol_type, command.instance_id or "", *command.names)
    ):
        return ErrorCode.INVALID_REQUEST  # older versions of answers have no room for more
    if not settings.min_session_timeout_ms <= command.session_timeout_ms <= settings.max_session_timeout_ms:
        return ErrorCode.INVALID_SESSION_TIMEOUT
    return ErrorCode.NONE


def _join_error(group: Group, command: JoinGroup, settings: GroupSettings, exists: bool) -> ErrorCode:
    error = request_error(command, settings)
    if error is not ErrorCode.NONE:
        return error
    if not exists and command.member_id != NO_MEMBER:
        return ErrorCode.UNKNOWN_MEMBER_ID
    if not _has_room(group, _place_of(group, command), settings.max_size):
        return ErrorCode.GROUP_MAX_SIZE_REACHED
    if not group.supports(command.protocol_type, command.names):
        return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    if command.member_id == NO_MEMBER:
        return ErrorCode.NONE
    if command.member_id in group.pending:  # static members are not sent back with an id
        return ErrorCode.NONE if command.instance_id is None else ErrorCode.UNKNOWN_MEMBER_ID
    return identity_error(group, command.member_id, command.instance_id)


def _place_of(group: Group, command: JoinGroup) -> str:
    """The id of the member whose place the client takes: a static member that has come back takes its former one.
    (Apache Kafka refuses it in a full group; its consumer groups do not any more: KAFKA-20601.)"""
    if command.member_id == NO_MEMBER and command.instance_id is not None:
        return group.static_member(command.instance_id) or NO_MEMBER
    return command.member_id


def _has_room(group: Group, member_id: str, max_size: int) -> bool:
    """True if the group may have another member.

    While a rebalance is being prepared, only members that have already joined it count. So if group.max.size was
    reduced, the members that join last are refused. At other times all members count.
    """
    if group.state is GroupState.EMPTY:
        return True
    if group.state is GroupState.PREPARING_REBALANCE:
        return member_id in group.joining or len(group.joining) < max_size
    return member_id in group.members or len(group.members) < max_size


def new_member_id(called: str, fresh: str) -> str:
    """A new member id. It begins with the client's own name, cut to the room that a string has.

    :param fresh: a text that no member id contains yet.
    """
    return f"{called[:_LONGEST_PREFIX]}-{fresh}"


def _add(step: GroupStep, command: JoinGroup, member_id: str, ticket: int) -> None:
    member = Member(
        member_id,
        command.instance_id,
        command.client_id,
        command.client_host,
        command.rebalance_timeout_ms,
        command.session_timeout_ms,
        command.protocols,
        is_new=True,
    )
    step.add(member, command.protocol_type, ticket)
    step.start_session(member_id, NEW_MEMBER_JOIN_TIMEOUT_MS)
    step.rebalance_or_complete()


def _join_again(step: GroupStep, command: JoinGroup, ticket: int) -> None:
    group, member = step.group, step.group.members[command.member_id]
    changes = member.protocols != command.protocols
    stays = group.state is GroupState.COMPLETING_REBALANCE and not changes
    follows = group.state is GroupState.STABLE and not changes and group.leader != member.member_id
    if stays or follows:  # its answer may be lost; it needs no new generation
        step.answer(ticket, step.join_reply(member.member_id))
        return
    step.rejoin(_updated(member, command), ticket)
    step.rebalance_or_complete()


def _updated(member: Member, command: JoinGroup) -> Member:
    return replace(
        member,
        protocols=command.protocols,
        rebalance_timeout_ms=command.rebalance_timeout_ms,
        session_timeout_ms=command.session_timeout_ms,
    )


def _join_as_static(step: GroupStep, command: JoinGroup, moment: GroupMoment) -> None:
    """Join a static member without a member id: a new member, or one that continues after a restart."""
    group, instance_id = step.group, command.instance_id
    assert instance_id is not None
    member_id = new_member_id(instance_id, moment.fresh)
    old_id = group.static_member(instance_id)
    if old_id is None:
        _add(step, command, member_id, moment.ticket)
        return
    leader = group.leader
    step.replace_member(old_id, member_id)
    member = _updated(group.members[member_id], command)
    step.start_session(member_id, member.session_timeout_ms)
    if group.state is GroupState.STABLE:
        group.members[member_id] = member
        if group.elected_protocol() == group.protocol:
            step.record()
            reply = step.join_reply(member_id)
            if command.can_skip_assignment:
                reply = replace(reply, skip_assignment=group.leader == member_id)
            else:  # its answer names the former leader, so that it does not assign anew
                reply = replace(reply, leader=leader or "", members=())
            step.answer(moment.ticket, reply)
            return
    step.rejoin(member, moment.ticket)
    step.rebalance_or_complete()


# --- SyncGroup


def _sync(step: GroupStep, command: SyncGroup, moment: GroupMoment) -> None:
    group = step.group
    error = _sync_error(group, command)
    if error is not ErrorCode.NONE:
        step.answer(moment.ticket, SyncReply(error))
        return
    group.unsynced.discard(command.member_id)
    if not group.unsynced:
        step.stop(TimerKind.SYNC)
    if group.state is GroupState.STABLE:
        step.answer(moment.ticket, step.sync_reply(command.member_id))
        return
    step.park_sync(command.member_id, moment.ticket)
    if group.leader == command.member_id:
        step.assign(dict(command.assignments))


def _sync_error(group: Group, command: SyncGroup) -> ErrorCode:
    if not command.group:
        return ErrorCode.INVALID_GROUP_ID
    error = identity_error(group, command.member_id, command.instance_id)
    if error is not ErrorCode.NONE:
        return error
    if command.generation != group.generation:
        return ErrorCode.ILLEGAL_GENERATION
    if command.protocol_type not in (None, group.protocol_type) or command.protocol not in (None, group.protocol):
        return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    return ErrorCode.REBALANCE_IN_PROGRESS if group.state is GroupState.PREPARING_REBALANCE else ErrorCode.NONE


# --- Heartbeat and LeaveGroup


def _heartbeat(step: GroupStep, command: Heartbeat) -> ErrorCode:
    if not command.group:
        return ErrorCode.INVALID_GROUP_ID
    error = identity_error(step.group, command.member_id, command.instance_id)
    if error is not ErrorCode.NONE:
        return error
    if command.generation != step.group.generation:
        return ErrorCode.ILLEGAL_GENERATION
    step.start_session(command.member_id)
    preparing = step.group.state is GroupState.PREPARING_REBALANCE
    return ErrorCode.REBALANCE_IN_PROGRESS if preparing else ErrorCode.NONE


def _leave(step: GroupStep, command: LeaveGroup) -> LeaveReply:
    if not command.group:
        return LeaveReply(ErrorCode.INVALID_GROUP_ID)
    results = tuple(
        (member_id, instance, _dismiss(step, member_id, instance)) for member_id, instance in command.members
    )
    if any(error is ErrorCode.NONE for _, _, error in results):
        step.rebalance_or_complete()
    return LeaveReply(members=results)


def _dismiss(step: GroupStep, member_id: str, instance_id: str | None) -> ErrorCode:
    if member_id == NO_MEMBER:
        static_id = step.group.static_member(instance_id) if instance_id is not None else None
        if static_id is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        member_id = static_id
    elif member_id not in step.group.pending:
        error = identity_error(step.group, member_id, instance_id)
        if error is not ErrorCode.NONE:
            return error
    step.remove(member_id)
    return ErrorCode.NONE


# --- time


def _time_is_up(step: GroupStep, key: TimerKey) -> None:
    group = step.group
    if key.kind is TimerKind.JOIN:
        if group.is_initial and group.newcomers and group.delay_ms > 0:
            step.wait_for_more()
        else:
            step.complete_join()
    elif key.kind is TimerKind.SYNC:
        for member_id in list(group.unsynced):
            step.remove(member_id)
        step.rebalance_or_complete()
    elif key.member_id in group.pending:
        step.remove(key.member_id)
        if group.state is GroupState.PREPARING_REBALANCE:  # in other states no client waits for this timer
            step.rebalance_or_complete()
    elif _has_died(group, key.member_id):
        step.remove(key.member_id)
        step.rebalance_or_complete()


def _has_died(group: Group, member_id: str) -> bool:
    """False if the member waits for an answer and has had one before: it is alive. A new member may have left
    unnoticed."""
    member = group.members.get(member_id)
    return member is not None and (member.is_new or not (member_id in group.joining or member_id in group.syncing))
