"""Committed offsets as Kafka stores them: OffsetCommitKey and OffsetCommitValue v4, so that its tools read them.

The key begins with the number of its record type, 1 (CoordinatorRecordSerde); the value with its version. Apache Kafka
4.4 may add a tagged field, 0 TopicId: it is passed over, as a topic's name is enough where no topic is ever deleted.
"""

import struct
from dataclasses import dataclass

from dualwrite.broker.facts.tagged_fields import decode_tagged_fields
from dualwrite.ids import TopicPartition
from dualwrite.records.varint import decode_unsigned_varint, encode_unsigned_varint

LONGEST_GROUP_ID = 32767
"""Bytes of a group id's UTF-8 form that the key has room for."""

_KEY_TYPE = 1
_VALUE_VERSION = 4
_SHORT = struct.Struct(">h")
_INT = struct.Struct(">i")
_LONG = struct.Struct(">q")
_POSITION = struct.Struct(">hqi")
_NO_TAGGED_FIELDS = b"\x00"


@dataclass(frozen=True, slots=True)
class OffsetCommitted:
    """A group committed its position in a partition.

    :param offset: the offset of the record that is to be read next.
    :param leader_epoch: that of the last record that was read, -1 if the client did not say.
    :param metadata: whatever the client wants to remember with it.
    :param committed_ms: when, in milliseconds since the epoch.
    """

    group: str
    partition: TopicPartition
    offset: int
    leader_epoch: int
    metadata: str
    committed_ms: int


def encode_fact(fact: OffsetCommitted) -> tuple[bytes, bytes]:
    """Key and value of the record that remembers ``fact``."""
    metadata = fact.metadata.encode()
    key = (_SHORT.pack(_KEY_TYPE), _text(fact.group), _text(fact.partition.topic), _INT.pack(fact.partition.partition))
    value = (
        _POSITION.pack(_VALUE_VERSION, fact.offset, fact.leader_epoch),
        encode_unsigned_varint(len(metadata) + 1),
        metadata,
        _LONG.pack(fact.committed_ms),
        _NO_TAGGED_FIELDS,
    )
    return b"".join(key), b"".join(value)


def decode_fact(key: bytes, value: bytes) -> OffsetCommitted:
    """The fact that a record of the offsets' journal remembers.

    :raises ValueError: if it is of a type, version or form that this release does not know.
    """
    try:
        group, partition = _decode_key(key)
        version, offset, leader_epoch = _POSITION.unpack_from(value)
        if version != _VALUE_VERSION:
            raise ValueError(f"offset commit value of version {version}; only {_VALUE_VERSION} is written here")
        size, position = decode_unsigned_varint(value, _POSITION.size)
        if size == 0:
            raise ValueError("offset commit value without metadata")
        end = position + size - 1
        metadata = value[position:end].decode()
        committed_ms = _LONG.unpack_from(value, end)[0]
        _, end = decode_tagged_fields(value, end + _LONG.size)
    except struct.error as error:
        raise ValueError(f"offset commit record cut short: {error}") from error
    if end != len(value):
        raise ValueError("offset commit value of another form")
    return OffsetCommitted(group, partition, offset, leader_epoch, metadata, committed_ms)


def _decode_key(key: bytes) -> tuple[str, TopicPartition]:
    if _SHORT.unpack_from(key)[0] != _KEY_TYPE:
        raise ValueError("key of an unknown type")
    group, position = _decode_text(key, _SHORT.size)
    topic, position = _decode_text(key, position)
    index = _INT.unpack_from(key, position)[0]
    if position + _INT.size != len(key):
        raise ValueError("offset commit key of another form")
    return group, TopicPartition(topic, index)


def _text(text: str) -> bytes:
    data = text.encode()
    return _SHORT.pack(len(data)) + data


def _decode_text(data: bytes, position: int) -> tuple[str, int]:
    begin = position + _SHORT.size
    end = begin + _SHORT.unpack_from(data, position)[0]
    return data[begin:end].decode(), end
