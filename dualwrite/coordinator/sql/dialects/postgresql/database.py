"""PostgreSQL, by psycopg, psycopg2 or asyncpg.

At READ COMMITTED, SELECT … FOR UPDATE waits for the transaction that wrote the row, and then sees the row that it
committed. A commit becomes visible only after it is on the disk.
"""

import logging
import math
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from errno import ECONNREFUSED, ECONNRESET, EHOSTUNREACH, ENETUNREACH, ETIMEDOUT
from typing import Any
from zlib import crc32

from sqlalchemy import (
    URL,
    Connection,
    Dialect,
    Insert,
    String,
    TableClause,
    bindparam,
    case,
    cast,
    extract,
    func,
    or_,
    select,
    table,
    text,
)
from sqlalchemy.dialects import postgresql
from sqlalchemy.exc import DBAPIError
from sqlalchemy.sql.elements import ColumnElement

from dualwrite.coordinator.sql.dialects.base import (
    FAILED,
    LONGEST_HOLD,
    Database,
    ErrorMeaning,
    isolation_level,
    sqlstate_of,
)
from dualwrite.coordinator.sql.dialects.interface.bulk_load import BulkInserts, on_conflict
from dualwrite.coordinator.sql.dialects.interface.server import DurabilityGap, MissingTimeout
from dualwrite.coordinator.sql.dialects.interface.urls import seconds_in
from dualwrite.coordinator.sql.dialects.postgresql import settings
from dualwrite.coordinator.sql.dialects.postgresql.copying import CopyInserts
from dualwrite.coordinator.sql.dialects.postgresql.refused_statements import GRAMMAR
from dualwrite.coordinator.sql.dialects.postgresql.timeouts import missing_timeouts
from dualwrite.coordinator.sql.dialects.unit_transactions import (
    Fate,
    TransactionEndedError,
    begin_with,
    run_unseen,
    unit_mark,
)
from dualwrite.errors import ConfigurationError, InvalidTransactionStateError

_LOG = logging.getLogger("dualwrite")

_TROUBLES = {
    "42P01": ErrorMeaning.NOT_READY,  # undefined_table
    "42703": ErrorMeaning.NOT_READY,  # undefined_column
    "55P03": ErrorMeaning.BUSY,  # lock_not_available
    "57014": ErrorMeaning.TOO_LONG,  # query_canceled, by statement_timeout
    "40001": ErrorMeaning.CONFLICT,  # serialization_failure
    "40P01": ErrorMeaning.CONFLICT,  # deadlock_detected
    "25P02": ErrorMeaning.FAILED,  # in_failed_sql_transaction
    "25006": ErrorMeaning.READ_ONLY,  # read_only_sql_transaction
}
_LIMITS: Mapping[str, float] = {"idle_in_transaction_session_timeout": LONGEST_HOLD, "statement_timeout": 0}
"""Limits of the library's own transactions, beside ``lock_timeout``; in seconds."""
_WITH_TRANSACTION_TIMEOUT = (17,)
"""The version from which on there is a limit for whole transactions. Inside one it can only be turned off."""
_IN_USE = re.compile(r"another operation (\(\d+\) )?is in progress")
"""asyncpg's words, also after "cannot switch to state 12"."""
_AWAY = (
    *map(os.strerror, (ECONNREFUSED, ECONNRESET, EHOSTUNREACH, ENETUNREACH, ETIMEDOUT)),
    "Is the server running",
    "server closed the connection",
    "connection was closed in the middle of operation",  # asyncpg's words, as the next ones
    "unexpected connection_lost() call",
    "timeout expired",
    "Temporary failure in name resolution",
    "starting up",
    "shutting down",
    "not yet accepting connections",
    "in recovery mode",
    "too many clients",
    "remaining connection slots",
)
"""Messages of libpq, asyncpg or the server after which a later attempt may succeed."""
_PIPELINE = (
    "a pipeline of psycopg's is open on the connection, where a statement does not say how many rows it has changed, "
    "nor a COMMIT that it has failed: leave the pipeline (`with driver.pipeline():`) inside the block"
)
_IDLE = 0
"""libpq's PQTRANS_IDLE."""
_IN_FAILED_TRANSACTION = 3
"""libpq's PQTRANS_INERROR."""

_TURN = 0x6475616C
"""Key of the advisory locks. The number is arbitrary, so that other applications are unlikely to use it."""

_DURABLE = case(
    (
        func.current_setting("synchronous_commit") == "off",
        func.set_config("synchronous_commit", "on", True),
    ),
    else_="",
).is_not(None)
"""Always true. Evaluating it turns off PostgreSQL's asynchronous commit for this transaction, so that a crash of the
server cannot undo the decision."""

_MARK = "dualwrite.unit"
"""The setting that holds the mark of the unit of work that began this transaction."""
_READ_MARK = f"SELECT current_setting('{_MARK}', true)"
_OF_UNIT = cast(bindparam("of_unit", type_=String), String)
_IS_OF_UNIT = or_(_OF_UNIT.is_(None), func.current_setting(_MARK, True) == _OF_UNIT)


def _committed(mark: str) -> str:
    """The setting's value after the transaction of the unit ``mark`` was committed."""
    return f"{mark} committed"


_SCHEMA_WITH = text(
    "SELECT n.nspname FROM unnest(pg_catalog.current_schemas(false)) WITH ORDINALITY AS s (name, place) "
    "JOIN pg_catalog.pg_namespace AS n ON n.nspname = s.name "
    "JOIN pg_catalog.pg_class AS c ON c.relnamespace = n.oid AND c.relname = :name AND c.relkind IN ('r', 'p') "
    "ORDER BY s.place LIMIT 1"
)


_OTHER_SCHEMAS_WITH = text(
    "SELECT n.nspname FROM pg_catalog.pg_class AS c JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace "
    "WHERE c.relname = :name AND c.relkind IN ('r', 'p') AND c.relpersistence <> 't' "
    "AND NOT pg_catalog.pg_table_is_visible(c.oid) AND pg_catalog.has_schema_privilege(n.oid, 'USAGE') "
    "AND pg_catalog.has_table_privilege(c.oid, 'SELECT') ORDER BY n.nspname"
)


_IDENTITY = text(
    "SELECT 'postgresql:' || c.system_identifier || ':' || d.oid || ':' || n.oid "
    "FROM pg_catalog.pg_control_system() AS c, pg_catalog.pg_database AS d, pg_catalog.pg_namespace AS n "
    "WHERE d.datname = current_database() AND n.nspname = COALESCE(:schema, 'public')"
)


_MAY_IDENTIFY = select(func.has_function_privilege("pg_catalog.pg_control_system()", "execute"))

_TABLE_ID = text(
    "SELECT 'postgresql:' || c.system_identifier || ':' || d.oid || ':' || CAST(to_regclass(:name) AS oid) "
    "FROM pg_catalog.pg_control_system() AS c, pg_catalog.pg_database AS d WHERE d.datname = current_database()"
)

_TYPE_NUMBERS = text("SELECT attname, atttypid FROM pg_attribute WHERE attrelid = to_regclass(:name) AND attnum > 0")


class Postgresql(Database):
    """PostgreSQL."""

    title = "PostgreSQL"
    example_url = "postgresql+psycopg://user@host/name"
    blocking_drivers: Mapping[str, str] = {"asyncpg": "psycopg", "psycopg_async": "psycopg"}
    lock_advice = "find the transaction that does not end in pg_stat_activity"
    standbys_query = "SHOW synchronous_standby_names"
    keeps_time_zones = True
    keeps_infinities = True
    keeps_negative_zeros = True
    grammar = GRAMMAR
    how_to_identify = "GRANT EXECUTE ON FUNCTION pg_control_system() TO the user that the application logs in as"

    def exact_connections(self, url: URL, patience: float) -> Mapping[str, Any]:
        """In another client encoding than UTF-8, a character that Kafka gets could be another one, or none. A statement
        that psycopg has prepared may be another client's behind a pooler. Other drivers than psycopg always use UTF-8,
        and prepare nothing by a name."""
        is_psycopg = url.get_driver_name() == "psycopg"
        return {"client_encoding": "utf8", "prepare_threshold": None} if is_psycopg else {}

    def from_now(self, seconds: float) -> ColumnElement[Any]:
        """Use clock_timestamp(): CURRENT_TIMESTAMP is the time at which the transaction began."""
        return func.clock_timestamp() + func.make_interval(0, 0, 0, 0, 0, 0, seconds)

    def seconds_until(self, moment: ColumnElement[Any]) -> ColumnElement[Any]:
        """Computed from an interval."""
        return extract("epoch", moment - func.clock_timestamp())

    def store_conditions(self) -> Sequence[ColumnElement[bool]]:
        """The second makes the commit that follows durable. If the mark of the unit of work is given as ``of_unit``,
        the first finds the row only in the transaction that the unit of work began."""
        return (_IS_OF_UNIT, _DURABLE)

    def require_suitable(self, connection: Connection, schema: str | None = None) -> None:
        """Warn of a driver that prepares statements behind a pooler."""
        for gap in self.pooling(connection):
            _LOG.warning("the connection to the database has %s", str(gap))

    def durability_gaps(self, connection: Connection) -> list[DurabilityGap]:
        """Settings that weaken durability; see settings.py."""
        return settings.durability_gaps(connection)

    def pooling(self, connection: Connection) -> list[DurabilityGap]:
        """Prepared statements behind a pooler; see settings.py."""
        return settings.pooling(connection)

    def unusable_sequences(self, connection: Connection, table: str, schema: str | None) -> list[str]:
        """Sequences without USAGE; see settings.py."""
        return settings.unusable_sequences(connection, table, schema)

    def missing_timeouts(self, connection: Connection) -> Iterator[MissingTimeout]:
        """See timeouts.py."""
        yield from missing_timeouts(connection)

    def is_in_transaction(self, connection: Connection) -> bool | None:
        """Ask libpq or asyncpg, without a request to the server."""
        driver: Any = connection.connection.driver_connection
        information = getattr(driver, "info", None)
        if information is not None:
            return bool(information.transaction_status != _IDLE)
        ask = getattr(driver, "is_in_transaction", None)
        return bool(ask()) if ask is not None else None

    def is_over(self, connection: Connection) -> bool:
        """Also after a statement that has failed: the COMMIT rolls back, and reports no error."""
        return super().is_over(connection) or bool(self._is_known_to_have_failed(connection))

    def identity(self, connection: Connection, schema: str | None) -> str | None:
        """The system identifier, and the oids of the database and of the tables' schema.

        A physical standby shares the system identifier. A copy made by SQL shares no oids.
        """
        if not connection.scalar(_MAY_IDENTIFY):
            return None
        return str(connection.scalar(_IDENTITY, {"schema": schema}))

    def schema_with(self, connection: Connection, name: str) -> str | None:
        """Look in the search_path that the session began with: a listener may have changed it for the current tenant.
        If that finds no table, look in the current search_path.

        :raises ConfigurationError: if the two find different tables.
        """
        path = str(connection.scalar(text("SELECT current_setting('search_path')")))
        connection.exec_driver_sql("SET LOCAL search_path TO DEFAULT")
        by_default = connection.scalar(_SCHEMA_WITH, {"name": name})
        connection.execute(select(func.set_config("search_path", path, True)))
        by_now = connection.scalar(_SCHEMA_WITH, {"name": name})
        if by_default is not None and by_now is not None and by_default != by_now:
            raise ConfigurationError(
                f"there is a table {name!r} in the schema {by_default!r}, by the search_path that a session begins "
                f"with, and in {by_now!r}, by the one that a listener has set: choose one with schema="
            )
        schema = by_default or by_now
        return None if schema is None else str(schema)

    def other_schemas_with(self, connection: Connection, name: str) -> list[str]:
        """Schemas outside of the search_path, which may have been changed since (ALTER ROLE … SET search_path)."""
        return [str(schema) for schema in connection.scalars(_OTHER_SCHEMAS_WITH, {"name": name})]

    def begin(self, connection: Connection) -> None:
        """Not in psycopg's pipeline mode.

        :raises ConfigurationError: also if a pipeline is open on the connection.
        """
        super().begin(connection)
        if _has_pipeline(connection):
            raise ConfigurationError(_PIPELINE)

    def begin_unit(self, connection: Connection) -> None:
        """Give a setting two values: one ends with the transaction, the other stays if the transaction is committed.

        SET takes no snapshot, so the user can still choose the isolation level afterwards.
        """
        mark = unit_mark(connection)
        if mark is not None:
            begin_with(connection, [f"SET {_MARK} = '{_committed(mark)}'", f"SET LOCAL {_MARK} = '{mark}'"])

    def store_values(self, connection: Connection) -> dict[str, object]:
        """The mark of the unit of work; None if the transaction is not that of a unit of work."""
        return {"of_unit": unit_mark(connection)}

    ended = (
        "the transaction of this unit of work was ended inside its block, past SQLAlchemy (COMMIT or ROLLBACK as text, "
        "AND CHAIN, or the driver's own commit() or rollback()): what came before is not in the transaction; after a "
        "commit it is in the database, without its records"
    )

    def require_unit(self, connection: Connection, mark: str, *, storing: bool) -> None:
        """After a failed statement the transaction can only roll back, and COMMIT does so without an error."""
        if _has_pipeline(connection):
            raise InvalidTransactionStateError(_PIPELINE)
        if storing and not self._is_known_to_have_failed(connection):
            return  # the UPDATE that stores the state tests the mark, or fails as the transaction has
        fate = self.fate(connection, mark)
        if fate is Fate.ROLLED_BACK:
            raise TransactionEndedError(FAILED, fate)
        if fate is not Fate.OPEN:
            raise TransactionEndedError(self.ended, fate)

    def fate(self, connection: Connection, mark: str) -> Fate:
        """Read the setting. A failed transaction answers no query, so it is rolled back first.

        The value that remains then tells whether the failed transaction was the unit's, or one that began after the
        unit's was committed.
        """
        has_failed = bool(self._is_known_to_have_failed(connection))
        if not has_failed:
            try:
                value = run_unseen(connection, _READ_MARK, fetch=True)
            except DBAPIError as error:
                if self.meaning_of(error) is not ErrorMeaning.FAILED:
                    raise
                has_failed = True
        if has_failed:
            connection.connection.rollback()
            value = run_unseen(connection, _READ_MARK, fetch=True)
        if value == mark:
            return Fate.OPEN
        if value == _committed(mark):
            return Fate.COMMITTED
        return Fate.ROLLED_BACK if has_failed else Fate.UNKNOWN

    def _is_known_to_have_failed(self, connection: Connection) -> bool | None:
        """Psycopg and psycopg2 know it without asking the server. None for asyncpg, which does not expose it."""
        information = getattr(connection.connection.driver_connection, "info", None)
        return None if information is None else bool(information.transaction_status == _IN_FAILED_TRANSACTION)

    def reads_a_snapshot(self, connection: Connection) -> bool:
        """True at REPEATABLE READ and SERIALIZABLE."""
        return not isolation_level(connection).startswith("READ")

    def find_by_key(self, connection: Connection, *, on: bool) -> None:
        """Turn sequential scans off or on again at SERIALIZABLE.

        A sequential scan reads every row, so units of work that each write their own row would conflict. PostgreSQL
        prefers a sequential scan for a table of one page.
        """
        if isolation_level(connection) == "SERIALIZABLE":
            connection.exec_driver_sql(f"SET LOCAL enable_seqscan = {'off' if on else 'DEFAULT'}")

    def take_turn(self, connection: Connection, name: str, *, shared: bool) -> None:
        """Take an advisory lock, which queues. A row's FOR SHARE lock would overtake a waiting FOR UPDATE."""
        kind = "_shared" if shared else ""
        number = crc32(name.encode()) - 2**31  # it must be signed; two names with the same number share a lock
        connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock{kind}({_TURN}, {number})")

    def upsert(self, into: TableClause, keys: Sequence[str], fill: Callable[[Any], Any]) -> Insert:
        """By ON CONFLICT."""
        return on_conflict(fill(postgresql.insert(into)), into, keys)

    def bulk_inserts(self, connection: Connection, into: TableClause, keys: Sequence[str]) -> BulkInserts:
        """By COPY, through psycopg."""
        if self.takes_lines(connection.dialect):
            return CopyInserts(connection, into, keys)
        return super().bulk_inserts(connection, into, keys)

    def read_in_key_order(self, connection: Connection, *, on: bool) -> None:
        """A table that has just been filled has no statistics: PostgreSQL takes a sort for cheap, and it would write
        the rows to temporary files."""
        connection.exec_driver_sql(f"SET LOCAL enable_sort = {'off' if on else 'DEFAULT'}")

    def takes_lines(self, dialect: Dialect) -> bool:
        """True for psycopg."""
        return dialect.driver == "psycopg"

    def staging_options(self, connection: Connection, schema: str | None, name: str) -> Mapping[str, Any]:
        """Without the write-ahead log."""
        return {"prefixes": ["UNLOGGED"]}

    def type_numbers(self, connection: Connection, schema: str | None, name: str) -> Mapping[str, int]:
        """The oids of the types."""
        quoted = connection.dialect.identifier_preparer.format_table(table(name, schema=schema))
        return {column: int(number) for column, number in connection.execute(_TYPE_NUMBERS, {"name": quoted})}

    def table_id(self, connection: Connection, schema: str | None, name: str) -> str | None:
        """The table's oid. A table that was dropped and created again has another one; so has a restored dump, but in a
        database with another identity."""
        if not connection.scalar(_MAY_IDENTIFY):
            return None
        quoted = connection.dialect.identifier_preparer.format_table(table(name, schema=schema))
        identity: str | None = connection.scalar(_TABLE_ID, {"name": quoted})
        return identity

    @contextmanager
    def changing_tables(self, connection: Connection) -> Iterator[None]:
        """Take an advisory lock until the transaction ends."""
        connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({_TURN})")
        yield

    @contextmanager
    def locked_tables(self, connection: Connection, names: Sequence[str]) -> Iterator[None]:
        """Lock the tables until the transaction ends, as DROP TABLE would."""
        if names:
            connection.exec_driver_sql(f"LOCK TABLE {', '.join(names)} IN ACCESS EXCLUSIVE MODE")
        yield

    @contextmanager
    def own_transaction(self, connection: Connection, lock_timeout: float) -> Iterator[None]:
        """Set the limits for this transaction only, so they end with it. One statement saves round trips.

        The session's limits are meant for the application's statements. These ones may wait for a lock, and the whole
        transaction for Kafka.
        """
        limits: dict[str, float] = {**_LIMITS, "lock_timeout": lock_timeout}
        if (connection.dialect.server_version_info or (0,)) >= _WITH_TRANSACTION_TIMEOUT:
            limits["transaction_timeout"] = 0
        set_limits = [func.set_config(name, str(int(seconds * 1000)), True) for name, seconds in limits.items()]
        connection.execute(select(_DURABLE, *set_limits))
        yield

    def connect_limit(self, url: URL, usual: float) -> float:
        """libpq and psycopg keep to a timeout of their own until the server lets the client in."""
        return math.inf if seconds_in(url, "connect_timeout") else usual

    def is_away(self, error: BaseException) -> bool:
        """By the message: a failed attempt to connect has no SQLSTATE."""
        said = str(getattr(error, "orig", error))
        return any(phrase in said for phrase in _AWAY)

    def meaning_of(self, error: DBAPIError) -> ErrorMeaning | None:
        """By the SQLSTATE; by asyncpg's words if there is none, as those of a server may have text of the user's."""
        state = sqlstate_of(error)
        if state is None:
            return ErrorMeaning.IN_USE if _IN_USE.search(str(error.orig)) else None
        return _TROUBLES.get(state)


def _has_pipeline(connection: Connection) -> bool:
    """True if psycopg sends statements of ``connection`` without waiting for their results."""
    return getattr(connection.connection.driver_connection, "_pipeline", None) is not None
