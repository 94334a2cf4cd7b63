"""An application's consumer whose records become part of units of work: reading its positions, and positioning it.

This module keeps no state. The calls that need librdkafka load it: an application with a consumer has it anyway.
"""

import inspect
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from typing import Any, Literal, Protocol, runtime_checkable

from dualwrite.client.engine.coordinator_calls import GroupMember
from dualwrite.client.producer.arguments import member_of
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
    given = unwrapped(consumer)
    if not isinstance(given, KafkaConsumer):
        raise TypeError(f"a consumer of type {type(given).__name__}: give a confluent_kafka.Consumer")
    if given is consumer and inspect.iscoroutinefunction(given.position):
        raise TypeError(f"a consumer of type {type(given).__name__}: use AsyncDualWrite, or a confluent_kafka.Consumer")


def place_of(position: Any) -> TopicPartition:
    """The partition of a confluent_kafka.TopicPartition."""
    return TopicPartition(position.topic, position.partition)


def member_of_consumer(consumer: KafkaConsumer) -> GroupMember:
    """Group, generation and member of ``consumer``."""
    return member_of(consumer.consumer_group_metadata())


def identity_of(consumer: KafkaConsumer) -> int:
    """Identifies the consumer in this process, wrapped or not."""
    return id(unwrapped(consumer))


def known_as(consumer: KafkaConsumer, member: GroupMember) -> Consumer:
    """``consumer`` as :class:`Positions` knows it."""
    return Consumer(identity_of(consumer), member.member_id or None, member.group_instance_id is not None)


def offsets_of(given: Iterable[Any]) -> dict[TopicPartition, int]:
    """The offset of each partition in ``given``."""
    return {place_of(each): each.offset for each in given}


def require_positions(positions: Any, name: str) -> list[Any]:
    """``positions``, if they are like confluent_kafka.TopicPartition."""
    wrong: Any = positions
    if isinstance(positions, Iterable) and not isinstance(positions, str):
        given = list(positions)
        wrong = next((each for each in given if not isinstance(getattr(each, "offset", None), int)), None)
        if wrong is None:
            return given
    raise TypeError(f"{name}: {wrong!r:.100}: give a list of confluent_kafka.TopicPartition")


def beginnings(consumer: KafkaConsumer, partitions: list[Any], reset: OffsetReset) -> dict[TopicPartition, int]:
    """The offset at which the group continues each of ``partitions`` according to Kafka, or begins it. Raises the same
    errors as committed_offsets."""
    found = committed_offsets(consumer, partitions)
    for each in partitions:
        place = place_of(each)
        if place not in found:
            with _translating(f"offsets of {place}"):
                first, end = consumer.get_watermark_offsets(each, timeout=PATIENCE)
            found[place] = int(first if reset == "earliest" else end)
    return found


def committed_offsets(consumer: KafkaConsumer, partitions: list[Any]) -> dict[TopicPartition, int]:
    """The group's committed offsets of ``partitions``, where there are any. A read_committed consumer waits for
    transactions that have prepared an offset of them (KIP-447).

    :raises KafkaUnavailableError: if the cluster does not answer.
    """
    if not partitions:
        return {}
    with _translating(f"committed offsets of {', '.join(str(place_of(each)) for each in partitions):.200}"):
        found = consumer.committed(partitions, timeout=PATIENCE)
    return {place_of(each): int(each.offset) for each in found if each.offset >= 0}


def assign(consumer: KafkaConsumer, partitions: list[Any]) -> bool:
    """Assign ``partitions`` by the group's protocol; True if they are now all partitions of ``consumer``."""
    if _is_taken(lambda: consumer.assign(partitions)):
        return True
    consumer.incremental_assign(partitions)
    return False


def go_back(consumer: KafkaConsumer, wanted: list[Any]) -> None:
    """Let ``consumer`` continue from the offsets of ``wanted``, which are all its partitions. Ignores its positions:
    they do not show an earlier seek without a read since."""
    if not all(_sought(consumer, each) for each in wanted):
        _assign_again(consumer, wanted)


def _translating(what: str) -> AbstractContextManager[None]:
    from dualwrite.client.librdkafka.errors import translating

    return translating(what)


def _assign_again(consumer: KafkaConsumer, partitions: list[Any]) -> None:
    if not _is_taken(lambda: consumer.assign(partitions)):
        consumer.incremental_unassign(partitions)
        consumer.incremental_assign(partitions)


def _sought(consumer: KafkaConsumer, partition: Any) -> bool:
    """False if the partition cannot be sought yet: it was only just assigned."""
    return _is_taken(lambda: consumer.seek(partition))


def _is_taken(call: Callable[[], None]) -> bool:
    """False if librdkafka reports a wrong state: for assign() this means that the group's protocol is cooperative."""
    from confluent_kafka import KafkaError, KafkaException

    try:
        call()
    except KafkaException as error:
        if error.args[0].code() != KafkaError._STATE:
            raise
        return False
    return True
