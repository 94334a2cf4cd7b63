"""The journal of a move: the records of the topic ``dualwrite-move.SOURCE`` in the target cluster, and what they say.

Each of the mover's Kafka transactions has moved records and the journal's records about them. So after a crash the
journal says exactly which records are at the target, and at which offsets.
"""

import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from dualwrite.errors import InputError
from dualwrite.ids import TopicPartition
from dualwrite.moving.offset_mapping import OffsetMapping, OffsetRun

PREFIX = "dualwrite-move."
_VERSION = 1


def journal_topic(source_cluster: str) -> str:
    """The name of the journal of moves from the cluster with the id ``source_cluster``."""
    return f"{PREFIX}{source_cluster}"


class TopicPair(NamedTuple):
    """A topic in both clusters. A topic that is deleted and created again has another id, and is another topic."""

    name: str
    source_id: str
    target_id: str


@dataclass(frozen=True, slots=True)
class MovedRecords:
    """A journal record: these records of a partition are at the target."""

    topic: TopicPair
    partition: int
    runs: tuple[OffsetRun, ...]

    @property
    def next_target(self) -> int:
        """The target offset after the last record."""
        return self.runs[-1].target + self.runs[-1].length


@dataclass(frozen=True, slots=True)
class SourceGroup:
    """A journal record: the consumer group had these offsets at the source when the move was finished."""

    group: str
    offsets: Mapping[TopicPartition, int]


@dataclass(frozen=True, slots=True)
class Finished:
    """A journal record: applications use these topics at the target from here on.

    :param number: 1 for the first finished move between two clusters, and one more for each other, in either direction.
    """

    number: int
    topics: tuple[TopicPair, ...]


JournalRecord = MovedRecords | SourceGroup | Finished


def encode(record: JournalRecord) -> bytes:
    """The value of the journal's record."""
    return json.dumps({"version": _VERSION, **_fields(record)}, separators=(",", ":")).encode()


def _fields(record: JournalRecord) -> dict[str, Any]:
    if isinstance(record, Finished):
        return {"finished": record.number, "topics": record.topics}
    if isinstance(record, SourceGroup):
        offsets = [[*partition, offset] for partition, offset in sorted(record.offsets.items())]
        return {"group": record.group, "offsets": offsets}
    deltas: list[int] = []
    source = target = 0
    for run in record.runs:
        deltas += (run.source - source, run.target - target, run.length)
        source, target = run.source + run.length, run.target + run.length
    return {"moved": list(record.topic), "partition": record.partition, "runs": deltas}


def decode(value: bytes | None) -> JournalRecord:
    """The reverse of :func:`encode`.

    :raises InputError: if this release has not written ``value``.
    """
    try:
        fields = json.loads(value or b"")
        if fields["version"] != _VERSION:
            raise ValueError
        if "finished" in fields:
            return Finished(int(fields["finished"]), tuple(TopicPair(*pair) for pair in fields["topics"]))
        if "group" in fields:
            offsets = {TopicPartition(topic, number): offset for topic, number, offset in fields["offsets"]}
            return SourceGroup(fields["group"], offsets)
        name, source_id, target_id = fields["moved"]
        return MovedRecords(TopicPair(name, source_id, target_id), fields["partition"], _runs(fields["runs"]))
    except (KeyError, TypeError, ValueError):
        raise InputError(
            f"the journal of the move has a record that this release cannot read: {value!r:.100}"
        ) from None


def _runs(deltas: list[int]) -> tuple[OffsetRun, ...]:
    runs = []
    source = target = 0
    for start in range(0, len(deltas), 3):
        source_gap, target_gap, length = deltas[start : start + 3]
        run = OffsetRun(source + source_gap, target + target_gap, length)
        source, target = run.source + run.length, run.target + run.length
        runs.append(run)
    return tuple(runs)


@dataclass(slots=True)
class MoveJournal:
    """The content of a journal.

    :param mappings: the moved records, by topic and partition.
    :param offsets: the offsets at the source that each group had when the topics' last move was finished.
    :param finished: the number of the last finished move of each topic.
    """

    mappings: dict[TopicPair, dict[int, OffsetMapping]] = field(default_factory=dict)
    offsets: dict[tuple[str, TopicPartition], int] = field(default_factory=dict)
    finished: dict[TopicPair, int] = field(default_factory=dict)
    _finishing: list[SourceGroup] = field(default_factory=list)

    def add(self, record: JournalRecord) -> None:
        """Add the next record.

        :raises InputError: if it contradicts the records before it.
        """
        if isinstance(record, Finished):
            self.finished.update(dict.fromkeys(record.topics, record.number))
            names = {topic.name for topic in record.topics}
            self.offsets = {key: offset for key, offset in self.offsets.items() if key[1].topic not in names}
            for moved in self._finishing:
                self.offsets.update({(moved.group, place): offset for place, offset in moved.offsets.items()})
            self._finishing.clear()
        elif isinstance(record, SourceGroup):
            self._finishing.append(record)
        else:
            mapping = self.mappings.setdefault(record.topic, {}).setdefault(record.partition, OffsetMapping())
            try:
                for run in record.runs:
                    mapping.add(run)
            except ValueError as error:
                raise _contradiction(record.topic, record.partition, error) from None

    def groups_in(self, topics: Collection[str]) -> dict[str, dict[TopicPartition, int]]:
        """The offsets that each group had in ``topics`` when their last move was finished."""
        groups: dict[str, dict[TopicPartition, int]] = {}
        for (group, place), offset in self.offsets.items():
            if place.topic in topics:
                groups.setdefault(group, {})[place] = offset
        return groups

    def add_all(self, records: Iterable[JournalRecord]) -> None:
        """Add the next records; see :meth:`add`."""
        for record in records:
            self.add(record)


@dataclass(slots=True)
class MoveState:
    """The state of the moves between two clusters.

    :param forward: the journal of moves from the source to the target.
    :param backward: the journal of moves from the target to the source, which a move back goes on with.
    """

    forward: MoveJournal = field(default_factory=MoveJournal)
    backward: MoveJournal = field(default_factory=MoveJournal)

    def is_finished(self, topic: TopicPair) -> bool:
        """True if applications use ``topic`` at the target: its last finished move had this direction."""
        return self.forward.finished.get(topic, 0) > self.backward.finished.get(_reversed(topic), 0)

    @property
    def next_number(self) -> int:
        """The number of the next :class:`Finished`."""
        return max((0, *self.forward.finished.values(), *self.backward.finished.values())) + 1

    def has_moved(self, topic: TopicPair) -> bool:
        """True if records of ``topic`` were moved, in either direction."""
        return topic in self.forward.mappings or _reversed(topic) in self.backward.mappings

    def mapping(self, topic: TopicPair, partition: int) -> OffsetMapping:
        """Source and target offsets of the records that are in both clusters, because a move in either direction has
        copied them.

        :raises InputError: if the two journals contradict each other.
        """
        forward = self.forward.mappings.get(topic, {}).get(partition, OffsetMapping())
        backward = self.backward.mappings.get(_reversed(topic), {}).get(partition)
        if backward is None:
            return forward
        try:
            return forward.merged(backward.reversed())
        except ValueError as error:
            raise _contradiction(topic, partition, error) from None


def _contradiction(topic: TopicPair, partition: int, error: ValueError) -> InputError:
    return InputError(
        f"topic {topic.name!r}, partition {partition}: the journal of the move contradicts itself ({error}): delete "
        "the topic at the target to copy it again"
    )


def _reversed(topic: TopicPair) -> TopicPair:
    return TopicPair(topic.name, topic.target_id, topic.source_id)
