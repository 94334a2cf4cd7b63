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
from dualwrite.coordinator.recovery.forecast import Forecast, Forecaster
from dualwrite.coordinator.rules.slot_rules import slot_number
from dualwrite.errors import InputError
from dualwrite.ids import TopicPartition
from dualwrite.operations.rows import locked_rows, state_rows
from dualwrite.operations.views import OPEN_STATES, KafkaView, RowView, Situation, TransactionView

HAS_CHANGED = Forecast(None, "a process has used the slot meanwhile: look again")
IS_LOCKED = Forecast(
    None,
    "another transaction of the database has its row locked: most likely the owner's, and the database is still in its "
    "COMMIT. Look again later; or end that session in the database if it hangs",
)


def list_transactions(
    engine: Engine, kafka: Mapping[str, Any], *, application: str | None = None, foretells: bool = True
) -> list[TransactionView]:
    """The transactional ids with a row in the state table, and those without a row whose transaction is open.

    Changes nothing. It reads one side after the other, so the two may not be from the same moment. For a
    moment it locks the row of a transaction without an owner, to see whether the database is still in its COMMIT.

    :param application: only its slots, also those without a row.
    :param foretells: foretell what recovery would find; False in a copy, where recovery does nothing (reason_to_leave).
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
        views = _views(cluster, {name: rows.get(name) for name in sorted(names)}, here, foretells=foretells)
    return list(_confirmed(engine, views).values())


def views_of(
    engine: Engine | None, cluster: ControlPlane, transactional_ids: Collection[str], *, foretells: bool = False
) -> dict[str, TransactionView]:
    """The views of ``transactional_ids``. Without an ``engine`` they are from Kafka only.

    :param foretells: see :func:`list_transactions`.
    :raises InputError: if a transactional id is empty.
    """
    if "" in transactional_ids:
        raise InputError("a transactional id is empty: give its name")
    here = cluster.cluster_id()
    rows = {} if engine is None else state_rows(engine, transactional_ids=transactional_ids, cluster_id=here)
    views = _views(cluster, {name: rows.get(name) for name in transactional_ids}, here, foretells=foretells)
    return views if engine is None else _confirmed(engine, views)


def describe_transaction(
    engine: Engine, kafka: Mapping[str, Any], transactional_id: str, *, foretells: bool = True
) -> tuple[TransactionView, dict[TopicPartition, PartitionEnds]]:
    """The view of one transactional id, and the offsets that readers can reach in the partitions of its open
    transaction.

    :param foretells: see :func:`list_transactions`.
    :raises KafkaRefusedError: if the client may not describe one of the topics.
    """
    with inspector(kafka) as cluster:
        view = views_of(engine, cluster, [transactional_id], foretells=foretells)[transactional_id]
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


def _views(
    cluster: ControlPlane, rows: Mapping[str, RowView | None], cluster_id: str | None, *, foretells: bool
) -> dict[str, TransactionView]:
    forecaster = Forecaster(cluster) if foretells else None
    return {name: _view(cluster, name, row, cluster_id, forecaster) for name, row in rows.items()}


def _view(
    cluster: ControlPlane, name: str, row: RowView | None, cluster_id: str | None, forecaster: Forecaster | None
) -> TransactionView:
    described = cluster.describe_transaction(name)
    ongoing = None
    if row is not None and described is not None and described.state == ONGOING:
        ongoing = ongoing_transaction(cluster, name, described.producer, row.state)
    kafka = None
    if described is not None:
        kafka = _kafka_view(described, {} if ongoing is None else ongoing.start_offsets)
    view = TransactionView(name, row, kafka, cluster_id)
    if forecaster is None or row is None or not view.is_recoverable:
        return view
    return replace(view, forecast=forecaster.foretell(name, row.state, described, ongoing, is_new=view.is_new_here))


def _confirmed(engine: Engine, views: dict[str, TransactionView]) -> dict[str, TransactionView]:
    """``views``, after a second look at the rows of those with a foretold heuristic outcome: a unit of work that ran
    between the looks at the two sides makes them differ, too. Also of those that were left behind: the database may
    commit them yet, or may just have."""
    left = [name for name, view in views.items() if view.situation is Situation.LEFT_BEHIND and view.is_recoverable]
    locked = locked_rows(engine, left)
    foretold = {name for name, view in views.items() if view.forecast is not None and view.forecast.is_heuristic}
    doubtful = foretold.union(left) - locked
    rows = state_rows(engine, transactional_ids=doubtful) if doubtful else {}
    changed = {name for name in doubtful if _is_changed(views[name].row, rows.get(name))}
    return views | {name: _unclear(views[name], is_locked=name in locked) for name in locked | changed}


def _unclear(view: TransactionView, *, is_locked: bool) -> TransactionView:
    assert view.row is not None
    forecast = None if view.forecast is None else IS_LOCKED if is_locked else HAS_CHANGED
    return replace(view, row=replace(view.row, is_locked=is_locked), forecast=forecast)


def _is_changed(row: RowView | None, now: RowView | None) -> bool:
    if row is None or now is None:
        return True
    is_same_lease = (row.slot.fencing_token, row.slot.owner) == (now.slot.fencing_token, now.slot.owner)
    return not (is_same_lease and row.state.is_same_as(now.state) and row.is_new == now.is_new)


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
