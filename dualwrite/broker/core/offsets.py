"""The offsets that consumer groups have committed, and who may commit: for now whoever is outside of any generation.

A consumer that assigns its partitions itself commits under its group's name with generation -1. No group has members
here yet, so a generation that a client claims is never a current one. (Kafka: OffsetMetadataManager.commitOffset and
validateOffsetCommit, ClassicGroup.validateOffsetCommit of an empty group.) Offsets are kept for ever.
"""

from collections.abc import Container, Mapping
from dataclasses import dataclass, field

from dualwrite.broker.facts.offsets import LONGEST_GROUP_ID, OffsetCommitted
from dualwrite.ids import TopicPartition
from dualwrite.wire.error_codes import ErrorCode

LONGEST_METADATA = 4096
"""Kafka's offset.metadata.max.bytes; what it counts are not bytes but Java's characters, UTF-16 units."""

NO_GENERATION = -1


@dataclass(frozen=True, slots=True)
class Position:
    """Where a consumer is in one partition; the fields are those of ``OffsetCommitted``."""

    offset: int
    leader_epoch: int = -1
    metadata: str = ""


@dataclass(frozen=True, slots=True)
class CommitOffsets:
    """A consumer's positions, to be remembered under its group's name (OffsetCommit).

    :param generation: the generation (or member epoch) that the client believes to be in; negative outside of any.
    """

    group: str
    positions: Mapping[TopicPartition, Position]
    generation: int = NO_GENERATION


@dataclass(frozen=True, slots=True)
class CommitDecision:
    """The answer for every partition, and the facts about those that were accepted."""

    errors: Mapping[TopicPartition, ErrorCode]
    facts: tuple[OffsetCommitted, ...]


@dataclass(slots=True)
class OffsetTable:
    """The latest committed offset of each partition, by group."""

    groups: dict[str, dict[TopicPartition, OffsetCommitted]] = field(default_factory=dict)

    def apply(self, fact: OffsetCommitted) -> None:
        """Take ``fact`` in. An offset may be lower than the one before: consumers rewind."""
        self.groups.setdefault(fact.group, {})[fact.partition] = fact


def decide_commit(
    table: OffsetTable, command: CommitOffsets, known: Container[TopicPartition], now_ms: int
) -> CommitDecision:
    """What becomes of each of the command's positions; some may be accepted and others not.

    :param known: the partitions that exist.
    """
    refusal = _refusal(table, command)
    errors = {
        partition: _partition_error(position, refusal) if partition in known else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        for partition, position in command.positions.items()
    }
    facts = tuple(
        OffsetCommitted(
            command.group, partition, position.offset, position.leader_epoch, position.metadata, committed_ms=now_ms
        )
        for partition, position in command.positions.items()
        if errors[partition] is ErrorCode.NONE
    )
    return CommitDecision(errors, facts)


def _refusal(table: OffsetTable, command: CommitOffsets) -> ErrorCode:
    """What the group itself says to the command."""
    if len(command.group.encode()) > LONGEST_GROUP_ID:
        return ErrorCode.INVALID_GROUP_ID
    if command.generation < 0:  # with a member id or without: Kafka lets both pass where nobody is a member
        return ErrorCode.NONE
    return ErrorCode.UNKNOWN_MEMBER_ID if command.group in table.groups else ErrorCode.GROUP_ID_NOT_FOUND


def _partition_error(position: Position, refusal: ErrorCode) -> ErrorCode:
    if refusal is ErrorCode.NONE and len(position.metadata.encode("utf-16-le")) > 2 * LONGEST_METADATA:
        return ErrorCode.OFFSET_METADATA_TOO_LARGE
    return refusal
