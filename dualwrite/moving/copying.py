"""Copies the records of one topic that are not at the target yet, and compares what is on both sides."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import islice

from dualwrite.errors import InputError
from dualwrite.moving.journal import MoveState, TopicPair
from dualwrite.moving.offset_mapping import OffsetMapping
from dualwrite.moving.ports import RecordReader, TargetWriter
from dualwrite.moving.records import PartitionDigest, by_partition

Observe = Callable[[str, int], None]
"""Is called with the topic and the number of records that were just copied."""


def copy_topic(
    topic: TopicPair, state: MoveState, source: RecordReader, writer: TargetWriter, observe: Observe = lambda *_: None
) -> int:
    """Copy the records behind the moved ones, up to the source's last stable offset. Return their number.

    Changes ``state`` after each Kafka transaction. After an error the state may lack the last transaction: read the
    journal again.

    :raises DualWriteError: see TargetWriter.write and RecordReader.read_on.
    """
    for partition in _partitions(topic, state):
        begin = state.mapping(topic, partition).next_source
        source.positions[partition] = max(begin, source.positions.get(partition, 0))
    copied = 0
    for batch in source.read_on():
        state.forward.add_all(writer.write(topic, batch))
        copied += len(batch)
        observe(topic.name, len(batch))
    return copied


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
                "there already. Stop it, and delete the topic at the target to begin again"
            )
        raise InputError(
            f"topic {topic.name!r} is at the target already, with records that this move has not written ({place}): "
            "delete it there, or leave it out with --topics"
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

    Records that one cluster has deleted by retention are left out. So are records that were written after the move. A
    record of another program between the moved ones is a difference.

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
    for batch in source.read_on():
        for record in batch:
            offset = mappings.get(record.partition, _EMPTY).target_of(record.offset)
            if offset is not None and offset >= begins[record.partition]:
                at_source[record.partition].add(record, offset)
    sources = {partition: mapping.reversed() for partition, mapping in mappings.items()}
    for batch in target.read_on():
        for record in batch:
            known = sources.get(record.partition, _EMPTY)
            is_foreign = known.target_of(record.offset) is None  # it counts wherever it is
            if record.offset < known.next_source and (is_foreign or record.offset >= begins[record.partition]):
                at_target[record.partition].add(record, record.offset)
    return [
        PartitionComparison(topic.name, partition, _summary(at_source[partition]), _summary(at_target[partition]))
        for partition in partitions
    ]


_EMPTY = OffsetMapping()


def _summary(digest: PartitionDigest) -> tuple[int, str]:
    return digest.count, digest.digest()
