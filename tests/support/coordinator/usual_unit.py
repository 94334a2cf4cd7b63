"""The unit of work that most tests write: a row and a record with the same value."""

from sqlalchemy import insert

from dualwrite.coordinator.dual_write import DualWrite
from dualwrite.coordinator.unit.transaction import Transaction
from tests.support.coordinator.event_table import events


def write(tx: Transaction, value: str) -> None:
    """The row and the record, inside of a unit."""
    tx.execute(insert(events).values(value=value))
    tx.produce("events", value=value)


def write_unit(dual_write: DualWrite, value: str) -> None:
    """All of a unit."""
    with dual_write.transaction() as tx:
        write(tx, value)
