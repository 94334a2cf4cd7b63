"""DualWrite's methods for consumers: after an assignment, and after a unit of work that failed."""

from collections.abc import Sequence
from typing import Any

from dualwrite.coordinator.offsets.consumers import KafkaConsumer, OffsetReset
from dualwrite.coordinator.offsets.consuming import Consuming


class SeekingConsumers:
    """The part of DualWrite that puts consumers where their group's units of work have come to."""

    _consuming: Consuming

    def _require_outside(self) -> None:
        raise NotImplementedError

    def seek_to_stored(
        self,
        consumer: KafkaConsumer,
        partitions: Sequence[Any] | None = None,
        *,
        auto_offset_reset: OffsetReset = "earliest",
    ) -> None:
        """Let ``consumer`` read on where its group's units of work have come to in the database; for
        ``tx.store_offsets``.

        After every assignment, as the callback of ``subscribe(topics, on_assign=dw.seek_to_stored)``, which takes its
        two arguments: it then calls the consumer's ``assign()``, or ``incremental_assign()`` where the group's protocol
        is cooperative. And with the consumer alone after every unit of work that failed: the records that it has read
        since are handed out again.

        A partition that is new to the table begins where Kafka has the group's committed offset, or else by
        ``auto_offset_reset``; its row is made at once.

        :param partitions: that were assigned; None for all that the consumer has.
        :param auto_offset_reset: "earliest" or "latest".
        :raises InvalidTransactionStateError: inside a unit of work.
        :raises DatabaseNotReadyError: before ``dualwrite db upgrade``.
        :raises KafkaUnavailableError: if a new partition's beginning could not be asked.
        """
        self._require_outside()
        self._consuming.seek_to_stored(consumer, partitions, auto_offset_reset)

    def seek_to_committed(
        self,
        consumer: KafkaConsumer,
        partitions: Sequence[Any] | None = None,
        *,
        auto_offset_reset: OffsetReset = "earliest",
    ) -> None:
        """Let ``consumer`` read on where its group's units of work have come to in Kafka; for ``tx.send_offsets``.

        As the callback of ``subscribe(topics, on_assign=dw.seek_to_committed)``, as :meth:`seek_to_stored`. librdkafka
        begins there by itself, too, but may then go back to the topic's beginning; a consumer that is put there does
        not. And with the consumer alone after every unit of work that failed: the records that it has read since are
        handed out again.

        Waits for units of work of others that are decided or prepared with an offset of these partitions (KIP-447).

        :param partitions: that were assigned; None for all that the consumer has.
        :param auto_offset_reset: "earliest" or "latest", for a partition of which the group has committed nothing.
        :raises InvalidTransactionStateError: inside a unit of work.
        :raises KafkaUnavailableError: if the committed offsets could not be asked.
        """
        self._require_outside()
        self._consuming.seek_to_committed(consumer, partitions, auto_offset_reset)
