"""MariaDB and MySQL with InnoDB, by PyMySQL or mysqlclient.

Why the row lock holds: the library's own transactions run at READ COMMITTED, where each statement sees everything that
was committed before it. A locking read sees the latest version at every isolation level. The user's transaction only
runs an UPDATE by key, which also sees the latest version at every isolation level.

Peculiarities of these databases:

- A statement can silently end the transaction: DDL commits it, a deadlock rolls it back, and the next statement begins
  another. So a unit of work begins with a savepoint, which is gone if the transaction was ended. This costs one short
  request at the begin and one at the end.
- InnoDB releases locks and shows a commit to others before the log is on the disk. Do not act on values read before a
  later write is committed, which flushes everything before it, too.
- Timeouts are settings of the session, in whole seconds. The library restores the values that it changes.
- Comparisons ignore case and accents unless the column has another collation; see tables.py.
"""

import logging
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from hashlib import sha256
from typing import Any

from sqlalchemy import (
    URL,
    Column,
    Connection,
    Insert,
    Row,
    Select,
    TableClause,
    func,
    inspect,
    literal,
    literal_column,
    text,
    type_coerce,
)
from sqlalchemy.dialects import mysql
from sqlalchemy.exc import DBAPIError
from sqlalchemy.sql.elements import ColumnElement
from sqlalchemy.types import NullType, TypeEngine

from dualwrite.coordinator.concurrency.step_errors import database_error_of
from dualwrite.coordinator.rules.identities import TwoPartIdentity
from dualwrite.coordinator.sql.dialects.base import LONGEST_HOLD, UNIT, Database, ErrorMeaning, isolation_level
from dualwrite.coordinator.sql.dialects.interface.bulk_load import BulkInserts, MultiRowInserts
from dualwrite.coordinator.sql.dialects.interface.server import DurabilityGap, MissingTimeout
from dualwrite.coordinator.sql.dialects.interface.tables import STATE_TABLE
from dualwrite.coordinator.sql.dialects.interface.urls import host_of, port_of, seconds_in
from dualwrite.coordinator.sql.dialects.mysql.implicit_commits import GRAMMAR
from dualwrite.coordinator.sql.dialects.mysql.settings import (
    durability_gaps_in,
    refusal_of,
    require_logged,
    server_settings,
)
from dualwrite.coordinator.sql.dialects.mysql.timeouts import missing_timeouts
from dualwrite.coordinator.sql.dialects.mysql.upserts import upsert
from dualwrite.coordinator.sql.dialects.unit_transactions import Fate, run_unseen
from dualwrite.coordinator.sql.dialects.url_text import url_text
from dualwrite.errors import ConfigurationError, DatabaseBusyError

_LOG = logging.getLogger("dualwrite")
_NO_SUCH_SAVEPOINT = 1305
_LOCKED = (1205, 3572)
"""Error numbers of NOWAIT for a locked row, on MariaDB and on MySQL."""
_TROUBLES = {
    1146: ErrorMeaning.NOT_READY,  # ER_NO_SUCH_TABLE
    1054: ErrorMeaning.NOT_READY,  # ER_BAD_FIELD_ERROR
    1205: ErrorMeaning.BUSY,  # ER_LOCK_WAIT_TIMEOUT
    1969: ErrorMeaning.TOO_LONG,  # ER_STATEMENT_TIMEOUT: MariaDB's max_statement_time
    3024: ErrorMeaning.TOO_LONG,  # ER_QUERY_TIMEOUT: MySQL's max_execution_time
    1213: ErrorMeaning.CONFLICT,  # ER_LOCK_DEADLOCK
    1020: ErrorMeaning.CONFLICT,  # ER_CHECKREAD: MariaDB's innodb_snapshot_isolation
    1792: ErrorMeaning.READ_ONLY,  # ER_CANT_EXECUTE_IN_READ_ONLY_TRANSACTION
    1836: ErrorMeaning.READ_ONLY,  # ER_READ_ONLY_MODE
}
_OPTION_PREVENTS_STATEMENT = 1290
_SERVER_STATUS_IN_TRANS = 1
_ROLLS_BACK = frozenset({1213, 1020})
"""Errors that roll the whole transaction back."""
_AWAY = frozenset({1040, 1053, 1203, 2002, 2003, 2006, 2013})
"""Too many connections; the server shuts down; the server does not answer, or not completely."""
_NO_SUCH_HOST = "Name or service not known"
_TIMEOUTS = {"innodb_lock_wait_timeout": None, "lock_wait_timeout": None, "wait_timeout": LONGEST_HOLD}
"""Timeouts of row locks, of metadata locks, and of idle clients. None: the same timeout as for row locks."""
_OF_STATEMENTS = {True: "max_statement_time", False: "max_execution_time"}
"""The timeout of statements on MariaDB (True), and on MySQL. It is meant for the application's; the library's own may
wait for a lock."""
_SNAPSHOTS = "dualwrite_reads_a_snapshot"

_SERVER = text(
    "SHOW GLOBAL VARIABLES WHERE Variable_name IN "
    "('server_uuid', 'server_uid', 'server_id', 'hostname', 'port', 'datadir')"
)
_GALERA = text("SHOW GLOBAL STATUS LIKE 'wsrep_cluster_state_uuid'")
_CREATED = text(
    "SET STATEMENT time_zone = '+00:00' FOR SELECT UNIX_TIMESTAMP(create_time) FROM information_schema.tables "
    "WHERE table_schema = COALESCE(:schema, DATABASE()) AND table_name = :name"
)
"""MariaDB only. It shows create_time in the session's time zone, where one hour of each year occurs twice."""
_ENGINE = text(
    "SELECT e.engine, e.transactions FROM information_schema.tables AS t "
    "JOIN information_schema.engines AS e ON e.engine = t.engine "
    "WHERE t.table_schema = COALESCE(:schema, DATABASE()) AND t.table_name = :name"
)


class Mysql(Database):
    """MariaDB and MySQL."""

    title = "MariaDB or MySQL"
    example_url = "mysql+pymysql://user@host/name"
    blocking_drivers: Mapping[str, str] = {"aiomysql": "pymysql", "asyncmy": "pymysql"}
    shows_commits_early = True
    lock_advice = "find the transaction that does not end in information_schema.innodb_trx"
    has_transactional_ddl = False
    moment_type = mysql.DATETIME(fsp=6)
    """In UTC: a column knows no time zone."""
    bytes_type = mysql.LONGBLOB()
    """A BLOB ends at 64 KiB."""
    table_options: Mapping[str, str] = {"engine": "InnoDB", "charset": "utf8mb4", "collate": "utf8mb4_bin"}
    """The default may be an engine without transactions, and compares without case."""
    halved_identity = TwoPartIdentity("mariadb", fixed_index=2, half_indexes=(0, 1))
    """The server or the moment of the state table's creation; the schema stays."""
    grammar = GRAMMAR
    exact_session = ("SET time_zone = '+00:00', sql_mode = CONCAT(@@sql_mode, ',NO_AUTO_VALUE_ON_ZERO')",)
    """Timestamps are in UTC, and 0 in an auto-increment column stays 0, instead of the next number."""

    def server_of(self, url: URL) -> str:
        """The same for both of SQLAlchemy's names. A socket takes precedence over the host."""
        return f"mysql:{url.query.get('unix_socket', '') or host_of(url)}:{port_of(url)}:{url.database or ''}"

    def require_named(self, url: URL) -> None:
        """A server has no default database."""
        if not url.database:
            raise _unnamed(url)

    def is_instant(self, kind: TypeEngine[Any]) -> bool:
        """TIMESTAMP does, and DATETIME does not."""
        return isinstance(kind, mysql.TIMESTAMP) or super().is_instant(kind)

    def is_single(self, kind: TypeEngine[Any]) -> bool:
        """REAL has double precision."""
        return isinstance(kind, mysql.FLOAT)

    def float_scale(self, kind: TypeEngine[Any]) -> int | None:
        """FLOAT(7,4) has 4."""
        return kind.scale if isinstance(kind, mysql.FLOAT | mysql.DOUBLE | mysql.REAL) else None

    def integers(self, kind: TypeEngine[Any]) -> range:
        """TINYINT and MEDIUMINT exist, and each type may be unsigned."""
        signed = super().integers(kind)
        for narrow, bits in ((mysql.TINYINT, 8), (mysql.MEDIUMINT, 24)):
            if isinstance(kind, narrow):
                signed = range(-(1 << bits - 1), 1 << bits - 1)
        return range(signed.stop - signed.start) if getattr(kind, "unsigned", False) else signed

    def set_names(self, kind: TypeEngine[Any]) -> Sequence[str] | None:
        """SET has them."""
        return kind.values if isinstance(kind, mysql.SET) else None

    def exact_column(self, column: "Column[Any]") -> ColumnElement[Any]:
        """The server shows six digits of a FLOAT. SQLAlchemy shows a TIME as a time of the day, although it may be
        negative or longer than a day, and the names of a SET in no order."""
        if self.is_single(column.type):
            return column * literal_column("1e0", mysql.DOUBLE(asdecimal=False))
        if isinstance(column.type, mysql.TIME | mysql.SET):
            return type_coerce(column, NullType())
        return column

    def second_digits(self, kind: TypeEngine[Any]) -> int:
        """0 if the type does not say."""
        if isinstance(kind, mysql.DATETIME | mysql.TIMESTAMP | mysql.TIME):
            return kind.fsp or 0
        return super().second_digits(kind)

    def missing_timeouts(self, connection: Connection) -> Iterator[MissingTimeout]:
        """See timeouts.py."""
        yield from missing_timeouts(connection)

    def now(self) -> ColumnElement[Any]:
        """In UTC, with microseconds. CURRENT_TIMESTAMP is in the session's time zone, and in whole seconds."""
        return func.utc_timestamp(text("6"))

    def from_now(self, seconds: float) -> ColumnElement[Any]:
        """With microseconds, as :meth:`now`."""
        return func.timestampadd(text("MICROSECOND"), round(seconds * 1_000_000), self.now())

    def seconds_until(self, moment: ColumnElement[Any]) -> ColumnElement[Any]:
        """Computed from microseconds."""
        return func.timestampdiff(text("MICROSECOND"), self.now(), moment) / literal(1_000_000.0)

    def lock_at_once(
        self,
        connection: Connection,
        rows: Select[Any],
        options: Mapping[str, Any],
        only: Sequence[ColumnElement[bool]] = (),
    ) -> Sequence[Row[Any]]:
        """All rows or none, by NOWAIT: MariaDB (10.11) takes SKIP LOCKED for a failed COMMIT if the row is locked.

        InnoDB keeps the lock of a row that it finds by its key, even if another condition is false: so the conditions
        are looked at before.
        """
        if only and not connection.execute(rows.where(*only), execution_options=options).all():
            return []
        try:
            return connection.execute(rows.where(*only).with_for_update(nowait=True), execution_options=options).all()
        except Exception as error:
            if not _is_locked(database_error_of(error)):
                raise
            return []

    def identity(self, connection: Connection, schema: str | None) -> str | None:
        """MySQL's server uuid or the Galera cluster's uuid, and the database.

        The identity of a MariaDB server outside of Galera has two halves. The first half names the server by its
        address, port and directory; it changes when a container is created again. The second half is the creation time
        of the state table, taken from the file's inode, and the server's id, which no replica shares; it changes with
        the table's definition. A dump that is restored elsewhere shares neither half, unless both servers have the same
        address, port and directory.
        """
        known = {str(name): str(value) for shown in (_SERVER, _GALERA) for name, value in connection.execute(shown)}
        galera, uuid = known.get("wsrep_cluster_state_uuid", ""), known.get("server_uuid", "")
        if galera.strip("0-") or uuid:
            server = f"galera:{galera}" if galera.strip("0-") else f"mysql:{uuid}"
        else:
            created = connection.scalar(_CREATED, {"schema": schema, "name": STATE_TABLE})
            # While another connection changes the table's definition, create_time is NULL.
            moment = "" if created is None else f"{known['server_id']}-{int(created)}"
            server = f"mariadb:{_digest(known)}:{moment}"
        return f"{server}:{(schema or '').lower()}"

    def schema_with(self, connection: Connection, name: str) -> str:
        """The database that the URL names, even if USE has chosen another since.

        :raises ConfigurationError: if neither the URL nor the connection names one.
        """
        named = connection.engine.url.database or connection.scalar(text("SELECT DATABASE()"))
        if named is None:
            raise _unnamed(connection.engine.url)
        return str(named)

    def require_suitable(self, connection: Connection, schema: str | None = None) -> None:
        """Require a transactional state table, and settings with which a dual write works; warn of a server that does
        not flush each commit to the disk."""
        self.require_transactional(connection, STATE_TABLE, schema)
        settings = server_settings(connection)
        if (refusal := refusal_of(settings)) is not None:
            raise ConfigurationError(refusal)
        require_logged(connection, settings, schema)
        for gap in durability_gaps_in(settings):
            _LOG.warning("the database server has %s", str(gap))

    def version(self, connection: Connection) -> str:
        """MariaDB or MySQL, and the version. MariaDB names itself in VERSION()."""
        version = str(connection.scalar(text("SELECT VERSION()")))
        return f"{'mariadb' if 'mariadb' in version.lower() else 'mysql'} {version}"

    def durability_gaps(self, connection: Connection) -> list[DurabilityGap]:
        """Logs that are not flushed at each commit; row locks that other nodes of a cluster do not see."""
        return durability_gaps_in(server_settings(connection))

    def autocommits(self, connection: Connection) -> bool:
        """Ask ``get_autocommit`` of PyMySQL and mysqlclient; their ``autocommit`` is the method that sets it."""
        ask = getattr(connection.connection.dbapi_connection, "get_autocommit", None)
        return bool(ask()) if ask is not None else super().autocommits(connection)

    def is_in_transaction(self, connection: Connection) -> bool | None:
        """Read the last status flags that the server sent to PyMySQL or aiomysql."""
        status = getattr(connection.connection.driver_connection, "server_status", None)
        return None if status is None else bool(status & _SERVER_STATUS_IN_TRANS)

    def begin_unit(self, connection: Connection) -> None:
        """Set a savepoint, which is gone if the server ends the transaction."""
        connection.exec_driver_sql(f"SAVEPOINT {UNIT}")

    ended = (
        "the server ended the transaction of this unit of work inside its block (a statement that commits by itself, "
        "such as DDL, a deadlock whose error was caught, or COMMIT or ROLLBACK past SQLAlchemy): what came before is "
        "not in the transaction; after a commit it is in the database, without its records"
    )

    def fate(self, connection: Connection, mark: str) -> Fate:
        """Release the savepoint. DDL, LOCK TABLES and other statements commit implicitly; a deadlock rolls back."""
        try:
            run_unseen(connection, f"RELEASE SAVEPOINT {UNIT}")
        except DBAPIError as error:
            if _number(error) != _NO_SUCH_SAVEPOINT:
                raise
            return Fate.UNKNOWN
        return Fate.OPEN

    def reads_a_snapshot(self, connection: Connection) -> bool:
        """If MariaDB's innodb_snapshot_isolation is on, and the isolation level is above READ COMMITTED."""
        known = connection.info.get(_SNAPSHOTS)
        if known is None:
            known = server_settings(connection).get("innodb_snapshot_isolation") == "ON"
            connection.info[_SNAPSHOTS] = known
        return bool(known) and not isolation_level(connection).startswith("READ")

    def require_transactional(self, connection: Connection, name: str, schema: str | None = None) -> None:
        """Refuse MyISAM, Aria, MEMORY and other engines without transactions."""
        kept_by = connection.execute(_ENGINE, {"name": name, "schema": schema}).one_or_none()
        if kept_by is not None and kept_by.transactions != "YES":
            raise ConfigurationError(
                f"the table {name!r} is kept by the engine {kept_by.engine}, which has no transactions: "
                f"ALTER TABLE {name} ENGINE = InnoDB"
            )

    def require_strict(self, connection: Connection) -> None:
        """Without a strict ``sql_mode`` the server truncates a long text, and clamps a number that is out of range."""
        mode = str(connection.scalar(text("SELECT @@SESSION.sql_mode")))
        if "STRICT_" not in mode and "TRADITIONAL" not in mode:
            raise ConfigurationError(
                "the database changes values that do not fit their column, so rows and records would differ: add "
                "STRICT_TRANS_TABLES to sql_mode"
            )

    def upsert(self, into: TableClause, keys: Sequence[str], fill: Callable[[Any], Any]) -> Insert:
        """By ON DUPLICATE KEY UPDATE."""
        return upsert(into, keys, fill)

    def bulk_inserts(self, connection: Connection, into: TableClause, keys: Sequence[str]) -> BulkInserts:
        """The drivers do not unescape %% behind VALUES, where an upsert repeats the names: if a name has a %, rows are
        inserted one by one."""
        singly = bool(keys) and any("%" in column.name for column in into.columns)
        return MultiRowInserts(connection, self._with_parameters(into, keys), into, singly=singly)

    def staging_options(self, connection: Connection, schema: str | None, name: str) -> Mapping[str, Any]:
        """The target's collation, and a transactional engine."""
        texts = self.text_options(connection, schema, name)
        return {**texts, f"{connection.dialect.name}_engine": self.table_options["engine"]}

    def text_options(self, connection: Connection, schema: str | None, name: str) -> Mapping[str, str]:
        """The table's character set and collation."""
        options = inspect(connection).get_table_options(name, schema)
        return {key: str(value) for key, value in options.items() if key.endswith(("charset", "collate"))}

    @contextmanager
    def changing_tables(self, connection: Connection) -> Iterator[None]:
        """Take a named lock (GET_LOCK): DDL commits, and so would release the locks of the transaction.

        :raises DatabaseBusyError: if another connection holds the lock for a minute.
        """
        if connection.scalar(text("SELECT GET_LOCK('dualwrite db upgrade', 60)")) != 1:
            raise DatabaseBusyError("another process has been changing the tables for a minute: is it stuck?")
        try:
            yield
            # DDL has committed everything else. Commit the rest here: the transaction ends only after the lock is
            # released, when the next process may already read.
            connection.exec_driver_sql("COMMIT")
        finally:
            # A connection that returns to its pool would keep the lock.
            _unless_lost(connection, "DO RELEASE_LOCK('dualwrite db upgrade')")

    @contextmanager
    def locked_tables(self, connection: Connection, names: Sequence[str]) -> Iterator[None]:
        """Use LOCK TABLES, which outlasts the implicit commits of DDL."""
        if not names:
            yield
            return
        connection.exec_driver_sql("LOCK TABLES " + ", ".join(f"{name} WRITE" for name in names))
        try:
            yield
        finally:
            _unless_lost(connection, "UNLOCK TABLES")

    @contextmanager
    def own_transaction(self, connection: Connection, lock_timeout: float) -> Iterator[None]:
        """Save the session's timeouts in session variables, and restore them from there."""
        seconds = round(lock_timeout)
        timeouts = {**_TIMEOUTS, _OF_STATEMENTS[bool(getattr(connection.dialect, "is_mariadb", False))]: 0}
        connection.exec_driver_sql(
            "SET "
            + ", ".join(
                f"@dualwrite_{name} = @@SESSION.{name}, SESSION {name} = {seconds if value is None else value}"
                for name, value in timeouts.items()
            )
        )
        yield
        if not connection.invalidated:
            connection.exec_driver_sql("SET " + ", ".join(f"SESSION {name} = @dualwrite_{name}" for name in timeouts))

    def rolls_back(self, connection: Connection, error: BaseException) -> bool:
        """True for a deadlock, and for a row that has changed since the snapshot."""
        return _number_of(error) in _ROLLS_BACK

    def connect_limit(self, url: URL, usual: float) -> float:
        """PyMySQL's connect_timeout ends before the server's greeting, for which it waits by read_timeout."""
        return math.inf if seconds_in(url, "read_timeout") else max(usual, seconds_in(url, "connect_timeout"))

    def is_away(self, error: BaseException) -> bool:
        """By the error's number. PyMySQL reports a host that does not exist as one that does not answer."""
        cause = getattr(error, "orig", error)
        return _number_of(cause) in _AWAY and _NO_SUCH_HOST not in str(cause)

    def meaning_of(self, error: DBAPIError) -> ErrorMeaning | None:
        """By the error's number. A savepoint that is gone has the meaning of the error that took it away: SQLAlchemy
        meets it as it rolls back to the savepoint because of that error."""
        if _number(error) == _NO_SUCH_SAVEPOINT and error.orig is not None:
            before = error.orig.__context__
            return self.meaning_of(before) if isinstance(before, DBAPIError) else None
        if _number(error) == _OPTION_PREVENTS_STATEMENT and "read-only" in str(error.orig):
            return ErrorMeaning.READ_ONLY
        return _TROUBLES.get(_number(error))


def _unnamed(url: URL) -> ConfigurationError:
    return ConfigurationError(f"the URL names no database: {url_text(url.set(database='NAME'))}")


def _digest(variables: Mapping[str, str]) -> str:
    """A digest of the ``variables`` that tell two MariaDB servers apart.

    Before 10.5.26, 10.6.19 and 10.11.9 MariaDB has no server_uid, which is made of the network card's address and the
    port.
    """
    facts = [variables.get(name, "") for name in ("server_uid", "hostname", "port", "datadir")]
    return sha256("\0".join(facts).encode()).hexdigest()[:16]


def _is_locked(error: DBAPIError | None) -> bool:
    """True if ``error`` says that NOWAIT has found a locked row."""
    return error is not None and _number(error) in _LOCKED


def _number(error: DBAPIError) -> int:
    """The server's error number of ``error``; 0 if it has none."""
    return _number_of(error.orig)


def _number_of(error: BaseException | None) -> int:
    """The error number of the driver's own ``error``; 0 if it has none."""
    first = (getattr(error, "args", None) or (0,))[0]
    return first if isinstance(first, int) else 0


def _unless_lost(connection: Connection, statement: str) -> None:
    """Run ``statement`` unless the connection is lost, which has released its locks already."""
    if not connection.invalidated:
        connection.exec_driver_sql(statement)
