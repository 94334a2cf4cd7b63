"""Hand-written decoders of requests that come thousands of times a second: Produce v9 to v12 and EndTxn v3 to v5.

The results have the attributes of kafka-python's messages, so that handlers accept both. kafka-python decodes requests
in an unusual form (with tagged fields or nulls), and reports the error of malformed ones.
"""

import struct
from typing import NamedTuple

from dualwrite.records.varint import decode_unsigned_varint

_PRODUCE, _END_TXN = 0, 26
_PRODUCE_VERSIONS, _END_VERSIONS = range(9, 13), range(3, 6)
_ACKS_AND_TIMEOUT = struct.Struct(">hi")
_INDEX = struct.Struct(">i")
_PRODUCER_AND_RESULT = struct.Struct(">qhBB")


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


def read_hot_request(
    api_key: int, version: int, frame: bytearray | memoryview, position: int
) -> Produce | EndTxn | None:
    """The body of a request frame from ``position`` on; None if it is not one of these two in their common form."""
    try:
        if api_key == _PRODUCE and version in _PRODUCE_VERSIONS:
            return _read_produce(memoryview(frame), position)
        if api_key == _END_TXN and version in _END_VERSIONS:
            return _read_end_txn(frame, position)
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
