"""``__consumer_offsets`` at run time: the facts about groups on disk, and the table that is their replay."""

import struct
from collections.abc import Sequence
from pathlib import Path

from dualwrite.broker.core.cluster import CONSUMER_OFFSETS
from dualwrite.broker.core.group_commands import GroupDecision
from dualwrite.broker.core.group_table import ConsumerOffsetsFact, GroupTable
from dualwrite.broker.facts import consumer_groups, groups, offsets
from dualwrite.broker.facts.groups import GroupForgotten, GroupRecorded
from dualwrite.broker.facts.offsets import OffsetCommitted, OffsetForgotten
from dualwrite.broker.runtime.cluster import Cluster
from dualwrite.broker.runtime.flusher import Flusher
from dualwrite.broker.runtime.internal_topics import InternalTopic
from dualwrite.ids import ProducerIdentity, TopicPartition
from dualwrite.ports import Clock, Files
from dualwrite.records.batch import Record
from dualwrite.records.control import Marker
from dualwrite.records.header import BatchFields, BatchHeader

PARTITION = TopicPartition(CONSUMER_OFFSETS, 0)
"""The partition with the offsets of every group, which AddOffsetsToTxn adds to a transaction."""

_TYPE = struct.Struct(">h")


class GroupLog:
    """Appends and applies facts about groups, each time in one critical section. Belongs to the event loop's thread.

    :param segment_bytes: offsets.topic.segment.bytes; None for the default.
    """

    def __init__(
        self,
        files: Files,
        data_dir: Path,
        cluster: Cluster,
        flusher: Flusher,
        clock: Clock,
        segment_bytes: int | None = None,
    ) -> None:
        self.table = GroupTable()
        self._flusher = flusher
        self._clock = clock
        self._topic = InternalTopic.open(
            CONSUMER_OFFSETS, files, data_dir, cluster, flusher, self._replay, self._end_transaction, segment_bytes
        )

    def record(self, facts: Sequence[ConsumerOffsetsFact], transaction: BatchFields | None = None) -> None:
        """Apply and append ``facts``, all in one batch. The caller waits at the flusher's barrier before it replies.

        :param transaction: the producer of their transaction, and its sequence.
        """
        if not facts:
            return
        with self._flusher.critical():
            base_offset = self._topic.partition.end_offset
            producer_id = -1 if transaction is None else transaction.producer.producer_id
            for position, fact in enumerate(facts):
                self.table.apply(fact, base_offset + position, producer_id)
            self._append(facts, transaction)

    def refuses_epoch(self, producer: ProducerIdentity) -> bool:
        """True if a later epoch of ``producer``'s id has written here, or the transaction of an earlier one is open:
        ``producer`` cannot join that epoch's transaction."""
        return self._topic.partition.state.refuses_epoch(producer)

    def adopt(self, decision: GroupDecision) -> None:
        """Replace a group by the one of ``decision``, and append the decision's facts."""
        with self._flusher.critical():
            self.table.adopt(decision)
            if decision.facts:
                self._append(decision.facts, None)

    def _append(self, facts: Sequence[ConsumerOffsetsFact], transaction: BatchFields | None) -> None:
        now_ms = self._clock.wall_ms()
        self._topic.append([Record(*encode(fact), now_ms) for fact in facts], transaction)

    def _replay(self, record: Record, header: BatchHeader) -> None:
        assert record.key is not None, "a fact about a group has a key"
        producer_id = header.producer_id if header.is_transactional else -1
        self.table.apply(decode(record.key, record.value), record.offset, producer_id)

    def _end_transaction(self, header: BatchHeader, marker: Marker) -> None:
        self.table.offsets.end_transaction(header.producer_id, marker is Marker.COMMIT)


def encode(fact: ConsumerOffsetsFact) -> tuple[bytes, bytes | None]:
    """Key and value of the record that stores ``fact``."""
    if isinstance(fact, GroupRecorded | GroupForgotten):
        return groups.encode_fact(fact)
    if isinstance(fact, OffsetCommitted | OffsetForgotten):
        return offsets.encode_fact(fact)
    return consumer_groups.encode_fact(fact)


def decode(key: bytes, value: bytes | None) -> ConsumerOffsetsFact:
    """The fact that a record stores.

    :raises ValueError: if this release does not know the fact.
    """
    if key[: _TYPE.size] == _TYPE.pack(groups.KEY_TYPE):
        return groups.decode_fact(key, value)
    if consumer_groups.is_consumer_group_key(key):
        return consumer_groups.decode_fact(key, value)
    return offsets.decode_fact(key, value)
