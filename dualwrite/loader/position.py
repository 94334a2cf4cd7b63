"""The position of a load: read at its start, advanced in each of its units of work.

The position counts the rows of the input that are done: in the database and in Kafka, or in the file for bad rows. The
number of the bad ones is in a second row of the same table, which a load without bad rows lacks.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any

from sqlalchemy import Connection, insert, select, update
from sqlalchemy.exc import IntegrityError

from dualwrite.coordinator.sql.engine.database_errors import refused_own_row
from dualwrite.coordinator.sql.own_tables import ours
from dualwrite.coordinator.sql.tables import load_position
from dualwrite.errors import InputError
from dualwrite.loader.identity import LoadKey

_LONGEST_SOURCE = 1024


@dataclass(frozen=True, slots=True)
class LoadPosition:
    """The position of a load.

    :param rows: the number of the input's rows that are done.
    :param digest: the digest of the input's lines up to the last of those rows; empty before the first.
    :param bad: the number of those rows that were bad, and are in no table and no topic.
    """

    rows: int = 0
    digest: str = ""
    bad: int = 0

    @property
    def loaded(self) -> int:
        """The number of rows that are in the database and in Kafka."""
        return self.rows - self.bad


def read_position(connection: Connection, key: LoadKey) -> LoadPosition:
    """The position of the load ``key``; ``LoadPosition()`` if it never began."""
    columns = load_position.c
    stored = {
        load_id: (rows, digest)
        for load_id, rows, digest in connection.execute(
            select(columns.load_id, columns.position, columns.digest).where(
                columns.load_id.in_([key.load_id, key.bad_rows_id])
            ),
            execution_options=ours(connection),
        )
    }
    rows, digest = stored.get(key.load_id, (0, ""))
    bad, _ = stored.get(key.bad_rows_id, (0, ""))
    return LoadPosition(rows, digest, bad)


def advance(connection: Connection, key: LoadKey, before: LoadPosition, after: LoadPosition) -> None:
    """Move ``key`` from ``before`` to ``after``, inside the caller's transaction.

    :raises InputError: if the load is not at ``before``, because another process loads the same file. The caller must
        roll back and stop.
    """
    _move(connection, key, key.load_id, before.rows, after.rows, after.digest)
    if after.bad != before.bad:
        _move(connection, key, key.bad_rows_id, before.bad, after.bad, "")


def require_moved(connection: Connection, key: LoadKey, before: LoadPosition, error: IntegrityError) -> None:
    """After ``error`` of :func:`advance`, require that ``key`` is not at ``before`` any more.

    :param connection: outside of the transaction that has failed: PostgreSQL answers no query in that one.
    :raises ConfigurationError: if it is: the database refuses the row of the position for another reason.
    """
    if read_position(connection, key) == before:
        raise refused_own_row(load_position, error) from error


def _move(connection: Connection, key: LoadKey, row_id: str, before: int, after: int, digest: str) -> None:
    values: Mapping[str, Any] = {"position": after, "digest": digest, "updated_at": datetime.now(timezone.utc)}
    if before == 0:
        row = {"load_id": row_id, "source": key.source[-_LONGEST_SOURCE:], **values}
        try:
            connection.execute(insert(load_position).values(row), execution_options=ours(connection))
        except IntegrityError as error:
            raise _other_process(key) from error
        return
    moved = connection.execute(
        update(load_position)
        .where(load_position.c.load_id == row_id, load_position.c.position == before)
        .values(values),
        execution_options=ours(connection),
    )
    if moved.rowcount != 1:
        raise _other_process(key)


def _other_process(key: LoadKey) -> InputError:
    return InputError(f"{key.source} is being loaded into table {key.table} by another process; run only one of them")
