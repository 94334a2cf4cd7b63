"""Copies the records of one topic that are not at the target yet, and compares what is on both sides."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

from dualwrite.errors import InputError
from dualwrite.moving.journal import MoveState, TopicPair
from dualwrite.moving.offset_mapping import OffsetMapping
from dualwrite.moving.ports import RecordReader, TargetWriter
from dualwrite.moving.records import MovedRecord, PartitionDigest, by_partition

MOST_BYTES = 16_000_000
"""Most bytes in one Kafka transaction, so that a slow line carries it before it times out."""
_NOWHERE = -1
"""Stands for the target offset of a record that was not moved."""
_MARKER = 1
"""The control record behind the records of a transaction, in each of its partitions."""
Observe = Callable[[str, int], None]
"""Is called with the topic and the number of records that were just copied."""


def copy_topic(
    topic: TopicPair,
    state: MoveState,
    source: RecordReader,
    writer: TargetWriter,
    ends: Mapping[int, int],
    observe: Observe = lambda *_: None,
) -> int:
    """Copy the records behind the moved ones, up to the source's last stable offset. Return their number.

    Changes ``state`` after each Kafka transaction. After an error the state may lack the last transaction: read the
    journal again.

    :param ends: where each partition of the target ends. Only this copy may write there.
    :raises DualWriteError: see TargetWriter.write and RecordReader.read_on.
    """
    nexts = {partition: state.mapping(topic, partition).next_source for partition in _partitions(topic, state)}
    for partition, begin in nexts.items():
        source.positions[partition] = max(begin, source.positions.get(partition, 0))
    begins, copied = dict(ends), 0
    for batch in source.read_on():
        for records in _transactions(batch):
            for record in records:
                if record.offset < nexts.get(record.partition, 0):
                    raise InputError(
                        f"topic {topic.name!r} at the source has begun anew at offset {record.offset:,} of partition "
                        f"{record.partition}: it was deleted and created again, or has lost records"
                    )
                nexts[record.partition] = record.offset + 1
            written = writer.write(topic, records, begins)
            state.forward.add_all(written)
            for moved in written:
                begins[moved.partition] = moved.next_target + _MARKER
            copied += len(records)
            observe(topic.name, len(records))
    return copied


def _transactions(batch: Sequence[MovedRecord]) -> Iterator[Sequence[MovedRecord]]:
    """``batch`` in parts of at most MOST_BYTES, unless a record is larger."""
    begin = size = 0
    for index, record in enumerate(batch):
        if size and size + record.size > MOST_BYTES:
            yield batch[begin:index]
            begin, size = index, 0
        size += record.size
    yield batch[begin:]


def require_only_moved(topic: TopicPair, state: MoveState, target: RecordReader) -> None:
    """Require that the target has no record behind the moved ones: a topic that was there before, or that an
    application writes to.

    :raises InputError: if it has one.
    """
    for partition in _partitions(topic, state):
        target.positions[partition] = state.mapping(topic, partition).next_target
    for record in islice((record for batch in target.read_on() for record in batch), 1):
        place = f"record {record.offset:,} of partition {record.partition}"
        if state.has_moved(topic):
            raise InputError(
                f"topic {topic.name!r} at the target has {place}, which this move has not written: a program writes "
                "there already. Stop it, and save its records with `dualwrite consume --json`: they may be of "
                "committed units of work, and are lost as you delete the topic at the target to begin again"
            )
        raise InputError(
            f"topic {topic.name!r} is at the target already, with records that this move has not written ({place}): "
            "delete it there, or leave it out with --topics"
        )


def require_whole(
    topic: TopicPair, state: MoveState, source_ends: Mapping[int, int], target_ends: Mapping[int, int]
) -> None:
    """Require that no cluster ends before its last moved record: it has lost records, by an unclean leader election or
    a restored backup, and new ones get offsets that the journal knows already.

    :param source_ends: the high watermark of each partition at the source.
    :param target_ends: the same at the target.
    :raises InputError: if one does.
    """
    for partition in _partitions(topic, state):
        mapping = state.mapping(topic, partition)
        for side, ends, moved in (
            ("source", source_ends, mapping.next_source),
            ("target", target_ends, mapping.next_target),
        ):
            end = ends.get(partition, 0)
            if end < moved:
                raise InputError(
                    f"topic {topic.name!r}, partition {partition}: the {side} ends at offset {end:,}, and had records "
                    f"up to offset {moved:,} when they were moved. It has lost some. Delete the topic at the target to "
                    "copy it again from what the source has"
                )


def records_behind(topic: TopicPair, state: MoveState, source: RecordReader) -> dict[int, int]:
    """How many visible records of each partition at the source were not moved; only partitions that have some."""
    for partition in _partitions(topic, state):
        source.positions[partition] = state.mapping(topic, partition).next_source
    behind: dict[int, int] = {}
    for batch in source.read_on():
        for partition, records in by_partition(batch).items():
            behind[partition] = behind.get(partition, 0) + len(records)
    return behind


def _partitions(topic: TopicPair, state: MoveState) -> list[int]:
    """The partitions with moved records."""
    forward = state.forward.mappings.get(topic, {})
    backward = state.backward.mappings.get(TopicPair(topic.name, topic.target_id, topic.source_id), {})
    return sorted({*forward, *backward})


@dataclass(frozen=True, slots=True)
class PartitionComparison:
    """The moved records of one partition that both clusters still have.

    :param source: number and digest at the source.
    :param target: the same at the target.
    """

    topic: str
    partition: int
    source: tuple[int, str]
    target: tuple[int, str]

    @property
    def is_equal(self) -> bool:
        """True if both clusters have the same records in the same order."""
        return self.source == self.target


def compare_topic(
    topic: TopicPair,
    state: MoveState,
    source: RecordReader,
    target: RecordReader,
    *,
    first_offsets: tuple[Mapping[int, int], Mapping[int, int]],
    is_compacted: bool,
) -> list[PartitionComparison]:
    """Compare key, value, headers, timestamp and place of each moved record, by a digest of each partition.

    Records that one cluster has deleted by retention are left out. So are records that were written after the move, and
    in a compacted topic all records with their keys. A record that only one cluster has between the moved ones is a
    difference.

    :param source: a reader that has read nothing yet.
    :param target: the same.
    :param first_offsets: the first offset of each partition at the source and at the target.
    :param is_compacted: compare the last record of each key only.
    """
    partitions = _partitions(topic, state)
    mappings = {partition: state.mapping(topic, partition) for partition in partitions}
    begins = {
        partition: max(mapping.translate(first_offsets[0].get(partition, 0)), first_offsets[1].get(partition, 0))
        for partition, mapping in mappings.items()
    }
    at_source = {partition: PartitionDigest(only_last=is_compacted) for partition in partitions}
    at_target = {partition: PartitionDigest(only_last=is_compacted) for partition in partitions}
    for record in _known(source, mappings):
        mapping = mappings[record.partition]
        offset = mapping.target_of(record.offset)
        if record.offset >= mapping.next_source:
            _leave_out(record, at_source, at_target)
        elif offset is None:  # a record between the moved ones that was not moved
            at_source[record.partition].add(record, _NOWHERE)
        elif offset >= begins[record.partition]:
            at_source[record.partition].add(record, offset)
    sources = {partition: mapping.reversed() for partition, mapping in mappings.items()}
    for record in _known(target, mappings):
        known = sources[record.partition]
        is_foreign = known.target_of(record.offset) is None  # it counts wherever it is
        if record.offset >= known.next_source:
            _leave_out(record, at_source, at_target)
        elif is_foreign or record.offset >= begins[record.partition]:
            at_target[record.partition].add(record, record.offset)
    return [
        PartitionComparison(topic.name, partition, _summary(at_source[partition]), _summary(at_target[partition]))
        for partition in partitions
    ]


def _known(reader: RecordReader, mappings: Mapping[int, OffsetMapping]) -> Iterator[MovedRecord]:
    """The records of the partitions with moved records."""
    return (record for batch in reader.read_on() for record in batch if record.partition in mappings)


def _leave_out(record: MovedRecord, *sides: Mapping[int, PartitionDigest]) -> None:
    for digests in sides:
        digests[record.partition].leave_out(record.key)


def _summary(digest: PartitionDigest) -> tuple[int, str]:
    return digest.count, digest.digest()
