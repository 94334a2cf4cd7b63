"""Writes rows to a table in bulk, in the database's fastest way.

Rows come in chunks, so that only the rows of one insert are in memory. A row of an upsert replaces the row with the
same key. If several rows have the same key, the last row counts.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from sqlalchemy import Connection, LargeBinary, TableClause, column, table
from sqlalchemy import types as sqltypes

from dualwrite.coordinator.sql.dialects.supported import database_of
from dualwrite.spark.plan.columns import Family, TableColumn
from dualwrite.spark.plan.converted_row import ConvertedRow
from dualwrite.spark.tables.target_table import parse_table_name

LARGEST_CHUNK = 8 * 2**20
"""The largest number of bytes of texts and binaries in one chunk, because rows may be large."""

_TYPES: dict[Family, sqltypes.TypeEngine[Any]] = {
    Family.BYTES: LargeBinary(),
    Family.DATE: sqltypes.Date(),
    Family.MOMENT: sqltypes.DateTime(),
    Family.ZONED: sqltypes.DateTime(timezone=True),
}
"""Types that a driver needs. All other values are passed without a type: the column's own type would convert texts that
are already JSON."""


def table_clause(dbtable: str, columns: Sequence[TableColumn]) -> TableClause:
    """The table ``dbtable`` as SQL, with the written ``columns`` in that order."""
    schema, name = parse_table_name(dbtable)
    return table(
        name, *(column(table_column.name, _TYPES.get(table_column.family)) for table_column in columns), schema=schema
    )


def chunks(rows: Iterable[ConvertedRow], size: int) -> Iterator[list[ConvertedRow]]:
    """``rows`` in chunks of up to ``size`` rows or LARGEST_CHUNK bytes."""
    chunk: list[ConvertedRow] = []
    weight = 0
    for row in rows:
        chunk.append(row)
        weight += row.weight
        if len(chunk) >= size or weight >= LARGEST_CHUNK:
            yield chunk
            chunk, weight = [], 0
    if chunk:
        yield chunk


class Loader:
    """Adds rows to a table, in the transaction of ``connection``.

    :param into: the table, with the columns of the rows' values.
    :param upsert_keys: the columns of a unique key; empty to add rows only.
    """

    def __init__(self, connection: Connection, into: TableClause, upsert_keys: Sequence[str] = ()) -> None:
        names = [table_column.name for table_column in into.columns]
        self._key_indexes = [names.index(name) for name in upsert_keys]
        self._inserts = database_of(connection.dialect).bulk_inserts(connection, into, tuple(upsert_keys))

    def write(self, rows: Sequence[Sequence[Any]]) -> None:
        """Add a chunk of rows, which must not be empty.

        :raises DBAPIError: if the database refuses one of them.
        """
        self._inserts.write(self._last_of_each_key(rows) if self._key_indexes else rows)

    def write_lines(self, lines: Iterable[bytes]) -> None:
        """Add rows that are already lines of COPY in UTF-8, with their line ends, in pieces. Only if
        Database.takes_lines; replaces no rows.

        :raises DBAPIError: if the database refuses one of them.
        """
        self._inserts.write_lines(lines)

    def _last_of_each_key(self, rows: Sequence[Sequence[Any]]) -> Sequence[Sequence[Any]]:
        """The last row of each key, in the order of ``rows``: the database may take several of these keys for one."""
        last_rows: dict[tuple[Any, ...], Sequence[Any]] = {}
        for position, row in enumerate(rows):
            key = self._key_of(row, position)
            last_rows.pop(key, None)
            last_rows[key] = row
        return list(last_rows.values())

    def _key_of(self, row: Sequence[Any], position: int) -> tuple[Any, ...]:
        """The key of ``row``. A row with NULL in its key replaces no row, so it gets a key that no other row has.

        :param position: the row's position in its chunk.
        """
        key = tuple(row[index] for index in self._key_indexes)
        return (position,) if None in key else (None, *key)
