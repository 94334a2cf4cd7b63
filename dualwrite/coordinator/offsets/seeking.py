"""DualWrite's methods for consumers: after an assignment, and after a unit of work that failed."""

from collections.abc import Sequence
from typing import Any, Protocol

from dualwrite.coordinator.offsets.consumers import KafkaConsumer, OffsetReset


class Seeker(Protocol):
    """The UnitManager, as SeekingConsumers uses it."""

    def seek_to_stored(
        self, consumer: KafkaConsumer, partitions: Sequence[Any] | None, *, auto_offset_reset: OffsetReset
    ) -> None:
        """Position ``consumer`` as SeekingConsumers.seek_to_stored does."""

    def seek_to_committed(
        self, consumer: KafkaConsumer, partitions: Sequence[Any] | None, *, auto_offset_reset: OffsetReset
    ) -> None:
        """Position ``consumer`` as SeekingConsumers.seek_to_committed does."""


class SeekingConsumers:
    """The part of DualWrite that positions consumers at their group's offsets."""

    @property
    def _seeker(self) -> Seeker:
        raise NotImplementedError

    def seek_to_stored(
        self,
        consumer: KafkaConsumer,
        partitions: Sequence[Any] | None = None,
        *,
        auto_offset_reset: OffsetReset = "earliest",
    ) -> None:
        """Let ``consumer`` continue at its group's offsets in the database; for ``tx.store_offsets``.

        Call it after every assignment, as the callback of ``subscribe(topics, on_assign=dw.seek_to_stored)``: it then
        calls the consumer's ``assign()``, or ``incremental_assign()`` if the group's protocol is cooperative. And call
        it with the consumer alone after every failed unit of work: the consumer returns the unused records again.

        A partition that is new to the table begins at the group's committed offset in Kafka, or else by
        ``auto_offset_reset``; its row is inserted at once.

        :param partitions: the assigned partitions; None for all that the consumer has.
        :param auto_offset_reset: "earliest" or "latest".
        :raises InvalidTransactionStateError: inside a unit of work.
        :raises DatabaseNotReadyError: before ``dualwrite db upgrade``.
        :raises DatabaseUnavailableError: if the database cannot be reached now; call it again before the next poll.
        :raises KafkaUnavailableError: if Kafka does not answer, or not with a new partition's beginning; likewise.
        :raises KafkaRefusedError: if Kafka does not tell the committed offset of a new partition.
        :raises ForeignClusterError: if an offset was stored by a consumer of another Kafka cluster; its message says
            what to do. As a callback it cannot ask the consumer for its cluster: the first ``tx.store_offsets`` raises
            this error then.
        """
        self._seeker.seek_to_stored(consumer, partitions, auto_offset_reset=auto_offset_reset)

    def seek_to_committed(
        self,
        consumer: KafkaConsumer,
        partitions: Sequence[Any] | None = None,
        *,
        auto_offset_reset: OffsetReset = "earliest",
    ) -> None:
        """Let ``consumer`` continue at its group's committed offsets in Kafka; for ``tx.send_offsets``.

        Call it like :meth:`seek_to_stored`, as the callback of ``subscribe(topics, on_assign=dw.seek_to_committed)``.
        librdkafka begins at these offsets by itself, too, but may then go back to the topic's beginning; a consumer
        that was positioned here does not. And call it with the consumer alone after every failed unit of work: the
        consumer returns the unused records again.

        Waits for other units of work that are decided or prepared with an offset of these partitions (KIP-447). So the
        process recovers the slots of dead owners from here on, as one that has begun a unit does: ``dw.recover()``
        before the first poll does it at once.

        Logs a WARNING if the group's offset is past the consumer's own units: ``enable.auto.commit`` may be true.

        :param partitions: the assigned partitions; None for all that the consumer has.
        :param auto_offset_reset: "earliest" or "latest", for a partition without a committed offset of the group, and
            in which this consumer was not positioned before.
        :raises InvalidTransactionStateError: inside a unit of work.
        :raises KafkaUnavailableError: if Kafka does not return the committed offsets.
        :raises KafkaRefusedError: if it does not tell the offset of one of the partitions.
        """
        self._seeker.seek_to_committed(consumer, partitions, auto_offset_reset=auto_offset_reset)
