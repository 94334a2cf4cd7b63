"""ListOffsets: where a partition begins and ends for each kind of reader, and where a moment is in it."""

import pytest

from dualwrite.wire.error_codes import ErrorCode
from tests.support.requests.calls import (
    EARLIEST,
    LATEST,
    MAX_TIMESTAMP,
    batch,
    end,
    list_offset,
    new_producer,
    new_topic,
    open_transaction,
    produce,
    unique,
)
from tests.support.requests.raw_client import RawClient

EARLIEST_LOCAL = -4


def stamped(client: RawClient, *timestamps: int) -> str:
    """A topic with one batch of two records for each timestamp."""
    topic = new_topic(client)
    for timestamp in timestamps:
        produce(client, topic, batch([b"a", b"b"], timestamp=timestamp))
    return topic


def found(client: RawClient, topic: str, timestamp: int, **more: bool) -> tuple[int, int]:
    """Timestamp and offset that are answered."""
    answer = list_offset(client, topic, timestamp, **more)
    assert answer.error_code == ErrorCode.NONE
    return answer.timestamp, answer.offset


@pytest.mark.parametrize("version", range(1, 12))
def test_both_ends_are_found_in_every_version(client: RawClient, version: int) -> None:
    topic = stamped(client, 1000)
    assert list_offset(client, topic, EARLIEST, version=version).offset == 0
    assert list_offset(client, topic, LATEST, version=version).offset == 2
    assert list_offset(client, topic, 1000, version=version).timestamp == 1000


def test_the_latest_offset_depends_on_the_isolation(client: RawClient) -> None:
    topic, transactional_id = stamped(client, 1000), unique("tx")
    producer = new_producer(client, transactional_id)
    open_transaction(client, transactional_id, producer, {(topic, 0): [b"open"]})
    assert found(client, topic, LATEST) == (-1, 3)
    assert found(client, topic, LATEST, committed=True) == (-1, 2)
    end(client, transactional_id, producer)
    assert found(client, topic, LATEST, committed=True) == (-1, 4)


@pytest.mark.parametrize(
    ("timestamp", "expected"),
    [(0, (10, 0)), (10, (10, 0)), (11, (30, 2)), (21, (30, 2)), (31, (40, 6)), (41, (-1, -1))],
)
def test_a_moment_is_found_as_the_first_record_at_or_after_it(
    client: RawClient, timestamp: int, expected: tuple[int, int]
) -> None:
    assert found(client, stamped(client, 10, 30, 20, 40), timestamp) == expected


def test_a_moment_in_an_open_transaction_is_hidden_from_committed_readers(client: RawClient) -> None:
    topic, transactional_id = stamped(client, 10), unique("tx")
    open_transaction(client, transactional_id, new_producer(client, transactional_id), {(topic, 0): [b"open"]})
    assert found(client, topic, 11) == (1000, 2)
    assert found(client, topic, 11, committed=True) == (-1, -1)


def test_the_highest_timestamp_is_found(client: RawClient) -> None:
    assert found(client, stamped(client, 10, 50, 20), MAX_TIMESTAMP) == (50, 2)


def test_an_empty_partition_has_ends_and_nothing_else(client: RawClient) -> None:
    topic = new_topic(client)
    assert found(client, topic, EARLIEST) == found(client, topic, LATEST) == (-1, 0)
    assert found(client, topic, EARLIEST_LOCAL) == (-1, 0)
    assert found(client, topic, MAX_TIMESTAMP) == found(client, topic, 5) == (-1, -1)


def test_invalid_look_ups_are_refused(client: RawClient) -> None:
    topic = new_topic(client)
    assert list_offset(client, topic, LATEST, partition=4).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert list_offset(client, unique("missing"), LATEST).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert list_offset(client, topic, -7, version=11).error_code == ErrorCode.UNSUPPORTED_VERSION


@pytest.mark.parametrize(("timestamp", "first"), [(-5, 9), (-6, 11)])
def test_offsets_of_tiered_storage_are_answered_with_minus_one(client: RawClient, timestamp: int, first: int) -> None:
    topic = new_topic(client)
    produce(client, topic, batch([b"v"]))
    for version in range(1, 12):
        found = list_offset(client, topic, timestamp, version=version)
        error = ErrorCode.NONE if version >= first else ErrorCode.UNSUPPORTED_VERSION
        assert (found.error_code, found.offset, found.timestamp) == (error, -1, -1)
