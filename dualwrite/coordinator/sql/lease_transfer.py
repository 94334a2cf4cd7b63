"""Transfers leases with a prepared transaction: one process prepares, another process decides.

Many processes each prepare a transaction (a branch) for one decision of another process. Each process transfers its
lease and ends. The deciding process writes all states in its own database transaction, and becomes the owner of the
leases. From then on they are ordinary leases: if their owner dies, any process recovers them, and the state rows
decide.

All writes are in the caller's transaction (SqlDecisionStore.transaction), under the rows' locks, and are a
compare-and-set like a unit's STORE_STATE: a row must have the fencing token, the lease version and the state that its
writer knows. A transferred lease carries that knowledge along. So a write is refused if another process has taken over,
if the database has lost a commit, or if a copy of the process has written the row.
"""

from collections.abc import Sequence
from itertools import islice
from typing import Any

from sqlalchemy import Connection, Engine, case, select, update
from sqlalchemy.sql.elements import ColumnElement

from dualwrite.coordinator.rules.lease import Lease, LeaseLostError, require_row
from dualwrite.coordinator.sql.dialects.supported import database_of
from dualwrite.coordinator.sql.engine.error_meanings import clear_errors
from dualwrite.coordinator.sql.lease_store import new_version
from dualwrite.coordinator.sql.own_tables import ours
from dualwrite.coordinator.sql.row_lock import lock_row
from dualwrite.coordinator.sql.state_row import ROW_COLUMNS, is_of, row_seen, row_values
from dualwrite.coordinator.sql.tables import kafka_transaction_state as table
from dualwrite.ids import PreparedTxnState

CHUNK = 100
"""The most rows that one statement writes."""

Decided = tuple[Lease, PreparedTxnState]
"""A lease, and its transaction, which is to be committed."""


class TransferredLeases:
    """Leases in the database of ``engine`` that are transferred with their prepared transactions."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._database = database_of(engine.dialect)

    def transfer(self, connection: Connection, lease: Lease, owner: str, seconds: float) -> Lease:
        """Transfer ``lease`` to ``owner``, for ``seconds`` from now. No process renews it.

        :returns: the lease as the row has it once the caller has committed, with its own memory, which
            :meth:`store_all` uses.
        :raises LeaseLostError: if another process has taken over; the caller rolls back.
        :raises LeaseContradictedError: if the row is not what ``lease`` remembers; the caller rolls back.
        """
        with clear_errors(self._engine):
            state = lock_row(connection, lease)
            version = new_version()
            connection.execute(
                update(table)
                .where(is_of(lease.transactional_id))
                .values(lease_version=version, **self._lease_columns(owner, seconds)),
                execution_options=ours(connection),
            )
        transferred = Lease(lease.transactional_id, lease.fencing_token)
        transferred.memory.renewed(version)
        transferred.memory.read(state)
        if lease.memory.uncompleted is None:  # recovery has seen to it before anything was prepared
            transferred.memory.completed()
        return transferred

    def store_all(self, connection: Connection, decided: Sequence[Decided], owner: str, seconds: float) -> None:
        """Write the states of ``decided``, and make ``owner`` the owner of their leases: two statements for each CHUNK.
        If the caller commits, that is the decision.

        :param seconds: the lease timeout.

        :raises LeaseLostError: if another process has taken over one of the leases; the caller rolls back.
        :raises LeaseContradictedError: if one of the rows is not as it was transferred; the caller rolls back.
        """
        rest = iter(sorted(decided, key=lambda lease_and_state: lease_and_state[0].transactional_id))
        while chunk := list(islice(rest, CHUNK)):
            with clear_errors(self._engine):
                self._lock(connection, [lease for lease, _ in chunk])
                self._store(connection, chunk, self._lease_columns(owner, seconds))

    def transfer_back(self, connection: Connection, signature: str, owner: str, seconds: float) -> list[str]:
        """Sign all leases with the signature ``signature`` over to ``owner``; return their transactional ids. The rows
        decide: recovery aborts a transaction whose state was not stored.

        The caller must ensure that no further lease gets the signature ``signature`` meanwhile.
        """
        with clear_errors(self._engine):
            names = self.ids_owned_by(connection, signature)
            rest = iter(names)
            while chunk := list(islice(rest, CHUNK)):
                conditions = (table.c.transactional_id.in_(chunk), table.c.owner == signature)
                connection.execute(
                    update(table).where(*conditions).values(**self._lease_columns(owner, seconds)),
                    execution_options=ours(connection),
                )
        return names

    @staticmethod
    def ids_owned_by(connection: Connection, owner: str) -> list[str]:
        """The transactional ids of the leases that ``owner`` has signed."""
        return sorted(
            connection.scalars(
                select(table.c.transactional_id).where(table.c.owner == owner), execution_options=ours(connection)
            )
        )

    def _lease_columns(self, owner: str, seconds: float) -> dict[str, Any]:
        now = self._database.now()
        return {"owner": owner, "lease_expires_at": self._database.from_now(seconds), "updated_at": now}

    @staticmethod
    def _lock(connection: Connection, leases: Sequence[Lease]) -> None:
        """Lock the rows of ``leases``, and compare each with what its lease remembers."""
        names = [lease.transactional_id for lease in leases]
        columns: tuple[Any, ...] = (table.c.transactional_id, *ROW_COLUMNS)
        rows = connection.execute(
            select(*columns)
            .where(table.c.transactional_id.in_(names))
            .order_by(table.c.transactional_id)
            .with_for_update(),
            execution_options=ours(connection),
        )
        observed = {row.transactional_id: row_seen(row) for row in rows}
        for lease in leases:
            require_row(lease, observed.get(lease.transactional_id))

    @staticmethod
    def _store(connection: Connection, chunk: Sequence[Decided], lease_columns: dict[str, Any]) -> None:
        """Write the states of ``chunk`` into its rows, which are locked.

        :raises LeaseLostError: if the database has not stored all of them; the caller rolls back.
        """
        columns_by_id = {lease.transactional_id: row_values(state) for lease, state in chunk}
        values = {
            name: _case_by_id({transactional_id: columns[name] for transactional_id, columns in columns_by_id.items()})
            for name in ("prepared_txn_state", "anchor", "first_record")
        }
        values["outcome"] = None  # as store_statement
        stored = connection.execute(
            update(table).where(table.c.transactional_id.in_(list(columns_by_id))).values(**values, **lease_columns),
            execution_options=ours(connection),
        ).rowcount
        if stored != len(chunk):  # the rows are locked: only the table itself can prevent it, by a trigger or a rule
            raise LeaseLostError(
                chunk[0][0],
                f"the database has stored {stored} of {len(chunk)} states, and nothing is committed: look for a "
                f"trigger or a rule on {table.name}",
            )


def _case_by_id(values: dict[str, str | None]) -> ColumnElement[Any] | None:
    """The value of each row, by its transactional id."""
    present = {name: value for name, value in values.items() if value is not None}
    return case(present, value=table.c.transactional_id) if present else None
