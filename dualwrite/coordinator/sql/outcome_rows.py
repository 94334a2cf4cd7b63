"""A heuristic outcome as a row and as a line of the log."""

import logging
from typing import Any

from sqlalchemy import Connection, insert
from sqlalchemy.sql.elements import ColumnElement

from dualwrite.coordinator.rules.recovery_decision import Outcome
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
    """Put the unit of work with ``state`` on record in the transaction of ``connection``; the number of its row.

    :param now: the database's clock.
    """
    added = connection.execute(
        insert(table).values(
            transactional_id=transactional_id,
            **columns_naming(state),
            outcome=outcome.value,
            detail=detail,
            found_at=now,
        ),
        execution_options=ours(connection),
    )
    key = added.inserted_primary_key
    assert key is not None
    return int(key[0])


def log_outcome(transactional_id: str, state: PreparedTxnState, outcome: Outcome, detail: str) -> None:
    """Log what is on record now."""
    _LOG.error(
        "%s: %s of the unit of work with the state %s: %s. It is on record until it is acknowledged",
        transactional_id,
        outcome.value,
        state,
        detail,
        extra={"outcome": outcome.value, "state": str(state)},
    )
