"""The state table as a DecisionStore, through SQLAlchemy: SQLite and PostgreSQL.

Why the row lock holds:

- PostgreSQL: SELECT … FOR UPDATE at READ COMMITTED waits for whoever wrote the row and then sees what it committed.
- SQLite has one write lock for the whole database, but Python's driver begins transactions late and deferred. So every
  transaction here begins with BEGIN IMMEDIATE, which waits for the lock as long as the engine's ``timeout`` says.
"""

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy import Connection, Engine, bindparam, case, func, insert, select, update
from sqlalchemy.exc import DBAPIError, IntegrityError, SQLAlchemyError

from dualwrite.coordinator.participants import Lease
from dualwrite.coordinator.tables import kafka_transaction_state as table
from dualwrite.errors import (
    ConfigurationError,
    DatabaseBusyError,
    DatabaseNotReadyError,
    FencedError,
    InvalidTransactionStateError,
)
from dualwrite.ids import PreparedTxnState

_LOG = logging.getLogger("dualwrite")
_UNDEFINED_TABLE, _UNDEFINED_COLUMN, _LOCK_NOT_AVAILABLE = "42P01", "42703", "55P03"
_TAKE_OVER_ATTEMPTS = 3
_LONGEST_HOLD_MS = 300_000
_DIALECTS = ("sqlite", "postgresql")
_UNIT = "dualwrite_unit"
"""The savepoint with which a unit of work begins on SQLite."""
_IN_FAILED_TRANSACTION = 3
"""libpq's PQTRANS_INERROR."""

_STORE = (
    update(table)
    .where(table.c.transactional_id == bindparam("of_id"))
    .where(table.c.fencing_token == bindparam("of_token"))
    .values(
        prepared_txn_state=bindparam("new_state"),
        anchor=bindparam("new_anchor"),
        updated_at=func.current_timestamp(),
        outcome=None,
    )
)

_DURABLE = case(
    (
        func.current_setting("synchronous_commit") == "off",
        func.set_config("synchronous_commit", "on", True),
    ),
    else_="",
).is_not(None)
"""True, and in passing turns PostgreSQL's asynchronous commit off for this transaction: a decision that a crash of the
server can take back is none."""
_STORE_ON_POSTGRESQL = _STORE.where(_DURABLE)


def begin_writing(connection: Connection) -> None:
    """Make sure that ``connection``, whose SQLAlchemy transaction has begun, is in a real transaction of the database.

    On SQLite it takes the write lock now. Python's sqlite3 begins a transaction only at the first INSERT, UPDATE or
    DELETE; a SAVEPOINT before that would commit on its own when it is released, and a transaction that has read before
    it writes fails at once with "database is locked", whatever the timeout.

    :raises ConfigurationError: if the driver is in autocommit mode: no two statements would be one transaction, or
        (sqlite3 since Python 3.12) its ``commit()`` would do nothing.
    :raises DatabaseBusyError: if the lock was not free within the engine's ``timeout``.
    """
    driver = connection.connection.dbapi_connection
    if getattr(driver, "autocommit", False) is True:
        raise ConfigurationError("the database engine is in AUTOCOMMIT: a dual write needs its transactions; remove it")
    # A transaction that is open already was begun by the user's own "begin" listener or by autocommit=False.
    if connection.dialect.name == "sqlite" and not getattr(driver, "in_transaction", True):
        with _clear_errors(connection.engine):
            connection.exec_driver_sql("BEGIN IMMEDIATE")


def begin_unit(connection: Connection) -> None:
    """As :func:`begin_writing`, for a transaction whose statements are the user's; :func:`require_unit` ends it."""
    begin_writing(connection)
    if connection.dialect.name == "sqlite":
        connection.exec_driver_sql(f"SAVEPOINT {_UNIT}")


def require_unit(connection: Connection) -> None:
    """See to it that the transaction of :func:`begin_unit` is still what a COMMIT would commit. Call it once.

    SQLAlchemy does not notice when the database ends a transaction by itself. On SQLite that is what INSERT OR ROLLBACK
    and a full disk do, and the driver silently begins another one; the savepoint is gone then. On PostgreSQL a
    statement that failed dooms the transaction, and COMMIT rolls it back without an error.

    :raises InvalidTransactionStateError: if the transaction has ended, or can only be rolled back.
    """
    if connection.dialect.name == "sqlite":
        try:
            connection.exec_driver_sql(f"RELEASE {_UNIT}")
        except DBAPIError as error:
            if "no such savepoint" not in str(error.orig):
                raise
            raise InvalidTransactionStateError(
                "SQLite ended the transaction of this unit of work inside its block (a statement with OR ROLLBACK, an "
                "error that was caught, or COMMIT or ROLLBACK as text): what came before is not in the transaction; "
                "after COMMIT as text it is in the database, without its records"
            ) from error
        return
    # psycopg and psycopg2 know it without asking the server.
    information = getattr(connection.connection.dbapi_connection, "info", None)
    if getattr(information, "transaction_status", None) == _IN_FAILED_TRANSACTION:
        raise InvalidTransactionStateError(
            "a statement of this unit of work failed and its error was caught, so PostgreSQL will roll all of it back: "
            "let the error leave the block, or use a savepoint (begin_nested) around such a statement"
        )


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
            raise _fenced(self._lease)


class SqlDecisionStore:
    """A DecisionStore in the database of ``engine``.

    :param engine: the user's engine; its settings and listeners stay as they are.
    :param lock_timeout: seconds to wait for the row on PostgreSQL; SQLite waits as long as the engine's ``timeout``.
    :raises ConfigurationError: if the database is neither, or is SQLite in memory, which forgets with the process.
    """

    def __init__(self, engine: Engine, lock_timeout: float = 30.0) -> None:
        if engine.dialect.name not in _DIALECTS:
            raise ConfigurationError(f"database {engine.dialect.name!r} is not supported: use SQLite or PostgreSQL")
        if engine.dialect.name == "sqlite" and engine.url.database in (None, "", ":memory:"):
            raise ConfigurationError("a SQLite database in memory forgets every decision with the process: use a file")
        self._engine = engine
        self._lock_timeout_ms = int(lock_timeout * 1000)

    def take_over(self, transactional_id: str, owner: str) -> Lease:
        """Raise the fencing token; see DecisionStore.take_over."""
        for _ in range(_TAKE_OVER_ATTEMPTS):
            lease = self._raise_token(transactional_id, owner) or self._insert(transactional_id, owner)
            if lease is not None:
                return lease
        raise DatabaseBusyError(
            f"the state row of {transactional_id!r} appears and vanishes: does something delete it?"
        )

    @contextmanager
    def locked(self, lease: Lease) -> Iterator[SqlHeldDecision]:
        """Hold the row's lock; see DecisionStore.locked. Writes nothing: the transaction is rolled back at the end."""
        with self._transaction(commit=False) as connection:
            with _clear_errors(self._engine):
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
        with _clear_errors(self._engine):
            store = _STORE_ON_POSTGRESQL if connection.dialect.name == "postgresql" else _STORE
            if connection.execute(store, values).rowcount != 1:
                raise _fenced(lease)

    def _raise_token(self, transactional_id: str, owner: str) -> Lease | None:
        """The new lease; None if there is no row yet."""
        with self._transaction(commit=True) as connection, _clear_errors(self._engine):
            raised = connection.execute(
                update(table)
                .where(table.c.transactional_id == transactional_id)
                .values(
                    fencing_token=table.c.fencing_token + 1,
                    owner=owner,
                    lease_expires_at=None,
                    updated_at=func.current_timestamp(),
                )
            )
            if raised.rowcount == 0:
                return None
            token = connection.scalar(select(table.c.fencing_token).where(table.c.transactional_id == transactional_id))
            return Lease(transactional_id, int(token or 0))

    def _insert(self, transactional_id: str, owner: str) -> Lease | None:
        """The first lease of a new row; None if another process has just inserted it."""
        row = {"transactional_id": transactional_id, "fencing_token": 1, "owner": owner, "prepared_txn_state": ""}
        try:
            with self._transaction(commit=True) as connection, _clear_errors(self._engine):
                connection.execute(insert(table).values(updated_at=func.current_timestamp(), **row))
        except IntegrityError:
            return None
        return Lease(transactional_id, 1)

    @contextmanager
    def _transaction(self, *, commit: bool) -> Iterator[Connection]:
        """A transaction of its own. It never reuses a snapshot: what it waited for, it sees."""
        with self._engine.connect() as connection:
            if connection.dialect.name != "sqlite":
                connection.execution_options(isolation_level="READ COMMITTED")
            try:
                transaction = connection.begin()
                begin_writing(connection)
                if connection.dialect.name == "postgresql":
                    connection.execute(select(_DURABLE))
                    connection.exec_driver_sql(f"SET LOCAL lock_timeout = {self._lock_timeout_ms}")
                    # Longer than Kafka may take while the row is held, and an end to the lock of a vanished host.
                    connection.exec_driver_sql(f"SET LOCAL idle_in_transaction_session_timeout = {_LONGEST_HOLD_MS}")
                yield connection
                if commit:
                    with _clear_errors(self._engine):
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
    """Lock the row and return the state in it; FencedError if it is no longer the lease's."""
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
        raise _fenced(lease)
    return PreparedTxnState.parse(f"{row.prepared_txn_state}:{row.anchor}" if row.anchor else row.prepared_txn_state)


def _fenced(lease: Lease) -> FencedError:
    return FencedError(
        f"another process has taken over {lease.transactional_id!r} (fencing token {lease.fencing_token} is no longer "
        "valid): stop one of the two, or give the applications different names"
    )


@contextmanager
def _clear_errors(engine: Engine) -> Iterator[None]:
    """Give the errors that have a plain meaning here their name; every other passes as SQLAlchemy's."""
    try:
        yield
    except DBAPIError as error:
        code = getattr(error.orig, "sqlstate", None)
        text = str(error.orig)
        if code in (_UNDEFINED_TABLE, _UNDEFINED_COLUMN) or "no such table" in text or "no such column" in text:
            url = engine.url.render_as_string(hide_password=True)
            raise DatabaseNotReadyError(
                f"the table {table.name!r} is missing or of another version: run `dualwrite db upgrade --db {url}`"
            ) from error
        if code == _LOCK_NOT_AVAILABLE or "database is locked" in text or "database table is locked" in text:
            raise DatabaseBusyError(
                f"the database is locked: another transaction holds {table.name!r} or its database for too long"
            ) from error
        raise
