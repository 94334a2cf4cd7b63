"""A source log and a target log of one topic in memory; each transaction of the target can fail at two moments."""

from collections.abc import Iterator, Mapping, Sequence
from enum import Enum

from dualwrite.errors import KafkaUnavailableError
from dualwrite.ids import TopicPartition
from dualwrite.moving.journal import Finished, JournalRecord, MovedRecords, MoveState, SourceGroup, TopicPair
from dualwrite.moving.offset_mapping import runs_of
from dualwrite.moving.ports import GroupOffset
from dualwrite.moving.records import MovedRecord, by_partition


class WriteCrash(Enum):
    """When a transaction fails."""

    NEVER = "never"
    BEFORE_COMMIT = "before the commit: the records are aborted, and their offsets are used up"
    AFTER_COMMIT = "after the commit: nothing but the journal says that it is done"


class FakeLog:
    """The visible records of one topic. A RecordReader.

    :param batch: the records of each batch.
    """

    def __init__(self, batch: int = 2) -> None:
        self.positions: dict[int, int] = {}
        self.records: list[MovedRecord] = []
        self._batch = batch

    def append(self, partition: int, offset: int, value: bytes | None = b"v", key: bytes | None = None) -> MovedRecord:
        record = MovedRecord(partition, offset, 1, key, value, ())
        self.records.append(record)
        return record

    def read_on(self) -> Iterator[Sequence[MovedRecord]]:
        """See RecordReader."""
        unread = [record for record in self.records if record.offset >= self.positions.get(record.partition, 0)]
        for start in range(0, len(unread), self._batch):
            yield unread[start : start + self._batch]
        for record in unread:
            self.positions[record.partition] = record.offset + 1


class FakeTarget(FakeLog):
    """The target's log and its journal. A TargetWriter, too.

    :param crashes: what happens in each transaction; NEVER after the last.
    :param journals_later: break the protocol: the journal is written after the records are committed.
    """

    def __init__(self, crashes: Sequence[WriteCrash] = (), *, journals_later: bool = False) -> None:
        super().__init__()
        self.journal: list[JournalRecord] = []
        self.groups: dict[str, Mapping[TopicPartition, GroupOffset]] = {}
        self._crashes = list(crashes)
        self._journals_later = journals_later
        self.ends: dict[int, int] = {}

    def foreign(self, partition: int) -> None:
        """Another program writes a record."""
        offset = self.ends.get(partition, 0)
        self.ends[partition] = offset + 1
        self.append(partition, offset, b"foreign")

    def state(self) -> MoveState:
        """The state as a mover reads it that starts now."""
        state = MoveState()
        state.forward.add_all(self.journal)
        return state

    def write(self, topic: TopicPair, records: Sequence[MovedRecord], begins: Mapping[int, int]) -> list[MovedRecords]:
        """See TargetWriter."""
        placed: list[MovedRecord] = []
        notes: list[MovedRecords] = []
        is_alone = True
        for partition, group in by_partition(records).items():
            begin = self.ends.get(partition, 0)
            is_alone &= begin == begins.get(partition, 0)
            self.ends[partition] = begin + len(group) + 1  # and the marker
            placed += [record._replace(offset=begin + index) for index, record in enumerate(group)]
            runs = runs_of((record.offset for record in group), range(begin, begin + len(group)))
            notes.append(MovedRecords(topic, partition, tuple(runs)))
        crash = self._crashes.pop(0) if self._crashes else WriteCrash.NEVER
        if crash is WriteCrash.BEFORE_COMMIT or not is_alone:
            raise KafkaUnavailableError("aborted")
        self.records += placed
        if crash is WriteCrash.AFTER_COMMIT and self._journals_later:
            raise KafkaUnavailableError("committed, and not in the journal")
        self.journal += notes
        if crash is WriteCrash.AFTER_COMMIT:
            raise KafkaUnavailableError("committed")
        return notes

    def finish(
        self, groups: Mapping[str, Mapping[TopicPartition, GroupOffset]], notes: Sequence[SourceGroup], end: Finished
    ) -> None:
        """See TargetWriter."""
        self.groups.update(groups)
        self.journal += [*notes, end]
