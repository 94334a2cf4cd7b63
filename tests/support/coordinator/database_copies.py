"""A database that forgets: its tables are set back to what they were, as a standby that lagged has them."""

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Engine, delete, insert, select

from dualwrite.coordinator.sql.tables import kafka_transaction_state as table
from tests.support.coordinator.event_table import events, slot_rows

Rows = Mapping[str, Sequence[Mapping[str, Any]]]
ID = "orders-0"


def copied(engine: Engine) -> Rows:
    with engine.connect() as connection:
        return {each.name: [dict(row._mapping) for row in connection.execute(select(each))] for each in (table, events)}


def set_back(engine: Engine, rows: Rows) -> None:
    """The tables are again what they were when ``rows`` were read; leases and their versions included."""
    with engine.begin() as connection:
        for each in (table, events):
            connection.execute(delete(each))
            for row in rows[each.name]:
                connection.execute(insert(each).values(**row))


def state_now(engine: Engine, transactional_id: str = ID) -> str:
    """The state in the row, as an outcome shows it."""
    row = slot_rows(engine)[transactional_id]
    return f"{row.prepared_txn_state}:{row.anchor}" if row.anchor else str(row.prepared_txn_state)
