"""Hand-written messages of a transactional producer for every unit of work, compatible with kafka-python's.

The requests have the two methods of kafka-python's messages that ``codec.write_request`` uses, and the responses have
the attributes of kafka-python's. With one record for each unit of work, they halve the client's computing time.
"""

import struct
from collections.abc import Sequence
from typing import Any, NamedTuple
from uuid import UUID

from dualwrite.records.varint import decode_unsigned_varint, encode_unsigned_varint

_ACKS_AND_TIMEOUT = struct.Struct(">hi")
_INDEX = struct.Struct(">i")
_NO_TAGS = b"\x00"
_THREE_TAG_BUFFERS = b"\x00\x00\x00"
_ONE = b"\x02"
"""The length of a compact array with one element."""
_ALL_REPLICAS = -1
_VERSION = 12
_END_VERSION = 5
_PRODUCE, _END_TXN = 0, 26
_PRODUCER_AND_RESULT = struct.Struct(">qh?")
_PRODUCED = struct.Struct(">ihqqq")
_ENDED = struct.Struct(">ihqh")
_NOTHING_MORE = b"\x01\x00\x00"
"""After a partition's fixed fields: no record errors, no message, no tags."""
_TAGS_OF_HEAD = 4
_FLEXIBLE_HEAD = 5


class ProduceBatch(NamedTuple):
    """One batch of a request, with its partition."""

    topic: str
    partition: int
    data: bytes


class TransactionalProduce(NamedTuple):
    """A Produce request v12 of a transaction, with acks=all.

    :param batches: at most one for each partition.
    """

    transactional_id: str
    timeout_ms: int
    batches: Sequence[ProduceBatch]

    def flexible_version_q(self, version: int) -> bool:
        """v12 is flexible."""
        assert version == _VERSION, "only v12 is encoded here"
        return True

    def encode(self, version: int) -> bytes:
        """The request's body."""
        head = _compact(self.transactional_id) + _ACKS_AND_TIMEOUT.pack(_ALL_REPLICAS, self.timeout_ms)
        if len(self.batches) == 1:
            topic, partition, data = self.batches[0]
            size = encode_unsigned_varint(len(data) + 1)
            place = _compact(topic) + _ONE + _INDEX.pack(partition)
            return b"".join((head, _ONE, place, size, data, _THREE_TAG_BUFFERS))
        topics: dict[str, list[ProduceBatch]] = {}
        for batch in self.batches:
            topics.setdefault(batch.topic, []).append(batch)
        parts = [head, encode_unsigned_varint(len(topics) + 1)]
        for name, batches in topics.items():
            parts += _compact(name), encode_unsigned_varint(len(batches) + 1)
            for batch in batches:
                parts += _INDEX.pack(batch.partition), encode_unsigned_varint(len(batch.data) + 1), batch.data, _NO_TAGS
            parts.append(_NO_TAGS)
        parts.append(_NO_TAGS)
        return b"".join(parts)


def _compact(text: str) -> bytes:
    data = text.encode()
    return encode_unsigned_varint(len(data) + 1) + data


class TransactionEnd(NamedTuple):
    """An EndTxn request v5."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    committed: bool

    def flexible_version_q(self, version: int) -> bool:
        """v5 is flexible."""
        assert version == _END_VERSION, "only v5 is encoded here"
        return True

    def encode(self, version: int) -> bytes:
        """The request's body."""
        fixed = _PRODUCER_AND_RESULT.pack(self.producer_id, self.producer_epoch, self.committed)
        return _compact(self.transactional_id) + fixed + _NO_TAGS


class ProducedPartition(NamedTuple):
    """The answer for one partition in a Produce response. The field names here and below are kafka-python's."""

    index: int  # type: ignore[assignment]  # tuple.index is not used on it
    error_code: int
    base_offset: int
    log_append_time_ms: int
    log_start_offset: int
    record_errors: Sequence[Any] = ()
    error_message: str | None = None
    current_leader: Any = None


class ProducedTopic(NamedTuple):
    """The answer for one topic in a Produce response."""

    name: str
    partition_responses: Sequence[ProducedPartition]
    topic_id: UUID | None = None


class Produced(NamedTuple):
    """A Produce response."""

    responses: Sequence[ProducedTopic]
    throttle_time_ms: int
    node_endpoints: Sequence[Any] = ()


class EndTxnResult(NamedTuple):
    """An EndTxn response."""

    throttle_time_ms: int
    error_code: int
    producer_id: int
    producer_epoch: int


class AddedPartition(NamedTuple):
    """The answer for one partition in an AddPartitionsToTxn response."""

    partition_index: int
    partition_error_code: int


class AddedTopic(NamedTuple):
    """The answer for one topic in an AddPartitionsToTxn response."""

    name: str
    results_by_partition: Sequence[AddedPartition]


class AddedPartitions(NamedTuple):
    """An AddPartitionsToTxn response up to v3."""

    throttle_time_ms: int
    results_by_topic_v3_and_below: Sequence[AddedTopic]


def read_hot_response(api_key: int, version: int, frame: bytes) -> Produced | EndTxnResult | None:
    """The body of a response frame; None if it is not one of these two in their common form. Then kafka-python must
    decode it, because it has errors of single records or tagged fields, or is malformed."""
    try:
        if api_key == _PRODUCE and version == _VERSION:
            return _read_produced(frame)
        if api_key == _END_TXN and version == _END_VERSION:
            return _read_ended(frame)
    except (IndexError, ValueError, struct.error):
        return None  # kafka-python reports the error
    return None


def _read_produced(frame: bytes) -> Produced | None:
    topics, position = decode_unsigned_varint(frame, _FLEXIBLE_HEAD)
    is_common = frame[_TAGS_OF_HEAD] == 0
    responses = []
    for _ in range(topics - 1):
        size, position = decode_unsigned_varint(frame, position)
        name = frame[position : position + size - 1].decode()
        partitions, position = decode_unsigned_varint(frame, position + size - 1)
        is_common = is_common and size > 0 and partitions > 0  # 0 is null
        entries = []
        for _ in range(partitions - 1):
            entries.append(ProducedPartition(*_PRODUCED.unpack_from(frame, position)))
            position += _PRODUCED.size
            is_common = is_common and frame[position : position + 3] == _NOTHING_MORE
            position += 3
        is_common = is_common and frame[position] == 0
        responses.append(ProducedTopic(name, entries))
        position += 1
    (throttle_time_ms,) = _INDEX.unpack_from(frame, position)
    is_common = is_common and topics > 0 and frame[position + _INDEX.size :] == _NO_TAGS
    return Produced(responses, throttle_time_ms) if is_common else None


def _read_ended(frame: bytes) -> EndTxnResult | None:
    if len(frame) != _FLEXIBLE_HEAD + _ENDED.size + 1 or frame[_TAGS_OF_HEAD] or frame[-1]:
        return None
    return EndTxnResult(*_ENDED.unpack_from(frame, _FLEXIBLE_HEAD))
