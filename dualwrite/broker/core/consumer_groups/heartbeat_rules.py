"""The rules of ConsumerGroupHeartbeat: a command becomes a decision (KIP-848, KIP-345, KIP-1082).

A heartbeat has three parts. The member joins or says what has changed, which may raise the group's epoch. If it did,
every member gets a new target. Then the member that sent the heartbeat comes closer to its target. (Kafka:
GroupMetadataManager.consumerGroupHeartbeat, GroupCoordinatorService.throwIfConsumerGroupHeartbeatRequestIsInvalid.)
"""

from dataclasses import replace

from dualwrite.broker.core.cluster import RefusedError
from dualwrite.broker.core.consumer_groups.commands import (
    SAME_TIMEOUT,
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
from dualwrite.broker.core.consumer_groups.group import LEFT, LEFT_FOR_A_WHILE, ConsumerGroup
from dualwrite.broker.core.consumer_groups.patterns import compiled
from dualwrite.broker.core.consumer_groups.reconciling import Goal, reconcile
from dualwrite.broker.core.consumer_groups.request_rules import check_request
from dualwrite.broker.core.consumer_groups.step import ConsumerGroupStep
from dualwrite.broker.core.groups import Group
from dualwrite.broker.facts.consumer_groups import MemberState, MemberSubscribed
from dualwrite.wire.error_codes import ErrorCode


def decide_consumer(
    group: ConsumerGroup | None,
    classic: Group | None,
    command: ConsumerGroupCommand,
    moment: ConsumerGroupMoment,
    settings: ConsumerGroupSettings,
) -> ConsumerGroupDecision:
    """Decide ``command``. Changes nothing.

    :param group: the consumer group of the command's name, None if there is none.
    :param classic: the classic group of that name, None if there is none.
    """
    if isinstance(command, RemoveMembers):
        return _remove(group, command, moment, settings)
    if isinstance(command, ConsumerTimerKey):
        return _time_is_up(group, command, moment, settings)
    try:
        check_request(command, settings)
        step = _step(group, classic, command, moment, settings)
        if command.epoch in (LEFT, LEFT_FOR_A_WHILE):
            reply = _leave(step, command)
        else:
            reply = _heartbeat(step, command, moment, settings)
    except RefusedError as refused:
        return ConsumerGroupDecision(ConsumerHeartbeatReply(refused.error, str(refused)))
    return _decision(step, reply)


def _decision(
    step: ConsumerGroupStep, reply: ConsumerHeartbeatReply, removed: tuple[ErrorCode, ...] = ()
) -> ConsumerGroupDecision:
    group = step.group
    return ConsumerGroupDecision(reply, tuple(step.facts), step.timers, removed, group.matches, group.topics_version)


def _step(
    group: ConsumerGroup | None,
    classic: Group | None,
    command: ConsumerHeartbeat,
    moment: ConsumerGroupMoment,
    settings: ConsumerGroupSettings,
) -> ConsumerGroupStep:
    """The step of the existing group, or of a new one."""
    name, joins = command.group, command.epoch == 0
    if group is not None:
        return ConsumerGroupStep(group, moment, settings)
    if classic is not None and not (joins and classic.is_vacant):
        reason = f"Group {name} is not a consumer group."
        if joins:
            reason = f"Cannot upgrade classic group {name} to consumer group because online upgrade is disabled."
        raise RefusedError(ErrorCode.GROUP_ID_NOT_FOUND, reason)
    if not joins:
        raise RefusedError(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {name} not found.")
    step = ConsumerGroupStep(ConsumerGroup(name), moment, settings)
    if classic is not None:
        step.convert()
    return step


# --- a member that stays


def _heartbeat(
    step: ConsumerGroupStep, command: ConsumerHeartbeat, moment: ConsumerGroupMoment, settings: ConsumerGroupSettings
) -> ConsumerHeartbeatReply:
    group, member_id = step.group, command.member_id or moment.fresh_id
    _check_room(group, command, settings)
    _identify(step, command, member_id)
    before = group.subscriptions.get(member_id)
    preferred = group.assignor(settings.assignors)
    subscribed = _updated(before, command, member_id)
    if subscribed != before:
        step.emit(subscribed)
    has_looked = step.look_at_topics()
    is_changed = _reads(subscribed) != _reads(before) or preferred != group.assignor(settings.assignors)
    if is_changed or (has_looked and step.metadata_hash() != group.metadata_hash):
        step.raise_epoch()
    step.assign()
    was = group.current(member_id)
    _reconcile(step, command, subscribed)
    step.start_session(member_id)
    current = group.current(member_id)
    says_everything = (
        command.rebalance_timeout_ms != SAME_TIMEOUT
        and (command.topics is not None or command.pattern is not None)
        and command.owned is not None
    )
    assigned = (
        frozenset(current.assigned) if says_everything or current.assigned.keys() != was.assigned.keys() else None
    )
    return ConsumerHeartbeatReply(
        member_id=member_id,
        epoch=current.epoch,
        heartbeat_interval_ms=settings.heartbeat_interval_ms,
        assigned=assigned,
    )


def _reads(member: MemberSubscribed | None) -> tuple[tuple[str, ...], str]:
    """The subscription of ``member``, in a form that can be compared."""
    return ((), "") if member is None else (member.topics, member.pattern or "")


def _check_room(group: ConsumerGroup, command: ConsumerHeartbeat, settings: ConsumerGroupSettings) -> None:
    is_known = command.member_id in group.subscriptions or group.static_member(command.instance_id) is not None
    if not is_known and len(group.subscriptions) >= settings.max_size:
        raise RefusedError(
            ErrorCode.GROUP_MAX_SIZE_REACHED,
            f"The consumer group has reached its maximum capacity of {settings.max_size} members.",
        )


def _identify(step: ConsumerGroupStep, command: ConsumerHeartbeat, member_id: str) -> None:
    """Check that the client is the member that it says it is; let a static member that comes back take its place.

    A static member may join again under its own member id, which Apache Kafka refuses: its first answer may be lost.
    """
    group, instance_id = step.group, command.instance_id
    if instance_id is not None:
        owner = group.static_member(instance_id)
        if command.epoch == 0:
            if owner not in (None, member_id):
                if group.current(owner).epoch != LEFT_FOR_A_WHILE:
                    raise RefusedError(
                        ErrorCode.UNRELEASED_INSTANCE_ID,
                        f"Static member {member_id} with instance id {instance_id} cannot join the group because the "
                        f"instance id is owned by {owner} member.",
                    )
                step.replace_member(owner, member_id)
            return
        _check_static(owner, command)
    elif member_id not in group.subscriptions and command.epoch != 0:
        raise _unknown(group, member_id)
    _check_epoch(group, command)


def _unknown(group: ConsumerGroup, member_id: str) -> RefusedError:
    return RefusedError(ErrorCode.UNKNOWN_MEMBER_ID, f"Member {member_id} is not a member of group {group.group_id}.")


def _check_static(owner: str | None, command: ConsumerHeartbeat) -> None:
    if owner is None:
        raise RefusedError(ErrorCode.UNKNOWN_MEMBER_ID, f"Instance id {command.instance_id} is unknown.")
    if owner != command.member_id:
        raise RefusedError(
            ErrorCode.FENCED_INSTANCE_ID,
            f"Static member {command.member_id} with instance id {command.instance_id} was fenced by member {owner}.",
        )


def _check_epoch(group: ConsumerGroup, command: ConsumerHeartbeat) -> None:
    """Fence a client with another epoch. The previous epoch is that of a client that missed the last answer."""
    current = group.current(command.member_id)
    if command.epoch in (0, current.epoch):
        return
    missed_answer = (
        command.epoch == current.previous_epoch
        and command.owned is not None
        and command.owned <= current.assigned.keys()
    )
    if command.epoch > current.epoch or not missed_answer:
        relation = "greater" if command.epoch > current.epoch else "smaller"
        raise RefusedError(
            ErrorCode.FENCED_MEMBER_EPOCH,
            f"The consumer group member has a {relation} member epoch ({command.epoch}) than the one known by the "
            f"group coordinator ({current.epoch}). The member must abandon all its partitions and rejoin.",
        )


def _updated(before: MemberSubscribed | None, command: ConsumerHeartbeat, member_id: str) -> MemberSubscribed:
    """What the member has said so far, with what it says now."""
    known = before or MemberSubscribed(command.group, member_id, None, None, "", "", (), None, -1, None)
    if command.pattern and command.pattern != known.pattern and compiled(command.pattern) is None:
        raise RefusedError(
            ErrorCode.INVALID_REGULAR_EXPRESSION,
            f"SubscribedTopicRegex `{command.pattern}` is not a valid regular expression.",
        )
    return replace(
        known,
        instance_id=known.instance_id if command.instance_id is None else command.instance_id,
        rack_id=known.rack_id if command.rack_id is None else command.rack_id,
        client_id=command.client_id,
        client_host=command.client_host,
        topics=known.topics if command.topics is None else tuple(sorted(set(command.topics))),
        pattern=known.pattern if command.pattern is None else command.pattern,
        rebalance_timeout_ms=(
            known.rebalance_timeout_ms if command.rebalance_timeout_ms == SAME_TIMEOUT else command.rebalance_timeout_ms
        ),
        assignor=known.assignor if command.assignor is None else command.assignor,
    )


def _reconcile(step: ConsumerGroupStep, command: ConsumerHeartbeat, subscribed: MemberSubscribed) -> None:
    group, member_id = step.group, subscribed.member_id
    before = group.current(member_id)
    if group.is_reconciled(member_id):
        return
    goal = Goal(
        group.target_epoch,
        group.target(member_id),
        step.topic_ids(subscribed),
        command.owned,
        group.held_by_others(member_id),
    )
    current = reconcile(before, goal)
    if current == before:
        return
    step.hold(current)
    revokes = current.state is MemberState.UNREVOKED_PARTITIONS
    step.set_timer(ConsumerTimerKind.REBALANCE, member_id, max(subscribed.rebalance_timeout_ms, 0) if revokes else None)


# --- a member that goes


def _leave(step: ConsumerGroupStep, command: ConsumerHeartbeat) -> ConsumerHeartbeatReply:
    group, member_id = step.group, command.member_id
    if command.instance_id is not None:
        _check_static(group.static_member(command.instance_id), command)
    elif member_id not in group.subscriptions:
        raise _unknown(group, member_id)
    if command.epoch == LEFT:
        step.remove([member_id])
    else:  # its session goes on: it has that long to come back
        current = group.current(member_id)
        assigned = dict.fromkeys(current.assigned, 0)
        step.emit(replace(current, epoch=LEFT_FOR_A_WHILE, assigned=assigned, revoking={}))
        step.set_timer(ConsumerTimerKind.REBALANCE, member_id, None)
    return ConsumerHeartbeatReply(member_id=member_id, epoch=command.epoch)


def _remove(
    group: ConsumerGroup | None, command: RemoveMembers, moment: ConsumerGroupMoment, settings: ConsumerGroupSettings
) -> ConsumerGroupDecision:
    assert group is not None, "the caller knows the group"
    errors, leaving = [], []
    for member_id, instance_id in command.members:
        owner = group.static_member(instance_id) if instance_id is not None else member_id
        error = ErrorCode.NONE
        if owner not in group.subscriptions or owner in leaving:
            error = ErrorCode.UNKNOWN_MEMBER_ID
        elif instance_id is not None and member_id not in ("", owner):
            error = ErrorCode.FENCED_INSTANCE_ID
        else:
            leaving.append(owner)
        errors.append(error)
    step = ConsumerGroupStep(group, moment, settings)
    if leaving:
        step.remove(leaving)
    return _decision(step, ConsumerHeartbeatReply(), tuple(errors))


def _time_is_up(
    group: ConsumerGroup | None, key: ConsumerTimerKey, moment: ConsumerGroupMoment, settings: ConsumerGroupSettings
) -> ConsumerGroupDecision:
    """Remove the member that was too late."""
    if group is None or key.member_id not in group.subscriptions:
        return ConsumerGroupDecision(ConsumerHeartbeatReply())
    step = ConsumerGroupStep(group, moment, settings)
    step.remove([key.member_id])
    return _decision(step, ConsumerHeartbeatReply())
