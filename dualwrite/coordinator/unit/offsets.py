"""The offsets of one unit of work: sent in its Kafka transaction, or stored in its database transaction."""

import weakref
from collections.abc import Iterable
from typing import Any

from dualwrite.client.producer.arguments import member_of
from dualwrite.coordinator.offsets.consumers import (
    KafkaConsumer,
    member_of_consumer,
    offsets_of,
    partition_of,
    require_consumer,
    require_positions,
    tracked_consumer,
)
from dualwrite.coordinator.offsets.consuming import Consuming
from dualwrite.coordinator.rules.machine import Result
from dualwrite.coordinator.rules.positions import Consumer
from dualwrite.coordinator.steps.driver import UnitDriver
from dualwrite.errors import InvalidTransactionStateError, KafkaRefusedError, RebalancedError
from dualwrite.ids import TopicPartition
from dualwrite.wire.error_codes import ErrorCode

NOTHING_READ = -1001
"""The offset of a position before the first read: librdkafka's OFFSET_INVALID."""

_MOVED = frozenset(
    {
        ErrorCode.ILLEGAL_GENERATION,
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.REBALANCE_IN_PROGRESS,
        ErrorCode.FENCED_INSTANCE_ID,
    }
)
"""Error codes with which a group coordinator refuses offsets of a consumer that is not, or no longer, a member."""


class UnitOffsets:
    """The offsets of one unit of work.

    :param consuming: the DualWrite's knowledge about its consumers.
    """

    def __init__(self, consuming: Consuming) -> None:
        self._consuming = consuming
        self._worker = weakref.ref(consuming.worker())  # a task that is collected lets go of its unit
        self._claimed: dict[Consumer, dict[TopicPartition, int]] = {}
        self._stored: dict[tuple[str, TopicPartition], int] = {}

    def send(self, driver: UnitDriver, consumer: KafkaConsumer, offsets: Iterable[Any] | None) -> None:
        """Commit the offsets of ``consumer`` in this unit's Kafka transaction; see Transaction.send_offsets."""
        driver.require_user_code()
        said = _checked_offsets(consumer, offsets)
        with driver.rolling_back_on_error():
            positions = _read_so_far(consumer, said)
            if not positions:
                return
            metadata = consumer.consumer_group_metadata()
            member = member_of(metadata)
            if member.generation_id < 0 or not member.member_id:
                # Kafka accepts such offsets unchecked, for clients from before KIP-447. A consumer that was removed
                # from its group is in this state as soon as its heartbeat has learned it.
                raise RebalancedError(
                    f"the consumer is not, or no longer, a member of group {member.group_id!r}: call subscribe(); "
                    "after a rebalance call seek_to_committed(consumer), and poll again. For partitions that are "
                    "assigned by hand use store_offsets()"
                )
            known = tracked_consumer(consumer, member)
            self._consuming.warn_unless_put(known, positions)
            self._claim(known, positions, "seek_to_committed")
            try:
                driver.send_offsets(positions, metadata)
            except KafkaRefusedError as error:
                if error.code not in _MOVED:
                    raise
                raise RebalancedError(
                    f"group {member.group_id!r} has given this consumer's partitions to another member ({error.name}): "
                    "the unit of work is rolled back; call seek_to_committed(consumer), and poll again"
                ) from error
            if driver.watch is not None:
                driver.watch.offsets_added(member.group_id, offsets_of(positions), in_database=False)

    def store(self, driver: UnitDriver, consumer: KafkaConsumer, offsets: Iterable[Any] | None) -> None:
        """See Transaction.store_offsets."""
        connection = driver.connection
        if connection.in_nested_transaction():
            raise InvalidTransactionStateError("store_offsets(): a savepoint may be rolled back alone: call it outside")
        said = _checked_offsets(consumer, offsets)
        with driver.rolling_back_on_error():
            positions = _read_so_far(consumer, said)
            if not positions:
                return
            member = member_of_consumer(consumer)
            group, known = member.group_id, tracked_consumer(consumer, member)
            places = offsets_of(positions)
            # First: after a reset by librdkafka, positions in another cluster may look like records used before.
            cluster_id = self._consuming.cluster_of(consumer, known, group, positions[0].topic)
            within = {place: offset for (name, place), offset in self._stored.items() if name == group}
            moves = self._consuming.positions.moves(known, places, within)
            self._claim(known, positions, "seek_to_stored")
            if moves:
                epochs = {
                    partition_of(position): epoch
                    for position in positions
                    if (epoch := _leader_epoch(position)) is not None
                }
                self._consuming.table.move(connection, group, moves, epochs, cluster_id)
            if driver.watch is not None:
                driver.watch.offsets_added(group, places, in_database=True)
        self._stored.update({(group, move.partition): move.offset for move in moves})

    def ended(self, result: Result | None) -> None:
        """The unit of work has ended.

        :param result: None if it did not begin, or was left in the middle.
        """
        positions = self._consuming.positions
        if result is not Result.SUCCEEDED:
            positions.failed(self._worker())
        for consumer, offsets in self._claimed.items():
            if result is Result.SUCCEEDED:
                positions.committed(consumer, offsets)
            elif result is not Result.ROLLED_BACK:
                positions.may_be_committed(consumer, offsets)

    def _claim(self, known: Consumer, positions: Iterable[Any], remedy: str) -> None:
        offsets = offsets_of(positions)
        self._consuming.positions.claim(known, offsets, self._worker() or self._consuming.worker(), remedy)
        self._claimed.setdefault(known, {}).update(offsets)


def _leader_epoch(position: Any) -> int | None:
    epoch = getattr(position, "leader_epoch", None)
    return epoch if isinstance(epoch, int) and epoch >= 0 else None


def _checked_offsets(consumer: KafkaConsumer, offsets: Iterable[Any] | None) -> list[Any] | None:
    """The application's offsets, checked; if they are invalid the unit of work can go on."""
    require_consumer(consumer)
    positions = None if offsets is None else require_positions(offsets, "offsets")
    for position in positions or ():
        if position.offset < 0 and position.offset != NOTHING_READ:
            raise ValueError(
                f"offsets: {partition_of(position)} at {position.offset}: give the number of the next record to read"
            )
    return positions


def _read_so_far(consumer: KafkaConsumer, offsets: list[Any] | None) -> list[Any]:
    """``offsets``, or the positions of all partitions of ``consumer``; without partitions not yet read from."""
    positions = consumer.position(consumer.assignment()) if offsets is None else offsets
    return [position for position in positions if position.offset >= 0]
