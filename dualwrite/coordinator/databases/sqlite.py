"""SQLite, in a file.

It has one write lock for the whole database, but Python's driver begins transactions late and deferred. So every
transaction here begins with BEGIN IMMEDIATE, which waits for the lock as long as the engine's ``timeout`` says.
"""

from typing import Any

from sqlalchemy import Connection, func, literal, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.sql.elements import ColumnElement

from dualwrite.coordinator.databases.base import UNIT, Database, Trouble, Weakness
from dualwrite.errors import InvalidTransactionStateError

_FULL = 2
"""PRAGMA synchronous: every commit is on the disk before it succeeds."""


class Sqlite(Database):
    """Python's sqlite3, and aiosqlite, which runs it in a thread."""

    one_writer = True

    def from_now(self, seconds: float) -> ColumnElement[Any]:
        """As text in UTC with six digits, as SQLAlchemy writes and reads a DateTime here."""
        return func.strftime("%Y-%m-%d %H:%M:%f000", "now", f"{seconds:.3f} seconds")

    def seconds_until(self, moment: ColumnElement[Any]) -> ColumnElement[Any]:
        """From days with fractions."""
        return (func.julianday(moment) - func.julianday("now")) * literal(86400.0)

    def version(self, connection: Connection) -> str:
        """Of the library that Python was built with."""
        return f"sqlite {connection.scalar(text('SELECT sqlite_version()'))}"

    def weaknesses(self, connection: Connection) -> list[Weakness]:
        """Both are settings of a connection; a journal of the kind WAL alone is kept in the file."""
        found = []
        synchronous = int(connection.scalar(text("PRAGMA synchronous")) or 0)
        if synchronous < _FULL:
            found.append(
                Weakness(
                    f"synchronous = {('OFF', 'NORMAL')[synchronous]}",
                    "a crash of the machine can undo a decision after Kafka has committed",
                    "use FULL",
                )
            )
        journal = str(connection.scalar(text("PRAGMA journal_mode"))).upper()
        if journal in ("OFF", "MEMORY"):
            found.append(
                Weakness(f"journal_mode = {journal}", "a crash in the middle of a commit tears it", "use DELETE or WAL")
            )
        return found

    def begin(self, connection: Connection) -> None:
        """Take the write lock now.

        The driver begins a transaction only at the first INSERT, UPDATE or DELETE; a SAVEPOINT before that would commit
        on its own when it is released, and a transaction that has read before it writes fails at once with "database is
        locked", whatever the timeout.

        :raises ConfigurationError: in autocommit mode; since Python 3.12 its ``commit()`` does nothing.
        """
        super().begin(connection)
        # A transaction that is open already was begun by the user's own "begin" listener or by autocommit=False.
        if not getattr(connection.connection.driver_connection, "in_transaction", True):
            _run(connection, "BEGIN IMMEDIATE")

    def begin_unit(self, connection: Connection) -> None:
        """A savepoint: it is gone when SQLite has ended the transaction."""
        _run(connection, f"SAVEPOINT {UNIT}")

    def require_unit(self, connection: Connection) -> None:
        """INSERT OR ROLLBACK and a full disk end the transaction, and the driver silently begins another one."""
        try:
            _run(connection, f"RELEASE {UNIT}")
        except DBAPIError as error:
            if "no such savepoint" not in str(error.orig):
                raise
            raise InvalidTransactionStateError(
                "SQLite ended the transaction of this unit of work inside its block (a statement with OR ROLLBACK, an "
                "error that was caught, or COMMIT or ROLLBACK as text): what came before is not in the transaction; "
                "after COMMIT as text it is in the database, without its records"
            ) from error

    def trouble(self, error: DBAPIError) -> Trouble | None:
        """By the text: Python 3.10 has no error codes."""
        said = str(error.orig)
        if "no such table" in said or "no such column" in said:
            return Trouble.NOT_READY
        if "database is locked" in said or "database table is locked" in said:
            return Trouble.BUSY
        return None


def _run(connection: Connection, statement: str) -> None:
    """Run ``statement`` past SQLAlchemy, which makes a result of it: that takes longer than SQLite does.

    :raises DBAPIError: as ``connection.exec_driver_sql`` does.
    """
    dialect = connection.dialect
    cursor = connection.connection.cursor()
    try:
        cursor.execute(statement)
    except dialect.loaded_dbapi.Error as error:
        raise DBAPIError.instance(statement, None, error, dialect.loaded_dbapi.Error, dialect=dialect) from error
    finally:
        cursor.close()
