"""The state table as a DecisionStore, through SQLAlchemy, in every database of ``dialects/``.

Correctness depends on the lock of the state row; each dialect explains why it holds there.
"""

import logging
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

from sqlalchemy import Connection, Engine, Row, false, select, update
from sqlalchemy.exc import DBAPIError

from dualwrite.coordinator.concurrency.greenlets import run_in_loop
from dualwrite.coordinator.concurrency.watchdog import Limit, limit_on
from dualwrite.coordinator.rules.lease import Lease, LeaseLostError, require_row
from dualwrite.coordinator.rules.lease_memory import RowSeen, Unmatched
from dualwrite.coordinator.rules.recovery_decision import DETAILS, UNCLAIMED, Outcome
from dualwrite.coordinator.sql.connecting import take_from_lost_pool
from dualwrite.coordinator.sql.dialects.base import FAILED, CompiledUpdate, ErrorMeaning
from dualwrite.coordinator.sql.dialects.supported import database_of
from dualwrite.coordinator.sql.dialects.unit_transactions import Fate
from dualwrite.coordinator.sql.engine_checks import discard, of_its_own_level, require_idle, require_own_connections
from dualwrite.coordinator.sql.outcome_rows import insert_outcome, insert_outcome_once, log_outcome
from dualwrite.coordinator.sql.own_tables import ours, schema_of
from dualwrite.coordinator.sql.shown_url import command_on
from dualwrite.coordinator.sql.state_row import row_of, row_seen, row_values
from dualwrite.coordinator.sql.store_diagnosis import require_storable
from dualwrite.coordinator.sql.tables import kafka_transaction_state as table
from dualwrite.coordinator.sql.tables import metadata
from dualwrite.errors import ConfigurationError, DatabaseBusyError, DatabaseNotReadyError, InvalidTransactionStateError
from dualwrite.ids import PreparedTxnState

_LOG = logging.getLogger("dualwrite")

T = TypeVar("T")


def begin_writing(connection: Connection) -> None:
    """Make sure that ``connection``, whose SQLAlchemy transaction has begun, is in a real transaction of the database.

    :raises ConfigurationError: if the driver is in autocommit mode.
    :raises DatabaseBusyError: if SQLite's write lock was not free within the engine's ``timeout``.
    """
    with clear_errors(connection.engine):
        database_of(connection.dialect).begin(connection)


def begin_unit(connection: Connection, lease: Lease, *, checked: bool = False) -> None:
    """Like :func:`begin_writing`, for a transaction whose statements are the user's; :func:`require_unit` ends it.

    If the transaction is going to read a snapshot, this locks the state row first: otherwise a long unit of work could
    not write the row after a renewal of the lease.

    :param checked: read the fencing token, for a participant whose successor does not fence it in Kafka: it must not
        begin a transaction once another process has taken over (unprepared_predecessor.py).
    :raises LeaseLostError: if another process has taken over, if the row is locked here, or ``checked``.
    """
    begin_writing(connection)
    database = database_of(connection.dialect)
    database.begin_unit(connection)
    if database.reads_a_snapshot(connection):
        with clear_errors(connection.engine):
            database.find_by_key(connection, on=True)
            lock_row(connection, lease)
            database.find_by_key(connection, on=False)
    elif checked:
        with clear_errors(connection.engine):
            _require_lease(connection, lease)


def require_unit(connection: Connection, mark: str, *, storing: bool) -> None:
    """Require that a COMMIT would commit the transaction of :func:`begin_unit`; see Database.require_unit."""
    database_of(connection.dialect).require_unit(connection, mark, storing=storing)


def fate_of_unit(connection: Connection, mark: str) -> Fate:
    """How the transaction of :func:`begin_unit` ended; see Database.fate."""
    return database_of(connection.dialect).fate(connection, mark)


class SqlHeldDecision:
    """A HeldDecision: the state row, locked by the transaction of one connection."""

    def __init__(self, connection: Connection, lease: Lease, state: PreparedTxnState, limit: Limit) -> None:
        self._connection = connection
        self._lease = lease
        self._state = state
        self._limit = limit

    @property
    def state(self) -> PreparedTxnState:
        """The state that the row stored when it was locked."""
        return self._state

    def verify(self) -> None:
        """Read the token again; see HeldDecision.verify."""
        with self._limit:
            _require_lease(self._connection, self._lease)


class SqlDecisionStore:
    """A DecisionStore in the database of ``engine``.

    :param engine: the user's engine; its settings and listeners stay as they are.
    :param lock_timeout: seconds to wait for the row, whole ones on MariaDB and MySQL; SQLite waits as long as the
        engine's ``timeout``.
    :param checks_lease: see DecisionStore.checks_lease.
    :param database_timeout: seconds that each of the library's own transactions may wait for the database.
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
    ) -> None:
        self.checks_lease = checks_lease
        self._database = database_of(engine.dialect)
        require_own_connections(engine)
        self._engine = engine
        self._lock_timeout = lock_timeout
        self._database_timeout = database_timeout
        self._store: CompiledUpdate | None = None
        self._is_suitable = False
        self._is_closed = False

    @property
    def one_writer(self) -> bool:
        """See DecisionStore.one_writer."""
        return self._database.one_writer

    def in_thread(self, act: Callable[[], T]) -> T:
        """See DecisionStore.in_thread. A driver for asyncio gets an event loop there."""
        return run_in_loop(act) if self._engine.dialect.is_async else act()

    @contextmanager
    def locked(self, lease: Lease) -> Iterator[SqlHeldDecision]:
        """Hold the row's lock; see DecisionStore.locked. Its transaction is rolled back at the end."""
        if self._database.shows_commits_early:
            self._settle(lease)
        limit = self.limit(lease.transactional_id)
        with self.transaction(commit=False, limit=limit) as connection:
            with clear_errors(self._engine):
                state = lock_row(connection, lease)
            with limit.resting():
                yield SqlHeldDecision(connection, lease, state, limit)

    @contextmanager
    def locked_at_once(self, leases: Sequence[Lease]) -> Iterator[Mapping[Lease, SqlHeldDecision]]:
        """Hold the locks of the rows that are free; see DecisionStore.locked_at_once."""
        if self._database.shows_commits_early:
            with self.transaction(commit=True) as connection, clear_errors(self._engine):
                leases = list(self._lock_free_rows(connection, leases))
                for lease in leases:
                    self._touch(connection, lease)
        limit = self.limit(f"{len(leases)} slots")
        with self.transaction(commit=False, limit=limit) as connection:
            with clear_errors(self._engine):
                states = self._lock_free_rows(connection, leases)
            with limit.resting():
                yield {lease: SqlHeldDecision(connection, lease, state, limit) for lease, state in states.items()}

    def store(self, connection: Connection, lease: Lease, state: PreparedTxnState) -> None:
        """Write ``state`` in the caller's transaction; see DecisionStore.store."""
        self._write(connection, lease, state)

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
        columns, before = row_values(state), lease.memory.state
        assert before is not None
        expected = row_values(before)
        versions = lease.memory.versions
        values = {
            "of_id": lease.transactional_id,
            "of_token": lease.fencing_token,
            "of_state": expected["prepared_txn_state"],
            "of_anchor": expected["anchor"] or "",
            "of_version": versions[0],
            "or_version": versions[-1],
            "new_state": columns["prepared_txn_state"],
            "new_anchor": columns["anchor"],
            "new_first_record": columns["first_record"],
            **self._database.store_values(connection),
        }
        if self._store is None:  # the dialect knows its server once there is a connection
            self._store = CompiledUpdate(self._database.store(), connection.dialect, schema_of(connection))
        return self._store.run(connection, values) == 1

    def record(self, lease: Lease, outcome: Outcome) -> None:
        """Move the state into the record of heuristic outcomes; see DecisionStore.record."""
        with self.transaction(commit=True) as connection, clear_errors(self._engine):
            state = lock_row(connection, lease)
            insert_outcome(connection, lease.transactional_id, state, outcome, DETAILS[outcome], self._database.now())
            self._write(connection, lease, PreparedTxnState())  # not store(): kept records are for a replay
        lease.memory.committed()
        log_outcome(lease.transactional_id, state, outcome, DETAILS[outcome])

    def mark_recovered(self, lease: Lease, unclaimed: PreparedTxnState) -> None:
        """Note that the row is no longer new, and put ``unclaimed`` on record; see DecisionStore.mark_recovered."""
        name = lease.transactional_id
        with self.transaction(commit=True) as connection, clear_errors(self._engine):
            lock_row(connection, lease)
            connection.execute(
                update(table).where(table.c.transactional_id == name).values(outcome=None),
                execution_options=ours(connection),
            )
            if unclaimed:
                self._note(connection, name, Unmatched(unclaimed, Outcome.HEURISTIC_HAZARD, UNCLAIMED))
        lease.memory.is_new = False
        if unclaimed:
            log_outcome(name, unclaimed, Outcome.HEURISTIC_HAZARD, UNCLAIMED)

    def note_outcome(self, transactional_id: str, state: PreparedTxnState, outcome: Outcome, detail: str) -> None:
        """Put a heuristic outcome on record that is not the stored state's; see DecisionStore.note_outcome."""
        self.note_unmatched(transactional_id, [Unmatched(state, outcome, detail)], None)

    def note_unmatched(self, transactional_id: str, units: Sequence[Unmatched], row: RowSeen | None) -> None:
        """Put units of work on record that are on one side alone; see DecisionStore.note_unmatched."""
        with self.transaction(commit=True) as connection, clear_errors(self._engine):
            for unit in units:
                self._note(connection, transactional_id, unit)
            if row is not None:
                connection.execute(
                    update(table)
                    .where(table.c.transactional_id == transactional_id)
                    .where(table.c.fencing_token == row.fencing_token)
                    .where(table.c.prepared_txn_state == row_values(row.state)["prepared_txn_state"])
                    .values(row_values(PreparedTxnState())),
                    execution_options=ours(connection),
                )
        for unit in units:
            log_outcome(transactional_id, *unit)

    def _note(self, connection: Connection, transactional_id: str, unit: Unmatched) -> None:
        insert_outcome_once(connection, transactional_id, *unit, self._database.now())

    def _settle(self, lease: Lease) -> None:
        """Make the row's content durable: wait for a transaction that writes it, and commit a change after that. Under
        the lease's token the content cannot change any more."""
        with self.transaction(commit=True) as connection, clear_errors(self._engine):
            self._touch(connection, lease)

    def _touch(self, connection: Connection, lease: Lease) -> None:
        connection.execute(
            update(table)
            .where(table.c.transactional_id == lease.transactional_id)
            .where(table.c.fencing_token == lease.fencing_token)
            .values(updated_at=self._database.now()),
            execution_options=ours(connection),
        )

    def _lock_free_rows(self, connection: Connection, leases: Sequence[Lease]) -> dict[Lease, PreparedTxnState]:
        """Lock those rows of ``leases`` that are not locked; return the states of the leases that are still valid."""
        states = {}
        if connection.dialect.name == "sqlite":
            _take_write_lock(connection, leases[0])
        for lease in sorted(leases, key=lambda lease: lease.transactional_id):
            rows = self._database.lock_at_once(connection, row_of(lease.transactional_id), ours(connection))
            if rows:
                # Lost or unreadable: locking that row alone raises the error, and the rest goes on.
                with suppress(ConfigurationError, LeaseLostError):
                    states[lease] = _expected_state(lease, rows[0])
        return states

    def limit(self, name: str) -> Limit:
        """The time limit for one of the library's own transactions.

        :param name: the limit's subject, for the log.
        """
        return limit_on(self._engine, self._database_timeout, name)

    def close(self) -> None:
        """Return no connection to the engine's pool from now on: remaining threads close theirs themselves, as the
        engine may be disposed of."""
        self._is_closed = True

    @contextmanager
    def _connected(self) -> Iterator[Connection]:
        with self._engine.connect() as connection:
            try:
                yield connection
            finally:
                take_from_lost_pool(connection, keep=not self._is_closed)

    @contextmanager
    def connection(self) -> Iterator[Connection]:
        """A connection to read by; nothing in it may take longer than ``database_timeout``."""
        with self.limit("a look at the state table") as limit, self._connected() as connection:
            limit.watch(connection.connection)
            yield connection

    @contextmanager
    def transaction(self, *, commit: bool, limit: Limit | None = None) -> Iterator[Connection]:
        """One of the library's own transactions. It never reuses a snapshot: it sees the changes that it waited for.

        :param limit: time limit for all of it, the block included; ``database_timeout`` by default.
        """
        with limit or self.limit("a transaction of dualwrite's own") as limit, self._connected() as connection:
            limit.watch(connection.connection)
            require_idle(connection)
            of_its_own_level(connection)
            try:
                transaction = connection.begin()
                begin_writing(connection)
                # A locked row raises before the connection would be cut.
                patience = min(self._lock_timeout, limit.remaining() / 2)
                with self._database.own_transaction(connection, patience):
                    if not self._is_suitable:
                        self._database.require_suitable(connection, schema_of(connection))
                        with clear_errors(self._engine):
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
    for needed in metadata.tables.values():
        connection.execute(select(needed).where(false()), execution_options=ours(connection))


def _require_lease(connection: Connection, lease: Lease) -> None:
    """Require that no process has taken the slot of ``lease``; does not lock the row."""
    token = connection.scalar(
        select(table.c.fencing_token).where(table.c.transactional_id == lease.transactional_id),
        execution_options=ours(connection),
    )
    if token != lease.fencing_token:
        raise LeaseLostError(lease)


def lock_row(connection: Connection, lease: Lease) -> PreparedTxnState:
    """Lock the row and return the state in it, which matches ``lease.memory``.

    :raises LeaseLostError: if another process has taken over.
    :raises LeaseContradictedError: if the row contradicts this process's memory.
    """
    if connection.dialect.name == "sqlite":
        _take_write_lock(connection, lease)
    row = connection.execute(
        row_of(lease.transactional_id).with_for_update(), execution_options=ours(connection)
    ).one_or_none()
    return _expected_state(lease, row)


def _expected_state(lease: Lease, row: Row[Any] | None) -> PreparedTxnState:
    """The state in the locked ``row``; it shows how a transaction of unknown outcome ended."""
    seen = None if row is None else row_seen(row)
    require_row(lease, seen)
    assert seen is not None
    memory = lease.memory
    if not memory.versions:
        memory.renewed(seen.lease_version or 0)
    if memory.state is None:
        memory.read(seen.state)
    elif memory.pending is not None and memory.pending.is_same_as(seen.state):
        memory.committed()
    return seen.state


def _take_write_lock(connection: Connection, lease: Lease) -> None:
    """Where the driver had begun a deferred transaction, this takes SQLite's lock; elsewhere it changes nothing."""
    connection.execute(
        update(table)
        .where(table.c.transactional_id == lease.transactional_id)
        .values(fencing_token=table.c.fencing_token),
        execution_options=ours(connection),
    )


@contextmanager
def clear_errors(engine: Engine) -> Iterator[None]:
    """Translate the errors that have a meaning for the library; all others pass as SQLAlchemy's."""
    try:
        yield
    except DBAPIError as error:
        trouble = database_of(engine.dialect).trouble(error)
        if trouble is ErrorMeaning.NOT_READY:
            raise DatabaseNotReadyError(
                "a table of dualwrite's is missing, or older than this release needs; run: "
                + command_on(engine, "db upgrade")
            ) from error
        if trouble is ErrorMeaning.BUSY:
            raise DatabaseBusyError(
                f"the database is locked: another transaction holds {table.name!r} or its database for too long"
            ) from error
        if trouble is ErrorMeaning.FAILED:
            raise InvalidTransactionStateError(FAILED) from error
        raise
