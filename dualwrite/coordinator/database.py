"""The state table as a DecisionStore, through SQLAlchemy, in every database of ``databases/``.

Everything stands on the lock of the state row: see there why it holds in each of them.
"""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

from sqlalchemy import Connection, Engine, Row, Select, false, insert, select, update
from sqlalchemy.exc import DBAPIError

from dualwrite.coordinator.awaiting import run_in_loop
from dualwrite.coordinator.databases.base import CompiledUpdate, Trouble
from dualwrite.coordinator.databases.supported import database_of
from dualwrite.coordinator.participants import Lease, LeaseLostError
from dualwrite.coordinator.tables import kafka_transaction_outcome as outcomes
from dualwrite.coordinator.tables import kafka_transaction_state as table
from dualwrite.coordinator.tables import metadata
from dualwrite.coordinator.verdict import DETAILS, Outcome
from dualwrite.errors import ConfigurationError, DatabaseBusyError, DatabaseNotReadyError
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
    """As :func:`begin_writing`, for a transaction whose statements are the user's; :func:`require_unit` ends it.

    Where the transaction is going to read a snapshot, the state row is locked before that: a unit of work that lasts
    could not write it otherwise, once the lease has been renewed meanwhile.

    :param checked: read the fencing token, for a participant that nobody fences before its transactions are judged: it
        must begin none in Kafka once somebody has taken over (resumed.py).
    :raises LeaseLostError: if somebody else has taken over, where the row is locked, or ``checked``.
    """
    begin_writing(connection)
    database = database_of(connection.dialect)
    database.begin_unit(connection)
    if database.reads_a_snapshot(connection):
        with clear_errors(connection.engine):
            database.find_by_key(connection, on=True)
            _lock_row(connection, lease)
            database.find_by_key(connection, on=False)
    elif checked:
        with clear_errors(connection.engine):
            _require_lease(connection, lease)


def require_unit(connection: Connection) -> None:
    """See to it that the transaction of :func:`begin_unit` is still what a COMMIT would commit. Call it once.

    SQLAlchemy does not notice when the database ends a transaction by itself.

    :raises InvalidTransactionStateError: if the transaction has ended, or can only be rolled back.
    """
    database_of(connection.dialect).require_unit(connection)


class SqlHeldDecision:
    """A HeldDecision: the state row, locked by the transaction of one connection."""

    def __init__(self, connection: Connection, lease: Lease, state: PreparedTxnState) -> None:
        self._connection = connection
        self._lease = lease
        self._state = state

    @property
    def state(self) -> PreparedTxnState:
        """The state that the row stored when it was locked."""
        return self._state

    def verify(self) -> None:
        """Read the token again; see HeldDecision.verify."""
        _require_lease(self._connection, self._lease)


class SqlDecisionStore:
    """A DecisionStore in the database of ``engine``.

    :param engine: the user's engine; its settings and listeners stay as they are.
    :param lock_timeout: seconds to wait for the row, whole ones on MariaDB and MySQL; SQLite waits as long as the
        engine's ``timeout``.
    :param checks_lease: see DecisionStore.checks_lease.
    :raises ConfigurationError: if the database is not supported, or is SQLite in memory, which forgets with the
        process.
    """

    def __init__(self, engine: Engine, lock_timeout: float = 30.0, *, checks_lease: bool = False) -> None:
        self.checks_lease = checks_lease
        self._database = database_of(engine.dialect)
        if engine.dialect.name == "sqlite" and engine.url.database in (None, "", ":memory:"):
            raise ConfigurationError("a SQLite database in memory forgets every decision with the process: use a file")
        self._engine = engine
        self._lock_timeout = lock_timeout
        self._store: CompiledUpdate | None = None
        self._is_suitable = False

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
        with self.transaction(commit=False) as connection:
            with clear_errors(self._engine):
                state = _lock_row(connection, lease)
            yield SqlHeldDecision(connection, lease, state)

    @contextmanager
    def locked_at_once(self, leases: Sequence[Lease]) -> Iterator[Mapping[Lease, SqlHeldDecision]]:
        """Hold the locks of the rows that are free; see DecisionStore.locked_at_once."""
        if self._database.shows_commits_early:
            with self.transaction(commit=True) as connection, clear_errors(self._engine):
                leases = list(self._lock_free_rows(connection, leases))
                for lease in leases:
                    self._touch(connection, lease)
        with self.transaction(commit=False) as connection:
            with clear_errors(self._engine):
                states = self._lock_free_rows(connection, leases)
            yield {lease: SqlHeldDecision(connection, lease, state) for lease, state in states.items()}

    def store(self, connection: Connection, lease: Lease, state: PreparedTxnState) -> None:
        """Write ``state`` in the caller's transaction; see DecisionStore.store."""
        self._write(connection, lease, state)

    def _write(self, connection: Connection, lease: Lease, state: PreparedTxnState) -> None:
        columns = row_values(state)
        values = {
            "of_id": lease.transactional_id,
            "of_token": lease.fencing_token,
            "new_state": columns["prepared_txn_state"],
            "new_anchor": columns["anchor"],
            "new_first_record": columns["first_record"],
        }
        with clear_errors(self._engine):
            self._database.find_by_key(connection, on=True)
            if self._store is None:  # the dialect knows its server once there is a connection
                self._store = CompiledUpdate(self._database.store(), connection.dialect)
            if self._store.run(connection, values) != 1:
                raise LeaseLostError(lease)

    def record(self, lease: Lease, outcome: Outcome) -> None:
        """Move the state into the record of heuristic outcomes; see DecisionStore.record."""
        with self.transaction(commit=True) as connection, clear_errors(self._engine):
            state = _lock_row(connection, lease)
            connection.execute(
                insert(outcomes).values(
                    transactional_id=lease.transactional_id,
                    **columns_naming(state),
                    outcome=outcome.value,
                    detail=DETAILS[outcome],
                    found_at=self._database.now(),
                )
            )
            self._write(connection, lease, PreparedTxnState())  # not store(): kept records are for a replay
        _LOG.error(
            "%s: %s of the unit of work with the state %s: %s. It is on record until it is acknowledged",
            lease.transactional_id,
            outcome.value,
            state,
            DETAILS[outcome],
            extra={"outcome": outcome.value, "state": str(state)},
        )

    def _settle(self, lease: Lease) -> None:
        """Put what the row shows on the disk: wait for whoever writes it, and commit a change after that. With the
        lease's token it can show nothing else from then on."""
        with self.transaction(commit=True) as connection, clear_errors(self._engine):
            self._touch(connection, lease)

    def _touch(self, connection: Connection, lease: Lease) -> None:
        connection.execute(
            update(table)
            .where(table.c.transactional_id == lease.transactional_id)
            .where(table.c.fencing_token == lease.fencing_token)
            .values(updated_at=self._database.now())
        )

    def _lock_free_rows(self, connection: Connection, leases: Sequence[Lease]) -> dict[Lease, PreparedTxnState]:
        """Lock the rows of ``leases`` that nobody else has locked; the states of those that are still the lease's."""
        states = {}
        if connection.dialect.name == "sqlite":
            _take_write_lock(connection, leases[0])
        for lease in sorted(leases, key=lambda lease: lease.transactional_id):
            rows = self._database.lock_at_once(connection, _row_of(lease))
            if rows and rows[0].fencing_token == lease.fencing_token:
                with suppress(ConfigurationError):  # unreadable: who locks that row alone is told, and the rest go on
                    states[lease] = state_of(rows[0])
        return states

    @contextmanager
    def transaction(self, *, commit: bool) -> Iterator[Connection]:
        """A transaction of its own. It never reuses a snapshot: what it waited for, it sees."""
        with self._engine.connect() as connection:
            of_its_own_level(connection)
            try:
                transaction = connection.begin()
                begin_writing(connection)
                with self._database.own_transaction(connection, self._lock_timeout):
                    if not self._is_suitable:
                        self._database.require_suitable(connection)
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


def of_its_own_level(connection: Connection) -> None:
    """Whatever the engine's isolation level, this use of ``connection`` is at READ COMMITTED: nothing is read from an
    old snapshot, and reading locks nothing, as it would at SERIALIZABLE. SQLite knows no levels."""
    if connection.dialect.name != "sqlite":
        connection.execution_options(isolation_level="READ COMMITTED")


def discard(connection: Connection) -> None:
    """End whatever transaction is open on ``connection`` and drop the driver's connection. Raises nothing of its own.

    SQLAlchemy sends no ROLLBACK once a COMMIT has raised; an open transaction would keep its locks.
    """
    if connection.closed:
        return
    try:
        connection.dialect.do_rollback(connection.connection)
    except Exception as error:  # noqa: BLE001 - the driver's, SQLAlchemy's, asyncio's: it is dropped, whatever it was
        _LOG.debug("rollback on a connection that is being dropped: %s", error)
    connection.invalidate()


def _require_tables(connection: Connection) -> None:
    """Pass if every table is there with the columns that this release uses: rather now than in the middle of a unit of
    work. What a later release has added does no harm."""
    for needed in metadata.tables.values():
        connection.execute(select(needed).where(false()))


def _require_lease(connection: Connection, lease: Lease) -> None:
    """Pass if nobody has taken ``lease``'s slot; the row is not locked."""
    token = connection.scalar(select(table.c.fencing_token).where(table.c.transactional_id == lease.transactional_id))
    if token != lease.fencing_token:
        raise LeaseLostError(lease)


def _lock_row(connection: Connection, lease: Lease) -> PreparedTxnState:
    """Lock the row and return the state in it; LeaseLostError if it is no longer the lease's."""
    if connection.dialect.name == "sqlite":
        _take_write_lock(connection, lease)
    row = connection.execute(_row_of(lease).with_for_update()).one_or_none()
    if row is None or row.fencing_token != lease.fencing_token:
        raise LeaseLostError(lease)
    return state_of(row)


def _take_write_lock(connection: Connection, lease: Lease) -> None:
    """Where the driver had begun a deferred transaction, this takes SQLite's lock; elsewhere it changes nothing."""
    connection.execute(
        update(table)
        .where(table.c.transactional_id == lease.transactional_id)
        .values(fencing_token=table.c.fencing_token)
    )


def _row_of(lease: Lease) -> Select[Any]:
    columns = (table.c.prepared_txn_state, table.c.anchor, table.c.first_record, table.c.fencing_token)
    return select(*columns).where(table.c.transactional_id == lease.transactional_id)


def state_of(row: Row[Any]) -> PreparedTxnState:
    """The state that a row of the state table stores."""
    if row.anchor:
        return PreparedTxnState(f"{row.prepared_txn_state}:{row.anchor}")
    state = PreparedTxnState(row.prepared_txn_state)
    seen = PreparedTxnState(row.first_record or "")
    return PreparedTxnState(state.producer, first_record=seen.anchor if seen.producer == state.producer else None)


def row_values(state: PreparedTxnState) -> dict[str, str | None]:
    """How a row of the state table stores ``state``; :func:`state_of` reads it."""
    return {
        "prepared_txn_state": str(state.producer) if state else "",
        "anchor": None if state.anchor is None else str(state.anchor),
        "first_record": _first_record_text(state) if state.anchor is None else None,
    }


def columns_naming(state: PreparedTxnState) -> dict[str, str | None]:
    """How the tables of outcomes and of kept records name the unit of work with ``state``."""
    return {
        "prepared_txn_state": str(state.producer),
        "first_record": None if state.first_record is None else str(state.first_record),
    }


def _first_record_text(state: PreparedTxnState) -> str | None:
    """Where a record of ``state`` is, with the state that this is true of."""
    return None if state.first_record is None else f"{state.producer}:{state.first_record}"


@contextmanager
def clear_errors(engine: Engine) -> Iterator[None]:
    """Give the errors that have a plain meaning here their name; every other passes as SQLAlchemy's."""
    try:
        yield
    except DBAPIError as error:
        trouble = database_of(engine.dialect).trouble(error)
        if trouble is Trouble.NOT_READY:
            url = engine.url.render_as_string(hide_password=True)
            raise DatabaseNotReadyError(
                "a table of dualwrite's is missing, or older than this release needs: run "
                f"`dualwrite db upgrade --db {url}`"
            ) from error
        if trouble is Trouble.BUSY:
            raise DatabaseBusyError(
                f"the database is locked: another transaction holds {table.name!r} or its database for too long"
            ) from error
        raise
