"""A classic group with members becomes a consumer group when a client of the consumer protocol joins it (KIP-848).

The members of the classic group stay. They go on with their protocol, by the rules of ``classic_rules``, until they are
restarted with the other one. Their epoch is the classic group's generation. (Kafka:
GroupMetadataManager.convertToConsumerGroup, ConsumerGroup.fromClassicGroup.)

Apache Kafka takes the last assignment of a member for what it holds. That is too little in the middle of a rebalance: a
cooperative consumer keeps partitions that it has to give up until it has heard of it. So here a member also holds what
it owned when it last joined. It may hold less than that, but never more, at each stage of a rebalance.
"""

from dualwrite.broker.core.cluster import RefusedError
from dualwrite.broker.core.consumer_groups.step import ConsumerGroupStep
from dualwrite.broker.core.consumer_protocol import (
    ConsumerAssignment,
    ConsumerSubscription,
    read_assignment,
    read_subscription,
)
from dualwrite.broker.core.groups import CONSUMER_PROTOCOL, Group, GroupState, Member
from dualwrite.broker.facts.assignments import TopicIdPartition
from dualwrite.broker.facts.consumer_groups import (
    ClassicMembership,
    ConsumerGroupRecorded,
    MemberAssigned,
    MemberState,
    MemberSubscribed,
    TargetAssigned,
    TargetEpochRecorded,
)
from dualwrite.wire.error_codes import ErrorCode

_KNOWN_ASSIGNORS = frozenset({"range", "roundrobin", "sticky", "cooperative-sticky"})
"""Assignors of the clients' own. None of them needs the word that another one writes into its assignments."""


def upgrade(step: ConsumerGroupStep, classic: Group) -> None:
    """Make ``classic`` the group of ``step``, which is new. The caller raises its epoch, unless the group is settled.

    :raises RefusedError: if it must not, or cannot, become a consumer group.
    """
    name = classic.group_id
    _check_allowed(step, classic)
    members = {member.member_id: _read(classic, member) for member in classic.members.values()}
    held = _held(step, members)
    step.convert()
    for member in classic.members.values():
        step.emit(_subscribed(name, member, members[member.member_id][0]))
    step.emit(ConsumerGroupRecorded(name, max(classic.generation, step.group.epoch), step.metadata_hash()))
    for member_id, (_, assignment) in members.items():
        step.emit(TargetAssigned(name, member_id, step.with_ids(assignment.partitions)))
    step.emit(TargetEpochRecorded(name, step.group.epoch))
    epoch = classic.generation
    for member_id in members:
        assigned = dict.fromkeys(held[member_id], epoch)
        step.emit(MemberAssigned(name, member_id, epoch, epoch, MemberState.STABLE, assigned))
        step.start_session(member_id)
    step.group.check()


def is_settled(step: ConsumerGroupStep, classic: Group) -> bool:
    """True if the group of ``step``, which ``classic`` has become, needs no rebalance: as long as a static member that
    is restarted with the other protocol takes its former place.

    Every member holds its target, and every partition has an owner. Apache Kafka does not look: a rebalance that
    was in progress, or a topic that has grown, then leaves partitions without a member.
    """
    group, topics = step.group, step.moment.topics
    if classic.state is not GroupState.STABLE:
        return False
    if any(group.current(member_id).assigned.keys() != group.target(member_id) for member_id in classic.members):
        return False
    wanted = sum(topics[name].partitions for name in group.subscribed_topics() if name in topics)
    return wanted == sum(map(len, group.targets.values()))


def _check_allowed(step: ConsumerGroupStep, classic: Group) -> None:
    reason = ""
    if not step.settings.migration_policy.allows_upgrade:
        reason = "online upgrade is disabled"
    elif classic.protocol_type != CONSUMER_PROTOCOL:
        reason = "the group does not use the consumer embedded protocol"
    elif len(classic.members) > step.settings.max_size:
        reason = "the group size exceeds the consumer group maximum size"
    if reason:
        raise _refusal(classic.group_id, reason)


def _refusal(group: str, reason: str) -> RefusedError:
    return RefusedError(
        ErrorCode.GROUP_ID_NOT_FOUND, f"Cannot upgrade classic group {group} to consumer group because {reason}."
    )


def _read(classic: Group, member: Member) -> tuple[ConsumerSubscription, ConsumerAssignment]:
    """What the member has said, and what it was assigned."""
    first, metadata = member.protocols[0]
    try:
        subscription = read_subscription(member.metadata(classic.protocol) or metadata)
        assignment = read_assignment(member.assignment)
    except ValueError:
        raise _refusal(classic.group_id, "the embedded consumer protocol is malformed") from None
    if assignment.user_data and (classic.protocol or first) not in _KNOWN_ASSIGNORS:
        reason = (
            "an unsupported custom assignor is in use. Please refer to the documentation or switch to a default "
            "assignor before re-attempting the upgrade"
        )
        raise _refusal(classic.group_id, reason)
    return subscription, assignment


def _held(
    step: ConsumerGroupStep, members: dict[str, tuple[ConsumerSubscription, ConsumerAssignment]]
) -> dict[str, set[TopicIdPartition]]:
    """What each member may hold. An assignment counts more than what another member says to own, and of two such words
    the one of the later generation counts.

    :raises RefusedError: if a partition is assigned to two members, as only an assignor of the application's own does.
    """
    owners: dict[TopicIdPartition, str] = {}
    for member_id, (_, assignment) in members.items():
        for partition in step.with_ids(assignment.partitions):
            if owners.setdefault(partition, member_id) != member_id:
                raise _refusal(step.group.group_id, "a partition is assigned to two of its members")
    for member_id in sorted(members, key=lambda member_id: -members[member_id][0].generation):
        for partition in step.with_ids(members[member_id][0].owned):
            owners.setdefault(partition, member_id)
    held: dict[str, set[TopicIdPartition]] = {member_id: set() for member_id in members}
    for partition, member_id in owners.items():
        held[member_id].add(partition)
    return held


def _subscribed(group: str, member: Member, subscription: ConsumerSubscription) -> MemberSubscribed:
    return MemberSubscribed(
        group,
        member.member_id,
        member.instance_id,
        subscription.rack_id,
        member.client_id,
        member.client_host,
        tuple(sorted(set(subscription.topics))),
        None,
        member.rebalance_timeout_ms,
        None,
        ClassicMembership(member.session_timeout_ms, member.protocols),
    )
