"""What a call of a move has done or found."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from dualwrite.ids import TopicPartition
from dualwrite.moving.copying import PartitionComparison


@dataclass(frozen=True, slots=True)
class MoveResult:
    """What one call has done.

    :param copied: the number of records by topic.
    :param waiting: the topics with partitions that have an open transaction at the source; the records behind its
        beginning are not copied yet.
    :param groups: the moved groups.
    :param slots: the number of slots that were given to the target.
    :param unchanged: the databases without a slot or an offset of the source, so that nothing was changed in them.
    :param differing: the settings that decide which records a topic keeps and that differ, by topic, with their values
        at the source and at the target. A move changes no settings of a topic that the target has already.
    :param on_one_node: the new topics with a single replica in a cluster of several nodes.
    :param compared: the comparison of each partition, if it was asked for.
    """

    copied: Mapping[str, int] = field(default_factory=dict)
    waiting: Sequence[str] = ()
    groups: Sequence[str] = ()
    slots: int = 0
    unchanged: Sequence[str] = ()
    differing: Mapping[str, Mapping[str, tuple[str, str]]] = field(default_factory=dict)
    on_one_node: Sequence[str] = ()
    compared: Sequence[PartitionComparison] = ()


@dataclass(frozen=True, slots=True)
class SourceChanges:
    """What was changed at the source after it was moved.

    :param records: the number of records that are not at the target, by partition.
    :param groups: the groups that have committed other offsets since.
    """

    records: Mapping[TopicPartition, int]
    groups: Sequence[str]

    def __bool__(self) -> bool:
        return bool(self.records or self.groups)


def describe_changes(changes: SourceChanges) -> str:
    """One line about what was changed at the source."""
    parts = []
    for partition, count in changes.records.items():
        what = f"{count:,} record{'s' * (count != 1)}" if count else "an open transaction"
        parts.append(f"{what} in {partition}")
    parts += [f"other offsets of group {group!r}" for group in changes.groups]
    return f"an application still uses the source: {', '.join(parts)}"
