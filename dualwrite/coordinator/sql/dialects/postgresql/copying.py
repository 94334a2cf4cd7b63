"""Rows in bulk by PostgreSQL's COPY."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from sqlalchemy import Connection, TableClause
from sqlalchemy.exc import DBAPIError

from dualwrite.coordinator.sql.dialects.interface.bulk_load import BulkInserts

_UPSERT = "dualwrite_upsert"
"""The temporary table through which COPY replaces rows."""
_NUMBER = "dualwrite_row"
"""Its column with the number of each row."""


class CopyInserts(BulkInserts):
    """COPY through psycopg. The rows of an upsert go through a temporary table, which is dropped at the end of the
    transaction."""

    def __init__(self, connection: Connection, into: TableClause, keys: Sequence[str]) -> None:
        self._connection = connection
        preparer = connection.dialect.identifier_preparer
        names = [column.name for column in into.columns]
        columns = ", ".join(map(preparer.quote, names))
        self._target = preparer.format_table(into)
        self._keys = ", ".join(map(preparer.quote, keys))
        self._has_no_key = " OR ".join(f"{preparer.quote(key)} IS NULL" for key in keys)
        number = preparer.quote(_unused_name(names))
        if keys:
            connection.exec_driver_sql(f"DROP TABLE IF EXISTS pg_temp.{_UPSERT}")
            connection.exec_driver_sql(
                f"CREATE TEMPORARY TABLE {_UPSERT} ON COMMIT DROP AS "  # noqa: S608  quoted names
                f"SELECT {columns}, 0 AS {number} FROM {self._target} WITH NO DATA"
            )
        rest = [preparer.quote(name) for name in names if name not in keys]
        action = "UPDATE SET " + ", ".join(f"{name} = EXCLUDED.{name}" for name in rest) if rest else "NOTHING"
        place = f"pg_temp.{_UPSERT} ({columns}, {number})" if keys else f"{self._target} ({columns})"
        # SQLAlchemy doubles % for statements with parameters; COPY has none
        self._copy = f"COPY {place} FROM STDIN".replace("%%", "%")
        self._upsert = (
            f"INSERT INTO {self._target} ({columns}) {self._last_of_each_key(columns, number)} "
            f"ON CONFLICT ({self._keys}) DO {action}"
        )

    def _last_of_each_key(self, columns: str, number: str) -> str:
        """The last row of each key, because a statement cannot replace a row twice: the column may take two values for
        one key that are not equal in Python, such as two spellings of a UUID. Rows with NULL in a key column have no
        key."""
        rows = f"FROM pg_temp.{_UPSERT} WHERE"
        return (
            f"(SELECT DISTINCT ON ({self._keys}) {columns} {rows} NOT ({self._has_no_key}) "
            f"ORDER BY {self._keys}, {number} DESC) UNION ALL (SELECT {columns} {rows} {self._has_no_key})"
        )

    def write(self, rows: Sequence[Sequence[Any]]) -> None:
        """Add a chunk of rows."""
        if not self._keys:
            self._copy_in(lambda copy: _write_rows(copy, rows))
            return
        self._copy_in(lambda copy: _write_rows(copy, ((*row, number) for number, row in enumerate(rows))))
        self._connection.exec_driver_sql(self._upsert)
        self._connection.exec_driver_sql(f"TRUNCATE pg_temp.{_UPSERT}")

    def write_lines(self, lines: Iterable[bytes]) -> None:
        """Add rows that are lines in UTF-8, with their line ends, in pieces."""
        # In encodings other than UTF-8, a byte of a character may have a meaning in COPY.
        data = b"".join(lines)
        self._copy_in(lambda copy: copy.write(data), " (ENCODING 'UTF8')")

    def _copy_in(self, write: Callable[[Any], None], options: str = "") -> None:
        """Run COPY on the driver's connection, as SQLAlchemy has no COPY; errors are wrapped as SQLAlchemy's.

        :raises DBAPIError: the error of psycopg.
        """
        dialect, driver = self._connection.dialect, self._connection.connection.driver_connection
        assert driver is not None
        try:
            with driver.cursor() as cursor, cursor.copy(self._copy + options) as copy:
                write(copy)
        except dialect.loaded_dbapi.Error as error:
            lost = bool(driver.closed)
            if lost:
                self._connection.invalidate(error)
            raise DBAPIError.instance(
                self._copy,
                None,
                error,
                dialect.loaded_dbapi.Error,
                hide_parameters=True,
                connection_invalidated=lost,
                dialect=dialect,
            ) from error


def _write_rows(copy: Any, rows: Iterable[Sequence[Any]]) -> None:
    for row in rows:
        copy.write_row(row)


def _unused_name(names: Sequence[str]) -> str:
    """The name of the column with the numbers; longer if the target has one of that name."""
    name = _NUMBER
    while name in names:
        name += "_"
    return name
