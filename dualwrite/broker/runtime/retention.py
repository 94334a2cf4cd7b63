"""Maintenance of logs: rolls segments, and removes them if they are too old or too many (Kafka: LogManager's
cleanupLogs). Each partition is one small step, so that the event loop is never blocked for long.
"""

import asyncio
import logging

from dualwrite.broker.runtime.cluster import Cluster
from dualwrite.broker.runtime.flusher import Flusher
from dualwrite.broker.runtime.partition import Partition
from dualwrite.broker.settings.topic_configs import TopicConfig
from dualwrite.ports import Clock

logger = logging.getLogger(__name__)


class Retention:
    """Applies segment.ms and retention to every partition. Belongs to the event loop's thread."""

    def __init__(self, cluster: Cluster, flusher: Flusher, clock: Clock) -> None:
        self._cluster = cluster
        self._flusher = flusher
        self._clock = clock

    async def run_once(self) -> None:
        """Roll and remove segments that are due, in every partition (log.retention.check.interval.ms)."""
        for partition in list(self._cluster.partitions()):
            if self._cluster.partition(partition.name) is partition:  # its topic may have been deleted meanwhile
                self.keep(partition, self._cluster.config(partition.name.topic))
            await asyncio.sleep(0)

    def keep(self, partition: Partition, config: TopicConfig) -> None:
        """Roll the last segment of ``partition`` if it is due, and remove the segments that ``config`` no longer
        retains.

        Without ``delete`` in the cleanup.policy, nothing is removed.
        """
        now_ms = self._clock.wall_ms()
        with self._flusher.critical():
            partition.log.roll_if_due(now_ms)
        if not config.deletes:
            return
        log, limit = partition.log, partition.state.high_watermark
        before = log.start_offset
        if config.retention_ms >= 0:
            before = max(before, log.expired_before(now_ms - config.retention_ms, limit))
        if config.retention_bytes >= 0:
            before = max(before, log.oversized_before(config.retention_bytes, limit))
        if before > log.start_offset:
            logger.info("%s: retention has removed the records before offset %d", partition.name, before)
            partition.truncate_before(before)
