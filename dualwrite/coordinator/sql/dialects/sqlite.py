"""SQLite, in a file.

SQLite has one write lock for the whole database, but Python's driver begins transactions late and deferred. So every
transaction here begins with BEGIN IMMEDIATE, which waits for the lock for up to the engine's ``timeout``.
"""

import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from hashlib import sha256
from pathlib import Path
from typing import Any

from sqlalchemy import (
    URL,
    Column,
    Connection,
    Insert,
    Integer,
    Table,
    TableClause,
    func,
    inspect,
    literal,
    literal_column,
    select,
    text,
    type_coerce,
)
from sqlalchemy.dialects import sqlite
from sqlalchemy.exc import DBAPIError
from sqlalchemy.sql.elements import ColumnElement
from sqlalchemy.types import NullType, TypeEngine

from dualwrite.coordinator.process.greenlets import wait_for
from dualwrite.coordinator.rules.identities import TwoPartIdentity
from dualwrite.coordinator.sql.dialects.base import UNIT, Database, ErrorMeaning
from dualwrite.coordinator.sql.dialects.interface.bulk_load import on_conflict
from dualwrite.coordinator.sql.dialects.interface.server import DurabilityGap
from dualwrite.coordinator.sql.dialects.unit_transactions import Fate, run_unseen
from dualwrite.errors import ConfigurationError

_LOG = logging.getLogger("dualwrite")

_ROLLS_BACK = ("database or disk is full", "disk I/O error", "interrupted", "out of memory")
"""Messages of errors after which SQLite may have rolled the transaction back by itself."""
_AUTOCOMMIT = "dualwrite_autocommit"
_IS_DURABLE = "dualwrite_is_durable"
_FULL = 2
"""PRAGMA synchronous = FULL, the default. Every commit is on the disk before it succeeds, but for the removal of the
journal with which ``journal_mode = DELETE`` commits. EXTRA syncs that, too; it costs nothing in the other modes."""


class Sqlite(Database):
    """Python's sqlite3, and aiosqlite, which runs it in a thread."""

    title = "SQLite"
    example_url = "sqlite:///orders.db"
    blocking_drivers: Mapping[str, str] = {"aiosqlite": ""}
    is_file = True
    has_schemas = False
    one_writer = True
    lock_advice = (
        "find the program that keeps a transaction open; ?timeout=30 in the URL sets for how many seconds SQLite waits"
    )
    has_row_locks = False
    own_isolation_level = None
    number_type = Integer()
    """It counts up an INTEGER primary key only."""
    fills_integer_keys = True
    keeps_decimals = False
    has_dynamic_types = True
    halved_identity = TwoPartIdentity("sqlite", fixed_index=1, half_indexes=(0, 2))
    """Some file systems get another device number at each mount, and a file may be renamed; the inode stays."""

    def file_of(self, url: URL) -> str | None:
        """None for a URI (``file:…``), which may name a file in other ways."""
        return None if not url.database or url.database.startswith("file:") else url.database

    def is_in_memory(self, url: URL) -> bool:
        """In any spelling."""
        path, _, query = str(url.database or "").partition("?")
        settings = [f"{name}={value}" for name, value in url.query.items()] + query.split("&")
        return path in ("", ":memory:", "file:", "file::memory:") or any(
            setting in settings for setting in ("mode=memory", "vfs=memdb")
        )

    def server_of(self, url: URL) -> str:
        """The file's full path."""
        file = self.file_of(url)
        return f"sqlite:{url.database or '' if file is None else Path(file).resolve()}"

    def exact_connections(self, url: URL, patience: float) -> Mapping[str, Any]:
        """The driver waits for the only writer as long as its ``timeout``."""
        return {} if "timeout" in url.query else {"timeout": patience}

    def is_single(self, kind: TypeEngine[Any]) -> bool:
        """All have double precision."""
        return False

    def exact_column(self, column: "Column[Any]") -> ColumnElement[Any]:
        """The value as it is stored, with its own type: a column may hold values of every type."""
        return type_coerce(column, NullType())

    @contextmanager
    def showing_exactly(self, connection: Connection) -> Iterator[None]:
        """A text that is not UTF-8 has lone surrogates."""
        driver: Any = connection.connection.driver_connection
        before = driver.text_factory
        driver.text_factory = _decoded
        try:
            yield
        finally:
            driver.text_factory = before

    def row_number(self, connection: Connection, table: Table) -> ColumnElement[Any] | None:
        """The rowid, under a name that no column has. A view has none, and neither has a table WITHOUT ROWID."""
        names = {column.name.lower() for column in table.columns}
        free = [name for name in ("rowid", "_rowid_", "oid") if name not in names]
        if not free or table.name not in inspect(connection).get_table_names(schema=table.schema):
            return None
        number: ColumnElement[Any] = literal_column(free[0], Integer())
        with suppress(DBAPIError):
            connection.execute(select(number).select_from(table).limit(0))
            return number
        return None

    def from_now(self, seconds: float) -> ColumnElement[Any]:
        """Text in UTC with six fractional digits, as SQLAlchemy writes and reads a DateTime on SQLite."""
        return func.strftime("%Y-%m-%d %H:%M:%f000", "now", f"{seconds:.3f} seconds")

    def seconds_until(self, moment: ColumnElement[Any]) -> ColumnElement[Any]:
        """Computed from fractional days."""
        # A number of days is right to some microseconds, and both moments are milliseconds.
        return func.round((func.julianday(moment) - func.julianday("now")) * literal(86400.0), 3)

    def version(self, connection: Connection) -> str:
        """The version of the SQLite library that Python uses."""
        return f"sqlite {connection.scalar(text('SELECT sqlite_version()'))}"

    def durability_gaps(self, connection: Connection) -> list[DurabilityGap]:
        """Weak values of ``synchronous`` and ``journal_mode``: settings of a connection; the file keeps only WAL."""
        gaps = []
        synchronous = int(connection.scalar(text("PRAGMA synchronous")) or 0)
        journal = str(connection.scalar(text("PRAGMA journal_mode"))).upper()
        if synchronous < _FULL:
            gaps.append(
                DurabilityGap(
                    f"synchronous = {('OFF', 'NORMAL')[synchronous]}",
                    "a crash of the machine can undo a decision after Kafka has committed",
                    "use FULL",
                )
            )
        if synchronous == _FULL and journal == "DELETE":
            gaps.append(
                DurabilityGap(
                    "synchronous = FULL, journal_mode = DELETE",
                    "a power cut right after a COMMIT can undo a decision after Kafka has committed",
                    "use synchronous = EXTRA, or journal_mode = WAL",
                )
            )
        if journal in ("OFF", "MEMORY"):
            gaps.append(
                DurabilityGap(
                    f"journal_mode = {journal}", "a crash during a commit leaves a part of it", "use DELETE or WAL"
                )
            )
        return gaps

    def upsert(self, into: TableClause, keys: Sequence[str], fill: Callable[[Any], Any]) -> Insert:
        """By ON CONFLICT."""
        return on_conflict(fill(sqlite.insert(into)), into, keys)

    def make_durable(self, connection: Connection) -> None:
        """Raise ``synchronous`` from FULL to EXTRA, once for each connection.

        It cannot be changed inside a transaction, and a driver with autocommit=False is always in one.
        """
        if connection.info.get(_IS_DURABLE) or getattr(connection.connection.driver_connection, "in_transaction", True):
            return
        if run_unseen(connection, "PRAGMA synchronous", fetch=True) == _FULL:
            run_unseen(connection, "PRAGMA synchronous = EXTRA")
        connection.info[_IS_DURABLE] = True

    def begin(self, connection: Connection) -> None:
        """Take the write lock now.

        The driver begins a transaction only at the first INSERT, UPDATE or DELETE. A SAVEPOINT before that would commit
        when it is released. A transaction that reads before it writes can fail at once with "database is locked",
        despite the timeout.

        :raises ConfigurationError: in autocommit mode, where since Python 3.12 the driver's ``commit()`` does nothing.
        """
        super().begin(connection)
        # If a transaction is open already, the user's own "begin" listener or autocommit=False began it.
        if not getattr(connection.connection.driver_connection, "in_transaction", True):
            run_unseen(connection, "BEGIN IMMEDIATE")

    def require_suitable(self, connection: Connection, schema: str | None = None) -> None:
        """Require a file: the database that a ``creator`` opens is known only once it is connected.

        Warn of settings with which a crash can undo a commit: the application's listeners make them, and the doctor has
        connections of its own.
        """
        path = _path(connection)
        if not os.path.exists(path):
            where = f"file {path!r} is gone, or" if path else "database"
            raise ConfigurationError(
                f"the SQLite {where} is in memory, and forgets every decision with the process: use a file"
            )
        for gap in self.durability_gaps(connection):
            _LOG.warning("the connection to the database has %s", str(gap))

    def identity(self, connection: Connection, schema: str | None) -> str | None:
        """The file's device and inode, and a digest of its path: some file systems renumber their devices."""
        path = _path(connection)
        if not os.path.exists(path):
            return None  # in memory, which require_suitable refuses
        status = os.stat(path)
        return f"sqlite:{status.st_dev}:{status.st_ino}:{sha256(os.path.realpath(path).encode()).hexdigest()[:16]}"

    def file_beside(self, connection: Connection, identities: Sequence[str]) -> Path | None:
        """By device and inode."""
        files = {tuple(identity.split(":")[1:3]) for identity in identities}
        directory = Path(_path(connection)).parent
        device = str(directory.stat().st_dev)
        with suppress(PermissionError), os.scandir(directory) as entries:  # who may not look sees nothing
            for entry in entries:
                if (device, str(entry.inode())) in files:
                    return Path(entry.path)
        return None

    def autocommits(self, connection: Connection) -> bool:
        """Ask sqlite3."""
        return _autocommit(connection) is True

    def is_in_transaction(self, connection: Connection) -> bool | None:
        """Ask sqlite3. With autocommit=False a transaction is always open, so it does not count."""
        if _autocommit(connection) is False:
            return None
        is_open: bool | None = getattr(connection.connection.driver_connection, "in_transaction", None)
        return is_open

    def begin_unit(self, connection: Connection) -> None:
        """Set a savepoint, which is gone if SQLite ends the transaction."""
        run_unseen(connection, f"SAVEPOINT {UNIT}")

    ended = (
        "SQLite ended the transaction of this unit of work inside its block (a statement with OR ROLLBACK, an error "
        "that was caught, or COMMIT or ROLLBACK past SQLAlchemy): what came before is not in the transaction; after a "
        "commit it is in the database, without its records"
    )

    def fate(self, connection: Connection, mark: str) -> Fate:
        """Release the savepoint.

        INSERT OR ROLLBACK and a full disk end the transaction, and the driver silently begins another one.
        """
        try:
            run_unseen(connection, f"RELEASE {UNIT}")
        except DBAPIError as error:
            if "no such savepoint" not in str(error.orig):
                raise
            return Fate.UNKNOWN
        return Fate.OPEN

    def rolls_back(self, connection: Connection, error: BaseException) -> bool:
        """True for OR ROLLBACK, a full disk and similar errors, after which the driver has no transaction open.

        Before each statement that writes, the driver has one open.
        """
        if connection.invalidated or getattr(connection.connection.driver_connection, "in_transaction", True):
            return False
        return type(error).__name__ == "IntegrityError" or any(phrase in str(error) for phrase in _ROLLS_BACK)

    def meaning_of(self, error: DBAPIError) -> ErrorMeaning | None:
        """By the message: Python 3.10 exposes no error codes."""
        message = str(error.orig)
        if "no such table" in message or "no such column" in message:
            return ErrorMeaning.NOT_READY
        if "database is locked" in message or "database table is locked" in message:
            return ErrorMeaning.BUSY
        return None


def _autocommit(connection: Connection) -> object:
    """The attribute ``autocommit`` of sqlite3's connection, from Python 3.12 on; None without one. aiosqlite does not
    show it, and only its thread may read it."""
    driver: Any = connection.connection.driver_connection
    within = getattr(driver, "_connection", None)
    if within is None:
        return getattr(driver, "autocommit", None)
    if not hasattr(type(within), "autocommit"):
        return None
    if _AUTOCOMMIT not in connection.info:
        connection.info[_AUTOCOMMIT] = wait_for(driver._execute(getattr, within, "autocommit"))
    return connection.info[_AUTOCOMMIT]


def _decoded(text: bytes) -> str:
    return text.decode(errors="surrogateescape")


def _path(connection: Connection) -> str:
    """The path of the database's file; empty for a database in memory."""
    rows = connection.exec_driver_sql("PRAGMA database_list")
    return next((str(file or "") for _, name, file in rows if name == "main"), "")
