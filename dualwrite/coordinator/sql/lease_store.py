"""The leases of slots, in the state table: owner, and expiry by the database's clock.

A process takes a slot by raising its fencing token, under the row's lock and only if the row is unchanged since it was
read. It renews and gives back a lease under its token. So if two processes take a slot at once, only one gets it. A
process that has lost a lease can no longer change the row.
"""

import secrets
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from sqlalchemy import ColumnElement, Connection, Engine, false, insert, select, update
from sqlalchemy.exc import IntegrityError

from dualwrite.coordinator.concurrency.step_errors import database_error_of
from dualwrite.coordinator.process.watchdog import Limit
from dualwrite.coordinator.rules.identities import (
    UNKNOWN_CLUSTER,
    ClusterIdentity,
    DatabaseIdentity,
    RowIdentity,
    require_original,
)
from dualwrite.coordinator.rules.lease import Lease, LeaseLostError, require_row
from dualwrite.coordinator.rules.slot_rules import (
    Candidate,
    SlotRow,
    SlotStatus,
    application_of,
    is_another,
    slot_number,
)
from dualwrite.coordinator.sql.decision_store import SqlDecisionStore
from dualwrite.coordinator.sql.dialects.supported import database_of
from dualwrite.coordinator.sql.engine.database_errors import refused_own_row
from dualwrite.coordinator.sql.engine.engine_checks import use_own_isolation_level
from dualwrite.coordinator.sql.engine.error_meanings import clear_errors
from dualwrite.coordinator.sql.fencing import is_under_token
from dualwrite.coordinator.sql.identity_rows import keep_up_to_date, read_identity
from dualwrite.coordinator.sql.own_tables import ours
from dualwrite.coordinator.sql.row_types import require_types
from dualwrite.coordinator.sql.state_row import ROW_COLUMNS, is_of, row_seen, state_of
from dualwrite.coordinator.sql.tables import UNRECOVERED
from dualwrite.coordinator.sql.tables import kafka_transaction_state as table
from dualwrite.errors import ConfigurationError
from dualwrite.ids import PreparedTxnState

_NOT_RENEWED = (SlotStatus.DEAD, SlotStatus.ABANDONED)
"""Slots whose owner cannot renew the lease any more. They may be taken before the lease expires."""

FIRST_TOKENS = 2**48
"""The maximum of first fencing tokens."""
TOKEN_STEPS = 2**20
"""The maximum by which a fencing token is raised. It lasts for 2**43 leases of a slot."""
_VERSIONS = 2**62


class SqlLeases:
    """Leases in the database of ``engine``.

    :param store: of the same engine; opens the database transactions.
    """

    def __init__(self, engine: Engine, store: SqlDecisionStore) -> None:
        self._engine = engine
        self._store = store
        self._database = database_of(engine.dialect)
        self._remaining = self._database.seconds_until(table.c.lease_expires_at).label("remaining")
        self._identity = DatabaseIdentity()
        self._cluster = ClusterIdentity()
        """Both as of the last :meth:`rows`."""

    def limited(self, seconds: float, name: str, setting: str) -> Limit:
        """Give the database ``seconds`` for all that is asked of it in the ``with`` block; see Leases.limited."""
        return Limit(seconds, name, setting)

    def rows(self, application: str | None, cluster: ClusterIdentity = UNKNOWN_CLUSTER) -> list[SlotRow]:
        """The slots of ``application`` that have a row; see Leases.rows."""
        columns = (table.c.transactional_id, table.c.fencing_token, table.c.owner, table.c.cluster_id)
        statement = select(*columns, table.c.database_id, self._remaining)
        with self._store.connection() as connection, clear_errors(self._engine):
            use_own_isolation_level(connection)
            identity = read_identity(connection)
            name = None if application is None else identity.name_of(application)
            if name is not None:
                statement = statement.where(table.c.transactional_id.startswith(f"{name}-", autoescape=True))
            stored_rows = connection.execute(statement, execution_options=ours(connection)).all()
        rows, row_identities = [], []
        for row in stored_rows:
            row_application = application_of(row.transactional_id) if name is None else name
            number = None if row_application is None else slot_number(row_application, row.transactional_id)
            if number is not None:
                require_types(row)  # only here: the rows of another application are not this one's business
                remaining = None if row.remaining is None else float(row.remaining)
                row_cluster = ClusterIdentity.of(row.cluster_id)
                row_identities.append(RowIdentity(row.transactional_id, row.database_id, row_cluster))
                rows.append(
                    SlotRow(
                        row.transactional_id, number, row.fencing_token, row.owner, remaining, row_cluster.cluster_id
                    )
                )
        if application is not None:
            require_original(row_identities, identity, cluster)
            self._identity, self._cluster = identity, cluster
            if identity.is_outdated or any(identity.outdates(row.database_id) for row in row_identities):
                with self._transaction() as connection:
                    keep_up_to_date(connection)
        return rows

    def is_unchanged(self, cluster: ClusterIdentity) -> bool:
        """True if the last :meth:`rows` of an application may be used; see Leases.is_unchanged."""
        with self._store.connection() as connection, clear_errors(self._engine):
            use_own_isolation_level(connection)
            return (read_identity(connection), cluster) == (self._identity, self._cluster)

    def name_of(self, application: str) -> str:
        """The prefix of the transactional ids of ``application``; see Leases.name_of."""
        return self._identity.name_of(application)

    def take(self, candidates: Sequence[Candidate], owner: str, seconds: float, most: int) -> list[Lease]:
        """Take up to ``most`` of ``candidates``, in order; see Leases.take."""
        taken: list[Lease] = []
        missing = [candidate.row for candidate in candidates if not candidate.row.fencing_token]
        present = [candidate for candidate in candidates if candidate.row.fencing_token]
        if present:
            with self._transaction() as connection:
                for candidate in present:
                    if len(taken) == most:
                        break
                    row = self._unchanged_row(connection, candidate)
                    if row is not None:
                        taken += self._take_row(connection, candidate.row, row, owner, seconds)
        for slot in missing:
            if len(taken) < most:
                taken += self._insert_row(slot, owner, seconds)
        return taken

    def renew(
        self, leases: Collection[Lease], owner: str, seconds: float, former: Collection[str] = ()
    ) -> list[LeaseLostError]:
        """Extend ``leases``; see Leases.renew."""
        lost: list[LeaseLostError] = []
        renewed: list[tuple[Lease, int]] = []
        missing: list[Lease] = []
        with self._transaction() as connection:
            for lease in sorted(leases, key=_by_name):
                memory_before = lease.memory.since()
                row = self._lock_row(connection, lease.transactional_id)
                if row is None:
                    missing.append(lease)
                elif row.fencing_token != lease.fencing_token or row.owner == owner or row.owner in former:
                    try:
                        require_row(lease, row_seen(row), memory_before)
                    except LeaseLostError as error:
                        lost.append(error)
                        continue
                    version = new_version()
                    lease.memory.renews(row.lease_version or 0, version)
                    expiry = self._database.from_now(seconds)
                    self._update(connection, lease, owner=owner, lease_version=version, lease_expires_at=expiry)
                    renewed.append((lease, version))
            lost += self._deleted_rows_errors(connection, missing)
        for lease, version in renewed:
            lease.memory.renewed(version)
        return lost

    def _deleted_rows_errors(self, connection: Connection, leases: Sequence[Lease]) -> list[LeaseLostError]:
        """The errors of those ``leases`` whose rows do not exist any more.

        :param leases: leases whose rows could not be locked.
        """
        if not leases:
            return []
        names = [lease.transactional_id for lease in leases]
        present = set(
            connection.scalars(
                select(table.c.transactional_id).where(table.c.transactional_id.in_(names)),
                execution_options=ours(connection),
            )
        )
        lost: list[LeaseLostError] = []
        for lease in leases:
            if lease.transactional_id not in present:
                try:
                    require_row(lease, None)
                except LeaseLostError as error:
                    lost.append(error)
        return lost

    def give_back(self, leases: Collection[Lease], *, finished: bool) -> None:
        """End those of ``leases`` that are valid; see Leases.give_back."""
        with self._transaction() as connection:
            values: dict[str, Any] = {"owner": "", "lease_expires_at": None}
            if not finished:
                values = {"lease_expires_at": self._database.from_now(0)}
            for lease in sorted(leases, key=_by_name):
                self._update(connection, lease, **values)

    @contextmanager
    def _transaction(self) -> Iterator[Connection]:
        with self._store.transaction(commit=True) as connection, clear_errors(self._engine):
            if self._database.one_writer:
                # Where the driver had begun a deferred transaction, this takes the write lock; it writes nothing.
                connection.execute(
                    update(table).where(false()).values(fencing_token=table.c.fencing_token),
                    execution_options=ours(connection),
                )
            yield connection

    def _lock_row(self, connection: Connection, transactional_id: str, *only: ColumnElement[bool]) -> Any:
        """Lock and read a row. None if another transaction has locked it, or if it does not exist.

        :param only: conditions; a row that does not meet them is not locked.
        """
        columns = (*ROW_COLUMNS, table.c.owner, table.c.outcome, table.c.cluster_id, self._remaining.label("remaining"))
        rows = self._database.lock_at_once(
            connection, select(*columns).where(is_of(transactional_id)), ours(connection), only
        )
        return rows[0] if rows else None

    def _unchanged_row(self, connection: Connection, candidate: Candidate) -> Any:
        """The locked row of ``candidate``; None if it cannot be locked at once, or has changed since it was read.

        A row that has changed is not locked: while it was, a process that knows its content would skip it, and no
        process would take it.
        """
        read_row = candidate.row
        row = self._lock_row(
            connection,
            read_row.transactional_id,
            table.c.fencing_token == read_row.fencing_token,
            table.c.owner == read_row.owner,
        )
        if row is None:
            return None
        has_expired = not row.owner or row.remaining is None or row.remaining <= 0
        return row if has_expired or candidate.status in _NOT_RENEWED else None

    def _update(self, connection: Connection, lease: Lease, **values: Any) -> bool:
        """Write to the row of ``lease``; False if it is not valid."""
        changed = connection.execute(
            update(table).where(is_under_token(lease.transactional_id, lease.fencing_token)).values(**values),
            execution_options=ours(connection),
        )
        return changed.rowcount == 1

    def _take_row(self, connection: Connection, slot: SlotRow, row: Any, owner: str, seconds: float) -> list[Lease]:
        """The next lease of ``slot``, whose locked row is ``row``."""
        version = new_version()
        new_lease = Lease(slot.transactional_id, next_token(slot.fencing_token))
        # A slot of another cluster is taken only if it was given back there (SlotStatus.FOREIGN).
        is_from_another = is_another(ClusterIdentity.of(row.cluster_id).cluster_id, self._cluster.cluster_id)
        new_lease.memory.is_new = is_from_another or row.outcome == UNRECOVERED
        is_written = self._update(
            connection,
            Lease(slot.transactional_id, slot.fencing_token),
            fencing_token=new_lease.fencing_token,
            lease_version=version,
            owner=owner,
            lease_expires_at=self._database.from_now(seconds),
            updated_at=self._database.now(),
            # In the transaction that changes the row's cluster: a crash before recovery must not hide the change.
            outcome=UNRECOVERED if new_lease.memory.is_new else row.outcome,
            **self._identity_columns(),
        )
        new_lease.memory.renewed(version)
        with suppress(ConfigurationError):  # the row's state is invalid: recovery reads it and raises
            new_lease.memory.read(state_of(row))
        return [new_lease] if is_written else []

    def _identity_columns(self) -> dict[str, str]:
        """The columns with the identities of the database and the cluster, as far as they are known."""
        identities = {"database_id": self._identity.database_id, "cluster_id": str(self._cluster)}
        return {name: value for name, value in identities.items() if value}

    def _insert_row(self, slot: SlotRow, owner: str, seconds: float) -> list[Lease]:
        """The first lease of a slot; none if another process has just inserted its row.

        :raises ConfigurationError: if the database refuses the row although it is not there.
        """
        # Random: a row that is inserted again, in this schema or in another, is never mistaken for the former one.
        token, version = 1 + secrets.randbelow(FIRST_TOKENS), new_version()
        try:
            with self._transaction() as connection:
                connection.execute(
                    insert(table).values(
                        transactional_id=slot.transactional_id,
                        prepared_txn_state="",
                        fencing_token=token,
                        lease_version=version,
                        owner=owner,
                        lease_expires_at=self._database.from_now(seconds),
                        updated_at=self._database.now(),
                        outcome=UNRECOVERED,
                        **self._identity_columns(),
                    ),
                    execution_options=ours(connection),
                )
        except Exception as error:
            if not isinstance(database_error_of(error), IntegrityError):
                raise
            if not self._has_row(slot.transactional_id):
                raise refused_own_row(table, error) from error
            return []
        lease = Lease(slot.transactional_id, token)
        lease.memory.renewed(version)
        lease.memory.is_new = True
        lease.memory.read(PreparedTxnState())
        return [lease]

    def _has_row(self, transactional_id: str) -> bool:
        with self._store.connection() as connection, clear_errors(self._engine):
            use_own_isolation_level(connection)
            row = select(table.c.transactional_id).where(is_of(transactional_id))
            return connection.execute(row, execution_options=ours(connection)).first() is not None


def next_token(fencing_token: int) -> int:
    """A higher fencing token, by the kernel's random numbers. If the database forgets a lease, its owner goes on. The
    next owner of the slot must not get the same token."""
    return fencing_token + 1 + secrets.randbelow(TOKEN_STEPS)


def new_version() -> int:
    """A new version of a lease, from the kernel's random numbers: a copy of this process draws another one."""
    return secrets.randbelow(_VERSIONS) + 1


def _by_name(lease: Lease) -> str:
    return lease.transactional_id
