"""Converts confluent-kafka's arguments to the engine's, for the blocking and the asyncio producer."""

import struct
import sys
from collections.abc import Iterable
from typing import Any

from dualwrite.client.protocol.requests import CommittedOffset, GroupMember
from dualwrite.records.outgoing import OnDelivery

_MAGIC = b"CGMDv2:"
_GENERATION = struct.Struct("<i" if sys.byteorder == "little" else ">i")
"""librdkafka writes its own int."""
_NO_OFFSET = -1


def offsets_of(positions: Iterable[Any]) -> list[CommittedOffset]:
    """The offsets of ``positions``: confluent_kafka.TopicPartition, or any object with ``topic``, ``partition`` and
    ``offset``. Positions without an offset (negative) are left out, as librdkafka does.

    :raises TypeError: if one of them is another object, such as a tuple.
    """
    if not isinstance(positions, Iterable):
        raise TypeError(f"positions of type {type(positions).__name__}: give a list of confluent_kafka.TopicPartition")
    offsets = (_offset(position) for position in positions)
    return [offset for offset in offsets if offset.offset > _NO_OFFSET]


def _offset(position: Any) -> CommittedOffset:
    try:
        epoch = getattr(position, "leader_epoch", None)
        metadata = getattr(position, "metadata", None) or ""
        return CommittedOffset(
            position.topic, position.partition, position.offset, -1 if epoch is None else epoch, metadata
        )
    except AttributeError:
        raise TypeError(
            f"position {position!r:.100}: give a confluent_kafka.TopicPartition, or an object with topic, partition "
            "and offset"
        ) from None


def member_of(group_metadata: Any) -> GroupMember:
    """The group member that ``group_metadata`` describes.

    :param group_metadata: the result of confluent_kafka.Consumer.consumer_group_metadata(), the group's name alone, or
        a :class:`GroupMember`.

    :raises TypeError: if it is none of these.
    """
    if isinstance(group_metadata, GroupMember):
        return group_metadata
    if isinstance(group_metadata, str):
        return GroupMember(group_metadata)
    if isinstance(group_metadata, bytes) and group_metadata.startswith(_MAGIC):
        (generation,) = _GENERATION.unpack_from(group_metadata, len(_MAGIC))
        group, member, instance = group_metadata[len(_MAGIC) + _GENERATION.size :].split(b"\x00", 2)
        has_instance = instance.startswith(b"\x00")  # the next byte is 1 for null
        name = instance[1:].rstrip(b"\x00").decode() if has_instance else None
        return GroupMember(group.decode(), generation, member.decode(), name)
    raise TypeError(
        f"group_metadata of type {type(group_metadata).__name__}: give consumer.consumer_group_metadata(), the group's"
        " name, or a GroupMember"
    )


def one_callback(on_delivery: OnDelivery | None, callback: OnDelivery | None) -> OnDelivery | None:
    """The delivery callback, which confluent-kafka's produce() takes under two names."""
    if on_delivery is not None and callback is not None:
        raise TypeError("on_delivery and callback are two names of one argument: give one of them")
    return callback if on_delivery is None else on_delivery
