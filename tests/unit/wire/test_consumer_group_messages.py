"""The messages of KIP-848: their bytes, what may be null, and that kafka-python's own clients are left alone."""

import uuid
from types import SimpleNamespace
from typing import Any

import pytest
from kafka.protocol import api_header

from dualwrite.wire.apis import (
    APIS,
    ApiKey,
    ConsumerGroupDescribeResponse,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from dualwrite.wire.codec import read_body, read_request_head, read_response, write_request, write_response

HEARTBEAT, DESCRIBE = ApiKey.CONSUMER_GROUP_HEARTBEAT, ApiKey.CONSUMER_GROUP_DESCRIBE
TOPIC = uuid.UUID(int=7)


def sent(message: Any, version: int) -> Any:
    """What a broker reads of a request."""
    frame = write_request(HEARTBEAT, version, 1, "c", message)
    head, position = read_request_head(frame)
    assert (head.api_key, head.version, head.client_id) == (HEARTBEAT, version, "c")
    return read_body(ConsumerGroupHeartbeatRequest, version, frame, position)


def heartbeat(**fields: object) -> Any:
    return ConsumerGroupHeartbeatRequest(
        **{"group_id": "g", "member_id": "m", "member_epoch": 5, "rebalance_timeout_ms": -1, **fields}
    )


@pytest.mark.parametrize("version", [0, 1])
def test_a_heartbeat_that_says_nothing_new_is_short(version: int) -> None:
    read = sent(heartbeat(), version)
    assert (read.group_id, read.member_id, read.member_epoch, read.rebalance_timeout_ms) == ("g", "m", 5, -1)
    optional = ("instance_id", "rack_id", "subscribed_topic_names", "server_assignor", "topic_partitions")
    assert [getattr(read, name) for name in optional] == [None] * 5
    assert read.subscribed_topic_regex is None
    body = write_request(HEARTBEAT, version, 1, "c", heartbeat())[len(write_head(version)) :]
    nulls = 5 if version == 0 else 6
    assert body == b"\x02g\x02m" + (5).to_bytes(4, "big") + bytes(2) + b"\xff" * 4 + bytes(nulls - 2) + b"\x00"


def write_head(version: int) -> bytes:
    """The bytes before a request's body."""
    return HEARTBEAT.to_bytes(2, "big") + version.to_bytes(2, "big") + (1).to_bytes(4, "big") + b"\x00\x01c\x00"


def test_a_heartbeat_may_say_everything() -> None:
    owned = ConsumerGroupHeartbeatRequest.TopicPartitions(topic_id=TOPIC, partitions=[0, 2])
    everything = {
        "instance_id": "i",
        "rack_id": "r",
        "rebalance_timeout_ms": 9,
        "subscribed_topic_names": ["a", "b"],
        "subscribed_topic_regex": "a.*",
        "server_assignor": "range",
    }
    read = sent(heartbeat(**everything, topic_partitions=[owned]), 1)
    assert {name: getattr(read, name) for name in everything} == everything
    assert [(topic.topic_id, topic.partitions) for topic in read.topic_partitions] == [(TOPIC, [0, 2])]


def test_an_empty_list_is_not_null() -> None:
    read = sent(heartbeat(subscribed_topic_names=[], topic_partitions=[]), 1)
    assert (read.subscribed_topic_names, read.topic_partitions) == ([], [])


@pytest.mark.parametrize("partitions", [None, [], [0, 1]])
def test_an_answer_has_an_assignment_or_none(partitions: list[int] | None) -> None:
    response = ConsumerGroupHeartbeatResponse
    assignment = None
    if partitions is not None:
        topics = [response.Assignment.TopicPartitions(topic_id=TOPIC, partitions=partitions)] if partitions else []
        assignment = response.Assignment(topic_partitions=topics)
    answer = response(
        throttle_time_ms=0, error_code=0, member_id="m", member_epoch=5, heartbeat_interval_ms=3, assignment=assignment
    )
    frame = write_response(HEARTBEAT, 1, 7, answer)
    read = read_response(HEARTBEAT, 1, frame)
    assert (read.member_id, read.member_epoch, read.heartbeat_interval_ms) == ("m", 5, 3)
    if partitions is None:
        assert read.assignment is None
        assert frame.endswith(b"\xff\x00")
    else:
        assert [topic.partitions for topic in read.assignment.topic_partitions] == ([partitions] if partitions else [])


@pytest.mark.parametrize(("version", "kind"), [(0, -1), (1, 1)])
def test_a_described_member_has_both_assignments_and_from_v1_on_its_type(version: int, kind: int) -> None:
    group = ConsumerGroupDescribeResponse.DescribedGroup
    assignment = group.Member.Assignment

    def of(*partitions: int) -> Any:
        topic = assignment.TopicPartitions(topic_id=TOPIC, topic_name="t", partitions=list(partitions))
        return assignment(topic_partitions=[topic])

    member = group.Member(
        member_id="m",
        member_epoch=5,
        client_id="c",
        client_host="/h",
        subscribed_topic_names=["t"],
        subscribed_topic_regex="",
        assignment=of(0),
        target_assignment=of(0, 1),
        member_type=1,
    )
    described = group(
        error_code=0,
        group_id="g",
        group_state="Stable",
        group_epoch=5,
        assignment_epoch=5,
        assignor_name="range",
        members=[member],
    )
    answer = ConsumerGroupDescribeResponse(throttle_time_ms=0, groups=[described])
    (read,) = read_response(DESCRIBE, version, write_response(DESCRIBE, version, 7, answer)).groups
    (seen,) = read.members
    assert (read.group_state, read.assignor_name, seen.subscribed_topic_names) == ("Stable", "range", ["t"])
    assert [topic.partitions for topic in seen.assignment.topic_partitions] == [[0]]
    assert [topic.partitions for topic in seen.target_assignment.topic_partitions] == [[0, 1]]
    assert (seen.member_type, read.authorized_operations) == (kind, -(2**31))


@pytest.mark.parametrize("key", [HEARTBEAT, DESCRIBE])
def test_the_messages_are_of_two_versions_which_are_flexible(key: ApiKey) -> None:
    for message in APIS[key]:
        assert key == message.API_KEY
        assert [message.flexible_version_q(version) for version in (0, 1)] == [True, True]
        assert message.max_version == 1


@pytest.mark.parametrize("key", [HEARTBEAT, DESCRIBE])
def test_kafka_pythons_own_clients_know_no_such_response(key: ApiKey) -> None:
    header = SimpleNamespace(request_api_key=int(key), request_api_version=0)
    assert api_header.ResponseClassRegistry.get_response_class(header) is None
