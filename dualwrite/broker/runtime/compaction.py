"""Compaction while the broker runs: chooses the next log, cleans it in a thread, and swaps the result in (Kafka:
LogCleaner).

The thread reads files that no longer change, and writes new files beside them. The log itself changes on the event
loop's thread, in one step without await. A crash at any point leaves the old segments, the new ones, or new ones up to
some offset and old ones from there on. Readers see the same records in each case.
"""

import logging
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol
from weakref import WeakSet

from dualwrite.broker.facts.transaction_index import IndexedTransaction
from dualwrite.broker.log.cleaner import Cleaned, CleaningPlan, clean
from dualwrite.broker.log.compaction import AbortedRange, ActiveProducer
from dualwrite.broker.log.layout import CLEANER_OFFSET, read_mark, write_mark
from dualwrite.broker.log.segment import Segment
from dualwrite.broker.runtime.cluster import Cluster
from dualwrite.broker.runtime.flusher import Flusher
from dualwrite.broker.runtime.partition import Partition
from dualwrite.broker.settings.topic_configs import TopicConfig
from dualwrite.errors import CorruptLogError
from dualwrite.ports import Clock, Files
from dualwrite.records.header import MalformedBatchError

logger = logging.getLogger(__name__)

_NO_LIMIT = 2**63 - 1


@dataclass(frozen=True, slots=True)
class CleanerSettings:
    """log.cleaner.enable, and log.cleaner.dedupe.buffer.size: the memory for the keys of one cleaning, in bytes."""

    enable: bool = True
    dedupe_bytes: int = 134_217_728


class CleanerThread(Protocol):
    """Where the cleaner works, beside the event loop."""

    async def run(self, clean: Callable[[Callable[[], None]], Cleaned]) -> Cleaned:
        """The result of ``clean``, which calls its argument between batches, so that the broker answers requests.

        :raises InterruptedError: if the broker stops meanwhile.
        """

    def close(self) -> None:
        """Stop a cleaning in progress, and the thread."""


class Compaction:
    """Cleans the logs of topics with ``compact`` in their cleanup.policy. Belongs to the event loop's thread."""

    def __init__(
        self,
        files: Files,
        cluster: Cluster,
        flusher: Flusher,
        clock: Clock,
        settings: CleanerSettings,
        thread: CleanerThread,
    ) -> None:
        self._files = files
        self._cluster = cluster
        self._flusher = flusher
        self._clock = clock
        self.settings = settings
        self._uncleanable: WeakSet[Partition] = WeakSet()
        """Partitions that failed for good. They are objects and not names, because a new topic may have an old name."""
        self._thread = thread

    async def run_once(self) -> None:
        """Clean one log after the other, the dirtiest first, until none is dirty enough (log.cleaner.backoff.ms). A log
        whose cleaning fails waits for the next run."""
        failed: set[Partition] = set()
        with suppress(InterruptedError):  # the broker stops
            while self.settings.enable:
                dirtiest = self._dirtiest(failed)
                if dirtiest is None:
                    return
                partition, plan = dirtiest
                if not await self._clean(partition, plan):
                    failed.add(partition)

    def close(self) -> None:
        """Stop a cleaning in progress, and the thread."""
        self._thread.close()

    def _dirtiest(self, failed: Collection[Partition]) -> tuple[Partition, CleaningPlan] | None:
        best: tuple[float, Partition, CleaningPlan] | None = None
        for partition in self._cluster.partitions():
            config = self._cluster.config(partition.name.topic)
            if not config.compacts or partition in self._uncleanable or partition in failed:
                continue
            plan = plan_for(
                partition, config, self._first_dirty(partition), self._clock.wall_ms(), self.settings.dedupe_bytes
            )
            ratio = dirtiness(plan, config)
            if ratio > 0 and (best is None or ratio > best[0]):
                best = ratio, partition, plan
        return best and best[1:]

    def _first_dirty(self, partition: Partition) -> int:
        try:
            return read_mark(self._files, partition.log.directory / CLEANER_OFFSET)
        except CorruptLogError as error:
            logger.warning("%s: cleaned from its start: %s", partition.name, error)
            return 0  # without the note a cleaning has more work, and the same result

    async def _clean(self, partition: Partition, plan: CleaningPlan) -> bool:
        """Clean one log. True if that succeeded; the next run tries again after a failure.

        :raises InterruptedError: if the broker stops meanwhile.
        """
        try:
            cleaned = await self._thread.run(lambda pause: clean(plan, partition.log.begin_replacement, pause))
        except MalformedBatchError as error:
            logger.error("%s cannot be compacted: %s", partition.name, error)
            self._uncleanable.add(partition)
            return True
        except InterruptedError:
            raise
        except OSError as error:  # the disk is full, or the topic was deleted: nothing was changed
            logger.warning("%s was not compacted: %s", partition.name, error)
            return False
        if not self._swap_in(partition, cleaned):
            logger.info("%s has changed while it was compacted", partition.name)
            return False
        logger.info(
            "%s: compacted up to offset %d: %d of %d bytes left, %d records removed",
            partition.name, cleaned.clean_before, cleaned.written_bytes, cleaned.read_bytes, cleaned.removed_records,
        )  # fmt: skip
        return True

    def _swap_in(self, partition: Partition, cleaned: Cleaned) -> bool:
        """Put the result into the log. True if the log took all of it: meanwhile its oldest segments, or its topic, may
        have been removed."""
        if self._cluster.partition(partition.name) is not partition:
            with suppress(OSError):  # the deletion of the topic may have removed the files
                cleaned.discard()
            return False
        with self._flusher.critical():
            if partition.log.synced_offset < partition.state.high_watermark:  # only with durability=os
                partition.log.sync()  # no power cut may undo a transaction by which older values are removed
            while cleaned.replacements:
                if not partition.replace(cleaned.replacements.pop(0)):
                    cleaned.discard()
                    return False
            partition.state.forget_aborted(lambda ended: _as_range(ended) in cleaned.forgotten)
            # This comes last. After a crash before it, the next cleaning begins at the old offset, which changes
            # nothing.
            write_mark(self._files, partition.log.directory / CLEANER_OFFSET, cleaned.clean_before)
        return True


def plan_for(
    partition: Partition, config: TopicConfig, first_dirty: int, now_ms: int, dedupe_bytes: int
) -> CleaningPlan:
    """The segments of ``partition`` that can be cleaned now (Kafka: LogCleanerManager.cleanableOffsets).

    They are sealed, below the LSO, and their newest record is older than min.compaction.lag.ms.

    :param first_dirty: the offset where the last cleaning ended.
    :param now_ms: milliseconds since the epoch.
    :param dedupe_bytes: the memory for the keys.
    """
    sealed = list(partition.log.sealed_segments())
    before = min(partition.last_stable_offset, sealed[-1].next_offset if sealed else 0)
    if config.min_compaction_lag_ms:
        young = (segment for segment in sealed if segment.max_timestamp > now_ms - config.min_compaction_lag_ms)
        before = min([before, *(segment.base_offset for segment in young)])
    state = partition.state
    active = state.producers.values()
    return CleaningPlan(
        sources=[segment for segment in sealed if segment.base_offset < before],
        first_dirty=max(first_dirty, partition.log.start_offset),
        before=before,
        now_ms=now_ms,
        delete_retention_ms=config.delete_retention_ms,
        segment_bytes=config.segment_bytes,
        dedupe_bytes=dedupe_bytes,
        aborted=[_as_range(transaction) for transaction in state.aborted],
        producers={entry.producer_id: ActiveProducer(entry.epoch, entry.last_data_offset) for entry in active},
    )


def _as_range(ended: IndexedTransaction) -> AbortedRange:
    return AbortedRange(ended.producer_id, ended.first_offset, ended.last_offset)


def dirtiness(plan: CleaningPlan, config: TopicConfig) -> float:
    """The dirty part of the segments that can be cleaned, from 0 to 1. 0 if a cleaning need not begin: the part is at
    most min.cleanable.dirty.ratio, and no record has waited for max.compaction.lag.ms."""
    dirty = [segment for segment in plan.sources if segment.next_offset > plan.first_dirty]
    dirty_bytes = sum(segment.size for segment in dirty)
    if plan.first_dirty >= plan.before or not dirty_bytes:
        return 0.0
    ratio = dirty_bytes / sum(segment.size for segment in plan.sources)
    if ratio > config.min_cleanable_dirty_ratio or _is_overdue(dirty[0], plan.now_ms, config.max_compaction_lag_ms):
        return ratio
    return 0.0


def _is_overdue(oldest: Segment, now_ms: int, max_lag_ms: int) -> bool:
    return max_lag_ms < _NO_LIMIT and oldest.is_older_than(max_lag_ms, now_ms)
