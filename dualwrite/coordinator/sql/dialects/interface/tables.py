"""How a database makes tables, finds them and locks them."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from sqlalchemy import BigInteger, Connection, DateTime, LargeBinary
from sqlalchemy.types import TypeEngine

STATE_TABLE = "kafka_transaction_state"
"""The name of the table that holds the decisions."""


class DatabaseTables:
    """The part of Database that concerns tables.

    Migrations use the types and options, and must always do the same: never change a value that was released.
    """

    moment_type: TypeEngine[Any] = DateTime(timezone=True)
    """A moment with microseconds; in UTC if the column knows no time zone."""

    bytes_type: TypeEngine[Any] = LargeBinary()
    """A record's key or value, of any length."""

    number_type: TypeEngine[Any] = BigInteger()
    """A primary key that counts up by itself."""

    table_options: Mapping[str, str] = {}
    """SQLAlchemy's options of a table for this dialect, without its name: for storage that has transactions, and
    texts that compare byte by byte as in Kafka, where ``Orders-0`` is not ``orders-0``."""

    has_transactional_ddl = True
    """False if CREATE TABLE commits, so that an interrupted upgrade leaves some of its tables."""

    has_schemas = True
    """False if there is one place for tables, which needs no name."""

    def schema_with(self, connection: Connection, name: str) -> str | None:
        """The schema in which ``connection`` finds the table ``name``; None if there is none, or no schemas."""
        return None

    def other_schemas_with(self, connection: Connection, name: str) -> list[str]:
        """The schemas in which the login may read a table ``name`` that ``connection`` finds only if they are named.
        None where a URL names the schema, so that another one is another application's."""
        return []

    def require_transactional(self, connection: Connection, name: str, schema: str | None = None) -> None:
        """Require that writes into the table ``name`` can be rolled back. Override it if the database has tables
        without transactions.

        :raises ConfigurationError: if they cannot be rolled back.
        """

    @contextmanager
    def changing_tables(self, connection: Connection) -> Iterator[None]:
        """Wait until no other connection changes the library's tables; keep others waiting until the block ends, or the
        transaction that has begun on ``connection``. Override it unless there is :attr:`Database.one_writer`."""
        yield

    @contextmanager
    def locked_tables(self, connection: Connection, names: Sequence[str]) -> Iterator[None]:
        """Keep other connections from reading or writing the tables ``names`` until the block ends, or the transaction
        that has begun on ``connection``. Waits for connections that use them now. Override it unless there is
        :attr:`Database.one_writer`."""
        yield
