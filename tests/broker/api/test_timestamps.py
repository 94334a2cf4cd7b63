"""Whose clock stamps records: the client's within bounds, or the broker's."""

import time

import pytest
from confluent_kafka import (
    TIMESTAMP_CREATE_TIME,
    TIMESTAMP_LOG_APPEND_TIME,
    Consumer,
    Message,
    Producer,
    TopicPartition,
)

from dualwrite.broker.embedded import EmbeddedBroker
from dualwrite.records.batch import Record, build_batch
from dualwrite.records.header import HEADER_SIZE, checksum_matches, peek_header, rebuild_batch
from dualwrite.wire.error_codes import ErrorCode
from tests.support.peer_clients.consumers import CONSUMER
from tests.support.requests.calls import MAX_TIMESTAMP, batch, fetch, list_offset, new_topic, produce
from tests.support.requests.raw_client import RawClient
from tests.support.waiting import PATIENCE_SECONDS

HOUR = 3_600_000


def wall_ms() -> int:
    return time.time_ns() // 1_000_000


def read_one(servers: str, topic: str) -> Message:
    consumer = Consumer({"bootstrap.servers": servers, **CONSUMER})
    try:
        consumer.assign([TopicPartition(topic, 0, 0)])
        (message,) = consumer.consume(1, PATIENCE_SECONDS)
    finally:
        consumer.close()
    assert message.error() is None
    return message


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_the_brokers_clock_stamps_the_batches_of_clients(
    client: RawClient, shared_broker: EmbeddedBroker, codec: str
) -> None:
    topic = new_topic(client, message_timestamp_type="LogAppendTime")
    servers = shared_broker.bootstrap_servers
    before = wall_ms()
    producer = Producer({"bootstrap.servers": servers, "compression.type": codec})
    producer.produce(topic, b"value " * 50, partition=0, timestamp=5)
    assert producer.flush(PATIENCE_SECONDS) == 0
    kind, timestamp = read_one(servers, topic).timestamp()
    assert kind == TIMESTAMP_LOG_APPEND_TIME
    assert before <= timestamp <= wall_ms()
    answer = list_offset(client, topic, before)
    assert (answer.offset, answer.timestamp) == (0, timestamp)


def test_the_append_time_is_answered_and_in_the_batch(client: RawClient) -> None:
    topic = new_topic(client, message_timestamp_type="LogAppendTime")
    answer = produce(client, topic, batch([b"a", b"b"], timestamp=5))
    assert answer.error_code == ErrorCode.NONE
    content = fetch(client, topic).records
    header = peek_header(content)
    assert (header.has_append_time, header.max_timestamp) == (True, answer.log_append_time_ms)
    assert checksum_matches(header, content)


def test_a_clients_own_time_stays(client: RawClient, shared_broker: EmbeddedBroker) -> None:
    topic = new_topic(client)
    answer = produce(client, topic, batch([b"a"], timestamp=5))
    assert answer.log_append_time_ms == -1
    assert read_one(shared_broker.bootstrap_servers, topic).timestamp() == (TIMESTAMP_CREATE_TIME, 5)


def test_records_beyond_the_bounds_are_named(client: RawClient) -> None:
    topic = new_topic(client, message_timestamp_before_max_ms="60000")
    now = wall_ms()
    records = [Record(None, b"now", now), Record(None, b"old", now - HOUR), Record(None, b"future", now + 2 * HOUR)]
    answer = produce(client, topic, build_batch(records))
    assert (answer.error_code, answer.base_offset) == (ErrorCode.INVALID_TIMESTAMP, -1)
    assert [entry.batch_index for entry in answer.record_errors] == [1, 2]
    assert "timestamp" in answer.error_message
    assert produce(client, topic, build_batch(records[:1])).error_code == ErrorCode.NONE


def test_a_record_is_found_by_time_although_its_batch_has_no_highest_timestamp(client: RawClient) -> None:
    topic, now = new_topic(client), wall_ms()
    plain = build_batch([Record(None, b"first", now), Record(None, b"second", now + 5)])
    left_out = rebuild_batch(peek_header(plain)._replace(max_timestamp=-1), plain[HEADER_SIZE:])
    assert produce(client, topic, left_out).error_code == ErrorCode.NONE
    found = list_offset(client, topic, now + 1)
    assert (found.offset, found.timestamp) == (1, now + 5)
    highest = list_offset(client, topic, MAX_TIMESTAMP)
    assert (highest.offset, highest.timestamp) == (1, now + 5)


def test_a_record_without_a_key_is_refused_by_a_compacted_topic(client: RawClient) -> None:
    topic = new_topic(client, cleanup_policy="compact")
    answer = produce(client, topic, batch([b"no key"]))
    assert answer.error_code == ErrorCode.INVALID_RECORD
    assert [entry.batch_index for entry in answer.record_errors] == [0]
    assert produce(client, topic, build_batch([Record(b"k", b"v")])).error_code == ErrorCode.NONE
