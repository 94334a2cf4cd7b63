"""Writes rows to a table in bulk: with COPY on PostgreSQL through psycopg, with multi-row inserts elsewhere.

Rows come in chunks, so that only the rows of one insert are in memory. A row of an upsert replaces the row with its
key; of several rows with the same key, the last one counts.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    Dialect,
    Insert,
    LargeBinary,
    TableClause,
    bindparam,
    column,
    literal_column,
    table,
)
from sqlalchemy import types as sqltypes
from sqlalchemy.dialects import mysql, postgresql, sqlite
from sqlalchemy.exc import DBAPIError

from dualwrite.spark.plan.columns import Family, TableColumn
from dualwrite.spark.plan.rows import Written
from dualwrite.spark.tables.target_table import table_place

LARGEST_CHUNK = 8 * 2**20
"""Bytes of texts and binaries in one chunk at most: rows may be large."""

_UPSERT = "dualwrite_upsert"
"""The temporary table through which COPY replaces rows."""

_TYPES: dict[Family, sqltypes.TypeEngine[Any]] = {
    Family.BYTES: LargeBinary(),
    Family.DATE: sqltypes.Date(),
    Family.MOMENT: sqltypes.DateTime(),
    Family.ZONED: sqltypes.DateTime(timezone=True),
}
"""Types that a driver must be told. All other values are passed without a type: the column's own type would convert
texts that are already JSON."""


def table_clause(dbtable: str, columns: Sequence[TableColumn]) -> TableClause:
    """The table ``dbtable`` with those of its columns that are written, in that order."""
    schema, name = table_place(dbtable)
    return table(name, *(column(each.name, _TYPES.get(each.family)) for each in columns), schema=schema)


def chunks(rows: Iterable[Written], size: int) -> Iterator[list[Written]]:
    """``rows`` in chunks of up to ``size`` rows or LARGEST_CHUNK bytes."""
    chunk: list[Written] = []
    weight = 0
    for row in rows:
        chunk.append(row)
        weight += row.weight
        if len(chunk) >= size or weight >= LARGEST_CHUNK:
            yield chunk
            chunk, weight = [], 0
    if chunk:
        yield chunk


def copies(dialect: Dialect) -> bool:
    """True if rows are added with COPY."""
    return dialect.driver == "psycopg"


class Loader:
    """Adds rows to a table, in the transaction of ``connection``.

    :param into: the table, with the columns of the rows' values.
    :param upsert_keys: the columns of a unique key; empty to add rows only.
    """

    def __init__(self, connection: Connection, into: TableClause, upsert_keys: Sequence[str] = ()) -> None:
        names = [each.name for each in into.columns]
        self._key = [names.index(name) for name in upsert_keys]
        kind = _Copy if copies(connection.dialect) else _Insert
        self._inserts: _Copy | _Insert = kind(connection, into, tuple(upsert_keys))

    def write(self, rows: Sequence[Sequence[Any]]) -> None:
        """Add a chunk of rows, which must not be empty.

        :raises DBAPIError: if the database refuses one of them.
        """
        if self._key:
            rows = list({self._key_of(row, place): row for place, row in enumerate(rows)}.values())
        self._inserts.write(rows)

    def write_lines(self, lines: Iterable[str]) -> None:
        """Add rows that are already lines of COPY, each with its line end. Only if :func:`copies`; replaces no rows.

        :raises DBAPIError: if the database refuses one of them.
        """
        assert isinstance(self._inserts, _Copy)
        self._inserts.write_lines(lines)

    def _key_of(self, row: Sequence[Any], place: int) -> tuple[Any, ...]:
        """The key of ``row``, the one at ``place`` of its chunk. A row with NULL in its key has a key of its own, as it
        replaces no row."""
        key = tuple(row[each] for each in self._key)
        return (place,) if None in key else (None, *key)


def adding(dialect: str, into: TableClause, keys: Sequence[str], fill: Callable[[Any], Any]) -> Insert:
    """An insert of the rows of ``fill`` into ``into``: a row replaces the one with the same ``keys``, if any are given.

    :param dialect: SQLAlchemy's name of the database.
    """
    rest = [each.name for each in into.columns if each.name not in keys]
    if not keys:
        added: Insert = fill(into.insert())
        return added
    if dialect in ("mysql", "mariadb"):
        replacing: mysql.Insert = fill(mysql.insert(into))
        changed = rest or list(keys)[:1]  # if there is no other column, a key column is set to its own value
        return replacing.on_duplicate_key_update({name: _inserted(replacing, name) for name in changed})
    insert: postgresql.Insert | sqlite.Insert = fill(
        (sqlite.insert if dialect == "sqlite" else postgresql.insert)(into)
    )
    if not rest:
        return insert.on_conflict_do_nothing(index_elements=list(keys))
    return insert.on_conflict_do_update(index_elements=list(keys), set_={name: insert.excluded[name] for name in rest})


def _inserted(replacing: mysql.Insert, name: str) -> ColumnElement[Any]:
    """The value that a row would have had in the column ``name``. SQLAlchemy turns a % in the name into four."""
    if "%" not in name:
        return replacing.inserted[name]
    quoted = name.replace("`", "``")
    return literal_column(f"VALUES(`{quoted}`)")


class _Insert:
    """``executemany``, which drivers turn into multi-row inserts. The drivers of MariaDB and MySQL do not unescape %%
    behind VALUES, where an upsert repeats the names: if a name has a %, rows are inserted one by one."""

    def __init__(self, connection: Connection, into: TableClause, keys: Sequence[str]) -> None:
        self._connection = connection
        self._names = [each.name for each in into.columns]
        self._parameters = [f"p{number}" for number in range(len(self._names))]
        self._statement = self._made(into, keys)
        self._by_row = bool(keys) and connection.dialect.name in ("mysql", "mariadb") and "%" in "".join(self._names)

    def _made(self, into: TableClause, keys: Sequence[str]) -> Insert:
        values = {
            name: bindparam(parameter, type_=into.columns[name].type)
            for name, parameter in zip(self._names, self._parameters, strict=True)
        }
        return adding(self._connection.dialect.name, into, keys, lambda insert: insert.values(values))

    def write(self, rows: Sequence[Sequence[Any]]) -> None:
        given = [dict(zip(self._parameters, row, strict=True)) for row in rows]
        for each in given if self._by_row else [given]:
            self._connection.execute(self._statement, each)


class _Copy:
    """COPY. The rows of an upsert go through a temporary table, which is dropped at the end of the transaction."""

    def __init__(self, connection: Connection, into: TableClause, keys: Sequence[str]) -> None:
        self._connection = connection
        preparer = connection.dialect.identifier_preparer
        names = [each.name for each in into.columns]
        columns = ", ".join(map(preparer.quote, names))
        self._target = preparer.format_table(into)
        self._keys = ", ".join(map(preparer.quote, keys))
        if keys:
            connection.exec_driver_sql(f"DROP TABLE IF EXISTS pg_temp.{_UPSERT}")
            connection.exec_driver_sql(
                f"CREATE TEMPORARY TABLE {_UPSERT} ON COMMIT DROP AS "  # noqa: S608  quoted names
                f"SELECT {columns} FROM {self._target} WITH NO DATA"
            )
        rest = [preparer.quote(name) for name in names if name not in keys]
        action = "UPDATE SET " + ", ".join(f"{name} = EXCLUDED.{name}" for name in rest) if rest else "NOTHING"
        copy = f"COPY {f'pg_temp.{_UPSERT}' if keys else self._target} ({columns}) FROM STDIN"
        self._copy = copy.replace("%%", "%")  # SQLAlchemy doubles % for statements with parameters; COPY has none
        self._upsert = (
            f"INSERT INTO {self._target} ({columns}) SELECT {columns} FROM pg_temp.{_UPSERT} "  # noqa: S608
            f"ON CONFLICT ({self._keys}) DO {action}"
        )

    def write(self, rows: Sequence[Sequence[Any]]) -> None:
        self._copy_in(lambda copy: _write_rows(copy, rows))
        if self._keys:
            self._connection.exec_driver_sql(self._upsert)
            self._connection.exec_driver_sql(f"TRUNCATE pg_temp.{_UPSERT}")

    def write_lines(self, lines: Iterable[str]) -> None:
        # In encodings other than UTF-8, a byte of a character may have a meaning in COPY.
        data = "".join(lines).encode()
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
