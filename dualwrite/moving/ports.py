"""What a move asks of the two clusters while it copies and compares records."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol

from dualwrite.ids import TopicPartition
from dualwrite.moving.journal import JournalRecord, TopicPair
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
    """Writes to the target cluster. Each method is one Kafka transaction, which a crash leaves done or undone."""

    def write(self, topic: TopicPair, records: Sequence[MovedRecord]) -> list[JournalRecord]:
        """Write ``records`` to ``topic``, and the journal's records about them. Return these.

        :raises InputError: if a record cannot be written as it is, or another program writes to the topic.
        :raises FencedError: if another mover has begun.
        :raises KafkaUnavailableError: if the cluster does not answer.
        :raises KafkaRefusedError: if it refuses a record.
        """

    def finish(
        self, groups: Mapping[str, Mapping[TopicPartition, GroupOffset]], records: Sequence[JournalRecord]
    ) -> None:
        """Commit the offsets of ``groups``, and write ``records`` to the journal. Raises as :meth:`write`."""
