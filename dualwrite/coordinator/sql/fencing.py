"""The fencing rule: a process writes a state row only under the fencing token that it raised itself.

Each process that takes a slot over raises the row's token (``lease_store.py``). Every later write of the former holder
finds no row, and recovery reads the token again after InitProducerId. A lease's expiry protects nothing.
"""

from sqlalchemy import BindParameter, ColumnElement, Connection, and_, select

from dualwrite.coordinator.rules.lease import Lease, LeaseLostError
from dualwrite.coordinator.sql.own_tables import ours
from dualwrite.coordinator.sql.state_row import is_of
from dualwrite.coordinator.sql.tables import kafka_transaction_state as table


def is_under_token(
    transactional_id: str | BindParameter[str], fencing_token: int | BindParameter[int]
) -> ColumnElement[bool]:
    """The row of ``transactional_id`` while no process has taken over: the predicate that fences every write."""
    return and_(is_of(transactional_id), table.c.fencing_token == fencing_token)


def require_lease(connection: Connection, lease: Lease) -> None:
    """Require that no process has taken the slot of ``lease``; does not lock the row."""
    token = connection.scalar(
        select(table.c.fencing_token).where(is_of(lease.transactional_id)),
        execution_options=ours(connection),
    )
    if token != lease.fencing_token:
        raise LeaseLostError(lease)
