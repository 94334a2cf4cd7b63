"""A consumer group whose last member of the consumer protocol has left becomes a classic group (KIP-848).

The other members, of the classic protocol, have to join again, and one of them assigns. The generation is the group's
epoch: a member that knows it can commit its offsets before it joins. (Kafka:
GroupMetadataManager.convertToClassicGroup, ClassicGroup.fromConsumerGroup.)

Apache Kafka records the new group as complete. If it stops before the members have joined, they go on, and no member
gets the partitions of the one that has left. Here the record has no leader, and a restart waits for the members, too.
"""

from dualwrite.broker.core.consumer_groups.group import ConsumerGroup
from dualwrite.broker.core.consumer_groups.step import ConsumerGroupStep
from dualwrite.broker.core.consumer_protocol import NEWEST_VERSION, write_assignment
from dualwrite.broker.core.group_commands import GroupDecision
from dualwrite.broker.core.group_step import LARGEST_GROUP_BYTES, GroupStep
from dualwrite.broker.core.groups import CONSUMER_PROTOCOL, Group, GroupState, Member
from dualwrite.broker.facts.groups import GroupRecorded


def is_to_downgrade(step: ConsumerGroupStep) -> bool:
    """True if the group of ``step`` may become a classic group: it has members, all of them of the classic protocol."""
    members = step.group.subscriptions.values()
    protocols = [member.classic.protocols for member in members if member.classic is not None]
    size = sum(len(metadata) for of_member in protocols for _, metadata in of_member)
    return (
        0 < len(members) == len(protocols)
        and step.settings.migration_policy.allows_downgrade
        and len(members) <= step.settings.classic.max_size
        and size <= LARGEST_GROUP_BYTES // 2  # the group is one record
    )


def downgrade(step: ConsumerGroupStep, joining: str | None = None) -> GroupDecision:
    """Turn the group of ``step`` into a classic group, and return the first step of that.

    :param joining: the member whose JoinGroup this is; it waits with the others.
    """
    group = step.group
    members = {member_id: _member(step, member_id) for member_id in group.subscriptions}
    classic = Group(
        group.group_id, GroupState.STABLE, group.epoch, CONSUMER_PROTOCOL, since_ms=step.moment.now_ms, members=members
    )
    classic.protocol = classic.elected_protocol()
    step.stop_timers()
    step.facts += [*group.end(), recorded_without_leader(classic)]
    after = GroupStep(classic, step.moment.now_ms, step.settings.classic.initial_rebalance_delay_ms)
    for member_id in members:
        after.start_session(member_id)
    after.rebalance_or_complete()
    if joining is not None:
        after.rejoin(members[joining], step.moment.ticket)
        after.rebalance_or_complete()
    return after.decision()


def recorded_without_leader(classic: Group) -> GroupRecorded:
    """The fact about ``classic``, whose members have to join again."""
    assert classic.leader is None, f"{classic.leader} leads group {classic.group_id}"
    return classic.recorded()


def _member(step: ConsumerGroupStep, member_id: str) -> Member:
    """The member, with what it holds: all that it may still have to give up."""
    group: ConsumerGroup = step.group
    subscribed, current = group.subscriptions[member_id], group.current(member_id)
    assert subscribed.classic is not None, f"{member_id} speaks the consumer protocol"
    held = step.with_names([*current.assigned, *current.revoking])
    return Member(
        member_id,
        subscribed.instance_id,
        subscribed.client_id,
        subscribed.client_host,
        subscribed.rebalance_timeout_ms,
        subscribed.classic.session_timeout_ms,
        subscribed.classic.protocols,
        write_assignment(NEWEST_VERSION, held),
    )
