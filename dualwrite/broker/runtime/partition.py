"""One partition at run time: its state, its log, and the readers that wait for it."""

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

from dualwrite.broker.core.partitions import BatchVerdict, PartitionState
from dualwrite.broker.log import batch_checks
from dualwrite.broker.log.partition_log import PartitionLog
from dualwrite.broker.log.replacement import Replacement
from dualwrite.broker.log.settings import LogSettings
from dualwrite.broker.runtime.flush_limits import NO_LIMIT, FlushLimits
from dualwrite.broker.runtime.flusher import Flusher
from dualwrite.broker.settings.topic_configs import TopicConfig
from dualwrite.ids import ProducerIdentity, TopicPartition
from dualwrite.records.batch import Record, place_records
from dualwrite.records.control import Marker, place_marker, read_coordinator_epoch, read_marker
from dualwrite.records.header import BatchFields, BatchHeader, place_batch

LEADER_EPOCH = batch_checks.LEADER_EPOCH
"""The leader epoch of every partition: the one node has led it since its creation."""


class AppendResult(NamedTuple):
    """The result for a client's batch: it is refused with ``verdict.error``, or stored at ``base_offset``."""

    verdict: BatchVerdict
    base_offset: int


class Partition:
    """A log and its state, as a :class:`~dualwrite.broker.runtime.flusher.Flushable`. Belongs to the event loop's
    thread."""

    def __init__(
        self,
        name: TopicPartition,
        log: PartitionLog,
        state: PartitionState,
        flusher: Flusher,
        on_marker: Callable[[BatchHeader, Marker], None] | None = None,
    ) -> None:
        self.name = name
        self.log = log
        self.state = state
        self._flusher = flusher
        self._is_durable = flusher.is_durable
        self._on_marker = on_marker
        self._flush_limits: FlushLimits | None = None
        self.is_deleted = False
        """True once the topic is deleted. Then no holder of the partition may use its log."""
        self._readers: set[asyncio.Event] = set()

    def append(self, batch: bytes | memoryview, header: BatchHeader, begins_at_zero: bool = False) -> AppendResult:
        """Append a client's batch unless the partition's state forbids it.

        :param batch: a writable batch gets its offset in place; of any other a copy is appended.
        :param header: the header of ``batch``, after :func:`~dualwrite.broker.core.record_rules.checked_header`.
        :param begins_at_zero: see :meth:`PartitionState.decide`.
        """
        verdict = self.state.decide(header, begins_at_zero)
        if not verdict.appends:
            return AppendResult(verdict, verdict.duplicate_of)
        own = batch if isinstance(batch, memoryview) and not batch.readonly else bytearray(batch)
        base_offset = self.state.end_offset
        place_batch(own, base_offset, LEADER_EPOCH)
        self._append(own, header.placed(base_offset, LEADER_EPOCH))
        return AppendResult(verdict, base_offset)

    def append_own(self, records: Sequence[Record], fields: BatchFields | None = None) -> int:
        """Append a batch of the broker's own, without checks, and return its base offset."""
        header, batch = place_records(self.state.end_offset, records, fields)
        self._append(batch, header)
        return header.base_offset

    def append_marker(
        self, marker: Marker, producer: ProducerIdentity, timestamp_ms: int, coordinator_epoch: int = LEADER_EPOCH
    ) -> None:
        """Append the control batch that ends ``producer``'s transaction here."""
        header, batch = place_marker(self.state.end_offset, marker, producer, coordinator_epoch, timestamp_ms)
        self._append(batch, header, marker, coordinator_epoch)

    def _append(
        self,
        batch: bytes | bytearray | memoryview,
        header: BatchHeader,
        marker: Marker | None = None,
        coordinator_epoch: int = LEADER_EPOCH,
    ) -> None:
        log = self.log
        try:
            log.append(batch, header)
            self.state.apply(header, marker, coordinator_epoch)
            if marker is not None and self._on_marker is not None:
                self._on_marker(header, marker)
            if self._is_durable:
                self._flusher.touch(self)
            else:
                self.flushed(self.state.end_offset)
                if self._flush_limits is not None:
                    self._flush_limits.appended()
            if log.point_due:
                self._plan_recovery_point()
                self._flusher.in_background(log.write_recovery_points)
        except Exception as error:  # noqa: BLE001  memory and log would differ
            self._flusher.fail(error)

    def configure(self, config: TopicConfig) -> None:
        """Use the settings of the topic from now on. If flush.messages or flush.ms has changed, an fsync begins for the
        records that are unsynced."""
        self.log.settings = log_settings(config)
        messages, interval_ms = config.flush_messages, config.flush_ms
        before = self._flush_limits
        if before is not None:
            if (before.messages, before.interval_ms) == (messages, interval_ms):
                return  # its timer runs for records that were acknowledged
            before.cancel()
        self._flush_limits = None
        if not self._is_durable and min(messages, interval_ms) < NO_LIMIT:
            sync = partial(self._flusher.sync, self)
            self._flush_limits = FlushLimits(self.log, messages, interval_ms, sync)
            if self.log.unsynced:
                sync()

    @property
    def has_flush_limits(self) -> bool:
        """True if flush.messages or flush.ms has an effect here."""
        return self._flush_limits is not None

    def _plan_recovery_point(self) -> None:
        self.log.plan_recovery_point(self.state.snapshot(), self.state.aborted_since)

    def checkpoint(self) -> None:
        """Store the end as the recovery point, with its snapshot, for a clean stop. Does nothing if that is already
        done."""
        if self.log.has_unplanned:
            self._plan_recovery_point()
        self.log.write_recovery_points()

    @property
    def end_offset(self) -> int:
        """The offset after the last append."""
        return self.state.end_offset

    def sync(self) -> None:
        """Make the log durable."""
        self.log.sync()

    def flushed(self, end_offset: int) -> None:
        """Make the durable records visible to readers."""
        self.state.advance(end_offset)
        for reader in self._readers:
            reader.set()

    def truncate_before(self, offset: int) -> None:
        """Raise the log start offset to ``offset``, durably. ``offset`` must not be above the high watermark.

        The state of producers and open transactions stays, as in Kafka.
        """
        with self._flusher.critical():
            if self.log.removes_segments(offset):  # only these segments have the state of some producers
                self._plan_recovery_point()
            self.log.truncate_before(offset)
            self.state.forget_aborted(lambda ended: ended.last_offset < self.log.start_offset)

    def replace(self, replacement: Replacement) -> bool:
        """Replace old segments by a cleaner's segment. Return False, and discard it, if the old segments were
        removed."""
        with self._flusher.critical():
            base_offset, end_offset = replacement.base_offset, replacement.end_offset
            aborted = [
                transaction for transaction in self.state.aborted if base_offset <= transaction.last_offset < end_offset
            ]
            return self.log.replace(replacement, aborted)

    def visible_before(self, committed_only: bool) -> int:
        """The offset below which a reader sees records: the LSO for read_committed, else the high watermark."""
        return self.last_stable_offset if committed_only else self.state.high_watermark

    @property
    def last_stable_offset(self) -> int:
        """LSO: at least the log's start, even if an open transaction began in deleted records (Kafka:
        UnifiedLog.maybeIncrementFirstUnstableOffset)."""
        return max(self.state.last_stable_offset, self.log.start_offset)

    def retire(self) -> None:
        """Mark the partition as deleted, and wake its readers."""
        self.is_deleted = True
        if self._flush_limits is not None:
            self._flush_limits.cancel()
        self.log.abandon()
        for reader in self._readers:
            reader.set()

    @property
    def has_readers(self) -> bool:
        """True if a reader waits for more records."""
        return bool(self._readers)

    def add_reader(self, reader: asyncio.Event) -> None:
        """Set ``reader`` whenever more records become visible."""
        self._readers.add(reader)

    def remove_reader(self, reader: asyncio.Event) -> None:
        """Forget ``reader``."""
        self._readers.discard(reader)


def log_settings(config: TopicConfig) -> LogSettings:
    """The log's settings for a topic with ``config``."""
    return LogSettings(config.segment_bytes, config.roll_ms, config.segment_index_bytes, config.index_interval_bytes)


def replay_into(state: PartitionState) -> Callable[[BatchHeader, bytes | None], None]:
    """A callback for :meth:`PartitionLog.open` that rebuilds ``state``."""

    def apply(header: BatchHeader, control_batch: bytes | None) -> None:
        if control_batch is None or not header.record_count:
            state.apply(header, None)
        else:
            state.apply(header, read_marker(control_batch), read_coordinator_epoch(control_batch))

    return apply
