"""A consumer group as text and as JSON."""

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from dualwrite.admin.views import GroupDetails, PartitionLag
from dualwrite.cli.kafka.topic_output import number
from dualwrite.cli.printing import counted, printable, table
from dualwrite.ids import TopicPartition

_HEADS = ("TOPIC", "PARTITION", "COMMITTED", "STABLE", "END", "LAG", "UNREAD", "MEMBER")
_NONE = "-"
_WITHOUT_MEMBERS = {"consumer": "DESCRIBE is not granted on every topic of the group, or the broker is too old"}
"""Why the members of a group of this kind are not known."""


def paragraphs(group: GroupDetails) -> Iterator[str]:
    """All details, line by line."""
    yield f"group     {printable(group.group_id)}"
    yield f"state     {group.state or 'unknown'}{f', assignor {printable(group.assignor)}' if group.assignor else ''}"
    if group.members is None:
        yield f"members   not shown: {_WITHOUT_MEMBERS.get(group.kind, f'the group is of the kind {group.kind}')}"
    else:
        yield f"members   {len(group.members)}"
        for member in group.members:
            instance = f", instance {member.instance_id}" if member.instance_id else ""
            yield printable(
                f"  {member.member_id}: client {member.client_id}{instance} from {member.host.lstrip('/')}, "
                f"{counted(len(member.partitions), 'partition')}"
            )
    if not group.lags:
        yield "no offsets are committed, and no partitions are assigned"
        return
    yield from table(_HEADS, [_lag_line(lag) for lag in group.lags])
    yield from _explanations(group.lags)


def _lag_line(lag: PartitionLag) -> tuple[str, ...]:
    return (
        lag.partition.topic,
        str(lag.partition.partition),
        _NONE if lag.committed is None else str(lag.committed),
        number(lag.last_stable_offset),
        number(lag.high_watermark),
        number(lag.lag),
        number(lag.unread),
        printable(lag.member_id or _NONE),
    )


def _explanations(lags: tuple[PartitionLag, ...]) -> Iterator[str]:
    """What the numbers do not say by themselves."""
    if all(lag.committed is None for lag in lags):
        yield (
            "no offset is committed in Kafka: consumers of store_offsets have theirs in the database's table "
            "kafka_consumer_offset"
        )
    empty = [lag for lag in lags if lag.lag and lag.unread == 0]
    if empty:
        yield (
            f"nothing is left to read in {_named(empty)}: the lag there is control records, which end transactions, or "
            "aborted records"
        )
    held_back = [lag for lag in lags if lag.held_back]
    if held_back:
        yield (
            f"an open transaction holds back {_named(held_back)}: read_committed consumers stop at STABLE; see "
            "dualwrite topics describe"
        )
    pending = [lag for lag in lags if lag.is_pending]
    if pending:
        yield f"an open transaction has newer offsets of this group for {_named(pending)}"
    deleted = [lag for lag in lags if lag.committed is not None and lag.committed < (lag.earliest or 0)]
    if deleted:
        yield f"records behind the committed offset are deleted in {_named(deleted)}: auto.offset.reset decides there"


def _named(lags: list[PartitionLag]) -> str:
    names = [str(lag.partition) for lag in lags]
    return ", ".join(names[:3]) + (f" and {len(names) - 3:,} more" if len(names) > 3 else "")


def as_json(group: GroupDetails) -> dict[str, Any]:
    """All details, for programs; unknown values are null."""
    return {
        "group_id": group.group_id,
        "state": group.state,
        "kind": group.kind,
        "assignor": group.assignor,
        "members": None
        if group.members is None
        else [
            {**asdict(member), "partitions": [place(partition) for partition in member.partitions]}
            for member in group.members
        ],
        "partitions": [
            {
                **place(lag.partition),
                "committed": lag.committed,
                "is_pending": lag.is_pending,
                "earliest": lag.earliest,
                "last_stable_offset": lag.last_stable_offset,
                "high_watermark": lag.high_watermark,
                "lag": lag.lag,
                "unread": lag.unread,
                "held_back": lag.held_back,
                "member_id": lag.member_id,
            }
            for lag in group.lags
        ],
    }


def place(partition: TopicPartition) -> dict[str, Any]:
    """A partition, for programs."""
    return {"topic": partition.topic, "partition": partition.partition}
