"""DualWrite's methods for consumers: after an assignment, and after a unit of work that failed."""

from collections.abc import Sequence
from typing import Any

from dualwrite.coordinator.consuming import Consuming, KafkaConsumer, OffsetReset


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

    def seek_to_committed(self, consumer: KafkaConsumer, *, auto_offset_reset: OffsetReset = "earliest") -> None:
        """Let ``consumer`` read on where its group's units of work have come to in Kafka; for ``tx.send_offsets``,
        after every unit of work that failed: the records that it has read since are handed out again. After an
        assignment a consumer begins there by itself.

        :param auto_offset_reset: "earliest" or "latest", for a partition of which the group has committed nothing; as
            the consumer's own ``auto.offset.reset``.
        :raises InvalidTransactionStateError: inside a unit of work.
        :raises KafkaUnavailableError: if the committed offsets could not be asked.
        """
        self._require_outside()
        self._consuming.seek_to_committed(consumer, auto_offset_reset)
