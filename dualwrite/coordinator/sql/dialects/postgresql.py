"""PostgreSQL, by psycopg, psycopg2 or asyncpg.

SELECT … FOR UPDATE at READ COMMITTED waits for whoever wrote the row and then sees what it committed, and a commit is
seen only after the disk has it.
"""

import logging
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from errno import ECONNREFUSED, ECONNRESET, EHOSTUNREACH, ENETUNREACH, ETIMEDOUT
from typing import Any
from zlib import crc32

from sqlalchemy import Connection, String, Update, bindparam, case, cast, extract, func, or_, select, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.sql.elements import ColumnElement

from dualwrite.coordinator.sql.dialects import postgresql_settings
from dualwrite.coordinator.sql.dialects.base import (
    FAILED,
    LONGEST_HOLD,
    Database,
    DurabilityGap,
    ErrorMeaning,
    isolation_level,
)
from dualwrite.coordinator.sql.dialects.unit_transactions import (
    Fate,
    TransactionEndedError,
    begin_with,
    run_unseen,
    unit_mark,
)
from dualwrite.errors import ConfigurationError

_LOG = logging.getLogger("dualwrite")

_TROUBLES = {
    "42P01": ErrorMeaning.NOT_READY,  # undefined_table
    "42703": ErrorMeaning.NOT_READY,  # undefined_column
    "55P03": ErrorMeaning.BUSY,  # lock_not_available
    "40001": ErrorMeaning.CONFLICT,  # serialization_failure
    "40P01": ErrorMeaning.CONFLICT,  # deadlock_detected
    "25P02": ErrorMeaning.FAILED,  # in_failed_sql_transaction
}
_AWAY = (
    *map(os.strerror, (ECONNREFUSED, ECONNRESET, EHOSTUNREACH, ENETUNREACH, ETIMEDOUT)),
    "Is the server running",
    "server closed the connection",
    "timeout expired",
    "Temporary failure in name resolution",
    "starting up",
    "shutting down",
    "not yet accepting connections",
    "in recovery mode",
    "too many clients",
    "remaining connection slots",
)
"""What libpq, or the server, says when it is another time's matter."""
_IDLE = 0
"""libpq's PQTRANS_IDLE."""
_IN_FAILED_TRANSACTION = 3
"""libpq's PQTRANS_INERROR."""

_TURN = 0x6475616C
"""Any number that no other user of advisory locks is likely to choose."""

_DURABLE = case(
    (
        func.current_setting("synchronous_commit") == "off",
        func.set_config("synchronous_commit", "on", True),
    ),
    else_="",
).is_not(None)
"""True, and in passing turns PostgreSQL's asynchronous commit off for this transaction: a decision that a crash of the
server can take back is none."""

_MARK = "dualwrite.unit"
"""The setting that names the unit of work whose transaction this is."""
_READ_MARK = f"SELECT current_setting('{_MARK}', true)"
_OF_UNIT = cast(bindparam("of_unit", type_=String), String)
_IS_OF_UNIT = or_(_OF_UNIT.is_(None), func.current_setting(_MARK, True) == _OF_UNIT)


def _committed(mark: str) -> str:
    """What the setting says after a commit of the transaction of the unit ``mark``."""
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


class Postgresql(Database):
    """PostgreSQL."""

    def from_now(self, seconds: float) -> ColumnElement[Any]:
        """CURRENT_TIMESTAMP would be when the transaction began."""
        return func.clock_timestamp() + func.make_interval(0, 0, 0, 0, 0, 0, seconds)

    def seconds_until(self, moment: ColumnElement[Any]) -> ColumnElement[Any]:
        """From an interval."""
        return extract("epoch", moment - func.clock_timestamp())

    def store(self) -> Update:
        """As everywhere, and the commit that follows is durable; in the transaction that the unit of work began, if its
        mark is given as of_unit."""
        return super().store().where(_IS_OF_UNIT).where(_DURABLE)

    def require_suitable(self, connection: Connection, schema: str | None = None) -> None:
        """A driver that prepares statements behind a pooler is warned of."""
        for weakness in self.pooling(connection):
            _LOG.warning("the connection to the database has %s", weakness)

    def weaknesses(self, connection: Connection) -> list[DurabilityGap]:
        """See postgresql_settings."""
        return postgresql_settings.weaknesses(connection)

    def pooling(self, connection: Connection) -> list[DurabilityGap]:
        """See postgresql_settings."""
        return postgresql_settings.pooling(connection)

    def is_in_transaction(self, connection: Connection) -> bool:
        """By libpq, or asyncpg."""
        driver: Any = connection.connection.driver_connection
        information = getattr(driver, "info", None)
        if information is not None:
            return bool(information.transaction_status != _IDLE)
        ask = getattr(driver, "is_in_transaction", None)
        return bool(ask()) if ask is not None else False

    def identity(self, connection: Connection, schema: str | None) -> str | None:
        """The system identifier, which a physical standby shares, and the oids of the database and the tables' schema,
        which no copy by SQL does."""
        if not connection.scalar(select(func.has_function_privilege("pg_catalog.pg_control_system()", "execute"))):
            return None
        return str(connection.scalar(_IDENTITY, {"schema": schema}))

    def schema_with(self, connection: Connection, name: str) -> str | None:
        """By the search_path that the session began with: a listener may have changed it for whom it serves just now.
        Only if nothing is there, by that one.

        :raises ConfigurationError: if each of the two finds a table, and not the same.
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
        found = by_default or by_now
        return None if found is None else str(found)

    def other_schemas_with(self, connection: Connection, name: str) -> list[str]:
        """Those that the search_path does not lead to: it may have been another one before (ALTER ROLE … SET
        search_path)."""
        return [str(schema) for schema in connection.scalars(_OTHER_SCHEMAS_WITH, {"name": name})]

    def begin_unit(self, connection: Connection) -> None:
        """A setting by two values: one that ends with the transaction, and one that stays if it is committed. SET takes
        no snapshot, so that the user may choose the isolation level yet."""
        mark = unit_mark(connection)
        if mark is not None:
            begin_with(connection, [f"SET {_MARK} = '{_committed(mark)}'", f"SET LOCAL {_MARK} = '{mark}'"])

    def store_values(self, connection: Connection) -> dict[str, object]:
        """The mark of the unit of work, if the transaction is one's."""
        return {"of_unit": unit_mark(connection)}

    ended = (
        "the transaction of this unit of work was ended inside its block, past SQLAlchemy (COMMIT or ROLLBACK as text, "
        "AND CHAIN, or the driver's own commit() or rollback()): what came before is not in the transaction; after a "
        "commit it is in the database, without its records"
    )

    def require_unit(self, connection: Connection, mark: str, *, storing: bool) -> None:
        """A statement that failed dooms the transaction, and COMMIT rolls it back without an error."""
        if storing and not self._is_known_to_have_failed(connection):
            return  # the statement that stores tests the mark, or fails with the transaction
        fate = self.fate(connection, mark)
        if fate is Fate.ROLLED_BACK:
            raise TransactionEndedError(FAILED, fate)
        if fate is not Fate.OPEN:
            raise TransactionEndedError(self.ended, fate)

    def fate(self, connection: Connection, mark: str) -> Fate:
        """By the setting. A transaction that has failed answers nothing: it is rolled back, and the setting that stays
        says whether it was the unit's or one that came after the unit's was committed."""
        has_failed = bool(self._is_known_to_have_failed(connection))
        if not has_failed:
            try:
                found = run_unseen(connection, _READ_MARK, fetch=True)
            except DBAPIError as error:
                if self.trouble(error) is not ErrorMeaning.FAILED:
                    raise
                has_failed = True
        if has_failed:
            connection.connection.rollback()
            found = run_unseen(connection, _READ_MARK, fetch=True)
        if found == mark:
            return Fate.OPEN
        if found == _committed(mark):
            return Fate.COMMITTED
        return Fate.ROLLED_BACK if has_failed else Fate.UNKNOWN

    def _is_known_to_have_failed(self, connection: Connection) -> bool | None:
        """Psycopg and psycopg2 know it without asking the server. None of asyncpg: it does not say."""
        information = getattr(connection.connection.driver_connection, "info", None)
        return None if information is None else bool(information.transaction_status == _IN_FAILED_TRANSACTION)

    def reads_a_snapshot(self, connection: Connection) -> bool:
        """At REPEATABLE READ and SERIALIZABLE."""
        return not isolation_level(connection).startswith("READ")

    def find_by_key(self, connection: Connection, *, on: bool) -> None:
        """At SERIALIZABLE, who scans a table has read every row of it. Units of work that write each a row of its own
        would then fail each other, and scanning is what PostgreSQL prefers for a table of one page."""
        if isolation_level(connection) == "SERIALIZABLE":
            connection.exec_driver_sql(f"SET LOCAL enable_seqscan = {'off' if on else 'DEFAULT'}")

    def take_turn(self, connection: Connection, name: str, *, shared: bool) -> None:
        """An advisory lock: those are queued for, and of a row FOR SHARE is granted past a FOR UPDATE that waits."""
        kind = "_shared" if shared else ""
        number = crc32(name.encode()) - 2**31  # a signed one is wanted; two names with the same wait for each other
        connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock{kind}({_TURN}, {number})")

    @contextmanager
    def changing_tables(self, connection: Connection) -> Iterator[None]:
        """An advisory lock, for the length of the transaction."""
        connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({_TURN})")
        yield

    @contextmanager
    def locked_tables(self, connection: Connection, names: Sequence[str]) -> Iterator[None]:
        """For the length of the transaction, as DROP TABLE would."""
        if names:
            connection.exec_driver_sql(f"LOCK TABLE {', '.join(names)} IN ACCESS EXCLUSIVE MODE")
        yield

    @contextmanager
    def own_transaction(self, connection: Connection, lock_timeout: float) -> Iterator[None]:
        """What is set for a transaction ends with it. One statement, as each is a round trip."""
        limits = {"lock_timeout": lock_timeout, "idle_in_transaction_session_timeout": LONGEST_HOLD}
        settings = [func.set_config(name, str(int(seconds * 1000)), True) for name, seconds in limits.items()]
        connection.execute(select(_DURABLE, *settings))
        yield

    def is_away(self, error: DBAPIError) -> bool:
        """By the text: of an attempt to connect there is no SQLSTATE."""
        said = str(error.orig)
        return any(each in said for each in _AWAY)

    def trouble(self, error: DBAPIError) -> ErrorMeaning | None:
        """By the SQLSTATE."""
        return _TROUBLES.get(_sqlstate(error))


def _sqlstate(error: DBAPIError) -> str:
    """Psycopg2 calls it pgcode."""
    return str(getattr(error.orig, "sqlstate", None) or getattr(error.orig, "pgcode", None))
