"""Subscriptions and assignments of consumers: as kafka-python writes and reads them, and damaged ones."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.protocol.consumer import ConsumerProtocolAssignment

from dualwrite.broker.core.consumer_protocol import (
    ConsumerSubscription,
    read_assignment,
    read_subscription,
    read_topics,
    write_assignment,
)
from dualwrite.ids import TopicPartition

T0, T1, U5 = TopicPartition("t", 0), TopicPartition("t", 1), TopicPartition("u", 5)

V0 = bytes.fromhex("0000 00000002 0001 74 0001 75 00000002 ffff")
OWNED = bytes.fromhex("00000001 0001 74 00000002 00000000 00000001")
V1 = b"\x00\x01" + V0[2:] + OWNED
V2 = b"\x00\x02" + V0[2:] + OWNED + bytes.fromhex("00000007")
V3 = b"\x00\x03" + V0[2:] + OWNED + bytes.fromhex("00000007 0004") + b"rack"
V4 = b"\x00\x04" + V3[2:] + b"what is not known"


@pytest.mark.parametrize(
    ("data", "subscription"),
    [
        (V0, ConsumerSubscription(0, ("t", "u"))),
        (V1, ConsumerSubscription(1, ("t", "u"), frozenset({T0, T1}))),
        (V2, ConsumerSubscription(2, ("t", "u"), frozenset({T0, T1}), 7)),
        (V3, ConsumerSubscription(3, ("t", "u"), frozenset({T0, T1}), 7, "rack")),
        (V3[:-6] + b"\xff\xff", ConsumerSubscription(3, ("t", "u"), frozenset({T0, T1}), 7)),
        (V4, ConsumerSubscription(4, ("t", "u"), frozenset({T0, T1}), 7, "rack")),
        (bytes.fromhex("0000 ffffffff ffffffff"), ConsumerSubscription(0, ())),
    ],
)
def test_a_subscription_of_every_version_is_read(data: bytes, subscription: ConsumerSubscription) -> None:
    assert read_subscription(data) == subscription
    assert read_topics(data) == set(subscription.topics)


@pytest.mark.parametrize("data", [V0, V1, V2, V3])
def test_a_subscription_that_is_cut_short_is_refused(data: bytes) -> None:
    for size in range(len(data)):
        with pytest.raises(ValueError, match=r"short|size"):
            read_subscription(data[:size])


@pytest.mark.parametrize(
    "data", [b"\xff\xff" + V0[2:], struct.pack(">hi", 0, 2**31 - 1), V0[:6] + b"\xff\xfe" + V0[8:]]
)
def test_numbers_that_cannot_be_are_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"version|short"):
        read_subscription(data)


def test_an_assignment_is_read_with_the_word_of_the_assignor() -> None:
    written = ConsumerProtocolAssignment(0, [("t", [0, 1]), ("u", [5])], b"mine").encode()
    assignment = read_assignment(written)
    assert (assignment.partitions, assignment.user_data) == ({T0, T1, U5}, b"mine")
    assert read_assignment(b"").partitions == frozenset()
    with pytest.raises(ValueError, match="short"):
        read_assignment(written[:-1])


@given(st.integers(0, 9), st.frozensets(st.builds(TopicPartition, st.text("ab", min_size=1), st.integers(0, 99))))
def test_an_assignment_is_read_as_it_was_written(version: int, partitions: frozenset[TopicPartition]) -> None:
    data = write_assignment(version, partitions)
    assert read_assignment(data).partitions == partitions
    assert data[:2] == min(version, 3).to_bytes(2, "big")


def test_clients_read_what_the_broker_assigns() -> None:
    read = ConsumerProtocolAssignment.decode(write_assignment(0, {T0, T1, U5}))
    assert sorted(map(tuple, read.partitions())) == [T0, T1, U5]
