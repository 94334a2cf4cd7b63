"""confluent-kafka's arguments, as the native producer's engine takes them."""

from functools import partial
from typing import Any, NamedTuple

import pytest
from confluent_kafka import Consumer, TopicPartition

from dualwrite.client.config.native_config import NativeConfig
from dualwrite.client.engine.contract import EngineSettings
from dualwrite.client.engine.coordinator_calls import CommittedOffset, GroupMember
from dualwrite.client.producer.arguments import (
    checked_on_delivery,
    checked_partition,
    checked_timestamp,
    encoded,
    encoded_headers,
    member_of,
    offsets_of,
    settings_of,
)
from dualwrite.records.compression import Codec

BASIS = {"bootstrap.servers": "one:1,two:2", "transactional.id": "app-0"}


class Position(NamedTuple):
    topic: str
    partition: int
    offset: int


@pytest.mark.parametrize(
    ("given", "wanted"),
    [(None, None), (b"x", b"x"), ("ü", "ü".encode()), (bytearray(b"x"), b"x"), (memoryview(b"x"), b"x"), ("", b"")],
)
def test_text_is_utf_8_and_bytes_are_what_they_are(given: Any, wanted: bytes | None) -> None:
    assert encoded(given) == wanted


def test_what_is_neither_text_nor_bytes_is_refused() -> None:
    with pytest.raises(TypeError, match="type int: give bytes, text or None"):
        encoded(7)


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        (None, ()),
        ({}, ()),
        ({"a": "1", "b": None}, [("a", b"1"), ("b", None)]),
        ([("a", b"1"), ("a", "2")], [("a", b"1"), ("a", b"2")]),
    ],
)
def test_headers_are_pairs(given: Any, wanted: Any) -> None:
    assert encoded_headers(given) == wanted


def test_a_headers_name_that_is_not_text_is_refused() -> None:
    with pytest.raises(TypeError, match="name of type bytes: give text"):
        encoded_headers([(b"a", b"1")])  # type: ignore[list-item]


@pytest.mark.parametrize("given", [0, 1, 2**63 - 1])
def test_a_timestamp_is_milliseconds_in_64_bits(given: int) -> None:
    assert checked_timestamp(given) == given


@pytest.mark.parametrize(
    ("given", "error"), [(-1, ValueError), (2**63, ValueError), (2**70, ValueError), (1.5, TypeError), ("1", TypeError)]
)
def test_a_timestamp_that_no_record_can_have_is_refused(given: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match="timestamp"):
        checked_timestamp(given)


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        (3, "headers of type int: give pairs"),
        ("ab", "headers of type str: give pairs"),
        ([("a", "b", "c")], r"header \('a', 'b', 'c'\): give a pair"),
        ([b"ab"], "header b'ab': give a pair"),
        ({"h": 7}, "header 'h': a value of type int: give bytes, text or None"),
    ],
)
def test_what_are_no_headers_is_refused_in_words(given: Any, complaint: str) -> None:
    with pytest.raises(TypeError, match=complaint):
        encoded_headers(given)


@pytest.mark.parametrize("given", [{"\ud800": "x"}, {"x": "\ud800"}])
def test_a_header_that_has_no_utf_8_form_is_refused(given: dict[str, str]) -> None:
    with pytest.raises(ValueError, match=r"text that has no UTF-8 form \(surrogates not allowed\)"):
        encoded_headers(given)


@pytest.mark.parametrize("given", [-1, 0, 2**31 - 1, TopicPartition("t", 5).partition])
def test_a_partition_is_a_whole_number_in_32_bits_or_the_partitioners(given: int) -> None:
    assert checked_partition(given) == given


@pytest.mark.parametrize(
    ("given", "error"),
    [("0", TypeError), (None, TypeError), (0.5, TypeError), (True, TypeError), (-2, ValueError), (2**31, ValueError)],
)
def test_a_partition_that_no_topic_can_have_is_refused(given: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match="partition"):
        checked_partition(given)


class Awaited:
    async def __call__(self, _error: Any, _record: Any) -> None:
        """Nobody awaits it."""


@pytest.mark.parametrize("given", [5, "f", Awaited(), Awaited.__call__, partial(Awaited.__call__, None)])
def test_what_cannot_be_called_back_is_refused(given: Any) -> None:
    with pytest.raises(TypeError, match="on_delivery"):
        checked_on_delivery(given)


@pytest.mark.parametrize("given", [print, [].append, partial(print, "x"), lambda error, record: None])
def test_what_can_be_called_can_be_called_back(given: Any) -> None:
    assert checked_on_delivery(given) is given


@pytest.mark.parametrize("given", [None, 5, TopicPartition("in", 0, 5), [("in", 0, 5)], ["in"], [None]])
def test_what_are_no_positions_is_refused(given: Any) -> None:
    with pytest.raises(TypeError, match=r"position.*confluent_kafka\.TopicPartition"):
        offsets_of(given)


def test_positions_without_an_offset_are_left_out() -> None:
    positions = [
        TopicPartition("t", 0, 5, "note", leader_epoch=3),
        TopicPartition("t", 1),
        Position("u", 2, 7),
        Position("u", 3, -1),
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
def test_what_is_no_group_metadata_is_refused(given: Any) -> None:
    with pytest.raises(TypeError, match="consumer_group_metadata"):
        member_of(given)


def test_every_setting_of_the_engine_comes_from_the_configuration() -> None:
    given = {
        **BASIS,
        "compression.type": "zstd",
        "compression.level": 5,
        "partitioner": "murmur2",
        "sticky.partitioning.linger.ms": 0,
        "linger.ms": 7,
        "batch.size": 1234,
        "batch.num.messages": 12,
        "message.max.bytes": 5000,
        "queue.buffering.max.kbytes": 64,
        "queue.buffering.max.messages": 99,
        "max.in.flight": 3,
        "socket.timeout.ms": 11000,
        "request.timeout.ms": 12000,
        "delivery.timeout.ms": 13000,
        "topic.metadata.propagation.max.ms": 14000,
        "retries": 4,
        "retry.backoff.ms": 15,
        "retry.backoff.max.ms": 160,
        "reconnect.backoff.ms": 17,
        "reconnect.backoff.max.ms": 180,
        "topic.metadata.refresh.interval.ms": 19000,
        "connections.max.idle.ms": 20000,
        "allow.auto.create.topics": False,
    }
    config = NativeConfig.of(given)
    assert settings_of(config) == EngineSettings(
        bootstrap=config.client.bootstrap,
        transactional_id="app-0",
        transaction_timeout_ms=2147483647,
        codec=Codec.ZSTD,
        compression_level=5,
        partitioner="murmur2",
        is_sticky=False,
        linger=0.007,
        batch_size=1234,
        batch_records=12,
        max_message_bytes=5000,
        buffer_bytes=65536,
        buffer_records=99,
        max_in_flight=3,
        request_timeout=11.0,
        ack_timeout_ms=12000,
        delivery_timeout=13.0,
        operation_timeout=13.0,
        topic_propagation=14.0,
        retries=4,
        retry_backoff=0.015,
        retry_backoff_max=0.16,
        reconnect_backoff=0.017,
        reconnect_backoff_max=0.18,
        metadata_max_age=19.0,
        max_idle=20.0,
        allow_auto_create_topics=False,
    )


def test_nothing_but_the_addresses_and_the_id_is_needed() -> None:
    made = settings_of(NativeConfig.of(BASIS))
    assert made.two_phase_commit
    assert made.linger is None
