"""Builders for the loader's tests: input files of every wrapping, a database, and a DualWrite that is only a list."""

import gzip
import json
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sqlalchemy import (
    Column,
    Connection,
    CursorResult,
    Engine,
    Executable,
    Integer,
    MetaData,
    String,
    Table,
    create_engine,
    select,
)

from dualwrite.coordinator.sql.tables import load_position
from dualwrite.coordinator.sql.tables import metadata as state_tables
from dualwrite.loader.job import LoadJob

TOPIC = "flights"


def csv_text(rows: int, first: int = 1) -> str:
    """``rows`` rows of the columns id and name, without a header."""
    return "".join(f"{number},name {number}\n" for number in range(first, first + rows))


def write_input(path: Path, text: str | bytes) -> Path:
    """``text`` in a file at ``path``, wrapped as the name's ending says."""
    content = text.encode() if isinstance(text, str) else text
    if path.suffix == ".gz":
        path.write_bytes(gzip.compress(content))
    elif path.suffix == ".zip":
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr(path.stem, content)
    else:
        path.write_bytes(content)
    return path


def make_database(directory: Path, *, ready: bool = True) -> Engine:
    """A SQLite database with the table ``flights`` (id, name NOT NULL, note), and the state tables if ``ready``."""
    engine = create_engine(f"sqlite:///{directory / 'load.db'}")
    tables = MetaData()
    Table(
        "flights",
        tables,
        Column("id", Integer, primary_key=True),
        Column("name", String(40), nullable=False),
        Column("note", String(40)),
    )
    tables.create_all(engine)
    if ready:
        state_tables.create_all(engine)
    return engine


def table_rows(engine: Engine) -> list[tuple[Any, ...]]:
    """The ids and names in the table, by id."""
    with engine.connect() as connection:
        return [tuple(row) for row in connection.exec_driver_sql("SELECT id, name FROM flights ORDER BY id")]


def positions(engine: Engine) -> list[int]:
    """The positions of every load in the database."""
    with engine.connect() as connection:
        return list(connection.scalars(select(load_position.c.position)))


class KilledError(Exception):
    """Stands for the end of the process."""


@dataclass
class Tx:
    """A unit of work: SQL on a connection, records in a list."""

    connection: Connection
    records: list[tuple[str, bytes | None, Any]] = field(default_factory=list)

    def execute(self, statement: Executable, parameters: Any = None) -> CursorResult[Any]:
        return self.connection.execute(statement, parameters)

    def produce(self, topic: str, value: bytes, key: bytes | None = None) -> None:
        self.records.append((topic, key, json.loads(value)))


@dataclass
class FakeDualWrite:
    """Commits to the database and to ``topic``, a list, as one.

    :param die_before: the unit of work (from 0) that is never committed.
    """

    engine: Engine
    die_before: int = -1
    topic: list[tuple[str, bytes | None, Any]] = field(default_factory=list)
    units: int = 0
    recoveries: int = 0

    def recover(self) -> None:
        self.recoveries += 1

    @contextmanager
    def transaction(self) -> Iterator[Tx]:
        with self.engine.begin() as connection:
            tx = Tx(connection)
            yield tx
            if self.units == self.die_before:
                raise KilledError
        self.topic += tx.records
        self.units += 1

    @property
    def values(self) -> list[Any]:
        """The values in the topic."""
        return [value for _, _, value in self.topic]


def job_for(path: Path, **changes: Any) -> LoadJob:
    """A job that loads ``path`` in batches of 3."""
    return LoadJob(**{"path": path, "table": "flights", "topic": TOPIC, "batch_size": 3, **changes})


def pairs(values: Sequence[dict[str, Any]]) -> list[tuple[Any, ...]]:
    """Message values as the rows of :func:`table_rows`."""
    return [(value["id"], value["name"]) for value in values]
