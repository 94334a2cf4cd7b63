"""Leases that change hands with a prepared transaction in them: who prepares is not who decides.

Many processes prepare a transaction each for one decision of another. Each signs its lease over to that cause, and
ends; whoever decides writes all states in its own database transaction, and signs the leases as its own. From then on
they are like any others: if their owner dies, they are recovered by whoever looks next, and the state rows decide.

All of it is written in the caller's transaction, under the fencing tokens: what somebody has taken over is refused.
"""

from collections.abc import Sequence
from itertools import islice
from typing import Any

from sqlalchemy import Connection, Engine, and_, case, or_, select, update
from sqlalchemy.sql.elements import ColumnElement

from dualwrite.coordinator.database import clear_errors
from dualwrite.coordinator.databases.supported import database_of
from dualwrite.coordinator.own_tables import ours
from dualwrite.coordinator.participants import Lease, LeaseLostError
from dualwrite.coordinator.state_row import row_values
from dualwrite.coordinator.tables import kafka_transaction_state as table
from dualwrite.ids import PreparedTxnState

CHUNK = 100
"""Rows that one statement writes."""

Decided = tuple[Lease, PreparedTxnState]
"""A lease, and the transaction under it that is to be committed."""


class HandedLeases:
    """Leases in the database of ``engine`` that are signed over, with what is prepared under them."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._database = database_of(engine.dialect)

    def hand_over(self, connection: Connection, lease: Lease, owner: str, seconds: float) -> None:
        """Let ``owner`` sign ``lease``, for ``seconds`` from now. Nobody renews it.

        :raises LeaseLostError: if somebody else has taken over; the caller rolls back.
        """
        of_lease = (table.c.transactional_id == lease.transactional_id, table.c.fencing_token == lease.fencing_token)
        with clear_errors(self._engine):
            self._database.find_by_key(connection, on=True)
            changed = connection.execute(
                update(table).where(*of_lease).values(**self._signed(owner, seconds)),
                execution_options=ours(connection),
            )
        if changed.rowcount != 1:
            raise LeaseLostError(lease)

    def store_all(self, connection: Connection, decided: Sequence[Decided], owner: str, seconds: float) -> None:
        """Write the states of ``decided``, whose leases ``owner`` signs from now on: a statement for each CHUNK of
        them. If the caller commits, that is the decision.

        :raises LeaseLostError: if somebody else has taken over one of the leases; the caller rolls back.
        """
        rest = iter(sorted(decided, key=lambda each: each[0].transactional_id))
        while chunk := list(islice(rest, CHUNK)):
            with clear_errors(self._engine):
                self._database.find_by_key(connection, on=True)
                if self._store(connection, chunk, self._signed(owner, seconds)) != len(chunk):
                    raise LeaseLostError(self._lost(connection, chunk))

    def take_back(self, connection: Connection, signed: str, owner: str, seconds: float) -> list[str]:
        """Let ``owner`` sign all leases that are ``signed`` so; their transactional ids. The rows decide what becomes
        of the transactions: one whose state was not stored is aborted by recovery.

        The caller sees to it that no lease is signed so meanwhile.
        """
        with clear_errors(self._engine):
            names = self.signed(connection, signed)
            rest = iter(names)
            while chunk := list(islice(rest, CHUNK)):
                those = (table.c.transactional_id.in_(chunk), table.c.owner == signed)
                connection.execute(
                    update(table).where(*those).values(**self._signed(owner, seconds)),
                    execution_options=ours(connection),
                )
        return names

    @staticmethod
    def signed(connection: Connection, owner: str) -> list[str]:
        """The transactional ids of the leases that ``owner`` has signed."""
        return sorted(
            connection.scalars(
                select(table.c.transactional_id).where(table.c.owner == owner), execution_options=ours(connection)
            )
        )

    def _signed(self, owner: str, seconds: float) -> dict[str, Any]:
        now = self._database.now()
        return {"owner": owner, "lease_expires_at": self._database.from_now(seconds), "updated_at": now}

    @staticmethod
    def _store(connection: Connection, chunk: Sequence[Decided], signed: dict[str, Any]) -> int:
        """Write the states of ``chunk``; how many rows are still its leases'."""
        written = {lease.transactional_id: row_values(state) for lease, state in chunk}
        values = {
            name: _by_id({one: columns[name] for one, columns in written.items()})
            for name in ("prepared_txn_state", "anchor", "first_record")
        }
        valid = or_(*[_is_valid(lease) for lease, _ in chunk])
        # By name alone, too: so the rows are found by their key.
        named = table.c.transactional_id.in_(list(written))
        return connection.execute(
            update(table).where(named, valid).values(**values, **signed), execution_options=ours(connection)
        ).rowcount

    @staticmethod
    def _lost(connection: Connection, chunk: Sequence[Decided]) -> Lease:
        """One of the leases of ``chunk`` that are lost."""
        leases = [lease for lease, _ in chunk]
        valid = or_(*[_is_valid(lease) for lease in leases])
        left = set(
            connection.scalars(select(table.c.transactional_id).where(valid), execution_options=ours(connection))
        )
        return next((lease for lease in leases if lease.transactional_id not in left), leases[0])


def _is_valid(lease: Lease) -> ColumnElement[bool]:
    return and_(table.c.transactional_id == lease.transactional_id, table.c.fencing_token == lease.fencing_token)


def _by_id(values: dict[str, str | None]) -> ColumnElement[Any] | None:
    """The value of each row, by its transactional id."""
    present = {name: value for name, value in values.items() if value is not None}
    return case(present, value=table.c.transactional_id) if present else None
