"""Members of the classic protocol in a consumer group: JoinGroup, SyncGroup and Heartbeat (KIP-848).

The broker assigns, as for all members of the group. So no member leads, and a JoinGroup is answered at once. The
member's generation is its epoch. Heartbeats tell it to join again when there is something to give up or to get. A
member that has to give partitions up gets the others first, and gives those up by joining without them. (Kafka:
GroupMetadataManager.classicGroupJoinToConsumerGroup, -SyncToConsumerGroup, -HeartbeatToConsumerGroup.)

Apache Kafka lets anyone join by any member id. Here a client that is no member must not own partitions: it was removed,
others may have its partitions, and it could commit for them in its new generation. Its error is UNKNOWN_MEMBER_ID.
"""

from dataclasses import replace

from dualwrite.broker.core.consumer_groups.commands import (
    ConsumerGroupDecision,
    ConsumerGroupMoment,
    ConsumerGroupSettings,
    ConsumerTimerKind,
    MigrationPolicy,
)
from dualwrite.broker.core.consumer_groups.downgrading import downgrade, is_to_downgrade
from dualwrite.broker.core.consumer_groups.group import ConsumerGroup
from dualwrite.broker.core.consumer_groups.step import ConsumerGroupStep
from dualwrite.broker.core.consumer_protocol import ConsumerSubscription, read_subscription, write_assignment
from dualwrite.broker.core.group_commands import (
    GroupReply,
    Heartbeat,
    HeartbeatReply,
    JoinGroup,
    JoinReply,
    SyncGroup,
    SyncReply,
)
from dualwrite.broker.core.group_rules import new_member_id, request_error
from dualwrite.broker.core.groups import CONSUMER_PROTOCOL, NO_MEMBER
from dualwrite.broker.facts.consumer_groups import ClassicMembership, MemberState, MemberSubscribed
from dualwrite.wire.error_codes import ErrorCode

ClassicRequest = JoinGroup | SyncGroup | Heartbeat


def decide_classic(
    group: ConsumerGroup, command: ClassicRequest, moment: ConsumerGroupMoment, settings: ConsumerGroupSettings
) -> ConsumerGroupDecision:
    """Decide a request of the classic protocol to ``group``, which has members. Changes nothing."""
    step = ConsumerGroupStep(group, moment, settings)
    if isinstance(command, JoinGroup):
        return _join(step, command)
    if isinstance(command, SyncGroup):
        return _decision(step, _sync(step, command))
    return _decision(step, HeartbeatReply(_heartbeat(step, command)))


def _decision(step: ConsumerGroupStep, answer: GroupReply) -> ConsumerGroupDecision:
    group = step.group
    return ConsumerGroupDecision(
        facts=tuple(step.facts),
        timers=step.timers,
        answer=answer,
        matches=group.matches,
        topics_version=group.topics_version,
    )


def _refused(answer: GroupReply) -> ConsumerGroupDecision:
    return ConsumerGroupDecision(answer=answer)


# --- JoinGroup


def _join(step: ConsumerGroupStep, command: JoinGroup) -> ConsumerGroupDecision:
    error = _join_error(step, command)
    if error is not ErrorCode.NONE:
        full = error is ErrorCode.GROUP_MAX_SIZE_REACHED
        return _refused(JoinReply(error, NO_MEMBER if full else command.member_id))
    is_new, instance_id = command.member_id == NO_MEMBER, command.instance_id
    called = command.client_id if instance_id is None else instance_id
    member_id = new_member_id(called, step.moment.fresh_id) if is_new else command.member_id
    if is_new and instance_id is None and command.needs_member_id:
        return _refused(JoinReply(ErrorCode.MEMBER_ID_REQUIRED, member_id))
    try:
        subscription = read_subscription(command.protocols[0][1])
    except ValueError:
        return _refused(JoinReply(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, command.member_id))
    if is_stranger(step.group, member_id, subscription):
        return _refused(JoinReply(ErrorCode.UNKNOWN_MEMBER_ID, NO_MEMBER))
    owner = step.group.static_member(instance_id)
    takes_over = owner is not None and owner != member_id
    if owner is not None and takes_over:
        step.replace_member(owner, member_id)
    _subscribe(step, command, member_id, subscription)
    if takes_over and is_to_downgrade(step):
        return _downgraded(step, member_id)
    step.assign()
    step.reconcile(member_id, step.with_ids(subscription.owned))
    step.start_session(member_id)
    for kind in (ConsumerTimerKind.JOIN, ConsumerTimerKind.REBALANCE):
        step.set_timer(kind, member_id, None)
    step.set_timer(ConsumerTimerKind.SYNC, member_id, max(command.rebalance_timeout_ms, 0))
    epoch = step.group.current(member_id).epoch
    return _decision(step, JoinReply(ErrorCode.NONE, member_id, epoch, CONSUMER_PROTOCOL, command.names[0]))


def is_stranger(group: ConsumerGroup, member_id: str, subscription: ConsumerSubscription) -> bool:
    """True if the client is no member, and has partitions from a time when it was one."""
    return member_id not in group.subscriptions and bool(subscription.owned)


def _join_error(step: ConsumerGroupStep, command: JoinGroup) -> ErrorCode:
    group, settings = step.group, step.settings
    error = request_error(command, settings.classic)
    if error is not ErrorCode.NONE:
        return error
    is_known = command.member_id in group.subscriptions or group.static_member(command.instance_id) is not None
    if not is_known and len(group.subscriptions) >= settings.max_size:
        return ErrorCode.GROUP_MAX_SIZE_REACHED
    if command.protocol_type != CONSUMER_PROTOCOL or not group.supports_classic(command.names):
        return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    if settings.migration_policy is MigrationPolicy.DISABLED and not group.classic_members:
        return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    if command.instance_id is not None and command.member_id != NO_MEMBER:
        return _identity_error(group, command.member_id, command.instance_id)
    return ErrorCode.NONE


def _subscribe(step: ConsumerGroupStep, command: JoinGroup, member_id: str, subscription: ConsumerSubscription) -> None:
    """Note what the member says, and raise the group's epoch if it, or a topic, has changed."""
    group = step.group
    before = group.subscriptions.get(member_id)
    known = before or MemberSubscribed(command.group, member_id, None, None, "", "", (), None, -1, None)
    subscribed = replace(
        known,
        instance_id=known.instance_id if command.instance_id is None else command.instance_id,
        rack_id=known.rack_id if subscription.rack_id is None else subscription.rack_id,
        client_id=command.client_id,
        client_host=command.client_host,
        topics=tuple(sorted(set(subscription.topics))),
        pattern=None,
        rebalance_timeout_ms=command.rebalance_timeout_ms,
        classic=ClassicMembership(command.session_timeout_ms, command.protocols),
    )
    if subscribed != before:
        step.emit(subscribed)
    is_changed = subscribed.topics != known.topics or bool(known.pattern)
    if _topics_have_changed(step) or is_changed:
        step.raise_epoch()


def _topics_have_changed(step: ConsumerGroupStep) -> bool:
    """True if the topics of the group have changed. If a member has a pattern, the next heartbeat of the consumer
    protocol looks: a pattern matches topics by the rights of that client."""
    if step.group.patterns():
        return False
    return step.look_at_topics() and step.metadata_hash() != step.group.metadata_hash


def _downgraded(step: ConsumerGroupStep, joining: str) -> ConsumerGroupDecision:
    first = downgrade(step, joining)
    return ConsumerGroupDecision(facts=tuple(step.facts), timers=step.timers, downgraded=first)


# --- SyncGroup and Heartbeat


def _sync(step: ConsumerGroupStep, command: SyncGroup) -> SyncReply:
    group, member_id = step.group, command.member_id
    error = _member_error(group, member_id, command.instance_id, command.generation)
    if error is not ErrorCode.NONE:
        return SyncReply(error)
    member, current = group.subscriptions[member_id], group.current(member_id)
    assert member.classic is not None
    (name, metadata), *_ = member.classic.protocols
    if command.protocol_type not in (None, CONSUMER_PROTOCOL) or command.protocol not in (None, name):
        return SyncReply(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
    if group.epoch > current.epoch and current.state is not MemberState.UNREVOKED_PARTITIONS:
        step.set_timer(ConsumerTimerKind.JOIN, member_id, max(member.rebalance_timeout_ms, 0), keeps=True)
        return SyncReply(ErrorCode.REBALANCE_IN_PROGRESS)
    step.set_timer(ConsumerTimerKind.SYNC, member_id, None)
    step.start_session(member_id)
    assignment = write_assignment(read_subscription(metadata).version, step.with_names(current.assigned))
    return SyncReply(ErrorCode.NONE, command.protocol_type, command.protocol, assignment)


def _heartbeat(step: ConsumerGroupStep, command: Heartbeat) -> ErrorCode:
    group, member_id = step.group, command.member_id
    error = _member_error(group, member_id, command.instance_id, command.generation)
    if error is not ErrorCode.NONE:
        return error
    if _topics_have_changed(step):
        step.raise_epoch()
    step.start_session(member_id)
    current = group.current(member_id)
    gives_up = current.state is MemberState.UNREVOKED_PARTITIONS
    gets = current.state is MemberState.UNRELEASED_PARTITIONS and not group.waits_for_others(member_id)
    if group.epoch <= current.epoch and not gives_up and not gets:
        return ErrorCode.NONE
    timeout_ms = max(group.subscriptions[member_id].rebalance_timeout_ms, 0)
    step.set_timer(ConsumerTimerKind.JOIN, member_id, timeout_ms, keeps=True)
    return ErrorCode.REBALANCE_IN_PROGRESS


def _identity_error(group: ConsumerGroup, member_id: str, instance_id: str | None) -> ErrorCode:
    """NONE if ``member_id`` is a member. FENCED_INSTANCE_ID if another client has taken its instance id (KIP-345)."""
    if instance_id is not None:
        owner = group.static_member(instance_id)
        if owner is not None and owner != member_id:
            return ErrorCode.FENCED_INSTANCE_ID
        return ErrorCode.UNKNOWN_MEMBER_ID if owner is None else ErrorCode.NONE
    return ErrorCode.NONE if member_id in group.subscriptions else ErrorCode.UNKNOWN_MEMBER_ID


def _member_error(group: ConsumerGroup, member_id: str, instance_id: str | None, generation: int) -> ErrorCode:
    error = _identity_error(group, member_id, instance_id)
    if error is not ErrorCode.NONE:
        return error
    if group.subscriptions[member_id].classic is None:
        return ErrorCode.UNKNOWN_MEMBER_ID
    return ErrorCode.NONE if generation == group.current(member_id).epoch else ErrorCode.ILLEGAL_GENERATION
