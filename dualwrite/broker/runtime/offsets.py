"""Committed offsets at run time: decisions become facts in ``__consumer_offsets``; nobody is told of one that is not
durable."""

from collections.abc import Iterable, Mapping
from pathlib import Path

from dualwrite.broker.core.cluster import CONSUMER_OFFSETS
from dualwrite.broker.core.offsets import CommitOffsets, OffsetTable, decide_commit
from dualwrite.broker.facts.offsets import OffsetCommitted, decode_fact, encode_fact
from dualwrite.broker.runtime.cluster import Cluster
from dualwrite.broker.runtime.flusher import Flusher
from dualwrite.broker.runtime.internal_topics import InternalTopic
from dualwrite.ids import TopicPartition
from dualwrite.ports import Clock, Files
from dualwrite.records.batch import Record
from dualwrite.records.header import BatchHeader
from dualwrite.wire.error_codes import ErrorCode

LARGEST_COMMIT_BYTES = 16 * 1024 * 1024
"""What one commit may add to the journal, where it is one batch. Kafka's limit is the offsets topic's 1 MiB."""


class GroupOffsets:
    """Keeps the offsets that consumer groups commit. Belongs to the event loop's thread."""

    def __init__(self, files: Files, data_dir: Path, cluster: Cluster, flusher: Flusher, clock: Clock) -> None:
        self.table = OffsetTable()
        self._cluster = cluster
        self._flusher = flusher
        self._clock = clock
        self._journal = InternalTopic.open(CONSUMER_OFFSETS, files, data_dir, cluster, flusher, self._replay)

    def _replay(self, record: Record, _: BatchHeader) -> None:
        assert record.key is not None, "an offset has a key"
        assert record.value is not None, "an offset has a value"
        self.table.apply(decode_fact(record.key, record.value))

    async def commit(self, command: CommitOffsets) -> Mapping[TopicPartition, ErrorCode]:
        """Remember the positions of ``command``; the answer for each, which may be told when this returns."""
        known = {partition for partition in command.positions if self._cluster.partition(partition) is not None}
        now_ms = self._clock.wall_ms()
        decision = decide_commit(self.table, command, known, now_ms)
        records = [Record(*encode_fact(fact), now_ms) for fact in decision.facts]
        if sum(map(_size, records)) > LARGEST_COMMIT_BYTES:
            too_large = dict.fromkeys((fact.partition for fact in decision.facts), ErrorCode.INVALID_COMMIT_OFFSET_SIZE)
            return {**decision.errors, **too_large}
        if records:
            with self._flusher.critical():
                for fact in decision.facts:
                    self.table.apply(fact)
                self._journal.append(records)
            await self._flusher.barrier()
        return decision.errors

    async def committed(
        self, group: str, partitions: Iterable[TopicPartition] | None = None
    ) -> Mapping[TopicPartition, OffsetCommitted]:
        """What ``group`` has committed in ``partitions``, or in every partition; those without a commit are missing."""
        found = self.table.groups.get(group, {})
        wanted = found if partitions is None else partitions
        now = {partition: found[partition] for partition in wanted if partition in found}
        await self._flusher.barrier()
        return now


def _size(record: Record) -> int:
    return len(record.key or b"") + len(record.value or b"")
