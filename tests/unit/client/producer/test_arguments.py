"""confluent-kafka's arguments, as the native producer's engine takes them."""

from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
from confluent_kafka import Consumer, TopicPartition

from dualwrite.client.producer.arguments import member_of, offsets_of
from dualwrite.client.protocol.requests import CommittedOffset, GroupMember

BASIS = {"bootstrap.servers": "one:1,two:2", "transactional.id": "app-0"}


class OffsetPosition(NamedTuple):
    topic: str
    partition: int
    offset: int


@pytest.mark.parametrize("given", [None, 5, TopicPartition("in", 0, 5), [("in", 0, 5)], ["in"], [None]])
def test_invalid_positions_are_refused(given: Any) -> None:
    with pytest.raises(TypeError, match=r"position.*confluent_kafka\.TopicPartition"):
        offsets_of(given)


def test_positions_without_an_offset_are_left_out() -> None:
    positions = [
        TopicPartition("t", 0, 5, "note", leader_epoch=3),
        TopicPartition("t", 1),
        OffsetPosition("u", 2, 7),
        OffsetPosition("u", 3, -1),
    ]
    assert offsets_of(positions) == [CommittedOffset("t", 0, 5, 3, "note"), CommittedOffset("u", 2, 7)]


@pytest.mark.parametrize("instance", [None, "instance-1"])
def test_the_group_metadata_of_a_librdkafka_consumer_are_read(instance: str | None) -> None:
    static = {"group.instance.id": instance} if instance else {}
    quiet = {"bootstrap.servers": "127.0.0.1:1", "log_level": 0}
    consumer = Consumer({**quiet, "group.id": "my group", **static})
    assert member_of(consumer.consumer_group_metadata()) == GroupMember("my group", -1, "", instance)
    consumer.close()


def test_group_metadata_of_a_member_are_read() -> None:
    written = b"CGMDv2:" + (7).to_bytes(4, "little") + b"g\0member-1\0\1"
    assert member_of(written) == GroupMember("g", 7, "member-1", None)


def test_a_groups_name_alone_is_enough() -> None:
    assert member_of("g") == member_of(GroupMember("g")) == GroupMember("g", -1, "", None)


@pytest.mark.parametrize("given", [None, 7, b"something else"])
def test_invalid_group_metadata_is_refused(given: Any) -> None:
    with pytest.raises(TypeError, match="consumer_group_metadata"):
        member_of(given)


def test_what_a_position_does_not_have_is_left_to_the_broker_and_offset_zero_is_an_offset() -> None:
    positions = [
        SimpleNamespace(topic="t", partition=0, offset=0, leader_epoch=0, metadata="m"),
        SimpleNamespace(topic="t", partition=1, offset=5, leader_epoch=None, metadata=None),
    ]
    assert offsets_of(positions) == [CommittedOffset("t", 0, 0, 0, "m"), CommittedOffset("t", 1, 5, -1, "")]
