"""A consumer's assignment as bytes, and requests for a group."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dualwrite.client.protocol.group_requests import assigned_partitions, commit_offsets, committed_offsets
from dualwrite.client.protocol.requests import CommittedOffset
from dualwrite.client.protocol.topic_requests import (
    partition_addition,
    settings_change,
    topic_creation,
    topic_deletion,
    topic_settings,
)
from dualwrite.ids import TopicPartition
from dualwrite.wire.codec import write_request

ASSIGNMENTS = st.dictionaries(
    st.text("abc-", min_size=1, max_size=5), st.lists(st.integers(0, 9), max_size=4), max_size=3
)


def written(assignment: dict[str, list[int]]) -> bytes:
    """ConsumerProtocolAssignment v0, with user data."""
    data = struct.pack(">hi", 0, len(assignment))
    for topic, partitions in assignment.items():
        data += struct.pack(">h", len(topic)) + topic.encode()
        data += struct.pack(f">i{len(partitions)}i", len(partitions), *partitions)
    return data + struct.pack(">i", 2) + b"xy"


@given(ASSIGNMENTS)
def test_an_assignment_is_read_as_it_was_written(assignment: dict[str, list[int]]) -> None:
    expected = [TopicPartition(topic, index) for topic, indexes in assignment.items() for index in indexes]
    assert assigned_partitions(written(assignment)) == expected


def test_a_member_without_an_assignment_has_no_partitions() -> None:
    assert assigned_partitions(b"") == []


@given(st.binary(min_size=1, max_size=40))
def test_other_bytes_are_a_value_error_or_partitions(data: bytes) -> None:
    try:
        partitions = assigned_partitions(data)
    except ValueError:
        return
    assert all(isinstance(partition, TopicPartition) for partition in partitions)


def test_an_assignment_that_leads_backwards_ends_the_reading() -> None:
    backwards = struct.pack(">hihi", 0, 2**31 - 1, -6, 0) + bytes(20)
    with pytest.raises(ValueError, match="negative size"):
        assigned_partitions(backwards)


def test_an_assignment_that_is_cut_off_is_an_error() -> None:
    with pytest.raises(ValueError, match="not a consumer's"):
        assigned_partitions(written({"orders": [1, 2]})[:20])


def test_offsets_are_committed_by_topic() -> None:
    offsets = [CommittedOffset("a", 0, 5), CommittedOffset("b", 0, 6), CommittedOffset("a", 1, 7)]
    call = commit_offsets("g", offsets)
    assert call.cap is not None
    for version in range(call.floor, call.cap + 1):
        frame = write_request(call.api_key, version, 1, "", call.message)
        assert b"g" in frame
    topics = {topic.name: [entry.committed_offset for entry in topic.partitions] for topic in call.message.topics}
    assert topics == {"a": [5, 7], "b": [6]}
    assert (call.message.generation_id_or_member_epoch, call.message.member_id) == (-1, "")


def test_stable_offsets_need_the_version_that_knows_them() -> None:
    assert committed_offsets("g", stable=True).floor == committed_offsets("g", stable=True).cap == 7
    assert committed_offsets("g", stable=False).floor == 2


def test_offsets_are_asked_for_by_topic_or_all() -> None:
    asked = committed_offsets(
        "g", [TopicPartition("a", 0), TopicPartition("b", 3), TopicPartition("a", 1)], stable=True
    )
    assert {topic.name: topic.partition_indexes for topic in asked.message.topics} == {"a": [0, 1], "b": [3]}
    assert b"g" in write_request(asked.api_key, 7, 1, "", asked.message)
    assert committed_offsets("g", stable=True).message.topics is None


def test_what_would_be_answered_differently_the_second_time_is_not_repeated() -> None:
    assert not topic_creation("a").repeatable
    assert not topic_deletion("a").repeatable
    assert not partition_addition("a", 3).repeatable


def test_what_only_looks_or_sets_may_be_repeated() -> None:
    validating = topic_creation("a", validates=True)
    assert (validating.message.validate_only, validating.floor, validating.repeatable) == (True, 5, True)
    assert not topic_creation("a").message.validate_only
    assert topic_creation("a").floor == 4, "an older broker has no numbers of its own (KIP-464)"
    assert settings_change("a", {}).repeatable
    assert topic_settings(["a"]).repeatable


def test_a_change_names_the_settings_that_it_sets() -> None:
    call = settings_change("a", {"retention.ms": "1"})
    (resource,) = call.message.resources
    (entry,) = resource.configs
    assert (resource.resource_type, resource.resource_name) == (2, "a")
    assert (entry.name, entry.value, entry.config_operation) == ("retention.ms", "1", 0)
    assert not call.message.validate_only


def test_partitions_are_added_up_to_a_total() -> None:
    (topic,) = partition_addition("a", 3).message.topics
    assert (topic.name, topic.count, topic.assignments) == ("a", 3, None)


def test_the_settings_of_several_topics_are_one_request() -> None:
    assert [each.resource_name for each in topic_settings(["a", "b"]).message.resources] == ["a", "b"]
