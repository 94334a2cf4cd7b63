"""A heuristic outcome as a row of the outcome table and as a log line."""

import logging
from typing import Any

from sqlalchemy import Connection, exists, func, insert, literal, select
from sqlalchemy.sql.elements import ColumnElement

from dualwrite.coordinator.rules.recovery_decision import LEFT_ELSEWHERE, Outcome
from dualwrite.coordinator.sql.own_tables import ours
from dualwrite.coordinator.sql.state_row import columns_naming
from dualwrite.coordinator.sql.tables import kafka_transaction_outcome as table
from dualwrite.ids import PreparedTxnState

_LOG = logging.getLogger("dualwrite")


def insert_outcome(
    connection: Connection,
    transactional_id: str,
    state: PreparedTxnState,
    outcome: Outcome,
    detail: str,
    now: ColumnElement[Any],
) -> int:
    """Record the unit of work with ``state`` in the transaction of ``connection``; return the number of its row.

    :param now: the database's clock.
    """
    values = _values(transactional_id, state, outcome, detail)
    added = connection.execute(insert(table).values(**values, found_at=now), execution_options=ours(connection))
    key = added.inserted_primary_key
    assert key is not None
    return int(key[0])


def insert_outcome_once(
    connection: Connection,
    transactional_id: str,
    state: PreparedTxnState,
    outcome: Outcome,
    detail: str,
    now: ColumnElement[Any],
) -> None:
    """As :func:`insert_outcome`, unless the same outcome is on record and not acknowledged.

    If the state table is emptied while a process runs, both that process and the first recovery of the new row find
    the unit of work that was in progress.

    A state names one transaction of one cluster: a unit of work that was left in another may have the same name, and
    is not the same. A state without a first record's place may name several Kafka transactions, or none, so it is
    recorded each time.
    """
    if state.first_record is None:
        insert_outcome(connection, transactional_id, state, outcome, detail, now)
        return
    values = _values(transactional_id, state, outcome, detail)
    on_record = exists().where(
        *(table.c[name] == value for name, value in values.items() if name != "detail"),
        table.c.detail != LEFT_ELSEWHERE,
        table.c.acknowledged_at.is_(None),
    )
    row = select(*(literal(value, table.c[name].type) for name, value in values.items()), now).where(~on_record)
    connection.execute(insert(table).from_select([*values, "found_at"], row), execution_options=ours(connection))


def outcome_insert_sql(transactional_id: str, state: PreparedTxnState, outcome: Outcome, detail: str) -> str:
    """The SQL with which an operator records the outcome by hand."""
    values = _values(transactional_id, state, outcome, detail)
    statement = insert(table).values(**values, found_at=func.current_timestamp())
    return str(statement.compile(compile_kwargs={"literal_binds": True}))


def _values(transactional_id: str, state: PreparedTxnState, outcome: Outcome, detail: str) -> dict[str, str | None]:
    return {
        "transactional_id": transactional_id,
        **columns_naming(state),
        "outcome": outcome.value,
        "detail": detail,
    }


def log_outcome(transactional_id: str, state: PreparedTxnState, outcome: Outcome, detail: str) -> None:
    """Log an outcome that was just recorded."""
    shown = str(state)  # here: logging swallows what a signal handler raises while it formats a message
    _LOG.error(
        "%s: %s of the unit of work with the state %s: %s. It is on record until it is acknowledged",
        transactional_id,
        outcome.value,
        shown,
        detail,
        extra={"outcome": outcome.value, "state": shown},
    )
