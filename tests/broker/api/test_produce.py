"""Produce: every check of a batch, acknowledgements, several partitions, and bytes that come back as they were sent."""

import asyncio
import struct
import uuid
from typing import Any

import crc32c
import pytest
from confluent_kafka import Producer

from dualwrite.broker.api.records.produce import handle
from dualwrite.broker.embedded import EmbeddedBroker
from dualwrite.ids import ProducerIdentity
from dualwrite.records.compression import Codec
from dualwrite.records.header import iterate_batches
from dualwrite.testing.files import MemoryFiles
from dualwrite.wire.error_codes import ErrorCode
from tests.support.broker.simulated import TOPIC, Rooms, everybody_may, run
from tests.support.peer_clients.consumers import consume
from tests.support.requests.calls import (
    batch,
    fetch,
    metadata,
    new_producer,
    new_topic,
    produce,
    produce_request,
    read_all,
    topic_id,
    tx_batch,
)
from tests.support.requests.raw_client import RawClient
from tests.support.waiting import eventually

NOBODY = ProducerIdentity(4242, 0)


def changed(content: bytes, position: int, layout: str, value: int) -> bytes:
    """``content`` with one field overwritten and the checksum corrected."""
    altered = bytearray(content)
    struct.pack_into(layout, altered, position, value)
    struct.pack_into(">I", altered, 17, crc32c.crc32c(bytes(altered[21:])))
    return bytes(altered)


def with_attributes(content: bytes, attributes: int) -> bytes:
    return changed(content, 21, ">h", attributes)


@pytest.mark.parametrize("version", range(3, 14))
def test_a_batch_is_appended_in_every_version(client: RawClient, version: int) -> None:
    name = new_topic(client)
    request = produce_request({(name, 0): batch([b"a", b"b"])}, ids={name: topic_id(client, name)})
    offsets = [client.ask(request, version).responses[0].partition_responses[0].base_offset for _ in range(2)]
    assert offsets == [0, 2]
    assert read_all(client, name) == [b"a", b"b", b"a", b"b"]


@pytest.mark.parametrize("acks", [1, -1])
def test_acknowledged_records_are_visible_at_once(client: RawClient, acks: int) -> None:
    name = new_topic(client)
    answer = produce(client, name, batch([b"v"]), acks=acks)
    assert (answer.error_code, answer.base_offset, answer.log_start_offset) == (ErrorCode.NONE, 0, 0)
    assert read_all(client, name) == [b"v"]


def test_a_produce_request_with_acks_0_gets_no_answer_and_the_next_request_does(client: RawClient) -> None:
    name = new_topic(client)
    for value in (b"a", b"b"):
        client.send(produce_request({(name, 0): batch([value])}, acks=0), 9)
    assert metadata(client, name).topics[0].error_code == ErrorCode.NONE
    assert eventually(lambda: read_all(client, name), lambda seen: len(seen) == 2) == [b"a", b"b"]


def test_records_with_acks_0_become_visible_without_a_waiting_request() -> None:
    async def main() -> int:
        rooms = await Rooms(MemoryFiles()).with_topic(1)
        broker: Any = everybody_may(rooms)
        request = produce_request({(TOPIC, 0): batch([b"v"])}, acks=0)
        assert await handle(request, 9, broker) is None
        for _ in range(50):
            await asyncio.sleep(0)
        shown = rooms.partition(0).state.high_watermark
        await rooms.flusher.close()
        return shown

    assert run(main()) == 1


def test_an_error_without_acknowledgements_closes_the_connection(shared_broker: EmbeddedBroker) -> None:
    with RawClient(shared_broker.bootstrap_servers) as client:
        client.send(produce_request({("no-such-topic", 0): batch([b"v"])}, acks=0), 9)
        assert client.read_to_end() == b""


@pytest.mark.parametrize("acks", [2, -2, 32767])
def test_other_acknowledgements_are_refused(client: RawClient, acks: int) -> None:
    name = new_topic(client)
    assert produce(client, name, batch([b"v"]), acks=acks).error_code == ErrorCode.INVALID_REQUIRED_ACKS
    assert read_all(client, name) == []


def test_partitions_of_one_request_succeed_and_fail_by_themselves(client: RawClient) -> None:
    first, second = new_topic(client, partitions=3), new_topic(client)
    request = produce_request(
        {
            (first, 0): batch([b"0"]),
            (first, 2): batch([b"2"]),
            (first, 3): batch([b"none"]),
            (second, 0): b"rubbish",
            ("missing", 0): batch([b"none"]),
        }
    )
    answers = {
        (topic.name, entry.index): entry.error_code
        for topic in client.ask(request, 9).responses
        for entry in topic.partition_responses
    }
    assert answers == {
        (first, 0): ErrorCode.NONE,
        (first, 2): ErrorCode.NONE,
        (first, 3): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        (second, 0): ErrorCode.INVALID_RECORD,
        ("missing", 0): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }
    assert [read_all(client, first, index) for index in range(3)] == [[b"0"], [], [b"2"]]


def test_an_unknown_topic_id_is_refused(client: RawClient) -> None:
    request = produce_request({("t", 0): batch([b"v"])}, ids={"t": uuid.UUID(int=9)})
    (answer,) = client.ask(request, 13).responses[0].partition_responses
    assert answer.error_code == ErrorCode.UNKNOWN_TOPIC_ID


GOOD = batch([b"value"])
REFUSALS: dict[str, tuple[bytes | None, ErrorCode]] = {
    "nothing": (b"", ErrorCode.INVALID_RECORD),
    "null": (None, ErrorCode.INVALID_RECORD),
    "rubbish": (b"rubbish", ErrorCode.INVALID_RECORD),
    "half a header": (GOOD[:40], ErrorCode.INVALID_RECORD),
    "cut short": (GOOD[:-1], ErrorCode.INVALID_RECORD),
    "two batches": (GOOD + GOOD, ErrorCode.INVALID_RECORD),
    "trailing bytes": (GOOD + b"x", ErrorCode.INVALID_RECORD),
    "old magic": (GOOD[:16] + b"\x01" + GOOD[17:], ErrorCode.INVALID_RECORD),
    "new magic": (GOOD[:16] + b"\x03" + GOOD[17:], ErrorCode.CORRUPT_MESSAGE),
    "a base offset": (changed(GOOD, 0, ">q", 5), ErrorCode.INVALID_RECORD),
    "a flipped bit": (GOOD[:-3] + bytes([GOOD[-3] ^ 1]) + GOOD[-2:], ErrorCode.CORRUPT_MESSAGE),
    "a wrong checksum": (GOOD[:17] + bytes(4) + GOOD[21:], ErrorCode.CORRUPT_MESSAGE),
    "a negative length": (changed(GOOD, 8, ">i", -5), ErrorCode.CORRUPT_MESSAGE),
    "a control batch": (with_attributes(GOOD, 0x20), ErrorCode.INVALID_RECORD),
    "append time": (with_attributes(GOOD, 0x08), ErrorCode.INVALID_TIMESTAMP),
    "delete horizon": (with_attributes(GOOD, 0x40), ErrorCode.INVALID_RECORD),
    "no records": (changed(GOOD, 57, ">i", 0), ErrorCode.INVALID_RECORD),
    "too few offsets": (changed(batch([b"a", b"b"]), 23, ">i", 0), ErrorCode.INVALID_RECORD),
    "too many offsets": (changed(GOOD, 23, ">i", 7), ErrorCode.INVALID_RECORD),
    "negative offsets": (changed(GOOD, 23, ">i", -1), ErrorCode.INVALID_RECORD),
    "records that are not there": (
        changed(changed(GOOD, 23, ">i", 2**31 - 2), 57, ">i", 2**31 - 1),
        ErrorCode.INVALID_RECORD,
    ),
    "a producer without a sequence": (batch([b"v"], NOBODY), ErrorCode.INVALID_RECORD),
    "a producer without an epoch": (batch([b"v"], ProducerIdentity(1, -1), 0), ErrorCode.INVALID_RECORD),
    "a transaction without a producer": (with_attributes(GOOD, 0x10), ErrorCode.INVALID_RECORD),
    "an unknown codec": (with_attributes(GOOD, 5), ErrorCode.UNSUPPORTED_COMPRESSION_TYPE),
    "a transaction without an id": (tx_batch([b"v"], NOBODY), ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED),
}


@pytest.mark.parametrize(("content", "error"), REFUSALS.values(), ids=REFUSALS.keys())
def test_a_batch_that_is_not_fit_is_refused(client: RawClient, content: bytes | None, error: ErrorCode) -> None:
    name = new_topic(client)
    answer = produce(client, name, content)
    assert (answer.error_code, answer.base_offset) == (error, -1)
    assert read_all(client, name) == []
    assert produce(client, name, GOOD).base_offset == 0


def test_zstd_needs_a_version_that_knows_it(client: RawClient) -> None:
    name, content = new_topic(client), with_attributes(GOOD, 4)
    assert produce(client, name, content, version=6).error_code == ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
    assert produce(client, name, content, version=7).error_code == ErrorCode.NONE


def test_a_batch_may_have_exactly_the_size_that_the_topic_allows(client: RawClient) -> None:
    content = batch([b"x" * 500])
    fits, small = (new_topic(client, max_message_bytes=str(len(content) - less)) for less in (0, 1))
    assert produce(client, fits, content).error_code == ErrorCode.NONE
    refused = produce(client, small, content)
    assert refused.error_code == ErrorCode.MESSAGE_TOO_LARGE
    assert str(len(content)) in refused.error_message


def test_the_brokers_limit_holds_where_the_topic_has_none(client: RawClient) -> None:
    name = new_topic(client)
    assert produce(client, name, batch([b"x" * 1_048_400])).error_code == ErrorCode.NONE
    assert produce(client, name, batch([b"x" * 1_048_600])).error_code == ErrorCode.MESSAGE_TOO_LARGE


@pytest.mark.parametrize("codec", range(5))
def test_a_compressed_batch_comes_back_byte_for_byte(client: RawClient, codec: int) -> None:
    name = new_topic(client)
    content = with_attributes(batch([b"opaque " * 20, b"to the broker"]), codec)
    for _ in range(2):
        assert produce(client, name, content).error_code == ErrorCode.NONE
    stored = [bytes(part) for _, part in iterate_batches(fetch(client, name).records)]
    # only the base offset and the leader epoch are the broker's, and the checksum covers neither
    assert [part[16:] for part in stored] == [content[16:], content[16:]]
    assert [part[:8] for part in stored] == [struct.pack(">q", 0), struct.pack(">q", 2)]


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_consumers_read_the_compressed_batches_of_producers(
    client: RawClient, shared_broker: EmbeddedBroker, codec: str
) -> None:
    name = new_topic(client)
    values = [b"%d " % number * 50 for number in range(300)]
    producer = Producer(
        {"bootstrap.servers": shared_broker.bootstrap_servers, "compression.type": codec, "linger.ms": 5}
    )
    for value in values:
        producer.produce(name, value)
    assert producer.flush(20) == 0
    headers = [header for header, _ in iterate_batches(fetch(client, name).records)]
    assert {header.compression for header in headers} == {["none", "gzip", "snappy", "lz4", "zstd"].index(codec)}
    assert consume(shared_broker.bootstrap_servers, name)[0] == values


def test_a_topic_with_a_codec_of_its_own_stores_it_and_knows_a_batch_that_comes_again(
    client: RawClient, shared_broker: EmbeddedBroker
) -> None:
    name, producer = new_topic(client, compression_type="zstd"), new_producer(client)
    content = batch([b"many times the same " * 50] * 20, producer, 0)
    for _ in range(2):
        answer = produce(client, name, content)
        assert (answer.error_code, answer.base_offset) == (ErrorCode.NONE, 0)
    ((header, _),) = iterate_batches(fetch(client, name).records)
    assert (header.compression, header.producer, header.record_count) == (Codec.ZSTD, producer, 20)
    assert header.size < len(content) / 10
    assert consume(shared_broker.bootstrap_servers, name)[0] == [b"many times the same " * 50] * 20


def test_requests_that_are_sent_without_waiting_are_answered_in_order(client: RawClient) -> None:
    name = new_topic(client)
    sent = [client.send(produce_request({(name, 0): batch([b"%d" % number])}), 9) for number in range(50)]
    answers = [client.receive_frame() for _ in sent]
    assert [struct.unpack_from(">i", frame)[0] for frame in answers] == sent
    assert read_all(client, name) == [b"%d" % number for number in range(50)]
