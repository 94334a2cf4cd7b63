"""Every transactional id that may need action, from the state table and from Kafka's coordinators."""

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime, timezone
from typing import Any

from sqlalchemy import Engine

from dualwrite.client.admin.cluster_client import DEFAULT_TIMEOUT
from dualwrite.client.admin.control_plane import ControlPlane, TransactionDescription
from dualwrite.client.admin.inspector import Inspector, PartitionEnds
from dualwrite.client.fate.transaction_fate import ongoing_transaction
from dualwrite.client.terms.transaction_states import ONGOING
from dualwrite.coordinator.rules.slot_rules import slot_number
from dualwrite.ids import TopicPartition
from dualwrite.operations.rows import state_rows
from dualwrite.operations.views import OPEN_STATES, KafkaView, RowView, TransactionView


def list_transactions(
    engine: Engine, kafka: Mapping[str, Any], *, application: str | None = None
) -> list[TransactionView]:
    """The transactional ids with a row in the state table, and those without a row whose transaction is open.

    Changes and locks nothing. It reads one side after the other, so the two may not be from the same moment.

    :param application: only its slots, also those without a row.
    :raises DatabaseNotReadyError: if there is no state table.
    :raises KafkaUnavailableError: if a broker does not answer.
    """
    with inspector(kafka) as cluster:
        listed = {entry.transactional_id: entry.state for entry in cluster.list_transactions()}
        here = cluster.cluster_id()
        rows = state_rows(engine, application=application, cluster_id=here)
        names = set(rows)
        for name, state in listed.items():
            if state in OPEN_STATES and (application is None or slot_number(application, name) is not None):
                names.add(name)
        return [_view(cluster, name, rows.get(name), here) for name in sorted(names)]


def views_of(
    engine: Engine | None, cluster: ControlPlane, transactional_ids: Collection[str]
) -> dict[str, TransactionView]:
    """The views of ``transactional_ids``. Without an ``engine`` they are from Kafka only."""
    here = cluster.cluster_id()
    rows = {} if engine is None else state_rows(engine, transactional_ids=transactional_ids, cluster_id=here)
    return {name: _view(cluster, name, rows.get(name), here) for name in transactional_ids}


def describe_transaction(
    engine: Engine, kafka: Mapping[str, Any], transactional_id: str
) -> tuple[TransactionView, dict[TopicPartition, PartitionEnds]]:
    """The view of one transactional id, and the offsets that readers can reach in the partitions of its open
    transaction.

    :raises KafkaRefusedError: if the client may not describe one of the topics.
    """
    with inspector(kafka) as cluster:
        view = views_of(engine, cluster, [transactional_id])[transactional_id]
        if view.kafka is None or not view.kafka.is_open:
            return view, {}
        open_in = view.kafka.partitions
        starts = cluster.current_transaction_start_offsets(open_in, view.kafka.producer, deleted_too=True)
        known = replace(view, kafka=replace(view.kafka, starts=starts))
        return known, cluster.partition_ends(open_in)


@contextmanager
def inspector(kafka: Mapping[str, Any], timeout: float = DEFAULT_TIMEOUT) -> Iterator[Inspector]:
    """A control plane for the length of the ``with`` block. The ``timeout`` is in seconds, as for ControlPlane."""
    made = Inspector(kafka, timeout=timeout)
    try:
        yield made
    finally:
        made.close()


def _view(cluster: ControlPlane, name: str, row: RowView | None, cluster_id: str | None) -> TransactionView:
    described = cluster.describe_transaction(name)
    if described is None:
        return TransactionView(name, row, None, cluster_id)
    starts: Mapping[TopicPartition, int] = {}
    if row is not None and described.state == ONGOING:
        starts = ongoing_transaction(cluster, name, described.producer, row.state).start_offsets
    return TransactionView(name, row, _kafka_view(described, starts), cluster_id)


def _kafka_view(described: TransactionDescription, starts: Mapping[TopicPartition, int]) -> KafkaView:
    is_over = described.start_ms < 0 or described.state not in OPEN_STATES
    return KafkaView(
        described.state,
        described.producer,
        None if is_over else datetime.fromtimestamp(described.start_ms / 1000, timezone.utc),
        described.timeout_ms,
        described.partitions,
        starts,
    )
