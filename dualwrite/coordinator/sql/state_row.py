"""The columns that store a prepared transaction in the state table, and that name one in the other tables."""

from typing import Any

from sqlalchemy import BindParameter, ColumnElement, Row, Select, select

from dualwrite.coordinator.rules.evidence import evidence, with_evidence
from dualwrite.coordinator.rules.lease_memory import RowSeen
from dualwrite.coordinator.sql.tables import kafka_transaction_state as table
from dualwrite.ids import PreparedTxnState

STATE_COLUMNS = (table.c.prepared_txn_state, table.c.anchor, table.c.first_record)
"""The columns that :func:`state_of` reads."""
ROW_COLUMNS = (*STATE_COLUMNS, table.c.fencing_token, table.c.lease_version)
"""The columns that :func:`row_seen` reads."""


def is_of(transactional_id: str | BindParameter[str]) -> ColumnElement[bool]:
    """The row of ``transactional_id``."""
    return table.c.transactional_id == transactional_id


def row_of(transactional_id: str) -> Select[Any]:
    """Select the row of ``transactional_id``, with the columns that :func:`row_seen` reads."""
    return select(*ROW_COLUMNS).where(is_of(transactional_id))


def row_seen(row: Row[Any]) -> RowSeen:
    """The values that the holder of a lease compares with those it remembers.

    :raises ConfigurationError: if the row does not hold a valid state.
    """
    return RowSeen(row.fencing_token, row.lease_version, state_of(row))


def state_of(row: Row[Any]) -> PreparedTxnState:
    """The state that a row of the state table stores."""
    state = PreparedTxnState(f"{row.prepared_txn_state}:{row.anchor}" if row.anchor else row.prepared_txn_state)
    return with_evidence(state, row.first_record or "")


def row_values(state: PreparedTxnState) -> dict[str, str | None]:
    """The column values that store ``state`` in the state table; the reverse of :func:`state_of`."""
    return {
        "prepared_txn_state": str(state.producer) if state else "",
        "anchor": None if state.anchor is None else str(state.anchor),
        "first_record": evidence(state),
    }


def columns_naming(state: PreparedTxnState) -> dict[str, str | None]:
    """The column values that name the unit of work with ``state`` in the tables of outcomes and of kept records."""
    return {
        "prepared_txn_state": str(state.producer) if state else "",
        "first_record": None if state.first_record is None else str(state.first_record),
    }
