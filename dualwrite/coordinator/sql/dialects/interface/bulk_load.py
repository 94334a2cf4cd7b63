"""How a database takes many rows: inserts in bulk, upserts, and tables for rows that are moved on."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, Dialect, Insert, TableClause, bindparam
from sqlalchemy.dialects import postgresql, sqlite


class BulkInserts:
    """Inserts of rows into one table."""

    def write(self, rows: Sequence[Sequence[Any]]) -> None:
        """Add a chunk of rows."""
        raise NotImplementedError

    def write_lines(self, lines: Iterable[bytes]) -> None:
        """Add rows that are lines of COPY in UTF-8, with their line ends, in pieces. Only if
        :meth:`DatabaseBulkLoad.takes_lines`."""
        raise NotImplementedError


class MultiRowInserts(BulkInserts):
    """Inserts by ``executemany``, which drivers turn into multi-row inserts.

    :param statement: the insert, whose parameters are those of :func:`parameters_of`.
    :param singly: insert the rows one by one.
    """

    def __init__(self, connection: Connection, statement: Insert, into: TableClause, *, singly: bool = False) -> None:
        self._connection = connection
        self._statement = statement
        self._parameters = parameters_of(into)
        self._singly = singly

    def write(self, rows: Sequence[Sequence[Any]]) -> None:
        """Add a chunk of rows."""
        parameters = [dict(zip(self._parameters, row, strict=True)) for row in rows]
        for parameter_set in parameters if self._singly else [parameters]:
            self._connection.execute(self._statement, parameter_set)


class DatabaseBulkLoad:
    """The part of Database by which Spark's rows come into a table of the user's."""

    def upsert(self, into: TableClause, keys: Sequence[str], fill: Callable[[Any], Any]) -> Insert:
        """An insert into ``into`` that replaces a row with the same unique key. Each database has its own statement.

        :param keys: the columns of a unique key.

        :param fill: adds the rows to the dialect's Insert, and returns it.
        """
        raise NotImplementedError

    def insert(self, into: TableClause, keys: Sequence[str], fill: Callable[[Any], Any]) -> Insert:
        """An insert, or an :meth:`upsert` if there are ``keys``."""
        if keys:
            return self.upsert(into, keys, fill)
        added: Insert = fill(into.insert())
        return added

    def bulk_inserts(self, connection: Connection, into: TableClause, keys: Sequence[str]) -> BulkInserts:
        """The fastest way to add rows to ``into`` that the driver has; with ``keys`` they replace rows. Override it if
        there is a faster one than multi-row inserts."""
        return MultiRowInserts(connection, self._with_parameters(into, keys), into)

    def _with_parameters(self, into: TableClause, keys: Sequence[str]) -> Insert:
        columns = zip(into.columns, parameters_of(into), strict=True)
        values = {column.name: bindparam(parameter, type_=column.type) for column, parameter in columns}
        return self.insert(into, keys, lambda insert: insert.values(values))

    def read_in_key_order(self, connection: Connection, *, on: bool) -> None:
        """Prefer, or no longer, to read rows in the order of an index over sorting them. Override it if the database
        sorts rows that it has no statistics of.
        """

    def takes_lines(self, dialect: Dialect) -> bool:
        """True if :meth:`bulk_inserts` takes lines of COPY's text format, which Spark can write (copy_lines.py)."""
        return False

    def staging_options(self, connection: Connection, schema: str | None, name: str) -> Mapping[str, Any]:
        """Arguments of SQLAlchemy's Table for a table that keeps rows until they are moved into the table ``name``: it
        compares texts as that does, and has transactions. A crash of the server may empty it."""
        return {}

    def text_options(self, connection: Connection, schema: str | None, name: str) -> Mapping[str, str]:
        """The options of the table ``name`` that decide how its columns keep and compare texts, unless a column has its
        own."""
        return {}

    def type_numbers(self, connection: Connection, schema: str | None, name: str) -> Mapping[str, int]:
        """A number for the type of each column of the table ``name``, where a type may be replaced by another one of
        the same name."""
        return {}

    def table_id(self, connection: Connection, schema: str | None, name: str) -> str | None:
        """A text that identifies the table ``name``, also against an earlier table of the same name: the identity of
        the database, a colon, and the table's number there. None if the database does not number its tables."""
        return None


def parameters_of(into: TableClause) -> list[str]:
    """A parameter for each column: a column's own name may not be a valid parameter."""
    return [f"p{number}" for number in range(len(into.columns))]


def on_conflict(
    insert: postgresql.Insert | sqlite.Insert, into: TableClause, keys: Sequence[str]
) -> postgresql.Insert | sqlite.Insert:
    """``insert`` with ON CONFLICT, so that it replaces a row with the same ``keys``."""
    other_names = [column.name for column in into.columns if column.name not in keys]
    if not other_names:
        return insert.on_conflict_do_nothing(index_elements=list(keys))
    return insert.on_conflict_do_update(
        index_elements=list(keys), set_={name: insert.excluded[name] for name in other_names}
    )
