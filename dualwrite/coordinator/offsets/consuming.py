"""Consume, transform, dual-write: a consumer's offsets are part of the unit of work that uses its records.

The offsets are either in the Kafka transaction, under the group's generation (KIP-447), or in the database, where an
offset that another member has advanced fences the consumer. positions.py checks the application's order of calls.
"""

import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from sqlalchemy import Engine

from dualwrite.coordinator.offsets.assigning import Assigning
from dualwrite.coordinator.offsets.consumers import (
    KafkaConsumer,
    OffsetReset,
    cluster_of,
    committed_offsets,
    identity_of,
    member_of_consumer,
    offsets_of,
    partition_of,
    require_consumer,
    require_positions,
    tracked_consumer,
    with_beginnings,
)
from dualwrite.coordinator.rules.positions import Consumer, Positions
from dualwrite.coordinator.sql.decision_store import SqlDecisionStore
from dualwrite.coordinator.sql.offset_table import OffsetTable, StoredOffset
from dualwrite.errors import ConfigurationError, ForeignClusterError
from dualwrite.ids import TopicPartition

logger = logging.getLogger(__name__)


class Consuming:
    """The consumers whose records a DualWrite's units of work use, and their offsets.

    Belongs to one process, like its consumers.

    :param worker: returns the caller: a thread, or a task.
    """

    def __init__(
        self, engine: Engine, store: SqlDecisionStore, worker: Callable[[], object] = threading.current_thread
    ) -> None:
        self.table = OffsetTable(engine, store)
        self.positions = Positions()
        self.worker = worker
        self._assigning = Assigning()
        self._has_warned = False

    @contextmanager
    def failures_count(self) -> Iterator[None]:
        """Count an error that leaves the block as a unit of work that has failed for good."""
        try:
            yield
        except BaseException:
            self.positions.failed(self.worker())
            raise

    def seek_to_stored(
        self, consumer: KafkaConsumer, partitions: Sequence[Any] | None, auto_offset_reset: OffsetReset
    ) -> None:
        """See DualWrite.seek_to_stored."""
        _require_seekable(consumer, auto_offset_reset)
        try:
            self._seek_to_stored(consumer, partitions, auto_offset_reset)
        except BaseException:
            # librdkafka goes on after a callback that raised, and reads from an undefined position.
            self.positions.forget(identity_of(consumer))
            raise

    def _seek_to_stored(self, consumer: KafkaConsumer, partitions: Sequence[Any] | None, reset: OffsetReset) -> None:
        member = member_of_consumer(consumer)
        positions = require_positions(consumer.assignment() if partitions is None else partitions, "partitions")
        # With partitions this is a rebalance callback, in which the consumer must not be asked: see cluster_of().
        cluster_id = cluster_of(consumer, positions[0].topic) if positions and partitions is None else None
        stored = self._stored(consumer, member.group_id, positions, reset, cluster_id)
        starts = {partition: found.offset for partition, found in stored.items()}
        is_whole = self._put(consumer, positions, starts, is_assigned=partitions is None)
        worker = self._worker_of(partitions)
        tracked = tracked_consumer(consumer, member)
        row_clusters = {place: found.cluster_id for place, found in stored.items() if found.cluster_id is not None}
        self.positions.sought(
            tracked,
            starts,
            worker,
            is_whole=is_whole,
            is_stored=True,
            cluster_id=cluster_id,
            row_clusters=row_clusters,
        )

    def cluster_of(self, consumer: KafkaConsumer, tracked: Consumer, group: str, topic: str) -> str | None:
        """The id of the cluster that ``consumer`` reads from. The consumer is asked once after an assignment, or
        at each call if its cluster has no id. Not in a callback.

        :raises ForeignClusterError: if an offset that it began with counts the records of another cluster.
        :raises KafkaUnavailableError: if the cluster does not answer.
        """
        cluster_id = self.positions.cluster_of(tracked)
        if cluster_id is None:
            cluster_id = cluster_of(consumer, topic)
            for place, other in self.positions.reads_from(tracked, cluster_id).items():
                self.positions.forget(tracked.identity)
                raise ForeignClusterError(_of_another_cluster(group, place, other, cluster_id))
        return cluster_id

    def seek_to_committed(
        self, consumer: KafkaConsumer, partitions: Sequence[Any] | None, auto_offset_reset: OffsetReset
    ) -> None:
        """See DualWrite.seek_to_committed."""
        _require_seekable(consumer, auto_offset_reset)
        try:
            self._seek_to_committed(consumer, partitions, auto_offset_reset)
        except BaseException:
            if partitions is not None:  # as above; without an assignment the consumer has not moved, and may try again
                self.positions.forget(identity_of(consumer))
            raise

    def _seek_to_committed(self, consumer: KafkaConsumer, partitions: Sequence[Any] | None, reset: OffsetReset) -> None:
        tracked = tracked_consumer(consumer, member_of_consumer(consumer))
        positions = require_positions(consumer.assignment() if partitions is None else partitions, "partitions")
        committed = committed_offsets(consumer, positions)
        if partitions is None:
            warning = self.positions.commits_past_units(tracked, committed)
            if warning:
                logger.warning("%s", warning)
        done = self.positions.done(tracked)
        # The last unit of work may be committed in the database and not yet complete in Kafka.
        known = {partition: max(offset, done.get(partition, 0)) for partition, offset in committed.items()}
        starts = with_beginnings(consumer, positions, known, reset, done)
        is_whole = self._put(consumer, positions, starts, is_assigned=partitions is None)
        self.positions.sought(tracked, starts, self._worker_of(partitions), is_whole=is_whole, is_stored=False)

    def warn_unless_put(self, tracked: Consumer, positions: Iterable[Any]) -> None:
        """Warn once about an assignment without a seek: librdkafka may go back by itself, and its positions do not show
        it."""
        if not self._has_warned and not offsets_of(positions).keys() <= self.positions.done(tracked).keys():
            self._has_warned = True
            logger.warning(
                "a consumer was assigned partitions without on_assign=dw.seek_to_committed: librdkafka may hand out "
                "records again that its group has used; see docs/consuming.md"
            )

    def _put(
        self,
        consumer: KafkaConsumer,
        positions: list[Any],
        starts: Mapping[TopicPartition, int],
        *,
        is_assigned: bool,
    ) -> bool:
        """Let ``consumer`` read the partitions of ``positions`` from ``starts``. Return whether these are all of its
        partitions.

        :param is_assigned: True if these are the consumer's partitions already, and all of them.
        """
        for position in positions:
            position.offset = starts[partition_of(position)]
        if is_assigned:
            self._assigning.seek_again(consumer, positions)
            return True
        return self._assigning.assign(consumer, positions)

    def _worker_of(self, partitions: Sequence[Any] | None) -> object | None:
        """Who runs the consumer's units of work; None in a callback, which runs in the thread that polls.

        :param partitions: the argument of a seek: None if it is not a callback.
        """
        return self.worker() if partitions is None else None

    def _stored(
        self,
        consumer: KafkaConsumer,
        group: str,
        positions: list[Any],
        reset: OffsetReset,
        cluster_id: str | None,
    ) -> dict[TopicPartition, StoredOffset]:
        """The stored offset of each of ``positions``. A partition that is new to the group gets its row now, before the
        first record is read, so that a unit of work always has a row to compare with.

        :param cluster_id: of the cluster that the consumer reads from; None if it was not asked.
        :raises ForeignClusterError: if an offset counts the records of another cluster.
        """
        wanted = [partition_of(position) for position in positions]
        stored = self.table.read(group)
        missing = [position for position in positions if partition_of(position) not in stored]
        if missing:
            committed = committed_offsets(consumer, missing)
            for partition, offset in with_beginnings(consumer, missing, committed, reset, {}).items():
                self.table.begin(group, partition, offset, cluster_id)
            stored = self.table.read(group)
        found = {partition: stored[partition] for partition in wanted}
        for place, known in found.items():
            if cluster_id is not None and known.cluster_id not in (None, cluster_id):
                raise ForeignClusterError(_of_another_cluster(group, place, known.cluster_id, cluster_id))
        return found


def _of_another_cluster(group: str, partition: TopicPartition, stored_id: str | None, cluster_id: str | None) -> str:
    return (
        f"group {group!r}: the offset in the database of {partition} counts the records of the Kafka cluster "
        f"{stored_id}, and this consumer reads from {cluster_id}: connect it to that cluster again, or give it another "
        "group.id. If the records have moved, run `dualwrite move` with --finish and --db. If that cluster is gone, "
        "delete the group's rows in kafka_consumer_offset"
    )


def _require_seekable(consumer: object, auto_offset_reset: str) -> None:
    require_consumer(consumer)
    if auto_offset_reset not in ("earliest", "latest"):
        raise ConfigurationError(f"auto_offset_reset={auto_offset_reset!r}: use 'earliest' or 'latest'")
