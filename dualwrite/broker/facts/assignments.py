"""Arrays of partitions by topic id, as the records of consumer groups have them (KIP-848).

A partition that a member holds has an assignment epoch: the member epoch at which it was assigned (KIP-1251). It is a
tagged field, without which Apache Kafka takes an epoch of 0.
"""

import uuid
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from dualwrite.broker.facts.fields import INT, NO_TAGGED_FIELDS
from dualwrite.broker.facts.tagged_fields import decode_tagged_fields
from dualwrite.records.varint import decode_unsigned_varint, encode_unsigned_varint

_UUID_SIZE = 16
_EPOCHS_TAG = 0


class TopicIdPartition(NamedTuple):
    """One partition of a topic, by the topic's id. A topic that is created anew has another id."""

    topic_id: uuid.UUID
    partition: int


def by_topic(partitions: Iterable[TopicIdPartition]) -> dict[uuid.UUID, list[int]]:
    """The numbers of ``partitions`` by topic id, both sorted."""
    topics: dict[uuid.UUID, list[int]] = {}
    for topic_id, partition in sorted(partitions):
        topics.setdefault(topic_id, []).append(partition)
    return topics


def encode_partitions(
    partitions: Iterable[TopicIdPartition], epochs: Mapping[TopicIdPartition, int] | None = None
) -> bytes:
    """``partitions`` as an array of topics, with their assignment ``epochs`` if there are any."""
    topics = by_topic(partitions)
    parts = [encode_unsigned_varint(len(topics) + 1)]
    for topic_id, numbers in topics.items():
        parts += topic_id.bytes, _encode_numbers(numbers)
        if epochs is None:
            parts.append(NO_TAGGED_FIELDS)
            continue
        tag = _encode_numbers([epochs[TopicIdPartition(topic_id, number)] for number in numbers])
        parts += b"\x01", bytes([_EPOCHS_TAG]), encode_unsigned_varint(len(tag)), tag
    return b"".join(parts)


def decode_partitions(value: bytes, position: int) -> tuple[dict[TopicIdPartition, int], int]:
    """The partitions at ``position`` with their assignment epochs, 0 where there is none; and the position after them.

    :raises ValueError: if the data is malformed.
    """
    count, position = decode_unsigned_varint(value, position)
    partitions: dict[TopicIdPartition, int] = {}
    for _ in range(count - 1):
        topic_id = uuid.UUID(bytes=bytes(value[position : position + _UUID_SIZE]))
        numbers, position = _decode_numbers(value, position + _UUID_SIZE)
        tags, position = decode_tagged_fields(value, position)
        epochs, _ = _decode_numbers(tags[_EPOCHS_TAG], 0) if _EPOCHS_TAG in tags else ([0] * len(numbers), 0)
        names = [TopicIdPartition(topic_id, number) for number in numbers]
        partitions.update(zip(names, epochs, strict=True))
    return partitions, position


def _encode_numbers(numbers: list[int]) -> bytes:
    return encode_unsigned_varint(len(numbers) + 1) + b"".join(map(INT.pack, numbers))


def _decode_numbers(value: bytes, position: int) -> tuple[list[int], int]:
    count, position = decode_unsigned_varint(value, position)
    end = position + max(count - 1, 0) * INT.size
    if end > len(value):
        raise ValueError("numbers cut short")
    return [INT.unpack_from(value, at)[0] for at in range(position, end, INT.size)], end
