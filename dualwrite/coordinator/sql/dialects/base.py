"""The interface to a kind of database, with the implementation that most of them share.

Each database derives a class from :class:`Database`, and overrides the members that it needs to. A docstring gives a
member's purpose, and says when to override it. The defaults are right for a server that follows the SQL standard.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import Enum
from typing import Any

from sqlalchemy import Connection, Row, Select, func
from sqlalchemy.exc import DBAPIError
from sqlalchemy.sql.elements import ColumnElement

from dualwrite.coordinator.sql.dialects.interface.bulk_load import DatabaseBulkLoad
from dualwrite.coordinator.sql.dialects.interface.server import DatabaseServer
from dualwrite.coordinator.sql.dialects.interface.tables import DatabaseTables
from dualwrite.coordinator.sql.dialects.interface.units import DatabaseTransactions
from dualwrite.coordinator.sql.dialects.interface.urls import DatabaseUrls
from dualwrite.coordinator.sql.dialects.interface.values import DatabaseValues

LONGEST_HOLD = 300
"""Seconds for which a transaction of the library's own may be idle: longer than Kafka may take while the row is held,
and an end to the lock of a host that has vanished."""
UNIT = "dualwrite_unit"
"""The savepoint with which a unit of work begins where the database can end a transaction without a word."""

FAILED = (
    "a statement of this unit of work failed and its error was caught, so PostgreSQL will roll all of it back: let the "
    "error leave the block, or use a savepoint (begin_nested) around such a statement"
)
"""The message for a unit of work whose transaction is in :attr:`ErrorMeaning.FAILED`."""

IN_USE = (
    "another task uses the connection of this unit of work at the same time, which is rolled back: one task at a time "
    "may use tx, tx.session and tx.connection, and every call must have ended before the block does"
)
"""The message for a unit of work whose connection is in :attr:`ErrorMeaning.IN_USE`."""

_LEVEL = "dualwrite_isolation_level"


class ErrorMeaning(Enum):
    """The meaning of a database error, if it has one for the library."""

    NOT_READY = "the state table is missing, or of another version"
    BUSY = "another transaction held a lock for too long"
    TOO_LONG = "a statement took longer than a setting of the session allows, or was cancelled"
    CONFLICT = "a deadlock or a serialization failure: rolled back, and likely to succeed when it is run again"
    FAILED = "an earlier statement has failed, and the transaction can only be rolled back"
    READ_ONLY = "the server accepts no writes: it is a standby, or in read-only mode"
    IN_USE = "another task's statement or cursor is in progress on the connection"


def sqlstate_of(error: DBAPIError) -> str | None:
    """PostgreSQL's SQLSTATE of ``error``, which psycopg2 calls pgcode; None if the server sent none."""
    return getattr(error.orig, "sqlstate", None) or getattr(error.orig, "pgcode", None)


class Database(DatabaseUrls, DatabaseTables, DatabaseValues, DatabaseBulkLoad, DatabaseServer, DatabaseTransactions):
    """A kind of database, as SQLAlchemy and PEP 249's drivers present it. This module has its clock, locks and errors;
    the base classes have the rest."""

    shows_commits_early = False
    """True if other transactions see a commit before it is on disk."""

    standbys_query: str | None = None
    """The query for the servers that a COMMIT waits for, with an empty result if it waits for none; None if there are
    no such servers. The server itself, restarted meanwhile, shows a commit that they do not have."""

    one_writer = False
    """True if only one transaction can write at a time: all others wait for it, in no particular order."""

    lock_advice = "find the transaction that does not end"
    """What to do if locks are not free in time again and again. Override it to say where the database shows it."""

    has_row_locks = True
    """False if SELECT … FOR UPDATE takes no lock, so that a transaction must write to get one."""

    own_isolation_level: str | None = "READ COMMITTED"
    """The level of the library's own transactions, and of Spark's: each statement sees everything that was committed
    before it. None if there are no levels to choose from."""

    def now(self) -> ColumnElement[Any]:
        """The database's clock."""
        return func.current_timestamp()

    def from_now(self, seconds: float) -> ColumnElement[Any]:
        """The moment ``seconds`` from now, by the database's clock, whenever its transaction began. Each database has
        its own."""
        raise NotImplementedError

    def seconds_until(self, moment: ColumnElement[Any]) -> ColumnElement[Any]:
        """Seconds from now until ``moment``, by the same clock; NULL for no moment. Each database has its own."""
        raise NotImplementedError

    def store_conditions(self) -> Sequence[ColumnElement[bool]]:
        """Further conditions of the one statement that a unit of work costs, which stores the state; see
        store_statement.py. Their parameters are those of :meth:`store_values`. Override it to see to a fact, or to
        change a setting, without another request."""
        return ()

    def lock_at_once(
        self,
        connection: Connection,
        rows: Select[Any],
        options: Mapping[str, Any],
        only: Sequence[ColumnElement[bool]] = (),
    ) -> Sequence[Row[Any]]:
        """Lock and read ``rows`` but for those that others have locked; nothing waits. Override it if there is no SKIP
        LOCKED.

        :param options: of the execution.
        :param only: conditions; a row that does not meet them now is not locked.
        """
        return connection.execute(rows.where(*only).with_for_update(skip_locked=True), execution_options=options).all()

    @contextmanager
    def own_transaction(self, connection: Connection, lock_timeout: float) -> Iterator[None]:
        """Settings for a transaction of the library's own, which has begun; gone when the ``with`` block ends. Override
        it for a server, which may wait for ever for a lock.

        :param lock_timeout: seconds to wait for a row's lock.
        """
        yield

    def meaning_of(self, error: DBAPIError) -> ErrorMeaning | None:
        """The meaning of ``error`` for the library; None for an error that concerns the user only. Each database has
        its own."""
        raise NotImplementedError


def isolation_level(connection: Connection) -> str:
    """The level of ``connection``, which its engine or its server has chosen; the server is asked once."""
    chosen = connection.get_execution_options().get("isolation_level")
    if chosen is None:
        chosen = connection.info.get(_LEVEL)
    if chosen is None:
        chosen = connection.info[_LEVEL] = connection.get_isolation_level()
    return str(chosen)
