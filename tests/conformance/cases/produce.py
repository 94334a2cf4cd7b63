"""How a broker handles batches: invalid ones, timestamps, sizes, versions, acknowledgements."""

import gzip
import struct
import time
import uuid

import crc32c

from dualwrite.ids import NO_PRODUCER, ProducerIdentity
from dualwrite.records.batch import Record, build_batch
from dualwrite.records.header import HEADER_SIZE, BatchFields, iterate_batches
from dualwrite.wire.apis import Message
from tests.conformance.cases import case
from tests.support.conformance.subject import Subject
from tests.support.requests.calls import batch, fetch, produce, produce_request, topic_id, tx_batch

HOUR_MS = 3_600_000
NOBODY = ProducerIdentity(4242, 0)
GOOD = batch([b"value"])


def changed(content: bytes, position: int, layout: str, value: int) -> bytes:
    """``content`` with one field overwritten and the checksum corrected."""
    altered = bytearray(content)
    struct.pack_into(layout, altered, position, value)
    struct.pack_into(">I", altered, 17, crc32c.crc32c(bytes(altered[21:])))
    return bytes(altered)


def attributes(content: bytes, value: int) -> bytes:
    """``content`` with these attributes."""
    return changed(content, 21, ">h", value)


def with_body(content: bytes, body: bytes) -> bytes:
    """``content`` with other bytes for its records."""
    return changed(content[:HEADER_SIZE] + body, 8, ">i", HEADER_SIZE - 12 + len(body))


def note_produced(broker: Subject, step: str, answer: Message) -> None:
    """Note a partition of a Produce answer."""
    broker.note(
        step,
        error=answer.error_code,
        offset=answer.base_offset,
        append_time=broker.moment(answer.log_append_time_ms),
        record_errors=[entry.batch_index for entry in answer.record_errors or []],
    )


UNFIT: dict[str, bytes | None] = {
    "nothing": b"",
    "null": None,
    "rubbish": b"rubbish",
    "half a header": GOOD[:40],
    "cut short": GOOD[:-1],
    "two batches": GOOD + GOOD,
    "trailing bytes": GOOD + b"x",
    "magic 1": GOOD[:16] + b"\x01" + GOOD[17:],
    "magic 0": GOOD[:16] + b"\x00" + GOOD[17:],
    "magic 3": GOOD[:16] + b"\x03" + GOOD[17:],
    "a flipped bit": GOOD[:-3] + bytes([GOOD[-3] ^ 1]) + GOOD[-2:],
    "a wrong checksum": GOOD[:17] + bytes(4) + GOOD[21:],
    "a negative length": changed(GOOD, 8, ">i", -5),
    "a length of zero": changed(GOOD, 8, ">i", 0),
    "a length of the overhead less one": changed(GOOD, 8, ">i", 48),
    "a base offset": changed(GOOD, 0, ">q", 5),
    "a leader epoch": changed(GOOD, 12, ">i", 7),
    "a control batch": attributes(GOOD, 0x20),
    "append time": attributes(GOOD, 0x08),
    "delete horizon": attributes(GOOD, 0x40),
    "an unused attribute": attributes(GOOD, 0x80),
    "no records": changed(GOOD, 57, ">i", 0),
    "a negative number of records": changed(GOOD, 57, ">i", -1),
    "too few offsets": changed(batch([b"a", b"b"]), 23, ">i", 0),
    "too many offsets": changed(GOOD, 23, ">i", 7),
    "negative offsets": changed(GOOD, 23, ">i", -1),
    "fewer records than there are": changed(changed(batch([b"a", b"b"]), 23, ">i", 0), 57, ">i", 1),
    "more records than there are": changed(changed(GOOD, 23, ">i", 1), 57, ">i", 2),
    "a producer without a sequence": batch([b"v"], NOBODY),
    "a producer without an epoch": batch([b"v"], ProducerIdentity(4242, -1), 0),
    "an epoch without a producer": batch([b"v"], ProducerIdentity(-1, 0), -1),
    "a sequence without a producer": batch([b"v"], NO_PRODUCER, 0),
    "a transaction without a producer": attributes(GOOD, 0x10),
    "a transaction without an id": tx_batch([b"v"], NOBODY),
    "an unknown codec": attributes(GOOD, 5),
    "gzip that is none": attributes(GOOD, 1),
    "gzip": with_body(attributes(GOOD, 1), gzip.compress(GOOD[HEADER_SIZE:])),
    "good": GOOD,
}


@case
def batches_that_are_not_fit(broker: Subject) -> None:
    topic = broker.topic()
    for label, content in UNFIT.items():
        client = broker.connect()  # one of its own, as Apache Kafka hangs up on some and leaves others unanswered
        client.give_up_after(2.0)
        try:
            broker.note(label, error=produce(client, topic, content).error_code)
        except ConnectionResetError:
            broker.note(label, closed=True)
        except TimeoutError:
            broker.note(label, answered=False)


@case
def every_version(broker: Subject) -> None:
    topic = broker.topic()
    for version in range(3, 14):
        request = produce_request({(topic, 0): GOOD}, ids={topic: topic_id(broker.client, topic)})
        ((answer,),) = [entry.partition_responses for entry in broker.client.ask(request, version).responses]
        broker.note(f"v{version}", error=answer.error_code, offset=answer.base_offset)


@case
def codecs_and_versions(broker: Subject) -> None:
    topic = broker.topic()
    for version in (6, 7):
        answer = produce(broker.client, topic, attributes(GOOD, 4), version=version)
        broker.note(f"zstd in v{version}", error=answer.error_code)


@case
def acknowledgements(broker: Subject) -> None:
    topic = broker.topic()
    for acks in (-1, 1, 2, -2, 32767):
        note_produced(broker, f"acks {acks}", produce(broker.client, topic, GOOD, acks=acks))


@case
def unknown_places(broker: Subject) -> None:
    topic = broker.topic()
    for label, (name, partition) in {
        "no such topic": ("no-such-topic", 0),
        "no such partition": (topic, 1),
        "a negative partition": (topic, -1),
        "no legal name": ("a topic", 0),
        "no name": ("", 0),
    }.items():
        note_produced(broker, label, produce(broker.client, name, GOOD, partition=partition))
    request = produce_request({("t", 0): GOOD}, ids={"t": uuid.UUID(int=9)})
    broker.note("no such id", error=broker.client.ask(request, 13).responses[0].partition_responses[0].error_code)
    request = produce_request({("t", 0): GOOD}, ids={"t": uuid.UUID(int=0)})
    broker.note("id zero", error=broker.client.ask(request, 13).responses[0].partition_responses[0].error_code)


@case
def a_message_that_is_too_large(broker: Subject) -> None:
    topic = broker.topic()
    overhead = len(batch([b"x" * 1_000_000])) - 1_000_000
    for label, size in {"largest": 1048588, "one more": 1048589}.items():
        note_produced(broker, label, produce(broker.client, topic, batch([b"x" * (size - overhead)])))


@case
def timestamps_of_the_producer(broker: Subject) -> None:
    topic, now = broker.topic(), int(time.time() * 1000)
    for label, timestamp in {
        "none": -1,
        "below none": -2,
        "zero": 0,
        "a year ago": now - 365 * 24 * HOUR_MS,
        "now": now,
        "in half an hour": now + HOUR_MS // 2,
    }.items():
        note_produced(broker, label, produce(broker.client, topic, batch([b"v"], timestamp=timestamp)))


@case
def timestamps_that_a_topic_forbids(broker: Subject) -> None:
    now = int(time.time() * 1000)
    plain, narrow = broker.topic(), broker.topic(message_timestamp_before_max_ms="5000")
    for label, timestamp in {"in two hours": now + 2 * HOUR_MS, "an hour ago": now - HOUR_MS}.items():
        for name, topic in {"by default": plain, "within 5 s": narrow}.items():
            values = [Record(None, b"a", now), Record(None, b"b", timestamp)]
            answer = produce(broker.client, topic, build_batch(values, BatchFields()))
            note_produced(broker, f"{label}, {name}", answer)


@case
def timestamps_of_the_broker(broker: Subject) -> None:
    topic = broker.topic(message_timestamp_type="LogAppendTime")
    note_produced(broker, "append time", produce(broker.client, topic, batch([b"v"], timestamp=1)))
    (header, _), *_ = iterate_batches(fetch(broker.client, topic, 0).records)
    broker.note("kept", append_time=header.has_append_time, maximum=broker.moment(header.max_timestamp))


@case
def compacted_topics_need_keys(broker: Subject) -> None:
    for label, policy in {"compact": "compact", "both": "compact,delete"}.items():
        topic = broker.topic(cleanup_policy=policy)
        keyed = build_batch([Record(b"k", b"v", 1000)], BatchFields())
        mixed = build_batch([Record(b"k", b"v", 1000), Record(None, b"v", 1000)], BatchFields())
        note_produced(broker, f"{label}: a key", produce(broker.client, topic, keyed))
        note_produced(broker, f"{label}: none", produce(broker.client, topic, batch([b"v"])))
        note_produced(broker, f"{label}: one without", produce(broker.client, topic, mixed))


@case
def largest_messages_of_a_topic(broker: Subject) -> None:
    topic = broker.topic(max_message_bytes="200")
    overhead = len(batch([b"x" * 100])) - 100
    for label, size in {"largest": 200, "one more": 201}.items():
        note_produced(broker, label, produce(broker.client, topic, batch([b"x" * (size - overhead)])))


@case
def a_first_timestamp_that_its_maximum_contradicts(broker: Subject) -> None:
    topic = broker.topic()
    now = int(time.time() * 1000)
    good = build_batch([Record(None, b"a", now), Record(None, b"b", now + 5)], BatchFields())
    for label, maximum in {"lower": now, "higher": now + 50, "none": -1}.items():
        note_produced(broker, label, produce(broker.client, topic, changed(good, 35, ">q", maximum)))
    (header, _), *_ = iterate_batches(fetch(broker.client, topic, 0).records or good)
    broker.note("kept", maximum=header.max_timestamp - now)


@case
def several_partitions_succeed_and_fail_by_themselves(broker: Subject) -> None:
    topic = broker.topic(2)
    request = produce_request({(topic, 0): GOOD, (topic, 1): b"rubbish", (topic, 2): GOOD, ("no-such-topic", 0): GOOD})
    for entry in broker.client.ask(request, 9).responses:
        for answer in entry.partition_responses:
            broker.note(f"{broker.show(entry.name)}, {answer.index}", error=answer.error_code)
