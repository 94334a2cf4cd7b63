"""The interface to a kind of database, with the implementation that most of them share."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from typing import Any

from sqlalchemy import Connection, Dialect, Row, Select, Update, bindparam, func, or_, update
from sqlalchemy.exc import DBAPIError
from sqlalchemy.sql.elements import ColumnElement

from dualwrite.coordinator.sql.dialects.unit_transactions import Fate, TransactionEndedError
from dualwrite.coordinator.sql.tables import kafka_transaction_state as table
from dualwrite.errors import ConfigurationError

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

_LEVEL = "dualwrite_isolation_level"


class ErrorMeaning(Enum):
    """The meaning of a database error, if it has one for the library."""

    NOT_READY = "the state table is missing, or of another version"
    BUSY = "another transaction held a lock for too long"
    CONFLICT = "a deadlock or a serialization failure: rolled back, and likely to succeed when it is run again"
    FAILED = "an earlier statement has failed, and the transaction can only be rolled back"


@dataclass(frozen=True, slots=True)
class DurabilityGap:
    """A setting with which a crash can undo what the database has said to be committed.

    :param setting: as the database spells it, with its value.
    :param meaning: what can happen.
    :param advice: what to do about it.
    """

    setting: str
    meaning: str
    advice: str

    def __str__(self) -> str:
        return f"{self.setting}: {self.meaning}; {self.advice}"


class CompiledUpdate:
    """``statement`` as text for one dialect, its tables in ``schema``: SQLAlchemy takes half as long again if it has to
    find what it compiled.

    For columns whose values the driver takes as they are.
    """

    def __init__(self, statement: Update, dialect: Dialect, schema: str | None = None) -> None:
        names: dict[str, Any] = (
            {} if schema is None else {"schema_translate_map": {None: schema}, "render_schema_translate": True}
        )
        compiled = statement.compile(dialect=dialect, **names)
        self._text = str(compiled)
        self._constants = compiled.params
        self._order: Sequence[str] | None = getattr(compiled, "positiontup", None)

    def run(self, connection: Connection, values: Mapping[str, object]) -> int:
        """Execute it with the parameters ``values``; the number of rows that it found."""
        named = {**self._constants, **values}
        given = named if self._order is None else tuple([named[name] for name in self._order])
        return connection.exec_driver_sql(self._text, given).rowcount


class Database:
    """One kind of database, as PEP 249's drivers and SQLAlchemy show it."""

    shows_commits_early = False
    """True if others see what a transaction committed before the disk has it."""

    has_schemas = True
    """False if there is one place for tables, which needs no name."""

    one_writer = False
    """True if only one transaction can write at a time: all others wait for it, in no order."""

    def now(self) -> ColumnElement[Any]:
        """The database's clock."""
        return func.current_timestamp()

    def from_now(self, seconds: float) -> ColumnElement[Any]:
        """The moment ``seconds`` from now, by the database's clock, whenever its transaction began."""
        raise NotImplementedError

    def seconds_until(self, moment: ColumnElement[Any]) -> ColumnElement[Any]:
        """Seconds from now until ``moment``, by the same clock; NULL for no moment."""
        raise NotImplementedError

    def store(self) -> Update:
        """The one statement that a unit of work costs: a compare-and-set.

        It finds the row of_id if that is still of_token's, has of_version or or_version (the lease is being renewed),
        and holds of_state with of_anchor ("" for none). It writes new_state, new_anchor and new_first_record.
        """
        version = func.coalesce(table.c.lease_version, 0)
        return (
            update(table)
            .where(table.c.transactional_id == bindparam("of_id"))
            .where(table.c.fencing_token == bindparam("of_token"))
            .where(or_(version == bindparam("of_version"), version == bindparam("or_version")))
            .where(table.c.prepared_txn_state == bindparam("of_state"))
            .where(func.coalesce(table.c.anchor, "") == bindparam("of_anchor"))
            .values(
                prepared_txn_state=bindparam("new_state"),
                anchor=bindparam("new_anchor"),
                first_record=bindparam("new_first_record"),
                updated_at=self.now(),
            )
        )

    def lock_at_once(self, connection: Connection, rows: Select[Any], options: Mapping[str, Any]) -> Sequence[Row[Any]]:
        """Lock and read ``rows`` but for those that others have locked; nothing waits.

        :param options: of the execution.
        """
        return connection.execute(rows.with_for_update(skip_locked=True), execution_options=options).all()

    def identity(self, connection: Connection, schema: str | None) -> str | None:
        """The identity that distinguishes the state table's database from its copies; None if there is none.

        :param schema: of the state table.
        """
        return None

    def schema_with(self, connection: Connection, name: str) -> str | None:
        """The schema in which ``connection`` finds the table ``name``; None if there is none, or no schemas."""
        return None

    def other_schemas_with(self, connection: Connection, name: str) -> list[str]:
        """The schemas in which the login may read a table ``name`` that ``connection`` finds only if they are named.
        None where a URL names the schema, so that another one is another application's."""
        return []

    def require_suitable(self, connection: Connection, schema: str | None = None) -> None:
        """Look at the server's settings and the state table, once per engine; warn of what weakens the promise.

        :param schema: of the state table.

        :raises ConfigurationError: if a dual write cannot work there.
        """

    def version(self, connection: Connection) -> str:
        """What the server, or the library, calls itself."""
        numbers = connection.dialect.server_version_info or ()
        return f"{connection.dialect.name} {'.'.join(map(str, numbers))}".strip()

    def weaknesses(self, connection: Connection) -> list[DurabilityGap]:
        """Settings of the server, or of the connection, that weaken the promise."""
        return []

    def pooling(self, connection: Connection) -> list[DurabilityGap]:
        """What the driver does that a pooler between it and the server breaks."""
        return []

    def begin(self, connection: Connection) -> None:
        """Make sure that ``connection``, whose SQLAlchemy transaction has begun, is in one of the database's own.

        :raises ConfigurationError: if the driver is in autocommit mode: no two statements would be one transaction.
        """
        if self.autocommits(connection.connection.dbapi_connection):
            raise ConfigurationError(
                "the database engine is in AUTOCOMMIT: a dual write needs its transactions; remove it"
            )

    def autocommits(self, driver: Any) -> bool:
        """True if each statement on the driver's connection is committed by itself."""
        return getattr(driver, "autocommit", False) is True

    def is_in_transaction(self, connection: Connection) -> bool:
        """True if the driver knows that a transaction is open on ``connection``."""
        return False

    def begin_unit(self, connection: Connection) -> None:
        """What a unit of work needs after :meth:`begin`, so that :meth:`fate` can tell."""

    def store_values(self, connection: Connection) -> dict[str, object]:
        """Parameters of :meth:`store` beside those that it has everywhere."""
        return {}

    def require_unit(self, connection: Connection, mark: str, *, storing: bool) -> None:
        """See to it that the transaction of :meth:`begin_unit` is still what a COMMIT would commit. Call it once.

        :param mark: the unit's, as :func:`unit_mark` has it.
        :param storing: the statement of :meth:`store` comes next, and sees to it where it can.
        :raises TransactionEndedError: if the transaction has ended.
        :raises InvalidTransactionStateError: if it can only be rolled back.
        """
        fate = self.fate(connection, mark)
        if fate is not Fate.OPEN:
            raise TransactionEndedError(self.ended, fate)

    def fate(self, connection: Connection, mark: str) -> Fate:
        """What became of the transaction of :meth:`begin_unit`. Call it once, and then roll back what is open."""
        return Fate.OPEN

    ended = "the database transaction of this unit of work was ended inside its block"
    """What :meth:`require_unit` says."""

    def reads_a_snapshot(self, connection: Connection) -> bool:
        """True if a transaction cannot write a row that another has committed since this one began to read."""
        return False

    def require_transactional(self, connection: Connection, name: str, schema: str | None = None) -> None:
        """See to it that what is written into the table ``name`` can be rolled back.

        :raises ConfigurationError: if it cannot.
        """

    def require_strict(self, connection: Connection) -> None:
        """See to it that the database refuses a value that does not fit its column, rather than to change it.

        :raises ConfigurationError: if it would change it.
        """

    def find_by_key(self, connection: Connection, *, on: bool) -> None:
        """Let the statements that follow find rows by their key even in a small table, where not doing so does harm."""

    def take_turn(self, connection: Connection, name: str, *, shared: bool) -> None:
        """Wait for whoever asked for a turn of ``name`` before, and keep it until the transaction ends; call it before
        a row is locked that others share all the time, where they would overtake who wants it alone.

        :param shared: others that say so may have theirs at the same time.
        """

    @contextmanager
    def changing_tables(self, connection: Connection) -> Iterator[None]:
        """Wait until no other connection changes the library's tables; keep others waiting until the block ends, or the
        transaction that has begun on ``connection``."""
        yield

    @contextmanager
    def locked_tables(self, connection: Connection, names: Sequence[str]) -> Iterator[None]:
        """Let nobody else read or write the tables ``names`` until the block ends, or the transaction that has begun on
        ``connection``; wait for who does."""
        yield

    @contextmanager
    def own_transaction(self, connection: Connection, lock_timeout: float) -> Iterator[None]:
        """Settings for a transaction of the library's own, which has begun; gone when the ``with`` block ends.

        :param lock_timeout: seconds to wait for a row's lock.
        """
        yield

    def rolls_back(self, connection: Connection, error: BaseException) -> bool:
        """True if ``error``, the driver's own, is known to have rolled back the transaction of ``connection``."""
        return False

    def is_away(self, error: DBAPIError) -> bool:
        """True if ``error``, of an attempt to connect, means that the server cannot be reached now, so that another
        attempt may succeed; False if the URL is likely to be wrong."""
        return False

    def trouble(self, error: DBAPIError) -> ErrorMeaning | None:
        """The meaning of ``error`` for the library; None for an error that concerns the user only."""
        raise NotImplementedError


def isolation_level(connection: Connection) -> str:
    """The level of ``connection``, which its engine or its server has chosen; the server is asked once."""
    chosen = connection.get_execution_options().get("isolation_level")
    if chosen is None:
        chosen = connection.info.get(_LEVEL)
    if chosen is None:
        chosen = connection.info[_LEVEL] = connection.get_isolation_level()
    return str(chosen)
