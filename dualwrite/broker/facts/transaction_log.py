"""Transaction facts as Kafka stores them: TransactionLogKey v0 and TransactionLogValue v1. Kafka's tools can read them.

Kafka's tagged fields: 0 PrevProducerId, 1 NextProducerId, 2 ClientTransactionVersion, 3 NextProducerEpoch. The numbers
are those of Apache Kafka 4.4, which assigned 2 before KIP-939. dualwrite's own tagged fields: 100 PrevProducerEpoch,
101 NextTimeoutMs.
"""

import struct
from functools import lru_cache

from dualwrite.broker.facts.fields import LaterReleaseError, version_error
from dualwrite.broker.facts.tagged_fields import decode_tagged_fields
from dualwrite.broker.facts.transactions import (
    TransactionFact,
    TransactionForgotten,
    TransactionRecorded,
    TransactionStatus,
    TransactionVersion,
)
from dualwrite.ids import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, ProducerIdentity, TopicPartition
from dualwrite.records.varint import decode_unsigned_varint, encode_unsigned_varint

_KEY_VERSION = 0
_VALUE_VERSION = 1
_SHORT = struct.Struct(">h")
_INT = struct.Struct(">i")
_LONG = struct.Struct(">q")
_FIXED = struct.Struct(">hqhib")
_TIMES = struct.Struct(">qq")

_PREVIOUS_ID, _NEXT_ID, _CLIENT_VERSION, _NEXT_EPOCH, _PREVIOUS_EPOCH, _NEXT_TIMEOUT = 0, 1, 2, 3, 100, 101


_TAGGED_SHORT, _TAGGED_INT, _TAGGED_LONG = struct.Struct(">BBh"), struct.Struct(">BBi"), struct.Struct(">BBq")
"""A tagged field: its tag and its size, which take one byte each, and its value."""
_ONE_TAG, _THREE_TAGS = struct.Struct(">qq3sh"), struct.Struct(">qq3sq2sh2sh")
"""The times and the tagged fields of a fact with the version alone, and of one with the previous identity, too."""
_VERSION_ALONE, _THEN_VERSION = bytes((1, _CLIENT_VERSION, _SHORT.size)), bytes((_CLIENT_VERSION, _SHORT.size))
_PREVIOUS_FIRST, _THEN_EPOCH = bytes((3, _PREVIOUS_ID, _LONG.size)), bytes((_PREVIOUS_EPOCH, _SHORT.size))
_REMEMBERED, _FEW = 256, 16
"""How many transactional ids, and how many sets of so few partitions, are remembered in their encoded form. A client
may have transactions of a hundred thousand partitions, which would fill the memory."""


def encode_fact(fact: TransactionFact) -> tuple[bytes, bytes | None]:
    """The key and the value of the record that stores ``fact``; a tombstone has no value."""
    return _encode_key(fact.transactional_id), None if isinstance(fact, TransactionForgotten) else _encode_value(fact)


def decode_fact(key: bytes, value: bytes | None) -> TransactionFact:
    """The fact that a record of the transaction log stores.

    :raises ValueError: if the record is of a version or form that this release does not know.
    """
    try:
        if _SHORT.unpack_from(key)[0] != _KEY_VERSION:
            raise LaterReleaseError("key of an unknown version")
        name = key[4:]
        if len(name) != _SHORT.unpack_from(key, 2)[0]:
            raise ValueError("key cut short")
        transactional_id = name.decode()
        if value is None:
            return TransactionForgotten(transactional_id)
        return _decode_value(transactional_id, value)
    except (struct.error, IndexError) as error:
        raise ValueError(f"transaction log record cut short: {error}") from error


@lru_cache(_REMEMBERED)
def _encode_key(transactional_id: str) -> bytes:
    name = transactional_id.encode()
    return _SHORT.pack(_KEY_VERSION) + _SHORT.pack(len(name)) + name


def _encode_value(fact: TransactionRecorded) -> bytes:
    few = len(fact.partitions) <= _FEW
    partitions = encode_few_partitions(fact.partitions) if few else _encode_partitions(fact.partitions)
    fixed = _FIXED.pack(_VALUE_VERSION, *fact.producer, fact.timeout_ms, fact.status)
    return b"".join((fixed, partitions, _encode_rest(fact)))


def _encode_rest(fact: TransactionRecorded) -> bytes:
    """The times and the tagged fields. Two forms are those of almost all facts."""
    (previous_id, previous_epoch), (next_id, next_epoch) = fact.previous, fact.next_producer
    if next_id == NO_PRODUCER_ID and fact.next_timeout_ms == -1:
        if previous_id == NO_PRODUCER_ID:
            return _ONE_TAG.pack(fact.updated_ms, fact.started_ms, _VERSION_ALONE, fact.version)
        return _THREE_TAGS.pack(
            fact.updated_ms, fact.started_ms,
            _PREVIOUS_FIRST, previous_id, _THEN_VERSION, fact.version, _THEN_EPOCH, previous_epoch,
        )  # fmt: skip
    tags = []
    if previous_id != NO_PRODUCER_ID:
        tags.append(_TAGGED_LONG.pack(_PREVIOUS_ID, _LONG.size, previous_id))
    if next_id != NO_PRODUCER_ID:
        tags.append(_TAGGED_LONG.pack(_NEXT_ID, _LONG.size, next_id))
    tags.append(_TAGGED_SHORT.pack(_CLIENT_VERSION, _SHORT.size, fact.version))
    if next_epoch != NO_PRODUCER_EPOCH:
        tags.append(_TAGGED_SHORT.pack(_NEXT_EPOCH, _SHORT.size, next_epoch))
    if previous_epoch != NO_PRODUCER_EPOCH:
        tags.append(_TAGGED_SHORT.pack(_PREVIOUS_EPOCH, _SHORT.size, previous_epoch))
    if fact.next_timeout_ms != -1:
        tags.append(_TAGGED_INT.pack(_NEXT_TIMEOUT, _INT.size, fact.next_timeout_ms))
    return b"".join((_TIMES.pack(fact.updated_ms, fact.started_ms), encode_unsigned_varint(len(tags)), *tags))


def _decode_value(transactional_id: str, value: bytes) -> TransactionRecorded:
    version, producer_id, epoch, timeout_ms, status = _FIXED.unpack_from(value)
    if version != _VALUE_VERSION:
        raise version_error("transaction log value", version, _VALUE_VERSION)
    partitions, position = _decode_partitions(value, _FIXED.size)
    updated_ms, started_ms = _TIMES.unpack_from(value, position)
    tags, _ = decode_tagged_fields(value, position + _TIMES.size)

    def tag(number: int, form: struct.Struct, default: int) -> int:
        return int(form.unpack(tags[number])[0]) if number in tags else default

    return TransactionRecorded(
        transactional_id,
        ProducerIdentity(producer_id, epoch),
        TransactionStatus(status),
        timeout_ms,
        updated_ms,
        partitions,
        started_ms,
        ProducerIdentity(tag(_PREVIOUS_ID, _LONG, NO_PRODUCER_ID), tag(_PREVIOUS_EPOCH, _SHORT, NO_PRODUCER_EPOCH)),
        ProducerIdentity(tag(_NEXT_ID, _LONG, NO_PRODUCER_ID), tag(_NEXT_EPOCH, _SHORT, NO_PRODUCER_EPOCH)),
        TransactionVersion(max(TransactionVersion.TV1, tag(_CLIENT_VERSION, _SHORT, 0))),
        tag(_NEXT_TIMEOUT, _INT, -1),
    )


def _encode_partitions(partitions: frozenset[TopicPartition]) -> bytes:
    by_topic: dict[str, list[int]] = {}
    for topic, index in sorted(partitions):
        by_topic.setdefault(topic, []).append(index)
    out = [encode_unsigned_varint(len(by_topic) + 1)]
    for topic, indexes in by_topic.items():
        name = topic.encode()
        out += [encode_unsigned_varint(len(name) + 1), name, encode_unsigned_varint(len(indexes) + 1)]
        out += [_INT.pack(index) for index in indexes]
        out.append(b"\x00")  # no tagged fields
    return b"".join(out)


encode_few_partitions = lru_cache(_REMEMBERED)(_encode_partitions)
"""For sets of at most _FEW partitions: a client could otherwise fill the memory with large ones."""


def _decode_partitions(value: bytes, position: int) -> tuple[frozenset[TopicPartition], int]:
    partitions = set()
    topics, position = decode_unsigned_varint(value, position)
    for _ in range(topics - 1):
        size, position = decode_unsigned_varint(value, position)
        topic = value[position : position + size - 1].decode()
        count, position = decode_unsigned_varint(value, position + size - 1)
        for _ in range(count - 1):
            partitions.add(TopicPartition(topic, _INT.unpack_from(value, position)[0]))
            position += _INT.size
        _, position = decode_tagged_fields(value, position)
    return frozenset(partitions), position
