"""Reads the positions of an application's consumer, and positions it at its group's offsets.

This module keeps no state. The calls that need librdkafka load it: an application with a consumer has it anyway.
"""

import inspect
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from typing import Any, Literal, Protocol, runtime_checkable

from dualwrite.client.producer.arguments import member_of
from dualwrite.client.protocol.requests import GroupMember
from dualwrite.coordinator.rules.positions import Consumer
from dualwrite.ids import TopicPartition

OffsetReset = Literal["earliest", "latest"]
"""Where a group begins a partition without a known offset; as auto.offset.reset."""

PATIENCE = 30.0
"""Timeout in seconds of requests for committed offsets and for the first offset of a partition."""


@runtime_checkable
class KafkaConsumer(Protocol):
    """The part of confluent_kafka.Consumer that is used. Positions are like confluent_kafka.TopicPartition."""

    def assignment(self) -> list[Any]:
        """The assigned partitions."""

    def position(self, partitions: list[Any]) -> list[Any]:
        """``partitions``, each with the offset after the last record returned by poll; negative if there was none."""

    def committed(self, partitions: list[Any], timeout: float) -> list[Any]:
        """``partitions``, each with the group's committed offset; negative if there is none."""

    def get_watermark_offsets(self, partition: Any, timeout: float) -> tuple[int, int]:
        """The first offset of ``partition``, and the one after its last."""

    def list_topics(self, topic: str, timeout: float) -> Any:
        """What the cluster says of itself and of ``topic``, as confluent_kafka.admin.ClusterMetadata."""

    def consumer_group_metadata(self) -> Any:
        """Group, generation and member."""

    def seek(self, partition: Any) -> None:
        """Continue at the partition's offset."""

    def assign(self, partitions: list[Any]) -> None:
        """Read ``partitions`` from their offsets, and no others."""

    def incremental_assign(self, partitions: list[Any]) -> None:
        """Also read ``partitions`` from their offsets."""

    def incremental_unassign(self, partitions: list[Any]) -> None:
        """Stop reading ``partitions``."""


def unwrapped(consumer: object) -> object:
    """The application's consumer, without the wrapper of aio/consumers.py if there is one."""
    return getattr(consumer, "wrapped", consumer)


def require_consumer(consumer: object) -> None:
    """Refuse an object that is not a consumer, or a consumer of the other kind (asyncio or not).

    :raises TypeError: naming the object.
    """
    inner_consumer = unwrapped(consumer)
    if not isinstance(inner_consumer, KafkaConsumer):
        raise TypeError(f"a consumer of type {type(inner_consumer).__name__}: give a confluent_kafka.Consumer")
    if inner_consumer is consumer and inspect.iscoroutinefunction(inner_consumer.position):
        raise TypeError(
            f"a consumer of type {type(inner_consumer).__name__}: use AsyncDualWrite, or a confluent_kafka.Consumer"
        )


def partition_of(position: Any) -> TopicPartition:
    """The partition of a confluent_kafka.TopicPartition."""
    return TopicPartition(position.topic, position.partition)


def member_of_consumer(consumer: KafkaConsumer) -> GroupMember:
    """Group, generation and member of ``consumer``."""
    return member_of(consumer.consumer_group_metadata())


def identity_of(consumer: KafkaConsumer) -> int:
    """Identifies the consumer in this process, wrapped or not."""
    return id(unwrapped(consumer))


def tracked_consumer(consumer: KafkaConsumer, member: GroupMember) -> Consumer:
    """``consumer`` as :class:`Positions` knows it."""
    is_static = member.group_instance_id is not None
    return Consumer(identity_of(consumer), member.member_id or None, is_static, member.generation_id)


def offsets_of(positions: Iterable[Any]) -> dict[TopicPartition, int]:
    """The offset of each partition in ``positions``, which are like confluent_kafka.TopicPartition."""
    return {partition_of(position): position.offset for position in positions}


def require_positions(positions: Any, name: str) -> list[Any]:
    """``positions`` as a list.

    :param name: the argument's name, for the message.
    :raises TypeError: if they are not like confluent_kafka.TopicPartition.
    """
    invalid: Any = positions
    if isinstance(positions, Iterable) and not isinstance(positions, str):
        position_list = list(positions)
        invalid = next(
            (position for position in position_list if not isinstance(getattr(position, "offset", None), int)), None
        )
        if invalid is None:
            return position_list
    raise TypeError(f"{name}: {invalid!r:.100}: give a list of confluent_kafka.TopicPartition")


def with_beginnings(
    consumer: KafkaConsumer,
    partitions: list[Any],
    committed: Mapping[TopicPartition, int],
    reset: OffsetReset,
    done: Mapping[TopicPartition, int],
) -> dict[TopicPartition, int]:
    """The offset at which the group continues or begins each of ``partitions``, according to Kafka.

    :param committed: see :func:`committed_offsets`.
    :param reset: where the group begins a partition without a committed offset.
    :param done: where this consumer was in partitions that it had before. Without a committed offset it continues
        there: ``latest`` would skip what it has read and not used. A topic that was made anew may end before.
    :raises KafkaUnavailableError: if the cluster does not answer.
    """
    offsets = dict(committed)
    for partition in partitions:
        key = partition_of(partition)
        if key not in offsets:
            with _translating(f"offsets of {key}"):
                first, end = consumer.get_watermark_offsets(partition, timeout=PATIENCE)
            begin = first if reset == "earliest" else end
            offsets[key] = int(max(first, done[key]) if key in done and done[key] <= end else begin)
    return offsets


def committed_offsets(consumer: KafkaConsumer, partitions: list[Any]) -> dict[TopicPartition, int]:
    """The group's committed offsets of those ``partitions`` that have one. A read_committed consumer waits for
    transactions that have prepared an offset of these partitions (KIP-447).

    :raises KafkaUnavailableError: if the cluster does not answer.
    :raises KafkaRefusedError: if it does not tell the offset of a partition.
    """
    from confluent_kafka import KafkaException

    if not partitions:
        return {}
    with _translating(
        f"committed offsets of {', '.join(str(partition_of(partition)) for partition in partitions):.200}"
    ):
        positions = consumer.committed(partitions, timeout=PATIENCE)
        for position in positions:
            if position.error is not None:  # which committed() does not raise: its offset looks like none
                raise KafkaException(position.error)
    return {partition_of(position): int(position.offset) for position in positions if position.offset >= 0}


def cluster_of(consumer: KafkaConsumer, topic: str) -> str | None:
    """The id of the cluster that ``consumer`` reads ``topic`` from; None if the cluster has none.

    Never in a rebalance callback. It runs inside a call of confluent-kafka 2.16, which keeps its state for each thread.
    list_topics clears that state, and the next callback of the same call would abort the process; in another thread it
    waits until the callback has ended.

    :raises KafkaUnavailableError: if the cluster does not answer.
    """
    with _translating(f"metadata of {topic}"):
        found: str | None = consumer.list_topics(topic, timeout=PATIENCE).cluster_id
    return found


def _translating(operation: str) -> AbstractContextManager[None]:
    from dualwrite.client.librdkafka.errors import translating

    return translating(operation)
