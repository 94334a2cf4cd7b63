"""The assignors: all is assigned once, to members that read it; evenly or in ranges; and what can stay, stays."""

import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dualwrite.broker.core.consumer_groups.assignors import ASSIGN, MemberToAssign, Targets, ranges, uniform
from dualwrite.broker.facts.assignments import TopicIdPartition

A, B, C = (uuid.UUID(int=number) for number in (1, 2, 3))
SIZES = st.fixed_dictionaries({}, optional={A: st.integers(0, 9), B: st.integers(0, 9), C: st.integers(0, 9)})
IDS = ("m1", "m2", "m3", "m4", "m5")
SUBSCRIPTIONS = st.dictionaries(st.sampled_from(IDS), st.frozensets(st.sampled_from([A, B, C])), max_size=5)
by_name = pytest.mark.parametrize("name", ASSIGN)


def members(
    subscriptions: dict[str, frozenset[uuid.UUID]], targets: Targets | None = None
) -> dict[str, MemberToAssign]:
    known = targets or {}
    return {name: MemberToAssign(topics, known.get(name, frozenset())) for name, topics in subscriptions.items()}


def numbers(target: frozenset[TopicIdPartition], topic_id: uuid.UUID) -> list[int]:
    return sorted(number for topic, number in target if topic == topic_id)


@by_name
@given(subscriptions=SUBSCRIPTIONS, sizes=SIZES)
def test_every_partition_that_someone_reads_is_assigned_once_to_one_who_reads_it(
    name: str, subscriptions: dict[str, frozenset[uuid.UUID]], sizes: dict[uuid.UUID, int]
) -> None:
    targets = ASSIGN[name](members(subscriptions), sizes)
    assert targets.keys() == subscriptions.keys()
    read = {topic_id for topics in subscriptions.values() for topic_id in topics}
    assigned = [partition for target in targets.values() for partition in target]
    wanted = [
        TopicIdPartition(topic_id, number) for topic_id in read & sizes.keys() for number in range(sizes[topic_id])
    ]
    assert sorted(assigned) == sorted(wanted)
    assert all(topic_id in subscriptions[member] for member, target in targets.items() for topic_id, _ in target)


@by_name
@given(subscriptions=SUBSCRIPTIONS, sizes=SIZES)
def test_nothing_moves_if_nothing_has_changed(
    name: str, subscriptions: dict[str, frozenset[uuid.UUID]], sizes: dict[uuid.UUID, int]
) -> None:
    targets = ASSIGN[name](members(subscriptions), sizes)
    assert ASSIGN[name](members(subscriptions, targets), sizes) == targets


@given(count=st.integers(1, 5), sizes=SIZES)
def test_uniform_gives_members_of_one_subscription_as_many_partitions_give_or_take_one(
    count: int, sizes: dict[uuid.UUID, int]
) -> None:
    targets = uniform(members(dict.fromkeys(IDS[:count], frozenset(sizes))), sizes)
    loads = [len(target) for target in targets.values()]
    assert max(loads) - min(loads) <= 1


@given(before=st.integers(1, 5), after=st.integers(1, 5), sizes=SIZES)
def test_uniform_moves_no_more_than_it_must(before: int, after: int, sizes: dict[uuid.UUID, int]) -> None:
    topics = frozenset(sizes)
    old = uniform(members(dict.fromkeys(IDS[:before], topics)), sizes)
    new = uniform(members(dict.fromkeys(IDS[:after], topics), old), sizes)
    total = sum(sizes.values())
    for name in IDS[: min(before, after)]:
        assert len(old[name] & new[name]) >= min(len(old[name]), total // after)


@pytest.mark.slow
@given(subscriptions=SUBSCRIPTIONS, sizes=SIZES)
def test_uniform_leaves_no_partition_with_a_member_that_has_two_more_than_another_that_reads_it(
    subscriptions: dict[str, frozenset[uuid.UUID]], sizes: dict[uuid.UUID, int]
) -> None:
    targets = uniform(members(subscriptions), sizes)
    for target in targets.values():
        for topic_id, _ in target:
            readers = [member for member, topics in subscriptions.items() if topic_id in topics]
            assert len(target) - min(len(targets[reader]) for reader in readers) <= 1


@given(subscriptions=SUBSCRIPTIONS, sizes=SIZES)
def test_range_gives_every_member_one_range_of_a_topic(
    subscriptions: dict[str, frozenset[uuid.UUID]], sizes: dict[uuid.UUID, int]
) -> None:
    for target in ranges(members(subscriptions), sizes).values():
        for topic_id in sizes:
            mine = numbers(target, topic_id)
            assert mine == list(range(min(mine, default=0), max(mine, default=-1) + 1))


@given(count=st.integers(1, 5), size=st.integers(1, 9))
def test_range_gives_a_member_the_same_numbers_of_topics_of_one_size(count: int, size: int) -> None:
    targets = ranges(members(dict.fromkeys(IDS[:count], frozenset({A, B}))), {A: size, B: size})
    assert all(numbers(target, A) == numbers(target, B) for target in targets.values())


def test_range_keeps_the_order_of_members_that_have_partitions_and_new_ones_follow() -> None:
    topics = frozenset({A})
    old = {"m5": frozenset({TopicIdPartition(A, 0)}), "m4": frozenset({TopicIdPartition(A, 2)})}
    targets = ranges(members({"m1": topics, "m4": topics, "m5": topics}, old), {A: 6})
    assert {name: numbers(target, A) for name, target in targets.items()} == {"m5": [0, 1], "m4": [2, 3], "m1": [4, 5]}


def test_range_lets_static_members_come_first_by_their_instance_ids() -> None:
    topics = frozenset({A})
    given_members = {
        "m1": MemberToAssign(topics),
        "m2": MemberToAssign(topics, instance_id="y"),
        "m3": MemberToAssign(topics, instance_id="x"),
    }
    targets = ranges(given_members, {A: 3})
    assert {name: numbers(target, A) for name, target in targets.items()} == {"m3": [0], "m2": [1], "m1": [2]}


@by_name
def test_partitions_of_topics_that_are_gone_or_not_read_are_not_kept(name: str) -> None:
    old = {"m1": frozenset({TopicIdPartition(A, 0), TopicIdPartition(A, 7), TopicIdPartition(C, 0)})}
    targets = ASSIGN[name](members({"m1": frozenset({A, B})}, old), {A: 2, B: 1})
    assert targets == {"m1": {TopicIdPartition(A, 0), TopicIdPartition(A, 1), TopicIdPartition(B, 0)}}
