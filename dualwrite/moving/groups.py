"""The consumer groups of a move: their committed offsets in the moved topics, and the same positions at the target."""

from collections.abc import Callable, Collection, Iterable, Mapping

from dualwrite.errors import InputError
from dualwrite.ids import TopicPartition
from dualwrite.moving.cluster_admin import MoveAdmin
from dualwrite.moving.plan import TopicPlan
from dualwrite.moving.ports import GroupOffset

Translate = Callable[[TopicPartition, int], int]
"""Returns the offset at the target that is equal to an offset of a partition at the source."""
GroupOffsets = Mapping[str, Mapping[TopicPartition, GroupOffset]]
"""The committed offsets by group."""


def groups_at(source: MoveAdmin, plans: Iterable[TopicPlan]) -> GroupOffsets:
    """The groups with offsets in the topics of ``plans``, and these offsets.

    :raises InputError: if an open transaction has offsets of a group.
    """
    places = [TopicPartition(plan.source.name, number) for plan in plans for number in range(plan.source.partitions)]
    groups = source.group_offsets(source.groups(), places)
    return {name: offsets for name, offsets in groups.items() if offsets}


def chosen(groups: GroupOffsets, names: Collection[str]) -> GroupOffsets:
    """Those of ``groups`` with ``names``; all if there are none.

    :raises InputError: if a group is missing.
    """
    for name in names:
        if name not in groups:
            raise InputError(f"--groups: group {name!r} has no offsets in these topics, or is hidden from this client")
    return {name: groups[name] for name in names or groups}


def require_stopped(admin: MoveAdmin, place: str, groups: Iterable[str]) -> None:
    """Require that no consumer of ``groups`` runs.

    :param place: the cluster of ``admin``, for the error.
    :raises InputError: if a group has members.
    """
    have_members = admin.groups()
    for name in sorted(groups):
        if have_members.get(name):
            raise InputError(f"group {name!r} has members at the {place}: stop its consumers first")


def translated(groups: GroupOffsets, translate: Translate) -> GroupOffsets:
    """``groups`` with the same positions at the target."""
    return {
        group: {place: (translate(place, offset), metadata) for place, (offset, metadata) in offsets.items()}
        for group, offsets in groups.items()
    }


def plain_offsets(offsets: Mapping[TopicPartition, GroupOffset]) -> dict[TopicPartition, int]:
    """``offsets`` without their metadata."""
    return {place: offset for place, (offset, _) in offsets.items()}


def changed_groups(groups: GroupOffsets, moved: Mapping[str, Mapping[TopicPartition, int]]) -> list[str]:
    """The groups that have committed other offsets since they were moved. An offset that is gone is none: clusters
    remove those of groups without members after some time (``offsets.retention.minutes``).

    :param groups: the offsets that they have now, in the moved topics.
    :param moved: the offsets that they had.
    """
    now = {name: plain_offsets(offsets).items() for name, offsets in groups.items()}
    return sorted(name for name, offsets in now.items() if offsets - moved.get(name, {}).items())
