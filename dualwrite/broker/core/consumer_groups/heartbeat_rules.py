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
from dualwrite.broker.core.consumer_groups.downgrading import downgrade, is_to_downgrade
from dualwrite.broker.core.consumer_groups.group import LEFT, LEFT_FOR_A_WHILE, ConsumerGroup
from dualwrite.broker.core.consumer_groups.patterns import compiled
from dualwrite.broker.core.consumer_groups.request_rules import check_request
from dualwrite.broker.core.consumer_groups.step import ConsumerGroupStep
from dualwrite.broker.core.consumer_groups.upgrading import is_settled, upgrade
from dualwrite.broker.core.groups import Group, GroupState
from dualwrite.broker.facts.consumer_groups import MemberAssigned, MemberState, MemberSubscribed
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
            return _leave(step, command)
        upgraded = None if group is not None or classic is None or classic.is_vacant else classic
        is_unsettled = upgraded is not None and not is_settled(step, upgraded)
        reply = _heartbeat(step, command, is_unsettled=is_unsettled)
    except RefusedError as refused:
        return ConsumerGroupDecision(ConsumerHeartbeatReply(refused.error, str(refused)))
    return replace(_decision(step, reply), upgraded=upgraded)


def _decision(step: ConsumerGroupStep, reply: ConsumerHeartbeatReply) -> ConsumerGroupDecision:
    group = step.group
    return ConsumerGroupDecision(
        reply, tuple(step.facts), step.timers, matches=group.matches, topics_version=group.topics_version
    )


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
    if not joins:
        missing = "not found." if classic is None else "is not a consumer group."
        raise RefusedError(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {name} {missing}")
    step = ConsumerGroupStep(ConsumerGroup(name), moment, settings)
    if classic is not None and classic.state is GroupState.EMPTY:
        step.convert()  # clients that are about to join it may join with the member ids that they got
    elif classic is not None:
        upgrade(step, classic)
    return step


# --- a member that stays


def _heartbeat(step: ConsumerGroupStep, command: ConsumerHeartbeat, *, is_unsettled: bool) -> ConsumerHeartbeatReply:
    """:param is_unsettled: the group needs new targets in any case."""
    group, settings, member_id = step.group, step.settings, command.member_id or step.moment.fresh_id
    _check_room(group, command, settings)
    _identify(step, command, member_id)
    before = group.subscriptions.get(member_id)
    preferred = group.assignor(settings.assignors)
    subscribed = _updated(before, command, member_id)
    if subscribed != before:
        step.emit(subscribed)
    has_looked = step.look_at_topics()
    is_changed = _reads(subscribed) != _reads(before) or preferred != group.assignor(settings.assignors)
    if is_changed or is_unsettled or (has_looked and step.metadata_hash() != group.metadata_hash):
        step.raise_epoch()
    step.assign()
    was = group.current(member_id)
    step.reconcile(member_id, command.owned)
    step.start_session(member_id)
    if before is not None and before.classic is not None:
        for kind in (ConsumerTimerKind.JOIN, ConsumerTimerKind.SYNC):
            step.set_timer(kind, member_id, None)
    current = group.current(member_id)
    is_news = current.assigned.keys() != was.assigned.keys()
    return ConsumerHeartbeatReply(
        member_id=member_id,
        epoch=current.epoch,
        heartbeat_interval_ms=settings.heartbeat_interval_ms,
        assigned=frozenset(current.assigned) if is_news or asks(command, current) else None,
    )


def asks(command: ConsumerHeartbeat, current: MemberAssigned) -> bool:
    """True if the client has to be told what it may hold, although that has not changed.

    After an error a client says everything about itself (Kafka). A client that does not, and says that it holds
    something else, may have missed the answer that told it; for such a client Apache Kafka does nothing.
    """
    says_everything = command.rebalance_timeout_ms != SAME_TIMEOUT and not (
        command.topics is None and command.pattern is None
    )
    return command.owned is not None and (says_everything or command.owned != current.assigned.keys())


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
            if owner is not None and owner != member_id:
                is_classic = group.subscriptions[owner].classic is not None  # there the newer client fences the older
                if not is_classic and group.current(owner).epoch != LEFT_FOR_A_WHILE:
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
        classic=None,
    )


# --- a member that goes


def _leave(step: ConsumerGroupStep, command: ConsumerHeartbeat) -> ConsumerGroupDecision:
    group, member_id = step.group, command.member_id
    if command.instance_id is not None:
        _check_static(group.static_member(command.instance_id), command)
    elif member_id not in group.subscriptions:
        raise _unknown(group, member_id)
    reply = ConsumerHeartbeatReply(member_id=member_id, epoch=command.epoch)
    if command.epoch == LEFT:
        return _without(step, [member_id], reply)
    current = group.current(member_id)  # its session goes on: it has that long to come back
    assigned = dict.fromkeys(current.assigned, 0)
    step.emit(replace(current, epoch=LEFT_FOR_A_WHILE, state=MemberState.STABLE, assigned=assigned, revoking={}))
    step.set_timer(ConsumerTimerKind.REBALANCE, member_id, None)
    return _decision(step, reply)


def _without(
    step: ConsumerGroupStep, member_ids: list[str], reply: ConsumerHeartbeatReply | None = None
) -> ConsumerGroupDecision:
    """Remove the members. The others get new targets with the next heartbeat of any of them."""
    step.remove(member_ids)
    downgraded = None
    if is_to_downgrade(step):
        downgraded = downgrade(step)
    elif step.group.subscriptions:
        step.raise_epoch()
    return replace(_decision(step, reply or ConsumerHeartbeatReply()), downgraded=downgraded)


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
    if not leaving:
        return ConsumerGroupDecision(removed=tuple(errors))
    step = ConsumerGroupStep(group, moment, settings)
    return replace(_without(step, leaving), removed=tuple(errors))


def _time_is_up(
    group: ConsumerGroup | None, key: ConsumerTimerKey, moment: ConsumerGroupMoment, settings: ConsumerGroupSettings
) -> ConsumerGroupDecision:
    """Remove the member that was too late."""
    if group is None or key.member_id not in group.subscriptions:
        return ConsumerGroupDecision()
    return _without(ConsumerGroupStep(group, moment, settings), [key.member_id])
