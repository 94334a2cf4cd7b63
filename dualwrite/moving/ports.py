"""What a move asks of the two clusters while it copies and compares records."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol

from dualwrite.ids import TopicPartition
from dualwrite.moving.journal import Finished, MovedRecords, SourceGroup, TopicPair
from dualwrite.moving.records import MovedRecord

GroupOffset = tuple[int, str]
"""A group's committed offset, and the metadata that it was committed with."""


class RecordReader(Protocol):
    """Reads the visible records of one topic."""

    positions: dict[int, int]
    """The next offset of each partition."""

    def read_on(self) -> Iterator[Sequence[MovedRecord]]:
        """The records from the positions up to the present last stable offset, each partition in order.

        :raises InputError: if there is no such topic.
        :raises KafkaUnavailableError: if the cluster does not answer.
        """


class TargetWriter(Protocol):
    """Writes to the target cluster. Each Kafka transaction is done or undone after a crash."""

    def write(self, topic: TopicPair, records: Sequence[MovedRecord], begins: Mapping[int, int]) -> list[MovedRecords]:
        """Write ``records`` to ``topic``, and the journal's records about them, in one Kafka transaction. Return these.

        :param begins: the offset that the first record of each partition must get; 0 for a partition that is missing.
        :raises InputError: if a record cannot be written as it is.
        :raises FencedError: if another mover has begun.
        :raises KafkaUnavailableError: if the cluster does not answer; or if a record got another offset, because
            another program writes to the topic.
        :raises KafkaRefusedError: if it refuses a record.
        """

    def finish(
        self, groups: Mapping[str, Mapping[TopicPartition, GroupOffset]], notes: Sequence[SourceGroup], end: Finished
    ) -> None:
        """Commit the offsets of ``groups``, and write ``notes`` and ``end`` to the journal. This may be several Kafka
        transactions, the last of which has ``end``. Raises as :meth:`write`.
        """
