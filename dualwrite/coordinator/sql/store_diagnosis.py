"""Find out why the UPDATE that stores a unit's state found no row."""

from sqlalchemy import Connection

from dualwrite.coordinator.rules.lease import Lease, require_row
from dualwrite.coordinator.sql.dialects.supported import database_of
from dualwrite.coordinator.sql.dialects.unit_transactions import Fate, TransactionEndedError, unit_mark
from dualwrite.coordinator.sql.own_tables import ours
from dualwrite.coordinator.sql.state_row import row_of, row_seen


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
    # A locking read sees the latest version. A plain read may see the unit's snapshot from before the heartbeat.
    latest = row_of(lease.transactional_id).with_for_update()
    row = connection.execute(latest, execution_options=ours(connection)).one_or_none()
    require_row(lease, None if row is None else row_seen(row))
