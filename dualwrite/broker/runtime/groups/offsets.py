"""Committed offsets at run time: decisions become facts in ``__consumer_offsets``. The broker acknowledges a commit
only once it is durable."""

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from dualwrite.broker.core.group_table import ConsumerOffsetsFact
from dualwrite.broker.core.offsets import LONGEST_METADATA, CommitDecision, CommitOffsets, decide_commit, fetch_error
from dualwrite.broker.facts.cluster import TopicCreated
from dualwrite.broker.facts.offsets import OffsetCommitted
from dualwrite.broker.runtime.cluster import Cluster
from dualwrite.broker.runtime.expiry_clock import ExpiryClock
from dualwrite.broker.runtime.flusher import Flusher
from dualwrite.broker.runtime.groups.group_log import GroupLog, encode
from dualwrite.ids import ProducerIdentity, TopicPartition
from dualwrite.ports import Clock
from dualwrite.records.header import BatchFields
from dualwrite.wire.error_codes import ErrorCode

logger = logging.getLogger(__name__)

LARGEST_COMMIT_BYTES = 16 * 1024 * 1024
"""The most bytes that one commit, which is one batch, may add to the journal. Kafka's limit is the offsets topic's
1 MiB."""

_MS_PER_MINUTE = 60_000


@dataclass(frozen=True, slots=True)
class OffsetSettings:
    """The broker settings about committed offsets, under Kafka's names."""

    metadata_max_bytes: int = LONGEST_METADATA
    """offset.metadata.max.bytes"""
    retention_minutes: int = 10_080
    """offsets.retention.minutes"""


class GroupOffsets:
    """Stores the offsets that consumer groups commit. Belongs to the event loop's thread."""

    def __init__(
        self, log: GroupLog, cluster: Cluster, flusher: Flusher, clock: Clock, settings: OffsetSettings | None = None
    ) -> None:
        self.table = log.table.offsets
        self._log = log
        self._cluster = cluster
        self._flusher = flusher
        self._clock = clock
        self._expiry_clock = ExpiryClock(clock)
        self._settings = settings or OffsetSettings()
        cluster.deletion_listeners.append(self._forget_topic)
        # A power cut may keep a topic's deletion and lose the deletion of its offsets. A new topic of the same name
        # must not inherit them.
        self._forget_partitions(lambda partition: cluster.partition(partition) is None)

    async def commit(self, command: CommitOffsets) -> Mapping[TopicPartition, ErrorCode]:
        """Store the positions of ``command``, durably. Return the error of each partition."""
        errors = self.commit_now(command)
        await self._flusher.barrier()
        return errors

    def commit_now(
        self, command: CommitOffsets, producer: ProducerIdentity | None = None
    ) -> Mapping[TopicPartition, ErrorCode]:
        """Store the positions of ``command``, without any await. The caller waits at the flusher's barrier before it
        replies.

        :param producer: the producer of their transaction, if any. Its batch has no sequence, as in Kafka.
        """
        if producer is not None and self._log.refuses_epoch(producer):
            return dict.fromkeys(command.positions, ErrorCode.INVALID_PRODUCER_EPOCH)
        decision = self._decide(command)
        if sum(map(_size, decision.facts)) > LARGEST_COMMIT_BYTES:
            too_large = dict.fromkeys((fact.partition for fact in decision.facts), ErrorCode.INVALID_COMMIT_OFFSET_SIZE)
            return {**decision.errors, **too_large}
        fields = None if producer is None else BatchFields(producer, transactional=True)
        self._log.record(decision.facts, fields)
        return decision.errors

    def _decide(self, command: CommitOffsets) -> CommitDecision:
        found = ((partition, self._cluster.topic(partition.topic)) for partition in command.positions)
        known = {
            partition: topic.topic_id
            for partition, topic in found
            if topic is not None and self._cluster.partition(partition) is not None
        }
        group = self._log.table.group(command.group)
        return decide_commit(group, command, known, self._clock.wall_ms(), self._settings.metadata_max_bytes)

    async def committed(
        self, group: str, partitions: Iterable[TopicPartition] | None = None
    ) -> Mapping[TopicPartition, OffsetCommitted]:
        """The committed offsets of ``group`` in ``partitions``, or in every partition. Omits partitions without one."""
        offsets = self.table.groups.get(group, {})
        requested = offsets if partitions is None else partitions
        result = {partition: offsets[partition] for partition in requested if partition in offsets}
        await self._flusher.barrier()
        return result

    def fetch_error(self, group: str, member_id: str | None, epoch: int) -> ErrorCode:
        """The error of a client that asks for the offsets of ``group`` as this member; NONE if it may."""
        return fetch_error(self._log.table.group(group), member_id, epoch)

    def pending(self, group: str) -> set[TopicPartition]:
        """The partitions in which an open transaction has committed an offset of ``group`` (KIP-447)."""
        return self.table.pending_in(group)

    async def delete_group(self, name: str) -> ErrorCode:
        """Forget the group ``name`` and its offsets, if it has no members. Return its error."""
        error, facts = self._log.table.decide_deletion(name)
        self._log.record(facts)
        await self._flusher.barrier()
        return error

    async def delete(
        self, group: str, partitions: tuple[TopicPartition, ...]
    ) -> tuple[ErrorCode, Mapping[TopicPartition, ErrorCode]]:
        """Forget the offsets of ``group`` in ``partitions``. Return the error of the request, and that of each
        partition."""
        error, errors, facts = self._log.table.decide_offset_deletion(group, partitions)
        self._log.record(facts)
        await self._flusher.barrier()
        return error, errors

    def _forget_topic(self, topic: TopicCreated) -> None:
        self._forget_partitions(lambda partition: partition.topic == topic.name)

    def _forget_partitions(self, is_deleted: Callable[[TopicPartition], bool]) -> None:
        self._log.record(self._log.table.without(is_deleted))

    async def expire(self) -> int:
        """Forget expired offsets and groups; other tasks get a turn between two groups. Return the number of tombstones
        written."""
        now_ms = self._expiry_clock.now_ms()
        retention_ms = self._settings.retention_minutes * _MS_PER_MINUTE
        count = 0
        for facts in self._log.table.expired(now_ms, retention_ms):
            self._log.record(facts)
            count += len(facts)
            await asyncio.sleep(0)
        if count:
            logger.info("removed %d expired offsets and groups", count)
        return count


def _size(fact: ConsumerOffsetsFact) -> int:
    key, value = encode(fact)
    return len(key) + len(value or b"")
