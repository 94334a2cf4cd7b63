"""Moves the applications of one database: the slots of units of work, and the offsets that the database keeps.

A slot's row names its last transaction in the source cluster. After the move it names none: the next unit of work
begins anew at the target.
"""

from collections.abc import Collection, Iterable, Mapping
from typing import Any, NamedTuple

from sqlalchemy import Connection, Engine, and_, or_, select, update

from dualwrite.coordinator.rules.slot_rules import SlotStatus, application_of, application_option, describe_owner, named
from dualwrite.coordinator.sql.decision_store import SqlDecisionStore
from dualwrite.coordinator.sql.dialects.supported import database_of
from dualwrite.coordinator.sql.engine.error_meanings import clear_errors
from dualwrite.coordinator.sql.lease_store import next_token
from dualwrite.coordinator.sql.own_tables import ours
from dualwrite.coordinator.sql.state_row import row_values
from dualwrite.coordinator.sql.tables import UNRECOVERED, kafka_consumer_offset, kafka_transaction_state
from dualwrite.errors import InputError
from dualwrite.ids import PreparedTxnState, TopicPartition
from dualwrite.moving.groups import Translate
from dualwrite.operations.copies import require_no_copy
from dualwrite.operations.listing import list_transactions
from dualwrite.operations.rows import state_rows
from dualwrite.operations.views import RowView, TransactionView


class MovedRows(NamedTuple):
    """How many rows of one database were given to the target."""

    slots: int
    offsets: int


class _StoredOffset(NamedTuple):
    """A row of kafka_consumer_offset."""

    group: str
    topic: str
    partition: int
    offset: int
    cluster_id: str | None


def require_settled(engine: Engine, source: Mapping[str, Any], source_id: str) -> None:
    """Require that every unit of work of this database has ended at the source: no process of an application runs, and
    recovery has nothing to do.

    :raises InputError: if not; the message names a slot and what to do.
    :raises CopiedDatabaseError: if the database is a copy.
    :raises DatabaseNotReadyError: before ``dualwrite db upgrade``.
    """
    require_no_copy(engine, source)
    rows = _rows_to_move(state_rows(engine, cluster_id=source_id), source_id)
    for name, row in rows.items():
        if row.slot.owner:
            owner = describe_owner(row.slot.owner)
            if row.status is SlotStatus.HELD:
                raise InputError(f"slot {name} is in use by {owner}: stop every process of the application first")
            raise InputError(_not_recovered(name, f"was not given back by {owner}"))
    for view in list_transactions(engine, source):
        problem = _problem(view) if view.transactional_id in rows else ""
        if problem:
            raise InputError(_not_recovered(view.transactional_id, problem))


def _problem(view: TransactionView) -> str:
    """What keeps a slot from being moved; empty if nothing does."""
    if view.kafka is not None and view.kafka.is_open:
        return "has an open transaction at the source"
    if view.forecast is not None and view.forecast.is_heuristic:
        assert view.forecast.outcome is not None
        return f"would be found to be a {view.forecast.outcome.value} by recovery"
    return ""


def _not_recovered(name: str, problem: str) -> str:
    option = application_option(application_of(name) or name)
    return (
        f"slot {name} {problem}: run `dualwrite recover {option}` with the address of the source "
        "first; `dualwrite transactions list` shows what it will do"
    )


def _rows_to_move(rows: Mapping[str, RowView], source_id: str) -> dict[str, RowView]:
    """The rows of slots that were last used at the source. A row without a cluster is from an earlier release, or the
    database was declared as moved."""
    return {name: row for name, row in rows.items() if row.slot.cluster_id in (None, source_id)}


def move_applications(
    engine: Engine, source_id: str, target_id: str, topics: Collection[str], translate: Translate
) -> MovedRows:
    """Give every slot of this database to the target cluster, and translate the offsets that the database keeps, in one
    database transaction. Return how many there were; none if they were moved before.

    :param topics: the names of the moved topics.
    :raises InputError: if a slot was used meanwhile, an application has begun at the target already, or a stored offset
        is of a topic that is not moved.
    :raises DatabaseNotReadyError: before ``dualwrite db upgrade``.
    """
    all_rows = state_rows(engine)
    rows = _rows_to_move(all_rows, source_id)
    begun = [name for name, row in all_rows.items() if row.slot.cluster_id == target_id]
    with SqlDecisionStore(engine).transaction(commit=True) as connection, clear_errors(engine):
        for name, row in sorted(rows.items()):
            _give_slot(connection, name, row.slot.fencing_token, target_id)
        # Once all slots are at the target, so are the offsets that name no cluster.
        stored = _offsets_at(connection, source_id, has_unmarked=bool(rows))
        unmarked = sum(offset.cluster_id is None for offset in stored)
        if unmarked and begun:
            raise InputError(
                f"the database keeps offsets that name no cluster ({unmarked}), and {named(begun)} was used at the "
                "target before these were translated: stop the application, correct or delete the rows in "
                "kafka_consumer_offset whose cluster_id is NULL, and repeat"
            )
        _translate_offsets(connection, stored, target_id, topics, translate)
    return MovedRows(len(rows), len(stored))


def _give_slot(connection: Connection, name: str, token: int, target_id: str) -> None:
    """Remove the state of a slot that was given back, and raise its fencing token."""
    table = kafka_transaction_state
    changed = connection.execute(
        update(table)
        .where(table.c.transactional_id == name, table.c.fencing_token == token, table.c.owner == "")
        .values(
            **row_values(PreparedTxnState()),
            outcome=UNRECOVERED,
            cluster_id=target_id,
            fencing_token=next_token(token),
            updated_at=database_of(connection.dialect).now(),
        ),
        execution_options=ours(connection),
    )
    if changed.rowcount != 1:
        raise InputError(f"slot {name} was used meanwhile: stop every process of the application first")


def _offsets_at(connection: Connection, source_id: str, *, has_unmarked: bool) -> list[_StoredOffset]:
    """The rows of the offsets that the database keeps of the source.

    :param has_unmarked: offsets that name no cluster are of the source: their partitions have had no unit of work yet,
        or an earlier release has stored them.
    """
    table = kafka_consumer_offset
    columns = (table.c.group_id, table.c.topic, table.c.partition, table.c.next_offset, table.c.cluster_id)
    at_source = table.c.cluster_id == source_id
    if has_unmarked:
        at_source = or_(at_source, table.c.cluster_id.is_(None))
    found = connection.execute(select(*columns).where(at_source), execution_options=ours(connection))
    return [_StoredOffset(*row) for row in found]


def _translate_offsets(
    connection: Connection,
    stored: Iterable[_StoredOffset],
    target_id: str,
    topics: Collection[str],
    translate: Translate,
) -> None:
    """Translate the offsets ``stored``, which count records of the source."""
    table = kafka_consumer_offset
    for group, topic, partition, offset, _ in stored:
        if topic not in topics:
            raise InputError(
                f"the database keeps an offset of group {group!r} in topic {topic!r}, which is not moved: add it to "
                "--topics, or delete the row in kafka_consumer_offset"
            )
        row = and_(table.c.group_id == group, table.c.topic == topic, table.c.partition == partition)
        connection.execute(
            update(table)
            .where(row)
            .values(
                next_offset=translate(TopicPartition(topic, partition), offset),
                leader_epoch=None,
                cluster_id=target_id,
                updated_at=database_of(connection.dialect).now(),
            ),
            execution_options=ours(connection),
        )
