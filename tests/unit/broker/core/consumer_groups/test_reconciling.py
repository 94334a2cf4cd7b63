"""The reconciliation of one member: what it holds next, by table and for any goal."""

import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dualwrite.broker.core.consumer_groups.reconciling import Goal, reconcile
from dualwrite.broker.facts.assignments import TopicIdPartition
from dualwrite.broker.facts.consumer_groups import MemberAssigned, MemberState

A, B = uuid.UUID(int=1), uuid.UUID(int=2)
STABLE, UNREVOKED, UNRELEASED = (
    MemberState.STABLE,
    MemberState.UNREVOKED_PARTITIONS,
    MemberState.UNRELEASED_PARTITIONS,
)

partitions = st.builds(TopicIdPartition, st.sampled_from([A, B]), st.integers(0, 3))
some = st.frozensets(partitions, max_size=6)


def of(*numbers: int, topic: uuid.UUID = A) -> frozenset[TopicIdPartition]:
    return frozenset(TopicIdPartition(topic, number) for number in numbers)


def held(partitions_held: frozenset[TopicIdPartition], epoch: int = 2) -> dict[TopicIdPartition, int]:
    return dict.fromkeys(partitions_held, epoch)


def member(
    state: MemberState,
    assigned: frozenset[TopicIdPartition] = frozenset(),
    revoking: frozenset[TopicIdPartition] = frozenset(),
    epoch: int = 2,
) -> MemberAssigned:
    return MemberAssigned("g", "m", epoch, epoch - 1, state, held(assigned), held(revoking))


def goal(
    target: frozenset[TopicIdPartition],
    owned: frozenset[TopicIdPartition] | None = None,
    others: frozenset[TopicIdPartition] = frozenset(),
    epoch: int = 5,
    topics: frozenset[uuid.UUID] = frozenset({A, B}),
) -> Goal:
    return Goal(epoch, target, topics, owned, others)


@pytest.mark.parametrize(
    ("current", "wanted", "state", "epoch", "assigned", "revoking"),
    [
        pytest.param(member(STABLE), goal(of(0, 1)), STABLE, 5, of(0, 1), of(), id="a new member gets free partitions"),
        pytest.param(member(STABLE, of(0)), goal(of(0)), STABLE, 5, of(0), of(), id="only the epoch changes"),
        pytest.param(
            member(STABLE, of(0)), goal(of(0), epoch=2), STABLE, 2, of(0), of(), id="nothing changes in its own epoch"
        ),
        pytest.param(
            member(STABLE, of(0, 1)), goal(of(0), of(0, 1)), UNREVOKED, 2, of(0), of(1), id="it has to give one up"
        ),
        pytest.param(
            member(STABLE, of(0, 1)), goal(of(0)), UNREVOKED, 2, of(0), of(1), id="it does not say what it holds"
        ),
        pytest.param(
            member(STABLE, of(0, 1)), goal(of(0), of(0)), STABLE, 5, of(0), of(), id="it has given one up already"
        ),
        pytest.param(
            member(STABLE, of(0)),
            goal(of(0, 1), of(0), of(1)),
            UNRELEASED,
            5,
            of(0),
            of(),
            id="it waits for one that another holds",
        ),
        pytest.param(
            member(STABLE, of(0)),
            goal(of(1, 2), of(), of(1)),
            UNRELEASED,
            5,
            of(2),
            of(),
            id="it gets one and waits for another",
        ),
        pytest.param(
            member(UNREVOKED, of(0), of(1)),
            goal(of(0, 2), of(0, 1)),
            UNREVOKED,
            2,
            of(0),
            of(1),
            id="it still holds what it has to give up",
        ),
        pytest.param(
            member(UNREVOKED, of(0), of(1)),
            goal(of(0, 2), of(0)),
            STABLE,
            5,
            of(0, 2),
            of(),
            id="it has given up, and gets another",
        ),
        pytest.param(
            member(UNREVOKED, of(0), of(1)),
            goal(of(1), of(0)),
            UNREVOKED,
            2,
            of(),
            of(0),
            id="the target has changed meanwhile",
        ),
        pytest.param(
            member(UNREVOKED, of(0), of(1)),
            goal(of(0, 1), of(0)),
            STABLE,
            5,
            of(0, 1),
            of(),
            id="it gets back what it has given up",
        ),
        pytest.param(
            member(UNRELEASED, of(0), epoch=5),
            goal(of(0, 1), of(0), of(1)),
            UNRELEASED,
            5,
            of(0),
            of(),
            id="it still waits",
        ),
        pytest.param(
            member(UNRELEASED, of(0), epoch=5), goal(of(0, 1), of(0)), STABLE, 5, of(0, 1), of(), id="the wait is over"
        ),
        pytest.param(
            member(STABLE, of(0) | of(0, topic=B)),
            goal(of(0) | of(0, topic=B), of(0) | of(0, topic=B), topics=frozenset({A})),
            UNREVOKED,
            2,
            of(0),
            of(0, topic=B),
            id="the topic of a target is not read any more",
        ),
        pytest.param(
            member(UNREVOKED, of(0) | of(0, topic=B), of(1)),
            goal(of(0) | of(0, topic=B), of(0, 1), topics=frozenset({A})),
            UNREVOKED,
            2,
            of(0),
            of(1) | of(0, topic=B),
            id="it has to give up more while it gives up",
        ),
    ],
)
def test_what_a_member_holds_next(
    current: MemberAssigned,
    wanted: Goal,
    state: MemberState,
    epoch: int,
    assigned: frozenset[TopicIdPartition],
    revoking: frozenset[TopicIdPartition],
) -> None:
    found = reconcile(current, wanted)
    assert (found.state, found.epoch) == (state, epoch)
    assert (found.assigned.keys(), found.revoking.keys()) == (assigned, revoking)


def test_a_partition_has_the_epoch_in_which_the_member_got_it() -> None:
    found = reconcile(member(STABLE, of(0)), goal(of(0, 1), of(0)))
    assert found.assigned == {TopicIdPartition(A, 0): 2, TopicIdPartition(A, 1): 5}
    again = reconcile(found, goal(of(0, 1), of(0, 1), epoch=6))
    assert (again.epoch, again.assigned) == (6, found.assigned)


def test_the_epoch_before_is_that_of_the_last_answer() -> None:
    assert reconcile(member(STABLE), goal(of(0))).previous_epoch == 2
    assert reconcile(member(STABLE, of(0)), goal(of(), of(0))).previous_epoch == 2


currents = st.builds(
    lambda state, assigned, revoking: member(
        state if revoking - assigned else STABLE, assigned, revoking - assigned if state is UNREVOKED else of()
    ),
    st.sampled_from(MemberState),
    some,
    some,
)


@given(
    current=currents, target=some, owned=st.none() | some, others=some, topics=st.frozensets(st.sampled_from([A, B]))
)
def test_whatever_the_goal_a_member_takes_nothing_from_others_and_gives_nothing_up_silently(
    current: MemberAssigned,
    target: frozenset[TopicIdPartition],
    owned: frozenset[TopicIdPartition] | None,
    others: frozenset[TopicIdPartition],
    topics: frozenset[uuid.UUID],
) -> None:
    before = current.assigned.keys() | current.revoking.keys()
    wanted = goal(target, owned, others - before, topics=topics)
    found = reconcile(current, wanted)
    after = found.assigned.keys() | found.revoking.keys()
    assert not after & wanted.held_by_others
    assert not found.assigned.keys() & found.revoking.keys()
    assert after - before <= target
    said_to_hold = before if owned is None else before & owned
    assert said_to_hold - after == frozenset(), "what the client holds stays its own until it says otherwise"
    assert found.epoch in (current.epoch, wanted.epoch)
    assert (found.epoch == wanted.epoch) == (found.state is not UNREVOKED)


@given(current=currents, target=some, others=some)
def test_a_client_that_follows_reaches_its_target(
    current: MemberAssigned, target: frozenset[TopicIdPartition], others: frozenset[TopicIdPartition]
) -> None:
    before = current.assigned.keys() | current.revoking.keys()
    blocked = others - before
    for _ in range(3):
        current = reconcile(current, goal(target, frozenset(current.assigned), blocked))
    assert current.assigned.keys() == target - blocked
    assert current.state is (UNRELEASED if target & blocked else STABLE)
    done = reconcile(current, goal(target, frozenset(current.assigned)))
    assert (done.assigned.keys(), done.state, done.epoch) == (target, STABLE, 5)
    assert reconcile(done, goal(target, frozenset(done.assigned))) == done
