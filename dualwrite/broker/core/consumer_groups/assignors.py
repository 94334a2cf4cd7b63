"""The assignors: which member is to have which partition. Both keep what members have, as far as their rule allows.

``uniform`` gives every member the same number of partitions, give or take one where all members have the same
subscriptions. ``range`` gives each member a range of every topic, so topics with as many partitions are assigned alike.
Racks play no part: on one node no replica is nearer than another. (Kafka: UniformAssignor, RangeAssignor.)
"""

import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush

from dualwrite.broker.core.consumer_groups.commands import RANGE, UNIFORM
from dualwrite.broker.facts.assignments import TopicIdPartition

_GAIN = 2
"""The difference between two members from which on a move makes them more alike."""

Targets = dict[str, frozenset[TopicIdPartition]]


@dataclass(frozen=True, slots=True)
class MemberToAssign:
    """What an assignor knows of a member: the ids of its topics, its current target, and its instance id."""

    topics: frozenset[uuid.UUID]
    target: frozenset[TopicIdPartition] = frozenset()
    instance_id: str | None = None


@dataclass(slots=True)
class _Uniform:
    """An assignment in the making: ``loads`` are sets of partitions by member id."""

    members: Mapping[str, MemberToAssign]
    sizes: Mapping[uuid.UUID, int]
    loads: dict[str, set[TopicIdPartition]] = field(default_factory=dict)
    readers: dict[uuid.UUID, list[str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.loads = {member_id: set() for member_id in self.members}
        for member_id, member in sorted(self.members.items()):
            for topic_id in member.topics & self.sizes.keys():
                self.readers.setdefault(topic_id, []).append(member_id)

    def keep(self) -> None:
        """Let members keep the partitions of their topics that they have."""
        taken: set[TopicIdPartition] = set()
        for member_id, member in sorted(self.members.items()):
            for partition in member.target - taken:
                topic_id, number = partition
                if topic_id in member.topics and number < self.sizes.get(topic_id, 0):
                    self.loads[member_id].add(partition)
            taken |= self.loads[member_id]

    def share_out(self) -> None:
        """Give the other partitions to the members with the fewest, those of topics with few readers first."""
        taken = set().union(*self.loads.values())
        for topic_id in sorted(self.readers, key=lambda topic_id: (len(self.readers[topic_id]), topic_id)):
            for number in range(self.sizes[topic_id]):
                partition = TopicIdPartition(topic_id, number)
                if partition not in taken:
                    self.loads[self._least_loaded(topic_id)].add(partition)

    def level(self) -> None:
        """Move partitions to members that have at least two fewer, until there are none; the fullest member gives one
        at a time."""
        has_moved = True
        while has_moved:
            has_moved = False
            fullest = [(-len(load), member_id) for member_id, load in self.loads.items()]
            heapify(fullest)
            candidates = {member_id: sorted(load) for member_id, load in self.loads.items()}
            while fullest:
                _, member_id = heappop(fullest)
                if self._give_one(member_id, candidates[member_id]):
                    has_moved = True
                    heappush(fullest, (-len(self.loads[member_id]), member_id))

    def _give_one(self, member_id: str, candidates: list[TopicIdPartition]) -> bool:
        """Move one of ``candidates`` from the member to another, if that is of use. Those that were tried are removed
        from the list."""
        while candidates:
            partition = candidates.pop()
            other = self._least_loaded(partition.topic_id)
            if len(self.loads[member_id]) - len(self.loads[other]) >= _GAIN:
                self.loads[member_id].remove(partition)
                self.loads[other].add(partition)
                return True
        return False

    def _least_loaded(self, topic_id: uuid.UUID) -> str:
        return min(self.readers[topic_id], key=lambda member_id: (len(self.loads[member_id]), member_id))


def uniform(members: Mapping[str, MemberToAssign], sizes: Mapping[uuid.UUID, int]) -> Targets:
    """The target of each member.

    :param sizes: the number of partitions of each topic. Members may be subscribed to topics that it lacks.
    """
    assignment = _Uniform(members, sizes)
    assignment.keep()
    assignment.share_out()
    assignment.level()
    return {member_id: frozenset(load) for member_id, load in assignment.loads.items()}


def ranges(members: Mapping[str, MemberToAssign], sizes: Mapping[uuid.UUID, int]) -> Targets:
    """The target of each member; see :func:`uniform`.

    The members of a topic that have partitions of it keep their order. Others follow them: in the order of what they
    have of other topics, then static members by their instance ids, then dynamic ones.
    """
    targets: dict[str, set[TopicIdPartition]] = {member_id: set() for member_id in members}
    for topic_id, size in sizes.items():
        readers = sorted(
            (member_id for member_id, member in members.items() if topic_id in member.topics),
            key=lambda member_id: _place(member_id, members[member_id], topic_id),
        )
        begin = 0
        for index, member_id in enumerate(readers):
            end = begin + size // len(readers) + (index < size % len(readers))
            targets[member_id].update(TopicIdPartition(topic_id, number) for number in range(begin, end))
            begin = end
    return {member_id: frozenset(target) for member_id, target in targets.items()}


def _place(member_id: str, member: MemberToAssign, topic_id: uuid.UUID) -> tuple[bool, bool, int, bool, str]:
    """The place of a member among those that read the topic."""
    everywhere = [number for _, number in member.target]
    here = [number for other_id, number in member.target if other_id == topic_id]
    first = min(here or everywhere, default=0)
    return not here, not everywhere, first, member.instance_id is None, member.instance_id or member_id


ASSIGN: Mapping[str, Callable[[Mapping[str, MemberToAssign], Mapping[uuid.UUID, int]], Targets]] = {
    UNIFORM: uniform,
    RANGE: ranges,
}
"""Name -> assignor."""
