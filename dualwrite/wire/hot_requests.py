"""Hand-written decoders of requests that come thousands of times a second: Produce v9 to v12, EndTxn v0 to v5, and
AddPartitionsToTxn v0 to v2.

The results have the attributes of kafka-python's messages, so that handlers accept both. kafka-python decodes requests
in an unusual form (with tagged fields or nulls), and reports the error of malformed ones.
"""

import struct
from typing import NamedTuple

from dualwrite.records.varint import decode_unsigned_varint

_PRODUCE, _ADD_PARTITIONS, _END_TXN = 0, 24, 26
_PRODUCE_VERSIONS, _END_VERSIONS = range(9, 13), range(3, 6)
_PLAIN_VERSIONS = range(3)
"""The versions of EndTxn and AddPartitionsToTxn before the flexible ones; librdkafka sends these."""
_ACKS_AND_TIMEOUT = struct.Struct(">hi")
_INDEX = struct.Struct(">i")
_SIZE = struct.Struct(">h")
_PRODUCER_AND_RESULT = struct.Struct(">qhBB")
_PLAIN_PRODUCER_AND_RESULT = struct.Struct(">qhB")
_PRODUCER_AND_COUNT = struct.Struct(">qhi")


class ProducedData(NamedTuple):
    """The records for one partition: a view of the frame, valid as long as the frame's content."""

    index: int  # type: ignore[assignment]  # tuple.index is not used on it
    records: memoryview


class ProducedTopicData(NamedTuple):
    """The data for one topic."""

    name: str
    partition_data: list[ProducedData]
    topic_id: None = None


class Produce(NamedTuple):
    """A Produce request."""

    transactional_id: str | None
    acks: int
    timeout_ms: int
    topic_data: list[ProducedTopicData]


class EndTxn(NamedTuple):
    """An EndTxn request."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    committed: bool


class AddedTopicPartitions(NamedTuple):
    """The partitions of one topic that a transaction needs."""

    name: str
    partitions: list[int]


class AddPartitionsToTxn(NamedTuple):
    """An AddPartitionsToTxn request of one transaction."""

    v3_and_below_transactional_id: str
    v3_and_below_producer_id: int
    v3_and_below_producer_epoch: int
    v3_and_below_topics: list[AddedTopicPartitions]


HotRequest = Produce | EndTxn | AddPartitionsToTxn


def read_hot_request(api_key: int, version: int, frame: bytearray | memoryview, position: int) -> HotRequest | None:
    """The body of a request frame from ``position`` on; None if it is not one of these three in their common form."""
    try:
        if api_key == _PRODUCE and version in _PRODUCE_VERSIONS:
            return _read_produce(memoryview(frame), position)
        if api_key == _END_TXN and version in _END_VERSIONS:
            return _read_end_txn(frame, position)
        if api_key == _END_TXN and version in _PLAIN_VERSIONS:
            return _read_plain_end_txn(frame, position)
        if api_key == _ADD_PARTITIONS and version in _PLAIN_VERSIONS:
            return _read_add_partitions(frame, position)
    except (IndexError, ValueError, struct.error):
        return None
    return None


def _read_produce(frame: memoryview, position: int) -> Produce | None:
    size, position = decode_unsigned_varint(frame, position)
    transactional_id = None
    if size:
        transactional_id = str(frame[position : position + size - 1], "utf-8")
        position += size - 1
    acks, timeout_ms = _ACKS_AND_TIMEOUT.unpack_from(frame, position)
    topics, position = decode_unsigned_varint(frame, position + _ACKS_AND_TIMEOUT.size)
    topic_data = []
    for _ in range(topics - 1):
        size, position = decode_unsigned_varint(frame, position)
        end = position + size - 1
        partitions, position = decode_unsigned_varint(frame, end)
        if not size or not partitions:  # null, here and below
            return None
        topic = ProducedTopicData(str(frame[end - size + 1 : end], "utf-8"), [])
        for _ in range(partitions - 1):
            (index,) = _INDEX.unpack_from(frame, position)
            size, position = decode_unsigned_varint(frame, position + _INDEX.size)
            end = position + size - 1
            if not size or frame[end]:
                return None
            topic.partition_data.append(ProducedData(index, frame[position:end]))
            position = end + 1
        if frame[position]:
            return None
        topic_data.append(topic)
        position += 1
    is_whole = topics > 0 and position + 1 == len(frame) and not frame[position]
    return Produce(transactional_id, acks, timeout_ms, topic_data) if is_whole else None


def _read_end_txn(frame: bytearray | memoryview, position: int) -> EndTxn | None:
    size, position = decode_unsigned_varint(frame, position)
    end = position + size - 1
    if not size or end + _PRODUCER_AND_RESULT.size != len(frame):
        return None
    producer_id, epoch, committed, tags = _PRODUCER_AND_RESULT.unpack_from(frame, end)
    if tags:
        return None
    return EndTxn(str(frame[position:end], "utf-8"), producer_id, epoch, bool(committed))


def _read_plain_end_txn(frame: bytearray | memoryview, position: int) -> EndTxn | None:
    transactional_id, position = _plain_string(frame, position)
    if position + _PLAIN_PRODUCER_AND_RESULT.size != len(frame):
        return None
    producer_id, epoch, committed = _PLAIN_PRODUCER_AND_RESULT.unpack_from(frame, position)
    return EndTxn(transactional_id, producer_id, epoch, bool(committed))


def _read_add_partitions(frame: bytearray | memoryview, position: int) -> AddPartitionsToTxn | None:
    transactional_id, position = _plain_string(frame, position)
    producer_id, epoch, count = _PRODUCER_AND_COUNT.unpack_from(frame, position)
    position += _PRODUCER_AND_COUNT.size
    if count < 0:  # null, here and below
        return None
    topics = []
    for _ in range(count):
        name, position = _plain_string(frame, position)
        (size,) = _INDEX.unpack_from(frame, position)
        position += _INDEX.size
        end = position + max(size, 0) * _INDEX.size
        if size < 0 or end > len(frame):
            return None
        topics.append(AddedTopicPartitions(name, [index for (index,) in _INDEX.iter_unpack(frame[position:end])]))
        position = end
    return AddPartitionsToTxn(transactional_id, producer_id, epoch, topics) if position == len(frame) else None


def _plain_string(frame: bytearray | memoryview, position: int) -> tuple[str, int]:
    """The string at ``position`` in a version that is not flexible, and the position after it.

    :raises ValueError: if it is null.
    """
    (size,) = _SIZE.unpack_from(frame, position)
    begin = position + _SIZE.size
    if size < 0:
        raise ValueError("null")
    return str(frame[begin : begin + size], "utf-8"), begin + size
