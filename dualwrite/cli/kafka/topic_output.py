"""A topic as text and as JSON."""

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from dualwrite.admin.views import PartitionDetails, TopicDetails
from dualwrite.cli.printing import counted, printable, since, table

_HEADS = ("PARTITION", "LEADER", "REPLICAS", "IN-SYNC", "EARLIEST", "STABLE", "END", "HELD-BACK", "BYTES")
_UNKNOWN = "?"


def paragraphs(topic: TopicDetails) -> Iterator[str]:
    """All details, line by line."""
    yield f"topic     {topic.name}{' (internal)' * topic.is_internal}"
    if topic.topic_id:
        yield f"id        {topic.topic_id}"
    if topic.settings is None:
        yield "settings  not shown: DESCRIBE_CONFIGS on the topic is not granted"
    else:
        own = [f"{setting.name}={printable(setting.value or '')}" for setting in topic.settings if setting.is_own]
        yield f"settings  {', '.join(own) or 'the defaults of the broker'}"
    yield from table(_HEADS, [_line(partition) for partition in topic.partitions])
    for partition in topic.partitions:
        yield from _transactions(partition)
    if any(part.open_transactions is None and part.leader is not None for part in topic.partitions):
        yield "open transactions are not shown: READ on the topic is not granted"


def _line(partition: PartitionDetails) -> tuple[str, ...]:
    known = partition.high_watermark is not None
    return (
        str(partition.partition),
        "none" if partition.leader is None else str(partition.leader),
        ",".join(map(str, partition.replicas)) or _UNKNOWN,
        ",".join(map(str, partition.in_sync)) or _UNKNOWN,
        number(partition.earliest),
        number(partition.last_stable_offset),
        number(partition.high_watermark),
        str(partition.held_back) if known else _UNKNOWN,
        number(partition.size),
    )


def number(value: int | None) -> str:
    """``value``, or a question mark."""
    return _UNKNOWN if value is None else str(value)


def _transactions(partition: PartitionDetails) -> Iterator[str]:
    for transaction in partition.open_transactions or ():
        age = f", open for {since(transaction.started_at)}" if transaction.started_at else ""
        effect = ""
        if transaction == partition.holder and partition.held_back:
            effect = f", holds back {counted(partition.held_back, 'offset')}"
        begins = f"transaction {printable(transaction.name)} from offset {transaction.first_offset} on"
        yield f"partition {partition.partition}: {begins}{age}{effect}"


def as_json(topic: TopicDetails) -> dict[str, Any]:
    """All details, for programs; unknown values are null."""
    return {
        "topic": topic.name,
        "topic_id": topic.topic_id or None,
        "is_internal": topic.is_internal,
        "settings": None if topic.settings is None else [asdict(setting) for setting in topic.settings],
        "partitions": [_partition_json(partition) for partition in topic.partitions],
    }


def _partition_json(partition: PartitionDetails) -> dict[str, Any]:
    transactions = partition.open_transactions
    return {
        "partition": partition.partition,
        "leader": partition.leader,
        "replicas": partition.replicas,
        "in_sync": partition.in_sync,
        "earliest": partition.earliest,
        "last_stable_offset": partition.last_stable_offset,
        "high_watermark": partition.high_watermark,
        "held_back": partition.held_back if partition.high_watermark is not None else None,
        "size": partition.size,
        "open_transactions": None
        if transactions is None
        else [
            {
                "transactional_id": each.transactional_id,
                "producer": str(each.producer),
                "first_offset": each.first_offset,
                "started_at": each.started_at,
                "holds_back": each == partition.holder and partition.held_back > 0,
            }
            for each in transactions
        ],
    }
