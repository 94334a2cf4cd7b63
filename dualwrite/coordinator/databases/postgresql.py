"""PostgreSQL, by psycopg, psycopg2 or asyncpg.

SELECT … FOR UPDATE at READ COMMITTED waits for whoever wrote the row and then sees what it committed, and a commit is
seen only after the disk has it.
"""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from errno import ECONNREFUSED, ECONNRESET, EHOSTUNREACH, ENETUNREACH, ETIMEDOUT
from typing import Any
from zlib import crc32

from sqlalchemy import Connection, Update, case, extract, func, select, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.sql.elements import ColumnElement

from dualwrite.coordinator.databases.base import LONGEST_HOLD, Database, Trouble, Weakness, isolation_level
from dualwrite.errors import InvalidTransactionStateError

_TROUBLES = {
    "42P01": Trouble.NOT_READY,  # undefined_table
    "42703": Trouble.NOT_READY,  # undefined_column
    "55P03": Trouble.BUSY,  # lock_not_available
    "40001": Trouble.CONFLICT,  # serialization_failure
    "40P01": Trouble.CONFLICT,  # deadlock_detected
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
_IN_FAILED_TRANSACTION = 3
"""libpq's PQTRANS_INERROR."""
_TRANSACTION_FAILED = "25P02"
"""in_failed_sql_transaction."""

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


class Postgresql(Database):
    """PostgreSQL."""

    def from_now(self, seconds: float) -> ColumnElement[Any]:
        """CURRENT_TIMESTAMP would be when the transaction began."""
        return func.clock_timestamp() + func.make_interval(0, 0, 0, 0, 0, 0, seconds)

    def seconds_until(self, moment: ColumnElement[Any]) -> ColumnElement[Any]:
        """From an interval."""
        return extract("epoch", moment - func.clock_timestamp())

    def store(self) -> Update:
        """As everywhere, and the commit that follows is durable."""
        return super().store().where(_DURABLE)

    def weaknesses(self, connection: Connection) -> list[Weakness]:
        """An asynchronous commit is none: :meth:`store` turns it off."""
        found = []
        if connection.scalar(text("SHOW fsync")) == "off":
            found.append(
                Weakness("fsync = off", "a crash of its machine can undo a decision, or damage all of it", "turn it on")
            )
        if connection.scalar(text("SHOW full_page_writes")) == "off":
            found.append(
                Weakness("full_page_writes = off", "a crash of its machine can tear pages of the table", "turn it on")
            )
        return found

    def require_unit(self, connection: Connection) -> None:
        """A statement that failed dooms the transaction, and COMMIT rolls it back without an error."""
        if self._has_failed(connection):
            raise InvalidTransactionStateError(
                "a statement of this unit of work failed and its error was caught, so PostgreSQL will roll all of it "
                "back: let the error leave the block, or use a savepoint (begin_nested) around such a statement"
            )

    def _has_failed(self, connection: Connection) -> bool:
        # psycopg and psycopg2 know it without asking the server. asyncpg does not say: a statement tells.
        information = getattr(connection.connection.driver_connection, "info", None)
        if information is not None:
            return bool(information.transaction_status == _IN_FAILED_TRANSACTION)
        try:
            connection.exec_driver_sql("SELECT 1")
        except DBAPIError as error:
            if _sqlstate(error) != _TRANSACTION_FAILED:
                raise
            return True
        return False

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

    def trouble(self, error: DBAPIError) -> Trouble | None:
        """By the SQLSTATE."""
        return _TROUBLES.get(_sqlstate(error))


def _sqlstate(error: DBAPIError) -> str:
    """Psycopg2 calls it pgcode."""
    return str(getattr(error.orig, "sqlstate", None) or getattr(error.orig, "pgcode", None))
