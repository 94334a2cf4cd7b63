"""The databases of units.py, as a user makes them, and the oracle that looks at both sides after a measurement."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from sqlalchemy import Engine, func, select

from benchmarks.unit_contenders import Tables, engine_of
from dualwrite.cli.db import upgrade
from tests.support.peer_clients.consumers import consume
from tests.support.servers.postgresql import PostgreSQL, find_binaries

JOURNALS = ("delete", "wal")
"""SQLite's rollback journal, which is its default, and its write-ahead log. Commits are on the disk with both."""


@dataclass(frozen=True)
class Database:
    """One that is ready to be used."""

    title: str
    url: str
    engine: Engine

    @contextmanager
    def tables(self, name: str) -> Iterator[Tables]:
        """Those of one measurement, which are gone afterwards."""
        tables = Tables(name)
        tables.metadata.create_all(self.engine)
        yield tables
        tables.metadata.drop_all(self.engine)

    def rows(self, tables: Tables) -> list[str]:
        """The payloads that are committed."""
        with self.engine.connect() as connection:
            return list(connection.scalars(select(tables.rows.c.payload)))

    def count(self, tables: Tables) -> int:
        """How many rows are committed."""
        with self.engine.connect() as connection:
            return connection.scalar(select(func.count()).select_from(tables.rows)) or 0


@contextmanager
def sqlite(directory: Path, journal: str) -> Iterator[Database]:
    """A file."""
    with TemporaryDirectory(dir=directory) as own, _ready("SQLite", f"sqlite:///{own}/units.db") as database:
        with database.engine.connect() as connection:
            connection.exec_driver_sql(f"PRAGMA journal_mode = {journal}")  # a property of the file
        yield database


@contextmanager
def postgresql(directory: Path, journal: str) -> Iterator[Database]:
    """A server of this machine's, with its defaults.

    :raises SystemExit: if there are no binaries of one.
    """
    binaries = find_binaries()
    if binaries is None:
        raise SystemExit("there is no PostgreSQL on this machine: install it, or measure with --databases sqlite")
    server = PostgreSQL(binaries, durable=True)
    try:
        server.start()
        with _ready("PostgreSQL", server.url) as database:
            yield database
    finally:
        server.close()


DATABASES: Mapping[str, Callable[[Path, str], AbstractContextManager[Database]]] = {
    "sqlite": sqlite,
    "postgresql": postgresql,
}


@contextmanager
def _ready(title: str, url: str) -> Iterator[Database]:
    upgrade(url)
    engine = engine_of(url)
    try:
        yield Database(title, url, engine)
    finally:
        engine.dispose()


def require_same(rows: list[str], records: list[str], who: str) -> None:
    """The oracle: what is in the database is in Kafka, once each. Nothing crashes here, so it holds for everybody.

    :raises SystemExit: if it is not so: what was measured is not what it says.
    """
    missing, extra = Counter(rows) - Counter(records), Counter(records) - Counter(rows)
    if missing or extra or not rows:
        raise SystemExit(
            f"{who}: {len(rows)} rows and {len(records)} records, {missing.total()} rows without a record, "
            f"{extra.total()} records without a row"
        )


def committed_records(bootstrap: str, topic: str, minimum: int) -> list[str]:
    """All that a read_committed consumer finds in partition 0, once that is ``minimum``."""
    return [value.decode() for value in consume(bootstrap, topic, minimum=minimum)[0]]
