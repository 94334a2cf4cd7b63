"""How far open transactions hold back read_committed consumers: the last stable offset (LSO) of each partition, the
transaction that holds it back, and the groups that wait behind it. Blocks, and reads only.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from dualwrite.admin.groups import describe_group, list_groups
from dualwrite.admin.topics import describe_partitions
from dualwrite.admin.views import PartitionDetails
from dualwrite.console.looks import ANSWER_SECONDS, Place, look_at_kafka
from dualwrite.errors import KafkaRefusedError
from dualwrite.ids import TopicPartition

MOST_TOPICS = 50
MOST_GROUPS = 100
MOST_PARTITIONS = 200
"""The most that one look asks about, and that the page shows."""

LAG_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class WaitingGroup:
    """A group that reads a partition and cannot pass the LSO.

    :param lag: offsets that it has still to read before it comes to the LSO; None if it has committed none.
    """

    group_id: str
    lag: int | None


@dataclass(frozen=True, slots=True)
class HeldPartition:
    """A partition whose LSO is held back.

    :param held_back: offsets between the LSO and the end of the log.
    :param holder: the transactional id, or else the producer, of the transaction that began at the LSO; None if it is
        not known.
    :param since: when that transaction began.
    """

    partition: TopicPartition
    held_back: int
    last_stable_offset: int | None
    high_watermark: int | None
    holder: str | None
    since: datetime | None
    groups: tuple[WaitingGroup, ...] = ()


@dataclass(frozen=True, slots=True)
class LagLook:
    """What open transactions hold back.

    :param notes: what could not be looked at, and why.
    """

    held: tuple[HeldPartition, ...]
    notes: tuple[str, ...] = ()


def look_at_lag(place: Place) -> LagLook:
    """Look at the partitions of the open transactions, and at the groups that read them.

    :raises DualWriteError: if Kafka does not answer.
    """
    known = [view.kafka for view in look_at_kafka(place).open_views if view.kafka is not None]
    topics = sorted({partition.topic for view in known for partition in view.partitions})
    notes: list[str] = []
    if len(topics) > MOST_TOPICS:
        notes.append(f"only {MOST_TOPICS} of {len(topics):,} topics were looked at")
    held: list[HeldPartition] = []
    for topic in topics[:MOST_TOPICS]:
        try:
            details = describe_partitions(place.kafka, topic, timeout=LAG_SECONDS)
        except KafkaRefusedError as error:
            notes.append(str(error))
            continue
        held += [_held(topic, each) for each in details if each.held_back]
    if not held:
        return LagLook((), tuple(notes))
    held.sort(key=lambda each: (-each.held_back, each.partition))
    waiting, group_notes = _waiting(place.kafka, {each.partition for each in held})
    shown = tuple(replace(each, groups=tuple(waiting.get(each.partition, ()))) for each in held[:MOST_PARTITIONS])
    return LagLook(shown, (*notes, *group_notes))


def _held(topic: str, details: PartitionDetails) -> HeldPartition:
    holder = details.holder
    return HeldPartition(
        TopicPartition(topic, details.partition),
        details.held_back,
        details.last_stable_offset,
        details.high_watermark,
        None if holder is None else holder.name,
        None if holder is None else holder.started_at,
    )


def _waiting(
    kafka: Mapping[str, Any], partitions: set[TopicPartition]
) -> tuple[dict[TopicPartition, list[WaitingGroup]], list[str]]:
    """The groups that read one of ``partitions``, and what could not be looked at."""
    waiting: dict[TopicPartition, list[WaitingGroup]] = {}
    notes: list[str] = []
    listed = list_groups(kafka, timeout=ANSWER_SECONDS)
    if len(listed) > MOST_GROUPS:
        notes.append(f"only {MOST_GROUPS} of {len(listed):,} groups were looked at")
    for group in listed[:MOST_GROUPS]:
        try:
            details = describe_group(kafka, group.group_id, counts=False, timeout=LAG_SECONDS)
        except KafkaRefusedError as error:  # deleted meanwhile, or this client may not
            notes.append(str(error))
            continue
        for lag in details.lags:
            if lag.partition in partitions:
                waiting.setdefault(lag.partition, []).append(WaitingGroup(group.group_id, lag.lag))
    return waiting, notes
