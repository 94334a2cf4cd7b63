"""Administration by every client: groups, and the offsets that they have committed."""

from collections.abc import Callable

import pytest

from tests.support.peer_clients import client as ability
from tests.support.peer_clients.client import Administrator, Receiver, RefusedError, Sender
from tests.support.peer_clients.reading import read, values
from tests.support.requests.calls import unique
from tests.support.waiting import eventually

Producer = Callable[..., Sender]
Consumer = Callable[..., Receiver]


@pytest.fixture
def group() -> str:
    return unique("group")


@pytest.fixture
def member(topic: str, group: str, producer: Producer, consumer: Consumer) -> Receiver:
    """A member of ``group`` that has read ``topic``, ten records, and has committed position 6."""
    sender = producer()
    for number in range(10):
        sender.send(topic, b"%d" % number)
    sender.flush()
    receiver = consumer(group=group)
    receiver.subscribe([topic])
    assert len(read(receiver, 10)) == 10
    receiver.commit({(topic, 0): 6})
    return receiver


def test_a_group_is_listed_and_described(topic: str, group: str, member: Receiver, admin: Administrator) -> None:
    assert group in admin.groups()
    assert (admin.group_state(group), admin.group_members(group)) == ("STABLE", 1)
    assert admin.group_offsets(group) == {(topic, 0): 6}
    member.close()
    assert eventually(lambda: admin.group_state(group), lambda state: state == "EMPTY") == "EMPTY"
    assert admin.group_members(group) == 0


@pytest.mark.needs(ability.GROUP_DELETION)
def test_a_group_is_deleted_once_it_is_empty(
    topic: str, group: str, member: Receiver, admin: Administrator, consumer: Consumer
) -> None:
    with pytest.raises(RefusedError, match=r"(?i)non_?empty_?group"):
        admin.delete_group(group)
    member.close()
    eventually(lambda: admin.group_state(group), lambda state: state == "EMPTY")
    admin.delete_group(group)
    assert group not in admin.groups()
    with pytest.raises(RefusedError, match=r"(?i)group_?id_?not_?found"):
        admin.delete_group(group)
    successor = consumer(group=group)
    successor.subscribe([topic])
    assert values(read(successor, 10))[0] == b"0"  # what it had committed is gone too


@pytest.mark.needs(ability.OFFSET_ALTERATION)
def test_offsets_of_an_empty_group_are_altered(
    topic: str, group: str, member: Receiver, admin: Administrator, consumer: Consumer
) -> None:
    with pytest.raises(RefusedError, match=r"(?i)unknown_?member_?id|non_?empty_?group"):
        admin.alter_group_offsets(group, {(topic, 0): 2})
    member.close()
    eventually(lambda: admin.group_state(group), lambda state: state == "EMPTY")
    admin.alter_group_offsets(group, {(topic, 0): 2})
    assert admin.group_offsets(group) == {(topic, 0): 2}
    successor = consumer(group=group)
    successor.subscribe([topic])
    assert values(read(successor, 8))[0] == b"2"


@pytest.mark.needs(ability.OFFSET_DELETION)
def test_offsets_are_deleted_only_of_topics_without_subscribers(
    topic: str, group: str, member: Receiver, admin: Administrator
) -> None:
    with pytest.raises(RefusedError, match=r"(?i)group_?subscribed_?to_?topic"):
        admin.delete_group_offsets(group, [(topic, 0)])
    member.close()
    eventually(lambda: admin.group_state(group), lambda state: state == "EMPTY")
    admin.delete_group_offsets(group, [(topic, 0)])
    assert admin.group_offsets(group) == {}
