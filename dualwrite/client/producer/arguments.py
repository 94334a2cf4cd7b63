"""What the blocking and the asyncio producer share: they turn confluent-kafka's arguments into the engine's."""

import struct
import sys
from collections.abc import Iterable, Mapping, Sequence
from inspect import iscoroutinefunction
from operator import index
from typing import Any, cast

from dualwrite.client.config.native_config import NativeConfig
from dualwrite.client.encoding.batches import Headers, Record
from dualwrite.client.engine.accumulator import OnDelivery
from dualwrite.client.engine.contract import EngineSettings
from dualwrite.client.engine.coordinator_calls import CommittedOffset, GroupMember

HeadersGiven = Sequence[tuple[str, str | bytes | None]] | Mapping[str, str | bytes | None]
RecordGiven = tuple[str | bytes | None, str | bytes | None, int, HeadersGiven | None]
"""A record's value, key, partition and headers."""

_MAGIC = b"CGMDv2:"
_GENERATION = struct.Struct("<i" if sys.byteorder == "little" else ">i")
"""librdkafka writes its own int."""
_NO_OFFSET = -1
_MAX_TIMESTAMP = 2**63 - 1
_MAX_PARTITION = 2**31 - 1


def settings_of(config: NativeConfig) -> EngineSettings:
    """The engine's settings for ``config``."""
    return EngineSettings(
        bootstrap=config.client.bootstrap,
        transactional_id=config.transactional_id,
        two_phase_commit=config.two_phase,
        transaction_timeout_ms=config.transaction_timeout_ms,
        codec=config.codec,
        compression_level=config.level,
        partitioner=config.partitioner,
        is_sticky=config.is_sticky,
        linger=config.linger,
        batch_size=config.batch_bytes,
        batch_records=config.batch_records,
        max_message_bytes=config.max_record,
        buffer_bytes=config.buffer_bytes,
        buffer_records=config.buffer_records,
        max_in_flight=config.max_in_flight,
        request_timeout=config.client.request_timeout,
        ack_timeout_ms=config.ack_timeout_ms,
        delivery_timeout=config.delivery_timeout,
        operation_timeout=config.delivery_timeout,
        topic_propagation=config.topic_propagation,
        retries=config.retries,
        retry_backoff=config.retry_backoff,
        retry_backoff_max=config.retry_backoff_max,
        reconnect_backoff=config.reconnect_backoff,
        reconnect_backoff_max=config.reconnect_backoff_max,
        metadata_max_age=config.metadata_max_age,
        max_idle=config.max_idle,
        allow_auto_create_topics=config.allow_auto_create_topics,
    )


def encoded(content: Any) -> bytes | None:
    """A key or a value as bytes; text is encoded as UTF-8.

    :raises TypeError: if it is neither text, bytes nor None.
    """
    if content is None or isinstance(content, bytes):
        return content
    if isinstance(content, str):
        return _utf_8(content)
    if isinstance(content, (bytearray, memoryview)):
        return bytes(content)
    raise TypeError(f"a key or value of type {type(content).__name__}: give bytes, text or None")


def _utf_8(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"text that has no UTF-8 form ({error.reason}): {text!r:.100}") from None


def encoded_headers(headers: Any) -> Headers:
    """Headers as pairs, with their values as bytes.

    :raises TypeError: if they are not pairs, a name is not text, or a value is neither text nor bytes.
    :raises ValueError: if a name or a value is text that has no UTF-8 form.
    """
    if not headers:
        return ()
    if isinstance(headers, (str, bytes)) or not isinstance(headers, Iterable):
        raise TypeError(f"headers of type {type(headers).__name__}: give pairs of a name and a value, or a mapping")
    return [_header(each) for each in (headers.items() if isinstance(headers, Mapping) else headers)]


def encoded_records(given: Iterable[RecordGiven]) -> list[Record]:
    """The engine's records for ``given``, each given as value, key, partition and headers.

    :raises TypeError: if an argument has a wrong type.
    :raises ValueError: if no record can have a value that is given.
    """
    return [
        (
            encoded(value),
            encoded(key),
            checked_partition(partition),
            encoded_headers(headers) if headers else (),
        )
        for value, key, partition, headers in given
    ]


def _header(given: Any) -> tuple[str, bytes | None]:
    if not isinstance(given, (tuple, list)) or len(given) != 2:
        raise TypeError(f"header {given!r:.100}: give a pair of a name and a value")
    name, content = given
    if not isinstance(name, str):
        raise TypeError(f"a header's name of type {type(name).__name__}: give text")
    _utf_8(name)
    try:
        return name, encoded(content)
    except TypeError:
        raise TypeError(
            f"header {name!r}: a value of type {type(content).__name__}: give bytes, text or None"
        ) from None


def checked_topic(topic: str) -> str:
    """``topic``, if it is text. Whether the name is legal for a topic is not checked here.

    :raises TypeError: if it is not.
    """
    if not isinstance(topic, str):
        raise TypeError(f"topic of type {type(topic).__name__}: give text")
    return topic


def checked_partition(partition: int) -> int:
    """``partition``, if a topic can have it, or -1.

    :raises TypeError: if it is not a whole number.
    :raises ValueError: if it is less than -1, or needs more than 32 bits.
    """
    if type(partition) is int and partition == -1:
        return partition  # the case of most records
    try:
        whole = index(partition)
    except TypeError:
        whole = None
    if whole is None or isinstance(partition, bool):
        raise TypeError(
            f"a partition of type {type(partition).__name__}: give a whole number, or -1 for the partitioner's"
        )
    if not -1 <= whole <= _MAX_PARTITION:
        raise ValueError(f"partition {whole}: give -1 for the partitioner's, or 0 to {_MAX_PARTITION}")
    return whole


def checked_on_delivery(on_delivery: Any) -> OnDelivery:
    """``on_delivery``, if it can be called when a record is delivered.

    :raises TypeError: if it can't be called, or is a coroutine function, whose coroutine would never be awaited.
    """
    if not callable(on_delivery):
        raise TypeError(f"on_delivery of type {type(on_delivery).__name__}: give a function, or None")
    if iscoroutinefunction(on_delivery) or iscoroutinefunction(type(on_delivery).__call__):
        raise TypeError("on_delivery is a coroutine function, which nobody would await: give a plain function")
    return cast(OnDelivery, on_delivery)


def checked_timestamp(timestamp_ms: int) -> int:
    """``timestamp_ms``, if a record can have it (Kafka: ProducerRecord refuses negative ones too).

    :raises TypeError: if it is not a whole number.
    :raises ValueError: if it is negative, or needs more than 64 bits.
    """
    try:
        whole = index(timestamp_ms)
    except TypeError:
        raise TypeError(f"a timestamp of type {type(timestamp_ms).__name__}: give whole milliseconds") from None
    if not 0 <= whole <= _MAX_TIMESTAMP:
        raise ValueError(f"timestamp {whole}: give milliseconds since the epoch, 0 to {_MAX_TIMESTAMP}")
    return whole


def offsets_of(positions: Iterable[Any]) -> list[CommittedOffset]:
    """The offsets of ``positions``: confluent_kafka.TopicPartition, or any object with ``topic``, ``partition`` and
    ``offset``. Positions without an offset (negative) are left out, as librdkafka does.

    :raises TypeError: if one of them is another object, such as a tuple.
    """
    if not isinstance(positions, Iterable):
        raise TypeError(f"positions of type {type(positions).__name__}: give a list of confluent_kafka.TopicPartition")
    offsets = (_offset(each) for each in positions)
    return [each for each in offsets if each.offset > _NO_OFFSET]


def _offset(position: Any) -> CommittedOffset:
    try:
        epoch = getattr(position, "leader_epoch", None)
        metadata = getattr(position, "metadata", None) or ""
        return CommittedOffset(
            position.topic, position.partition, position.offset, -1 if epoch is None else epoch, metadata
        )
    except AttributeError:
        raise TypeError(
            f"position {position!r:.100}: give confluent_kafka.TopicPartition, or what has topic, partition and offset"
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
