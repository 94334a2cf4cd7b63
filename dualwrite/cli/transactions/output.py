"""The output of ``dualwrite transactions``: a transactional id as a line of a table, with all details, or as JSON."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from dualwrite.cli.printing import counted, since
from dualwrite.client.admin.inspector import PartitionEnds
from dualwrite.coordinator.rules.recovery_decision import Outcome
from dualwrite.ids import TopicPartition
from dualwrite.operations.resolving import Intention, Resolution
from dualwrite.operations.views import KafkaView, TransactionView, foreign_cluster_message
from dualwrite.operations.wording import foretold, owner, recovery

HEADS = ("TRANSACTIONAL ID", "DATABASE", "OWNER", "KAFKA", "OPEN", "PARTITIONS", "RECOVERY")


def line(view: TransactionView, *, in_copy: bool = False) -> tuple[str, ...]:
    """The row of ``view`` in the table under HEADS.

    :param in_copy: True if the database is a copy that no operator has declared, so that recovery does nothing.
    """
    kafka = view.kafka
    open_now = kafka is not None and kafka.is_open
    return (
        view.transactional_id,
        "no row" if view.row is None else str(view.row.state.producer) if view.row.state else "nothing yet",
        "" if view.row is None else owner(view.row),
        "unknown" if kafka is None else kafka.state,
        since(kafka.started_at) if kafka is not None else "",
        str(len(kafka.partitions)) if kafka is not None and open_now else "",
        "none: a copy" if in_copy and view.is_recoverable else recovery(view),
    )


def paragraphs(
    view: TransactionView, ends: Mapping[TopicPartition, PartitionEnds], obstacle: str = ""
) -> Iterator[str]:
    """All details, line by line.

    :param obstacle: the reason why recovery does nothing in this database; empty if it works.
    """
    yield f"transactional id   {view.transactional_id}"
    yield f"application        {view.application or 'none: the id is not the name of a slot'}"
    if view.row is None:
        yield "database           no row"
    else:
        yield f"database           decided on {view.row.state or 'nothing yet'}"
        written = view.row.updated_at
        yield f"  last written     {written.isoformat(timespec='seconds')}, {since(written)} ago"
        yield f"  owner            {owner(view.row)}: {view.row.status.value}"
        yield f"  fencing token    {view.row.slot.fencing_token}"
        elsewhere = ", not this one" if view.is_elsewhere else ""
        yield f"  for the cluster  {view.row.slot.cluster_id or 'unknown'}{elsewhere}"
    if view.kafka is None:
        yield "kafka              does not know it"
    else:
        yield from _of_kafka(view.kafka, ends)
    yield f"situation          {view.situation.value}"
    if obstacle and view.is_recoverable:
        yield f"recovery           none: {obstacle}"
    elif view.forecast is not None:
        yield f"recovery           {foretold(view)}"
    if view.is_foreign:
        yield f"recovery           {foreign_cluster_message([view])}"


def resolution_json(intentions: Sequence[Intention], done: Resolution | None) -> dict[str, Any]:
    """A plan of ``resolve``, and what it has done; None if it was only planned."""
    is_dry_run, done = done is None, done or Resolution()
    return {
        "dry_run": is_dry_run,
        "transactions": [
            {**as_json(intention.view), "obstacle": intention.obstacle or None, "action": intention.action}
            for intention in intentions
        ],
        "outcomes": done.outcomes,
        "missed": done.missed,
        "errors": [str(error) for error in done.errors],
    }


def heuristic_count(outcomes: Mapping[str, Outcome]) -> str:
    """The end of a summary of ``outcomes``; empty without heuristic ones."""
    count = sum(outcome.is_heuristic for outcome in outcomes.values())
    return f"; {counted(count, 'heuristic outcome')}: see dualwrite transactions list" if count else ""


def _of_kafka(kafka: KafkaView, ends: Mapping[TopicPartition, PartitionEnds]) -> Iterator[str]:
    yield f"kafka              {kafka.state}, {kafka.producer}"
    if not kafka.is_open:
        return
    if kafka.started_at is not None:
        yield f"  open since       {kafka.started_at.isoformat(timespec='seconds')}, {since(kafka.started_at)}"
    yield f"  timeout          {'none: two-phase commit' if kafka.never_expires else f'{kafka.timeout_ms} ms'}"
    for partition in sorted(kafka.partitions):
        yield f"  {partition}: {_held_up(kafka.starts.get(partition), ends.get(partition))}"


def _held_up(start: int | None, ends: PartitionEnds | None) -> str:
    begins = "no record of it yet" if start is None else f"from offset {start} on"
    if ends is None or ends.high_watermark <= ends.last_stable_offset:
        return begins
    hidden = ends.high_watermark - ends.last_stable_offset
    cause = "by it" if start == ends.last_stable_offset else "by another, which began earlier"
    held_up = f"{counted(hidden, 'record')} from {ends.last_stable_offset} on"
    return f"{begins}; held up for read_committed, {cause}: {held_up}"


def as_json(view: TransactionView, ends: Mapping[TopicPartition, PartitionEnds] | None = None) -> dict[str, Any]:
    """All details, for programs; unknown values are null."""
    row, kafka = view.row, view.kafka
    return {
        "transactional_id": view.transactional_id,
        "application": view.application,
        "situation": view.situation,
        "cluster_id": view.cluster_id,
        "verdict": view.verdict,
        "foretold": None
        if view.forecast is None
        else {"outcome": view.forecast.outcome, "detail": view.forecast.detail},
        "database": None
        if row is None
        else {
            "prepared_txn_state": str(row.state),
            "owner": row.slot.owner,
            "standing": row.status,
            "lease_seconds_left": row.slot.remaining,
            "fencing_token": row.slot.fencing_token,
            "cluster_id": row.slot.cluster_id,
            "updated_at": row.updated_at,
        },
        "kafka": None
        if kafka is None
        else {
            "state": kafka.state,
            "producer": str(kafka.producer),
            "started_at": kafka.started_at,
            "timeout_ms": kafka.timeout_ms,
            "partitions": [_partition_json(partition, kafka, ends or {}) for partition in sorted(kafka.partitions)],
        },
    }


def _partition_json(
    partition: TopicPartition, kafka: KafkaView, ends: Mapping[TopicPartition, PartitionEnds]
) -> dict[str, Any]:
    partition_ends = ends.get(partition)
    return {
        "topic": partition.topic,
        "partition": partition.partition,
        "start_offset": kafka.starts.get(partition),
        "last_stable_offset": None if partition_ends is None else partition_ends.last_stable_offset,
        "high_watermark": None if partition_ends is None else partition_ends.high_watermark,
    }
