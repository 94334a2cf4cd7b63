"""The lock of a state row, and the content of the locked row."""

from typing import Any

from sqlalchemy import Connection, Row, update

from dualwrite.coordinator.rules.lease import Lease, require_row
from dualwrite.coordinator.sql.dialects.supported import database_of
from dualwrite.coordinator.sql.dialects.unit_transactions import Fate, TransactionEndedError, unit_mark
from dualwrite.coordinator.sql.own_tables import ours
from dualwrite.coordinator.sql.state_row import is_of, row_of, row_seen
from dualwrite.coordinator.sql.tables import kafka_transaction_state as table
from dualwrite.ids import PreparedTxnState


def lock_row(connection: Connection, lease: Lease) -> PreparedTxnState:
    """Lock the row and return the state in it, which matches ``lease.memory``.

    :raises LeaseLostError: if another process has taken over.
    :raises LeaseContradictedError: if the row contradicts this process's memory.
    """
    if not database_of(connection.dialect).has_row_locks:
        take_write_lock(connection, lease)
    return expected_state(lease, _locked(connection, lease))


def _locked(connection: Connection, lease: Lease) -> Row[Any] | None:
    """The latest version of the row, locked."""
    wanted = row_of(lease.transactional_id).with_for_update()
    return connection.execute(wanted, execution_options=ours(connection)).one_or_none()


def expected_state(lease: Lease, row: Row[Any] | None) -> PreparedTxnState:
    """The state in the locked ``row``; it shows how a transaction of unknown outcome ended."""
    observed = None if row is None else row_seen(row)
    require_row(lease, observed)
    assert observed is not None
    memory = lease.memory
    if not memory.versions:
        memory.renewed(observed.lease_version or 0)
    memory.found(observed.state)
    return observed.state


def take_write_lock(connection: Connection, lease: Lease) -> None:
    """Take the write lock, which a deferred transaction of the driver takes only at its first write."""
    connection.execute(
        update(table).where(is_of(lease.transactional_id)).values(fencing_token=table.c.fencing_token),
        execution_options=ours(connection),
    )


def require_storable(connection: Connection, lease: Lease) -> None:
    """Raise the reason why ``DecisionStore.store`` found no row, as its transaction on ``connection`` sees it.

    Return if the UPDATE would find the row now: the heartbeat has renewed the lease in the meantime.

    :raises TransactionEndedError: if the transaction is not the one that the unit of work began.
    :raises LeaseLostError: if another process has taken over.
    :raises LeaseContradictedError: if the database has lost a commit, or this process was copied.
    """
    database = database_of(connection.dialect)
    mark = unit_mark(connection)
    if mark is not None and database.store_values(connection):
        fate = database.fate(connection, mark)
        if fate is not Fate.OPEN:
            raise TransactionEndedError(database.ended, fate)
    # A plain read may see the unit's snapshot from before the heartbeat.
    row = _locked(connection, lease)
    require_row(lease, None if row is None else row_seen(row))
