"""The reconciliation of one member: from the partitions that it holds towards its target (KIP-848).

A member first gives up the partitions that it has lost (UNREVOKED_PARTITIONS), and only then reaches the target's
epoch. Then it gets what no other member holds; for the rest it waits (UNRELEASED_PARTITIONS). So no partition has two
owners at any time. (Kafka: CurrentAssignmentBuilder.)
"""

import uuid
from collections.abc import Collection
from dataclasses import dataclass, replace

from dualwrite.broker.facts.assignments import TopicIdPartition
from dualwrite.broker.facts.consumer_groups import MemberAssigned, MemberState


@dataclass(frozen=True, slots=True)
class Goal:
    """Where the member is to get.

    :param topics: the ids of the topics to which the member is subscribed now.
    :param owned: the partitions that the member says to hold; None if it does not say.
    :param held_by_others: partitions that other members hold, or have not given up yet.
    """

    epoch: int
    target: frozenset[TopicIdPartition]
    topics: Collection[uuid.UUID]
    owned: frozenset[TopicIdPartition] | None
    held_by_others: Collection[TopicIdPartition]

    def has_given_up(self, partitions: Collection[TopicIdPartition]) -> bool:
        """True if the member says that it holds none of ``partitions``."""
        return not partitions or (self.owned is not None and self.owned.isdisjoint(partitions))


def reconcile(current: MemberAssigned, goal: Goal) -> MemberAssigned:
    """What the member holds next, which may be what it holds already."""
    if current.state is MemberState.STABLE and current.epoch == goal.epoch:
        return current
    if current.state is MemberState.UNREVOKED_PARTITIONS and not goal.has_given_up(current.revoking):
        return _revoke_more(current, goal)
    return _next(current, goal)


def _revoke_more(current: MemberAssigned, goal: Goal) -> MemberAssigned:
    """Take the topics away to which the member is no longer subscribed."""
    lost = {partition: epoch for partition, epoch in current.assigned.items() if partition.topic_id not in goal.topics}
    if not lost:
        return current
    kept = {partition: epoch for partition, epoch in current.assigned.items() if partition not in lost}
    return replace(current, previous_epoch=current.epoch, assigned=kept, revoking={**current.revoking, **lost})


def _next(current: MemberAssigned, goal: Goal) -> MemberAssigned:
    target = {partition for partition in goal.target if partition.topic_id in goal.topics}
    kept = {partition: epoch for partition, epoch in current.assigned.items() if partition in target}
    lost = {partition: epoch for partition, epoch in current.assigned.items() if partition not in target}
    if not goal.has_given_up(lost):
        return replace(
            current,
            previous_epoch=current.epoch,
            state=MemberState.UNREVOKED_PARTITIONS,
            assigned=kept,
            revoking=lost,
        )
    missing = target - kept.keys()
    unreleased = missing.intersection(goal.held_by_others)
    state = MemberState.UNRELEASED_PARTITIONS if unreleased else MemberState.STABLE
    assigned = {**kept, **dict.fromkeys(missing - unreleased, goal.epoch)}
    if (state, goal.epoch, assigned, {}) == (current.state, current.epoch, current.assigned, current.revoking):
        return current  # it still waits
    return replace(current, epoch=goal.epoch, previous_epoch=current.epoch, state=state, assigned=assigned, revoking={})
