"""The leases of slots, in the state table: who holds which, until when by the database's clock.

A slot is taken by raising its fencing token, under the row's lock and only if the row is what the taker saw; a lease is
renewed and given back under its token. So of two that take a slot at once one gets it, and whoever has lost one changes
nothing any more.
"""

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from sqlalchemy import Connection, Engine, false, insert, select, update
from sqlalchemy.exc import IntegrityError

from dualwrite.coordinator.database import SqlDecisionStore, clear_errors, of_its_own_level
from dualwrite.coordinator.databases.supported import database_of
from dualwrite.coordinator.leasing import Candidate, SlotRow, Standing, slot_number
from dualwrite.coordinator.participants import Lease
from dualwrite.coordinator.tables import kafka_transaction_state as table

_CERTAIN = (Standing.DEAD, Standing.ABANDONED)
"""Whose owner cannot renew it meanwhile: the lease need not have run out."""


class SqlLeases:
    """Leases in the database of ``engine``.

    :param store: of the same engine; makes the transactions.
    """

    def __init__(self, engine: Engine, store: SqlDecisionStore) -> None:
        self._engine = engine
        self._store = store
        self._database = database_of(engine.dialect)
        self._remaining = self._database.seconds_until(table.c.lease_expires_at)

    def rows(self, application: str) -> list[SlotRow]:
        """See Leases.rows."""
        columns = (table.c.transactional_id, table.c.fencing_token, table.c.owner, self._remaining)
        start = table.c.transactional_id.startswith(f"{application}-", autoescape=True)
        with self._engine.connect() as connection, clear_errors(self._engine):
            of_its_own_level(connection)
            found = connection.execute(select(*columns).where(start)).all()
        rows = []
        for transactional_id, token, owner, remaining in found:
            number = slot_number(application, transactional_id)
            if number is not None:
                left = None if remaining is None else float(remaining)
                rows.append(SlotRow(transactional_id, number, token, owner, left))
        return rows

    def take(self, candidates: Sequence[Candidate], owner: str, seconds: float, most: int) -> list[Lease]:
        """See Leases.take."""
        taken: list[Lease] = []
        missing = [candidate.row for candidate in candidates if not candidate.row.fencing_token]
        present = [candidate for candidate in candidates if candidate.row.fencing_token]
        if present:
            with self._transaction() as connection:
                for candidate in present:
                    if len(taken) < most and self._is_unchanged(connection, candidate):
                        taken += self._raised(connection, candidate.row, owner, seconds)
        for row in missing:
            if len(taken) < most:
                taken += self._inserted(row, owner, seconds)
        return taken

    def renew(self, leases: Collection[Lease], owner: str, seconds: float) -> list[Lease]:
        """See Leases.renew."""
        lost = []
        with self._transaction() as connection:
            for lease in sorted(leases, key=_by_name):
                row = self._lock_row(connection, lease.transactional_id)
                if row is not None and row.fencing_token != lease.fencing_token:
                    lost.append(lease)
                elif row is not None and row.owner == owner:
                    self._update(connection, lease, lease_expires_at=self._database.from_now(seconds))
        return lost

    def give_back(self, leases: Collection[Lease], *, finished: bool) -> None:
        """See Leases.give_back."""
        with self._transaction() as connection:
            ended: dict[str, Any] = {"owner": "", "lease_expires_at": None}
            if not finished:
                ended = {"lease_expires_at": self._database.from_now(0)}
            for lease in sorted(leases, key=_by_name):
                self._update(connection, lease, **ended)

    @contextmanager
    def _transaction(self) -> Iterator[Connection]:
        with self._store.transaction(commit=True) as connection, clear_errors(self._engine):
            if self._database.one_writer:
                # Where the driver had begun a deferred transaction, this takes the write lock; it writes nothing.
                connection.execute(update(table).where(false()).values(fencing_token=table.c.fencing_token))
            yield connection

    def _lock_row(self, connection: Connection, transactional_id: str) -> Any:
        """Lock and read a row; None if somebody else has it locked, or there is none."""
        columns = (table.c.fencing_token, table.c.owner, self._remaining.label("remaining"))
        rows = self._database.lock_at_once(
            connection, select(*columns).where(table.c.transactional_id == transactional_id)
        )
        return rows[0] if rows else None

    def _is_unchanged(self, connection: Connection, candidate: Candidate) -> bool:
        """Lock the row of ``candidate``; False if that cannot be done at once, or it is not what was read."""
        seen = candidate.row
        row = self._lock_row(connection, seen.transactional_id)
        if row is None or (row.fencing_token, row.owner) != (seen.fencing_token, seen.owner):
            return False
        is_over = not row.owner or row.remaining is None or row.remaining <= 0
        return is_over or candidate.standing in _CERTAIN

    def _update(self, connection: Connection, lease: Lease, **values: Any) -> bool:
        """Write to the row of ``lease``; False if it is not valid."""
        changed = connection.execute(
            update(table)
            .where(table.c.transactional_id == lease.transactional_id)
            .where(table.c.fencing_token == lease.fencing_token)
            .values(**values)
        )
        return changed.rowcount == 1

    def _raised(self, connection: Connection, row: SlotRow, owner: str, seconds: float) -> list[Lease]:
        """The next lease of a slot whose row is locked."""
        taken = Lease(row.transactional_id, row.fencing_token + 1)
        raised = self._update(
            connection,
            Lease(row.transactional_id, row.fencing_token),
            fencing_token=taken.fencing_token,
            owner=owner,
            lease_expires_at=self._database.from_now(seconds),
            updated_at=self._database.now(),
        )
        return [taken] if raised else []

    def _inserted(self, row: SlotRow, owner: str, seconds: float) -> list[Lease]:
        """The first lease of a slot; none if another process has just inserted its row."""
        try:
            with self._transaction() as connection:
                connection.execute(
                    insert(table).values(
                        transactional_id=row.transactional_id,
                        prepared_txn_state="",
                        fencing_token=1,
                        owner=owner,
                        lease_expires_at=self._database.from_now(seconds),
                        updated_at=self._database.now(),
                    )
                )
        except IntegrityError:
            return []
        return [Lease(row.transactional_id, 1)]


def _by_name(lease: Lease) -> str:
    return lease.transactional_id
