"""Committed offsets as Kafka stores them: OffsetCommitKey and OffsetCommitValue v4. Kafka's tools can read them.

The key begins with the number of its record type, 1 (CoordinatorRecordSerde); the value begins with its version. Apache
Kafka 4.4 may add a tagged field, 0 TopicId. It is ignored: a topic's name is enough where no topic is ever deleted.
"""

import struct
from dataclasses import dataclass

from dualwrite.broker.facts.fields import (
    INT,
    LONG,
    NO_TAGGED_FIELDS,
    SHORT,
    LaterReleaseError,
    decode_compact,
    decode_string,
    encode_compact,
    encode_string,
    version_error,
)
from dualwrite.broker.facts.tagged_fields import decode_tagged_fields
from dualwrite.ids import TopicPartition

KEY_TYPE = 1
"""The number of the record type, with which the key begins."""

_VALUE_VERSION = 4
_POSITION = struct.Struct(">hqi")


@dataclass(frozen=True, slots=True)
class OffsetCommitted:
    """A group committed its position in a partition.

    :param offset: the offset of the next record to read.
    :param leader_epoch: the leader epoch of the last record that was read; -1 if the client sent none.
    :param metadata: text that the client stores with the offset.
    :param committed_ms: the time of the commit, in milliseconds since the epoch.
    """

    group: str
    partition: TopicPartition
    offset: int
    leader_epoch: int
    metadata: str
    committed_ms: int


@dataclass(frozen=True, slots=True)
class OffsetForgotten:
    """A committed offset was deleted or has expired: a tombstone."""

    group: str
    partition: TopicPartition


OffsetFact = OffsetCommitted | OffsetForgotten


def encode_fact(fact: OffsetFact) -> tuple[bytes, bytes | None]:
    """The key and the value of the record that stores ``fact``; a tombstone has no value."""
    key = (
        SHORT.pack(KEY_TYPE),
        encode_string(fact.group),
        encode_string(fact.partition.topic),
        INT.pack(fact.partition.partition),
    )
    if isinstance(fact, OffsetForgotten):
        return b"".join(key), None
    value = (
        _POSITION.pack(_VALUE_VERSION, fact.offset, fact.leader_epoch),
        encode_compact(fact.metadata),
        LONG.pack(fact.committed_ms),
        NO_TAGGED_FIELDS,
    )
    return b"".join(key), b"".join(value)


def decode_fact(key: bytes, value: bytes | None) -> OffsetFact:
    """The fact that a record of the offsets' journal stores.

    :raises ValueError: if the record is of a type, version or form that this release does not know.
    """
    try:
        group, partition = _decode_key(key)
        return OffsetForgotten(group, partition) if value is None else _decode_value(group, partition, value)
    except struct.error as error:
        raise ValueError(f"offset commit record cut short: {error}") from error


def _decode_value(group: str, partition: TopicPartition, value: bytes) -> OffsetCommitted:
    version, offset, leader_epoch = _POSITION.unpack_from(value)
    if version != _VALUE_VERSION:
        raise version_error("offset commit value", version, _VALUE_VERSION)
    metadata, end = decode_compact(value, _POSITION.size)
    if metadata is None:
        raise ValueError("offset commit value without metadata")
    committed_ms = LONG.unpack_from(value, end)[0]
    _, end = decode_tagged_fields(value, end + LONG.size)
    if end != len(value):
        raise ValueError("offset commit value of another form")
    return OffsetCommitted(group, partition, offset, leader_epoch, metadata.decode(), committed_ms)


def _decode_key(key: bytes) -> tuple[str, TopicPartition]:
    if SHORT.unpack_from(key)[0] != KEY_TYPE:
        raise LaterReleaseError("key of an unknown type")
    group, position = decode_string(key, SHORT.size)
    topic, position = decode_string(key, position)
    index = INT.unpack_from(key, position)[0]
    if position + INT.size != len(key):
        raise ValueError("offset commit key of another form")
    return group, TopicPartition(topic, index)
