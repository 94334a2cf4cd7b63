"""The position of a load: read at its start, advanced in each of its units of work.

The input's path, the table and the topic identify a load. The path is the full one, with symbolic links resolved,
because parts of one data set often share a file name. The cost of this rule: a file that was moved loads again from its
beginning.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Protocol

from sqlalchemy import Connection, CursorResult, Executable, insert, select, update
from sqlalchemy.exc import IntegrityError

from dualwrite.coordinator.sql.own_tables import ours
from dualwrite.coordinator.sql.tables import load_position
from dualwrite.errors import InputError

_LONGEST_SOURCE = 1024


class Executes(Protocol):
    """The part of a unit of work that runs SQL."""

    @property
    def connection(self) -> Connection:
        """The connection of the unit of work's database transaction."""

    def execute(self, statement: Executable, parameters: Any = None) -> CursorResult[Any]:
        """Run ``statement`` in the unit of work's database transaction."""


@dataclass(frozen=True, slots=True)
class LoadPosition:
    """The position of a load.

    :param rows: the number of the input's rows that are in the database and in Kafka.
    :param digest: the digest of the input's lines up to the last of those rows; empty before the first.
    """

    rows: int = 0
    digest: str = ""


@dataclass(frozen=True, slots=True)
class LoadKey:
    """The identity of a load."""

    source: str
    table: str
    topic: str

    @classmethod
    def of(cls, path: Path, table: str, topic: str) -> "LoadKey":
        """The load of the file at ``path`` into ``table`` and ``topic``."""
        return cls(str(path.resolve()), table, topic)

    @property
    def load_id(self) -> str:
        """The key of the load's row: 64 hexadecimal digits."""
        return hashlib.sha256("\0".join((self.source, self.table, self.topic)).encode()).hexdigest()


def read_position(connection: Connection, key: LoadKey) -> LoadPosition:
    """The position of the load ``key``; ``LoadPosition()`` if it never began."""
    columns = load_position.c
    stored = connection.execute(
        select(columns.position, columns.digest).where(columns.load_id == key.load_id),
        execution_options=ours(connection),
    ).first()
    return LoadPosition() if stored is None else LoadPosition(*stored)


def advance(connection: Connection, key: LoadKey, before: LoadPosition, after: LoadPosition) -> None:
    """Move ``key`` from ``before`` to ``after``, inside the caller's transaction.

    :raises InputError: if the load is not at ``before``, because another process loads the same file. The caller must
        roll back and stop.
    """
    values: Mapping[str, Any] = {
        "position": after.rows,
        "digest": after.digest,
        "updated_at": datetime.now(timezone.utc),
    }
    if before == LoadPosition():
        row = {"load_id": key.load_id, "source": key.source[-_LONGEST_SOURCE:], **values}
        try:
            connection.execute(insert(load_position).values(row), execution_options=ours(connection))
        except IntegrityError:
            raise _other_process(key) from None
        return
    moved = connection.execute(
        update(load_position)
        .where(load_position.c.load_id == key.load_id, load_position.c.position == before.rows)
        .values(values),
        execution_options=ours(connection),
    )
    if moved.rowcount != 1:
        raise _other_process(key)


def _other_process(key: LoadKey) -> InputError:
    return InputError(f"{key.source} is being loaded into table {key.table} by another process; run only one of them")
