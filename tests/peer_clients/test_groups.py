"""Consumer groups of every client: commits, rebalances, static members, positions in transactions."""

from collections.abc import Callable

import pytest

from tests.support.peer_clients import client as ability
from tests.support.peer_clients.client import Got, PeerAdministrator, PeerRefusedError, PeerSender, Receiver
from tests.support.peer_clients.reading import read, read_to_end, read_until, values
from tests.support.requests.calls import unique
from tests.support.waiting import eventually

Producer = Callable[..., PeerSender]
Consumer = Callable[..., Receiver]

PARTITIONS = 4


@pytest.fixture
def topic(admin: PeerAdministrator, producer: Producer) -> str:
    """A topic of four partitions with ten records each."""
    name = unique("topic")
    admin.create_topic(name, PARTITIONS)
    sender = producer()
    for number in range(10 * PARTITIONS):
        sender.send(name, b"%d" % number, partition=number % PARTITIONS)
    sender.flush()
    return name


@pytest.fixture
def group() -> str:
    return unique("group")


def places(topic: str) -> set[tuple[str, int]]:
    return {(topic, index) for index in range(PARTITIONS)}


def share(*members: Receiver) -> dict[Receiver, list[Got]]:
    """Poll all members until each has partitions, and together they have all; what they got."""
    got: dict[Receiver, list[Got]] = {member: [] for member in members}

    def shared() -> bool:
        assigned = [member.assignment() for member in members]
        return all(assigned) and sum(map(len, assigned)) == PARTITIONS

    read_until(shared, got)
    assert shared()
    return got


def test_a_member_alone_reads_everything_and_its_successor_goes_on(topic: str, group: str, consumer: Consumer) -> None:
    first = consumer(group=group)
    first.subscribe([topic])
    assert len(read(first, 40)) == 40
    assert first.assignment() == places(topic)
    first.commit(dict.fromkeys(places(topic), 7))
    first.close()
    second = consumer(group=group)
    second.subscribe([topic])
    assert sorted(values(read(second, 12))) == sorted(b"%d" % number for number in range(28, 40))


def test_a_commit_without_positions_is_of_where_the_consumer_is(topic: str, group: str, consumer: Consumer) -> None:
    member = consumer(group=group)
    member.subscribe([topic])
    read(member, 40)
    member.commit()
    assert {member.committed(place) for place in places(topic)} == {10}


@pytest.mark.needs(ability.ASYNC_COMMIT)
def test_an_asynchronous_commit_arrives(topic: str, group: str, consumer: Consumer) -> None:
    member = consumer(group=group)
    member.subscribe([topic])
    read(member, 40)
    member.commit_async({(topic, 2): 5})

    def committed() -> int | None:
        member.poll(0.05)  # kafka-python sends it here
        return member.committed((topic, 2))

    assert eventually(committed, lambda offset: offset is not None) == 5
    assert member.committed((topic, 1)) is None


def test_two_members_share_and_the_one_that_stays_takes_over(topic: str, group: str, consumer: Consumer) -> None:
    first, second = consumer(group=group), consumer(group=group)
    first.subscribe([topic])
    read(first, 40)
    second.subscribe([topic])
    share(first, second)
    assert first.assignment() | second.assignment() == places(topic)
    first.close()
    read_until(lambda: second.assignment() == places(topic), {second: []})
    assert second.assignment() == places(topic)


@pytest.mark.slow
@pytest.mark.needs(ability.COOPERATIVE)
def test_cooperative_members_keep_what_they_need_not_give_up(topic: str, group: str, consumer: Consumer) -> None:
    first, second = (consumer(group=group, cooperative=True) for _ in range(2))
    first.subscribe([topic])
    read(first, 40)
    second.subscribe([topic])
    seen: set[int] = set()

    def shared() -> bool:
        seen.add(len(first.assignment()))
        return len(first.assignment()) == len(second.assignment()) == PARTITIONS // 2

    read_until(shared, {first: [], second: []})
    assert first.assignment() | second.assignment() == places(topic)
    assert 0 not in seen  # an eager member gives everything up in between


@pytest.mark.needs(ability.STATIC_MEMBERS)
def test_a_static_member_comes_back_to_its_partitions(
    topic: str, group: str, consumer: Consumer, admin: PeerAdministrator
) -> None:
    stays, goes = consumer(group=group, instance="stays"), consumer(group=group, instance="goes")
    stays.subscribe([topic])
    read(stays, 40)
    goes.subscribe([topic])
    share(stays, goes)
    kept, left = stays.assignment(), goes.assignment()
    goes.close()
    assert admin.group_members(group) == 2  # it is not missed before its session ends
    back = consumer(group=group, instance="goes")
    back.subscribe([topic])
    read_until(lambda: bool(back.assignment()), {stays: [], back: []})
    assert (stays.assignment(), back.assignment()) == (kept, left)


def test_a_member_that_is_thrown_out_may_not_commit(topic: str, group: str, consumer: Consumer) -> None:
    stranger = consumer(group=group)
    stranger.assign(list(places(topic)))
    member = consumer(group=group)
    member.subscribe([topic])
    read(member, 40)
    with pytest.raises(PeerRefusedError, match=r"(?i)unknown_?member_?id|commit_?failed"):
        stranger.commit({(topic, 0): 3})


# --- positions in transactions


@pytest.mark.needs(ability.TRANSACTIONS)
@pytest.mark.parametrize("commit", [True, False])
def test_positions_are_committed_with_the_transaction_or_not_at_all(
    topic: str, group: str, producer: Producer, consumer: Consumer, admin: PeerAdministrator, commit: bool
) -> None:
    target = unique("target")
    admin.create_topic(target)
    member = consumer(group=group, committed_only=True)
    member.subscribe([topic])
    read(member, 40)
    sender = producer(transactional_id=unique("tx"))
    sender.init_transactions()
    sender.begin()
    sender.send(target, b"v")
    sender.send_offsets(dict.fromkeys(places(topic), 10), member)
    sender.flush()
    if commit:
        sender.commit()
    else:
        sender.abort()
    assert {member.committed(place) for place in places(topic)} == ({10} if commit else {None})
    written = values(read_to_end(consumer(committed_only=True), (target, 0)))
    assert written == ([b"v"] if commit else [])


@pytest.mark.slow
@pytest.mark.needs(ability.TRANSACTIONS, ability.FENCED_BY_MEMBER)
def test_positions_of_a_member_of_the_past_are_refused(
    topic: str, group: str, producer: Producer, consumer: Consumer
) -> None:
    member = consumer(group=group)
    member.subscribe([topic])
    read(member, 40)
    sender = producer(transactional_id=unique("tx"))
    sender.init_transactions()
    sender.begin()
    sender.send(topic, b"v")
    zombie = FormerMember(member)
    member.close()
    successor = consumer(group=group)
    successor.subscribe([topic])
    read(successor, 40)
    with pytest.raises(PeerRefusedError, match=r"(?i)unknown_?member_?id|illegal_?generation|commit_?failed"):
        sender.send_offsets({(topic, 0): 3}, zombie)  # type: ignore[arg-type]
    sender.abort()
    assert successor.committed((topic, 0)) is None


class FormerMember:
    """A member as it was: its generation and its member id."""

    def __init__(self, member: Receiver) -> None:
        self._metadata = member.metadata()  # type: ignore[attr-defined]

    def metadata(self) -> object:
        """As it was."""
        return self._metadata
