"""The state table as a DecisionStore, through SQLAlchemy, in every database of ``dialects/``.

Correctness depends on the lock of the state row; each dialect explains why it holds there.
"""

import logging
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import TypeVar

from sqlalchemy import Connection, Engine, false, select, update

from dualwrite.coordinator.process.greenlets import run_in_loop
from dualwrite.coordinator.process.watchdog import Limit
from dualwrite.coordinator.rules.lease import Lease, LeaseLostError
from dualwrite.coordinator.rules.lease_memory import RowSeen, Unmatched
from dualwrite.coordinator.rules.recovery_decision import DETAILS, LEFT_ELSEWHERE, UNCLAIMED, Outcome
from dualwrite.coordinator.sql.dialects.supported import database_of
from dualwrite.coordinator.sql.engine.connecting import close_connection
from dualwrite.coordinator.sql.engine.database_errors import connected
from dualwrite.coordinator.sql.engine.engine_checks import (
    discard,
    require_idle,
    require_own_connections,
    use_own_isolation_level,
)
from dualwrite.coordinator.sql.engine.error_meanings import clear_errors
from dualwrite.coordinator.sql.fencing import is_under_token, require_lease
from dualwrite.coordinator.sql.outcome_rows import insert_outcome, insert_outcome_once, log_outcome, outcome_insert_sql
from dualwrite.coordinator.sql.own_tables import ours, schema_of
from dualwrite.coordinator.sql.row_lock import (
    expected_state,
    lock_row,
    require_storable,
    take_write_lock,
)
from dualwrite.coordinator.sql.state_row import is_of, row_of, row_values, state_of
from dualwrite.coordinator.sql.store_statement import CompiledUpdate, store_statement
from dualwrite.coordinator.sql.tables import kafka_transaction_state as table
from dualwrite.coordinator.sql.tables import metadata
from dualwrite.coordinator.sql.unit_bounds import begin_writing, make_durable
from dualwrite.errors import ConfigurationError
from dualwrite.ids import PreparedTxnState

_LOG = logging.getLogger("dualwrite")

T = TypeVar("T")


class SqlLockedStateRow:
    """A LockedStateRow: the state row, locked by the transaction of one connection."""

    def __init__(self, connection: Connection, lease: Lease, state: PreparedTxnState, limit: Limit) -> None:
        self.connection = connection
        """The connection that holds the lock."""
        self._lease = lease
        self._state = state
        self._limit = limit

    @property
    def state(self) -> PreparedTxnState:
        """The state that the row stored when it was locked."""
        return self._state

    def verify(self) -> None:
        """Read the token again; see LockedStateRow.verify."""
        with self._limit:
            require_lease(self.connection, self._lease)


class SqlDecisionStore:
    """A DecisionStore in the database of ``engine``.

    :param engine: the user's engine; its settings and listeners stay as they are.
    :param lock_timeout: seconds to wait for the row, whole ones on MariaDB and MySQL; SQLite waits as long as the
        engine's ``timeout``.
    :param checks_lease: see DecisionStore.checks_lease.
    :param database_timeout: seconds that each of the library's own transactions may wait for the database.
    :param lease_timeout: seconds for which storing a state renews the lease; None not to.
    :raises ConfigurationError: if the database is not supported, or is SQLite in memory, which is lost with the
        process; or if the engine's pool gives one connection to several users.
    """

    def __init__(
        self,
        engine: Engine,
        lock_timeout: float = 30.0,
        *,
        checks_lease: bool = False,
        database_timeout: float = math.inf,
        lease_timeout: float | None = None,
    ) -> None:
        self.checks_lease = checks_lease
        self._database = database_of(engine.dialect)
        require_own_connections(engine)
        self._engine = engine
        self._lock_timeout = lock_timeout
        self._database_timeout = database_timeout
        self._lease_timeout = lease_timeout
        self._store: CompiledUpdate | None = None
        self._is_suitable = False
        self._is_closed = False

    @property
    def one_writer(self) -> bool:
        """True if the database allows one writing transaction at a time; see DecisionStore.one_writer."""
        return self._database.one_writer

    @property
    def is_file(self) -> bool:
        """True if the database is a file of this machine."""
        return self._database.is_file

    def in_thread(self, act: Callable[[], T]) -> T:
        """See DecisionStore.in_thread. A driver for asyncio gets an event loop there."""
        return run_in_loop(act) if self._engine.dialect.is_async else act()

    @contextmanager
    def locked(self, lease: Lease) -> Iterator[SqlLockedStateRow]:
        """Hold the row's lock; see DecisionStore.locked. Its transaction is rolled back at the end."""
        if self._may_show_undone_commits():
            self._settle(lease)
        limit = self.limit(lease.transactional_id)
        with self.transaction(commit=False, limit=limit) as connection:
            with clear_errors(self._engine):
                state = lock_row(connection, lease)
            with limit.resting():
                yield SqlLockedStateRow(connection, lease, state, limit)

    @contextmanager
    def locked_at_once(self, leases: Sequence[Lease]) -> Iterator[Mapping[Lease, SqlLockedStateRow]]:
        """Hold the locks of the rows that are free; see DecisionStore.locked_at_once."""
        if self._may_show_undone_commits():
            with self.transaction(commit=True) as connection, clear_errors(self._engine):
                leases = list(self._lock_free_rows(connection, leases))
                for lease in leases:
                    self._touch(connection, lease)
        limit = self.limit(f"{len(leases)} slots")
        with self.transaction(commit=False, limit=limit) as connection:
            with clear_errors(self._engine):
                states = self._lock_free_rows(connection, leases)
            with limit.resting():
                yield {lease: SqlLockedStateRow(connection, lease, state, limit) for lease, state in states.items()}

    def require(self, lease: Lease) -> None:
        """Require that no process has taken over, as a unit of work does at its beginning if the store checks_lease.

        :raises LeaseLostError: if another process has.
        """
        with self.connection() as connection, clear_errors(self._engine):
            require_lease(connection, lease)

    def store(self, connection: Connection, lease: Lease, state: PreparedTxnState) -> None:
        """Write ``state`` in the caller's transaction; see DecisionStore.store."""
        self._write(connection, lease, state)

    def is_stored(self, connection: Connection, lease: Lease, state: PreparedTxnState) -> bool:
        """True if the row holds ``state``, after a COMMIT on ``connection`` that raised nothing. A pool may have no
        other connection, and the row need not be locked: on this one nothing is open any more.

        The user's listeners do not hear of it: to them one transaction was committed, and none is rolled back.
        """
        unheard = Connection(connection.engine, connection.connection, _has_events=False)
        with clear_errors(self._engine):
            self._database.find_by_key(unheard, on=True)
            row = unheard.execute(row_of(lease.transactional_id), execution_options=ours(connection)).one_or_none()
        unheard.rollback()
        return row is not None and state.is_same_as(state_of(row))

    def _write(self, connection: Connection, lease: Lease, state: PreparedTxnState) -> None:
        memory = lease.memory
        with clear_errors(self._engine):
            self._database.find_by_key(connection, on=True)
            if memory.state is None:
                lock_row(connection, lease)
            memory.writes(state)
            if self._update(connection, lease, state):
                return
            require_storable(connection, lease)
            # The heartbeat has renewed the lease since the statement was made: the memory has the new version now.
            if not self._update(connection, lease, state):
                raise LeaseLostError(lease)

    def _update(self, connection: Connection, lease: Lease, state: PreparedTxnState) -> bool:
        """Write ``state`` if the row is what ``lease.memory`` says; False if it is not."""
        columns, stored_state = row_values(state), lease.memory.state
        assert stored_state is not None
        stored_columns = row_values(stored_state)
        versions = lease.memory.versions
        values = {
            "of_id": lease.transactional_id,
            "of_token": lease.fencing_token,
            "of_state": stored_columns["prepared_txn_state"],
            "of_anchor": stored_columns["anchor"] or "",
            "of_version": versions[0],
            "or_version": versions[-1],
            "new_state": columns["prepared_txn_state"],
            "new_anchor": columns["anchor"],
            "new_first_record": columns["first_record"],
            **self._database.store_values(connection),
        }
        if self._store is None:  # the dialect knows its server once there is a connection
            self._store = CompiledUpdate(
                store_statement(self._database, self._lease_timeout), connection.dialect, schema_of(connection)
            )
        return self._store.run(connection, values) == 1

    def record(self, lease: Lease, outcome: Outcome) -> None:
        """Move the state into the record of heuristic outcomes; see DecisionStore.record."""
        with self.transaction(commit=True) as connection, clear_errors(self._engine):
            unit = Unmatched(lock_row(connection, lease), outcome, DETAILS[outcome])
            self._move_to_record(connection, lease, unit)
        lease.memory.committed()
        log_outcome(lease.transactional_id, *unit)

    def mark_recovered(self, lease: Lease, unclaimed: PreparedTxnState) -> None:
        """Record that the row is no longer new, and what is in doubt because it was; see
        DecisionStore.mark_recovered."""
        name, hazard = lease.transactional_id, Outcome.HEURISTIC_HAZARD
        found: list[Unmatched] = []
        with self.transaction(commit=True) as connection, clear_errors(self._engine):
            state = lock_row(connection, lease)
            if unclaimed:
                found.append(Unmatched(unclaimed, hazard, UNCLAIMED))
                self._insert_unmatched(connection, name, found[-1])
            if state:  # it may be called the same as the unclaimed one, and is another: both go on record
                found.append(Unmatched(state, hazard, LEFT_ELSEWHERE))
                self._move_to_record(connection, lease, found[-1])
            connection.execute(
                update(table).where(is_of(name)).values(outcome=None),
                execution_options=ours(connection),
            )
        lease.memory.committed()
        lease.memory.is_new = False
        for unit in found:
            log_outcome(name, *unit)

    def _move_to_record(self, connection: Connection, lease: Lease, unit: Unmatched) -> None:
        """Move the state of ``unit`` from the locked row of ``lease`` into the record."""
        insert_outcome(connection, lease.transactional_id, *unit, self._database.now())
        self._write(connection, lease, PreparedTxnState())  # not store(): kept records are for a replay

    def note_outcome(self, transactional_id: str, state: PreparedTxnState, outcome: Outcome, detail: str) -> None:
        """Record a heuristic outcome of another unit than the stored one; see DecisionStore.note_outcome."""
        self.note_unmatched(transactional_id, [Unmatched(state, outcome, detail)], None)

    def note_unmatched(self, transactional_id: str, units: Sequence[Unmatched], row: RowSeen | None) -> None:
        """Record units of work that are on one side only; see DecisionStore.note_unmatched."""
        with self.transaction(commit=True) as connection, clear_errors(self._engine):
            for unit in units:
                self._insert_unmatched(connection, transactional_id, unit)
            if row is not None:
                connection.execute(
                    update(table)
                    .where(is_under_token(transactional_id, row.fencing_token))
                    .where(table.c.prepared_txn_state == row_values(row.state)["prepared_txn_state"])
                    .values(row_values(PreparedTxnState())),
                    execution_options=ours(connection),
                )
        for unit in units:
            log_outcome(transactional_id, *unit)

    def outcome_insert_sql(self, transactional_id: str, unit: Unmatched) -> str:
        """The statement that puts ``unit`` on record, for an operator to run; see DecisionStore.outcome_insert_sql."""
        return outcome_insert_sql(transactional_id, *unit)

    def _insert_unmatched(self, connection: Connection, transactional_id: str, unit: Unmatched) -> None:
        insert_outcome_once(connection, transactional_id, *unit, self._database.now())

    def _may_show_undone_commits(self) -> bool:
        """True if a crash, or a failover, may still undo a commit that a read shows already."""
        query = self._database.standbys_query
        if query is None:
            return self._database.shows_commits_early
        with self.connection() as connection:
            return bool(connection.exec_driver_sql(query).scalar_one())

    def _settle(self, lease: Lease) -> None:
        """Make the row's content durable: wait for a transaction that writes it, and commit a change after that. Under
        the lease's token the content cannot change any more."""
        with self.transaction(commit=True) as connection, clear_errors(self._engine):
            self._touch(connection, lease)

    def _touch(self, connection: Connection, lease: Lease) -> None:
        connection.execute(
            update(table)
            .where(is_under_token(lease.transactional_id, lease.fencing_token))
            .values(updated_at=self._database.now()),
            execution_options=ours(connection),
        )

    def _lock_free_rows(self, connection: Connection, leases: Sequence[Lease]) -> dict[Lease, PreparedTxnState]:
        """Lock those rows of ``leases`` that are not locked; return the states of the leases that are still valid."""
        states = {}
        if not self._database.has_row_locks:
            take_write_lock(connection, leases[0])
        for lease in sorted(leases, key=lambda lease: lease.transactional_id):
            rows = self._database.lock_at_once(connection, row_of(lease.transactional_id), ours(connection))
            if rows:
                # If the lease is lost or the row unreadable: locked() raises that error for this slot alone.
                with suppress(ConfigurationError, LeaseLostError):
                    states[lease] = expected_state(lease, rows[0])
        return states

    def limit(self, name: str) -> Limit:
        """The time limit for one of the library's own transactions. A file needs none.

        :param name: the limit's subject, for the log.
        """
        return Limit(math.inf if self._database.is_file else self._database_timeout, name)

    def close(self) -> None:
        """Return no connection to the engine's pool from now on: remaining threads close theirs themselves, as the
        engine may be disposed of."""
        self._is_closed = True

    @contextmanager
    def _connected(self) -> Iterator[Connection]:
        with connected(self._engine) as connection:
            try:
                yield connection
            finally:
                close_connection(connection, keep=not self._is_closed)

    @contextmanager
    def connection(self) -> Iterator[Connection]:
        """A connection for reading. It is cut after ``database_timeout``."""
        with self.limit("a read of the state table") as limit, self._connected() as connection:
            limit.watch(connection.connection)
            yield connection

    @contextmanager
    def transaction(self, *, commit: bool, limit: Limit | None = None) -> Iterator[Connection]:
        """One of the library's own transactions. It never reuses a snapshot, so it sees the changes that it waited for.

        :param limit: time limit for all of it, the block included; ``database_timeout`` by default.
        """
        with limit or self.limit("a transaction of dualwrite's own") as limit, self._connected() as connection:
            limit.watch(connection.connection)
            require_idle(connection)
            use_own_isolation_level(connection)
            make_durable(connection)
            try:
                transaction = connection.begin()
                begin_writing(connection)
                # A locked row raises before the connection would be cut.
                lock_timeout = min(self._lock_timeout, limit.remaining() / 2)
                with self._database.own_transaction(connection, lock_timeout):
                    if not self._is_suitable:
                        with clear_errors(self._engine):
                            self._database.require_suitable(connection, schema_of(connection))
                            _require_tables(connection)
                        self._is_suitable = True
                    yield connection
                if commit:
                    with clear_errors(self._engine):
                        transaction.commit()
                else:
                    transaction.rollback()
            except BaseException:
                discard(connection)
                raise


def _require_tables(connection: Connection) -> None:
    """Require that every table exists with the columns that this release uses: a failure now is better than in the
    middle of a unit of work. Additions of later releases do no harm."""
    for required_table in metadata.tables.values():
        connection.execute(select(required_table).where(false()), execution_options=ours(connection))
