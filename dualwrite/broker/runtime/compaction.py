"""Compaction while the broker runs: chooses the next log, cleans it in a thread, and swaps the result in (Kafka:
LogCleaner).

The thread reads files that are not written any more, and writes new ones beside them. Changes of the log happen on the
event loop's thread, in one step without await. A crash at any point leaves the old segments, the new ones, or new ones
up to some offset and old ones from there on: readers see the same records in each case.
"""

import asyncio
import logging
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from weakref import WeakSet

from dualwrite.broker.core.topic_configs import TopicConfig
from dualwrite.broker.facts.transaction_index import IndexedTransaction
from dualwrite.broker.log.cleaner import Cleaned, CleaningPlan, clean
from dualwrite.broker.log.compaction import AbortedRange, ActiveProducer
from dualwrite.broker.log.layout import CLEANER_OFFSET, read_note, write_note
from dualwrite.broker.log.segment import Segment
from dualwrite.broker.runtime.cluster import Cluster
from dualwrite.broker.runtime.flusher import Flusher
from dualwrite.broker.runtime.partition import Partition
from dualwrite.errors import CorruptLogError
from dualwrite.ports import Clock, Files
from dualwrite.records.header import MalformedBatchError

logger = logging.getLogger(__name__)

_NO_LIMIT = 2**63 - 1
_WORK_SECONDS, _REST_SECONDS = 0.002, 0.002
_SWITCH_SECONDS = 0.0005


@dataclass(frozen=True, slots=True)
class CleanerSettings:
    """log.cleaner.enable, and log.cleaner.dedupe.buffer.size: what the keys of one cleaning may take, in bytes."""

    enable: bool = True
    dedupe_bytes: int = 134_217_728


class Compaction:
    """Cleans the logs of topics with ``compact`` in their cleanup.policy. Belongs to the event loop's thread."""

    def __init__(
        self, files: Files, cluster: Cluster, flusher: Flusher, clock: Clock, settings: CleanerSettings
    ) -> None:
        self._files = files
        self._cluster = cluster
        self._flusher = flusher
        self._clock = clock
        self._settings = settings
        self._uncleanable: WeakSet[Partition] = WeakSet()
        """By object and not by name: a topic that is created anew starts afresh."""
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="cleaner")
        self._pace = Pace()

    async def run_once(self) -> None:
        """Clean one log after the other, the dirtiest first, until none is dirty enough (log.cleaner.backoff.ms)."""
        while self._settings.enable:
            found = self._dirtiest()
            if found is None:
                return
            partition, plan = found
            if not await self._clean(partition, plan):
                return

    def close(self) -> None:
        """Stop a cleaning in progress, and the thread."""
        self._pace.stop()
        self._thread.shutdown()

    def _dirtiest(self) -> tuple[Partition, CleaningPlan] | None:
        best: tuple[float, Partition, CleaningPlan] | None = None
        for partition in self._cluster.partitions():
            config = self._cluster.config(partition.name.topic)
            if not config.compacts or partition in self._uncleanable:
                continue
            plan = plan_for(
                partition, config, self._first_dirty(partition), self._clock.wall_ms(), self._settings.dedupe_bytes
            )
            ratio = dirtiness(plan, config)
            if ratio > 0 and (best is None or ratio > best[0]):
                best = ratio, partition, plan
        return best and best[1:]

    def _first_dirty(self, partition: Partition) -> int:
        try:
            return read_note(self._files, partition.log.directory / CLEANER_OFFSET)
        except CorruptLogError as error:
            logger.warning("%s: cleaned from its start: %s", partition.name, error)
            return 0  # the note only saves work

    async def _clean(self, partition: Partition, plan: CleaningPlan) -> bool:
        """Clean one log; True if that succeeded. After a failure there will be another attempt."""
        try:
            cleaned = await asyncio.get_running_loop().run_in_executor(
                self._thread, _clean_at_ease, plan, partition, self._pace
            )
        except MalformedBatchError as error:
            logger.error("%s cannot be compacted: %s", partition.name, error)
            self._uncleanable.add(partition)
            return True
        except OSError as error:  # a full disk, or the topic is gone: nothing was changed
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
        """Put the result into the log; True if all of it is there. The log may have lost its oldest segments, or its
        topic."""
        if self._cluster.partition(partition.name) is not partition:
            with suppress(OSError):  # its files are gone with the topic
                cleaned.discard()
            return False
        with self._flusher.critical():
            while cleaned.replacements:
                if not partition.replace(cleaned.replacements.pop(0)):
                    cleaned.discard()
                    return False
            partition.state.forget_aborted(lambda ended: _as_range(ended) in cleaned.forgotten)
            # Last: a crash before this makes the next cleaning begin where this one did, which changes nothing.
            write_note(self._files, partition.log.directory / CLEANER_OFFSET, cleaned.clean_before)
        return True


def plan_for(
    partition: Partition, config: TopicConfig, first_dirty: int, now_ms: int, dedupe_bytes: int
) -> CleaningPlan:
    """What can be cleaned of ``partition`` now (Kafka: LogCleanerManager.cleanableOffsets): sealed segments below the
    LSO whose newest record is older than min.compaction.lag.ms.

    :param first_dirty: where the last cleaning ended.
    :param now_ms: milliseconds since the epoch.
    :param dedupe_bytes: the memory for the keys.
    """
    sealed = list(partition.log.sealed_segments())
    before = min(partition.last_stable_offset, sealed[-1].next_offset if sealed else 0)
    if config.min_compaction_lag_ms:
        young = (each for each in sealed if each.max_timestamp > now_ms - config.min_compaction_lag_ms)
        before = min([before, *(each.base_offset for each in young)])
    state = partition.state
    known = state.producers.values()
    return CleaningPlan(
        sources=[each for each in sealed if each.base_offset < before],
        first_dirty=max(first_dirty, partition.log.start_offset),
        before=before,
        now_ms=now_ms,
        delete_retention_ms=config.delete_retention_ms,
        segment_bytes=config.segment_bytes,
        dedupe_bytes=dedupe_bytes,
        aborted=[_as_range(each) for each in state.aborted],
        producers={each.producer_id: ActiveProducer(each.epoch, each.last_data_offset) for each in known},
    )


def _as_range(ended: IndexedTransaction) -> AbortedRange:
    return AbortedRange(ended.producer_id, ended.first_offset, ended.last_offset)


def dirtiness(plan: CleaningPlan, config: TopicConfig) -> float:
    """The dirty part of what can be cleaned, if that is enough to begin, else 0: more than min.cleanable.dirty.ratio,
    or a record that has waited for max.compaction.lag.ms."""
    dirty = [each for each in plan.sources if each.next_offset > plan.first_dirty]
    dirty_bytes = sum(each.size for each in dirty)
    if plan.first_dirty >= plan.before or not dirty_bytes:
        return 0.0
    ratio = dirty_bytes / sum(each.size for each in plan.sources)
    if ratio > config.min_cleanable_dirty_ratio or _is_overdue(dirty[0], plan.now_ms, config.max_compaction_lag_ms):
        return ratio
    return 0.0


def _is_overdue(oldest: Segment, now_ms: int, max_lag_ms: int) -> bool:
    return max_lag_ms < _NO_LIMIT and oldest.is_older_than(max_lag_ms, now_ms)


def _clean_at_ease(plan: CleaningPlan, partition: Partition, pause: Callable[[], None]) -> Cleaned:
    """Clean in the cleaner's thread; meanwhile the interpreter switches to the event loop sooner."""
    usual = sys.getswitchinterval()
    sys.setswitchinterval(_SWITCH_SECONDS)
    try:
        return clean(plan, partition.log.begin_replacement, pause)
    finally:
        sys.setswitchinterval(usual)


class Pace:
    """Called between batches: after some work it sleeps equally long, so that requests are answered meanwhile."""

    def __init__(self) -> None:
        self._stopped = False
        self._rested = time.monotonic()

    def __call__(self) -> None:
        """Sleep if it is time to.

        :raises InterruptedError: if the broker is about to stop.
        """
        if self._stopped:
            raise InterruptedError("the broker stops")
        if time.monotonic() - self._rested > _WORK_SECONDS:
            time.sleep(_REST_SECONDS)
            self._rested = time.monotonic()

    def stop(self) -> None:
        """End the work at the next call."""
        self._stopped = True
