"""Why the statement that stores a unit's state found no row."""

from sqlalchemy import Connection

from dualwrite.coordinator.rules.lease import Lease, require_row
from dualwrite.coordinator.sql.dialects.supported import database_of
from dualwrite.coordinator.sql.dialects.unit_transactions import Fate, TransactionEndedError, unit_mark
from dualwrite.coordinator.sql.own_tables import ours
from dualwrite.coordinator.sql.state_row import row_of, row_seen


def require_storable(connection: Connection, lease: Lease) -> None:
    """Raise the reason why ``DecisionStore.store`` found no row, by what its transaction on ``connection`` sees. Pass
    if it would find the row now: the heartbeat has renewed the lease meanwhile.

    :raises TransactionEndedError: if the transaction is not the one that the unit of work began.
    :raises LeaseLostError: if another process has taken over.
    :raises LeaseContradictedError: if the database has forgotten something, or this process was copied.
    """
    database = database_of(connection.dialect)
    mark = unit_mark(connection)
    if mark is not None and database.store_values(connection):
        fate = database.fate(connection, mark)
        if fate is not Fate.OPEN:
            raise TransactionEndedError(database.ended, fate)
    # A locking read sees the latest, where a plain one may see what the unit's snapshot had before the heartbeat came.
    latest = row_of(lease.transactional_id).with_for_update()
    row = connection.execute(latest, execution_options=ours(connection)).one_or_none()
    require_row(lease, None if row is None else row_seen(row))
