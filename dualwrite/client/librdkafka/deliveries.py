"""Tracks the delivery reports of one transaction: counts them to notice a missing one, and finds an anchor."""

from collections.abc import Callable
from typing import Any

from dualwrite.ids import Anchor, TopicPartition


class Deliveries:
    """The delivery reports of one transaction.

    An empty producer queue does not prove that every record was acknowledged: a failed record leaves the queue too.
    """

    def __init__(self) -> None:
        self.produced = 0
        self.acknowledged = 0
        self.failed = 0
        self.first_error: Any = None
        self.first_topic = ""
        self._first_offsets: dict[TopicPartition, int] = {}

    def sent(self) -> None:
        """A record was handed to the producer."""
        self.produced += 1

    def delivered(self, partition: TopicPartition, offset: int) -> None:
        """A record was acknowledged. ``offset`` is negative if the broker did not tell it (a duplicate of a retry)."""
        self.acknowledged += 1
        # The reports of a partition come in the order of its records, so the first report is for the transaction's
        # first record. If it has no offset, the partition cannot serve as the anchor: a later record is not where the
        # transaction began.
        self._first_offsets.setdefault(partition, offset)

    def refused(self, error: Any, topic: str = "") -> None:
        """A record for ``topic`` was dropped. ``error`` (a KafkaError) is the reason."""
        self.failed += 1
        if self.first_error is None:
            self.first_error, self.first_topic = error, topic

    @property
    def missing(self) -> int:
        """Records without a report so far."""
        return self.produced - self.acknowledged - self.failed

    @property
    def partitions(self) -> frozenset[TopicPartition]:
        """The partitions that acknowledged a record."""
        return frozenset(self._first_offsets)

    def anchor(self) -> Anchor | None:
        """Where the transaction began in one of its partitions; None if no report tells."""
        return next(
            (Anchor.of(partition, offset) for partition, offset in self._first_offsets.items() if offset >= 0), None
        )


def reporter(
    deliveries: Deliveries, on_delivery: Callable[[Any, Any], None] | None = None
) -> Callable[[Any, Any], None]:
    """A delivery callback that counts for one transaction. It holds no reference to the producer, to not keep it
    alive."""

    def report(error: Any, message: Any) -> None:
        if error is None:
            deliveries.delivered(TopicPartition(message.topic(), message.partition()), message.offset())
        else:
            deliveries.refused(error, message.topic())
        if on_delivery is not None:
            on_delivery(error, message)

    return report
