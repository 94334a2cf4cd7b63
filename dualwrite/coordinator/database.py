"""The state table as a DecisionStore, through SQLAlchemy, in every database of ``databases/``.

Everything stands on the lock of the state row: see there why it holds in each of them.
"""

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy import Connection, Engine, select, update
from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from dualwrite.coordinator.databases.base import Trouble
from dualwrite.coordinator.databases.supported import database_of
from dualwrite.coordinator.participants import Lease, LeaseLostError
from dualwrite.coordinator.tables import kafka_transaction_state as table
from dualwrite.errors import ConfigurationError, DatabaseBusyError, DatabaseNotReadyError
from dualwrite.ids import PreparedTxnState

_LOG = logging.getLogger("dualwrite")


def begin_writing(connection: Connection) -> None:
    """Make sure that ``connection``, whose SQLAlchemy transaction has begun, is in a real transaction of the database.

    :raises ConfigurationError: if the driver is in autocommit mode.
    :raises DatabaseBusyError: if SQLite's write lock was not free within the engine's ``timeout``.
    """
    with clear_errors(connection.engine):
        database_of(connection.dialect).begin(connection)


def begin_unit(connection: Connection, lease: Lease) -> None:
    """As :func:`begin_writing`, for a transaction whose statements are the user's; :func:`require_unit` ends it.

    Where the transaction is going to read a snapshot, the state row is locked before that: a unit of work that lasts
    could not write it otherwise, once the lease has been renewed meanwhile.

    :raises LeaseLostError: if somebody else has taken over, where the row is locked.
    """
    begin_writing(connection)
    database = database_of(connection.dialect)
    database.begin_unit(connection)
    if database.reads_a_snapshot(connection):
        with clear_errors(connection.engine):
            database.find_by_key(connection, on=True)
            _lock_row(connection, lease)
            database.find_by_key(connection, on=False)


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
        token = self._connection.scalar(
            select(table.c.fencing_token).where(table.c.transactional_id == self._lease.transactional_id)
        )
        if token != self._lease.fencing_token:
            raise LeaseLostError(self._lease)


class SqlDecisionStore:
    """A DecisionStore in the database of ``engine``.

    :param engine: the user's engine; its settings and listeners stay as they are.
    :param lock_timeout: seconds to wait for the row, whole ones on MariaDB and MySQL; SQLite waits as long as the
        engine's ``timeout``.
    :raises ConfigurationError: if the database is not supported, or is SQLite in memory, which forgets with the
        process.
    """

    def __init__(self, engine: Engine, lock_timeout: float = 30.0) -> None:
        self._database = database_of(engine.dialect)
        if engine.dialect.name == "sqlite" and engine.url.database in (None, "", ":memory:"):
            raise ConfigurationError("a SQLite database in memory forgets every decision with the process: use a file")
        self._engine = engine
        self._lock_timeout = lock_timeout
        self._store = self._database.store()
        self._is_suitable = False

    @property
    def one_writer(self) -> bool:
        """See DecisionStore.one_writer."""
        return self._database.one_writer

    @contextmanager
    def locked(self, lease: Lease) -> Iterator[SqlHeldDecision]:
        """Hold the row's lock; see DecisionStore.locked. Its transaction is rolled back at the end."""
        if self._database.shows_commits_early:
            self._settle(lease)
        with self.transaction(commit=False) as connection:
            with clear_errors(self._engine):
                state = _lock_row(connection, lease)
            yield SqlHeldDecision(connection, lease, state)

    def store(self, connection: Connection, lease: Lease, state: PreparedTxnState) -> None:
        """Write ``state`` in the caller's transaction; see DecisionStore.store."""
        values = {
            "of_id": lease.transactional_id,
            "of_token": lease.fencing_token,
            "new_state": str(state.producer) if state else "",
            "new_anchor": None if state.anchor is None else str(state.anchor),
        }
        with clear_errors(self._engine):
            self._database.find_by_key(connection, on=True)
            if connection.execute(self._store, values).rowcount != 1:
                raise LeaseLostError(lease)

    def _settle(self, lease: Lease) -> None:
        """Put what the row shows on the disk: wait for whoever writes it, and commit a change after that. With the
        lease's token it can show nothing else from then on."""
        with self.transaction(commit=True) as connection, clear_errors(self._engine):
            connection.execute(
                update(table)
                .where(table.c.transactional_id == lease.transactional_id)
                .where(table.c.fencing_token == lease.fencing_token)
                .values(updated_at=self._database.now())
            )

    @contextmanager
    def transaction(self, *, commit: bool) -> Iterator[Connection]:
        """A transaction of its own. It never reuses a snapshot: what it waited for, it sees."""
        with self._engine.connect() as connection:
            if connection.dialect.name != "sqlite":
                connection.execution_options(isolation_level="READ COMMITTED")
            try:
                transaction = connection.begin()
                begin_writing(connection)
                with self._database.own_transaction(connection, self._lock_timeout):
                    if not self._is_suitable:
                        self._database.require_suitable(connection)
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


def discard(connection: Connection) -> None:
    """End whatever transaction is open on ``connection`` and drop the driver's connection. Raises nothing of its own.

    SQLAlchemy sends no ROLLBACK once a COMMIT has raised; an open transaction would keep its locks.
    """
    if connection.closed:
        return
    driver = connection.dialect.dbapi
    expected: tuple[type[Exception], ...] = (SQLAlchemyError,) if driver is None else (SQLAlchemyError, driver.Error)
    try:
        connection.dialect.do_rollback(connection.connection)
    except expected as error:
        _LOG.debug("rollback on a connection that is being dropped: %s", error)
    connection.invalidate()


def _lock_row(connection: Connection, lease: Lease) -> PreparedTxnState:
    """Lock the row and return the state in it; LeaseLostError if it is no longer the lease's."""
    if connection.dialect.name == "sqlite":
        # Where the driver had begun a deferred transaction, this takes the write lock; elsewhere it changes nothing.
        connection.execute(
            update(table)
            .where(table.c.transactional_id == lease.transactional_id)
            .values(fencing_token=table.c.fencing_token)
        )
    row = connection.execute(
        select(table.c.prepared_txn_state, table.c.anchor, table.c.fencing_token)
        .where(table.c.transactional_id == lease.transactional_id)
        .with_for_update()
    ).one_or_none()
    if row is None or row.fencing_token != lease.fencing_token:
        raise LeaseLostError(lease)
    return PreparedTxnState.parse(f"{row.prepared_txn_state}:{row.anchor}" if row.anchor else row.prepared_txn_state)


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
                f"the table {table.name!r} is missing or of another version: run `dualwrite db upgrade --db {url}`"
            ) from error
        if trouble is Trouble.BUSY:
            raise DatabaseBusyError(
                f"the database is locked: another transaction holds {table.name!r} or its database for too long"
            ) from error
        raise
