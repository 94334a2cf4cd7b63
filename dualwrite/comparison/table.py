"""Reads the keys of a table with plain SQL: of all rows, or once more of the rows with some keys."""

from collections.abc import Iterator, Sequence
from typing import Any

from sqlalchemy import Engine, Select, select, text

from dualwrite.comparison.column_forms import column_form
from dualwrite.comparison.job import ComparisonJob
from dualwrite.comparison.key_lookup import exact_values
from dualwrite.comparison.key_text import column_key, row_digest
from dualwrite.coordinator.sql.dialects.supported import database_of
from dualwrite.errors import InputError
from dualwrite.loader.table import reflected

BATCH = 5_000
"""Rows that are read at once. Where readers keep writers waiting, they wait for the reading of so many."""

RowKeys = list[tuple[bytes | None, bytes | None]]
"""Keys and digests. A key is None if a column of it is NULL or unreadable, a digest if values are not compared."""


class TableKeys:
    """The keys of the rows that ``job`` compares.

    :raises InputError: if the table or a column is missing.
    """

    def __init__(self, engine: Engine, job: ComparisonJob) -> None:
        self._engine = engine
        self._table = table = reflected(job.table, engine)
        for name in job.key:
            if name not in table.columns:
                raise InputError(
                    f"table {table.fullname} has no column {name!r}; it has {', '.join(table.columns.keys())}"
                )
        self._database = database = database_of(engine.dialect)
        for column in table.columns:
            if database.is_float(column.type):
                column.type.asdecimal = False  # type: ignore[attr-defined]  # a Decimal would have ten digits of it
        self._key = [table.columns[name] for name in job.key]
        columns = list(table.columns) if job.values else self._key
        self.forms = {column.name: column_form(column, database, engine.dialect) for column in columns}
        """How to compare the values of each column."""
        self.key_forms = [self.forms[name] for name in job.key]
        self._columns = [(column.name, self.forms[column.name].read) for column in columns]
        self._key_at = [columns.index(column) for column in self._key]
        self._with_values = job.values
        self._select = select(*map(database.exact_column, columns)).select_from(table)
        if job.where is not None:
            # A colon is no parameter. The new line ends a comment.
            condition = job.where.replace(":", r"\:")
            self._select = self._select.where(text(f"({condition}\n)"))
        with engine.connect() as connection:
            self._row_number = database.row_number(connection, table)

    def read(self) -> Iterator[RowKeys]:
        """The keys of all rows, in batches: as one statement sees them, or each batch as it is when it is read where a
        long statement would keep writers waiting."""
        return self._read(self._select) if self._row_number is None else self._read_pieces()

    def look_up(self, keys: Sequence[bytes]) -> Iterator[RowKeys] | None:
        """The keys of the rows with ``keys``, and perhaps of others; None if the whole table must be read for them."""
        if len(self._key) > 1:
            return None
        values = exact_values(keys, self._key[0].type, self._database)
        return None if values is None else self._read(self._select.where(self._key[0].in_(values)))

    def _read_pieces(self) -> Iterator[RowKeys]:
        number, after, ended = self._row_number, None, False
        assert number is not None
        while not ended:
            numbers = select(number).select_from(self._table)
            piece = self._select
            if after is not None:
                numbers, piece = numbers.where(number > after), piece.where(number > after)
            with self._engine.connect() as connection:
                after = connection.scalar(numbers.order_by(number).offset(BATCH - 1).limit(1))
            ended = after is None
            # Read to its end before the caller works on it: only then is the lock released.
            yield from list(self._read(piece if ended else piece.where(number <= after)))

    def _read(self, statement: "Select[Any]") -> Iterator[RowKeys]:
        options = {"stream_results": True, "yield_per": BATCH}
        with self._engine.connect() as connection, self._database.showing_exactly(connection):
            for rows in connection.execution_options(**options).execute(statement).partitions():
                yield [self._seen(row) for row in rows]

    def _seen(self, row: Sequence[Any]) -> tuple[bytes | None, bytes | None]:
        values = [read(value) for (_, read), value in zip(self._columns, row, strict=True)]
        key = column_key([values[at] for at in self._key_at], self.key_forms)
        if not self._with_values:
            return key, None
        names_and_values = zip((name for name, _ in self._columns), values, strict=True)
        return key, row_digest(dict(names_and_values), self.forms)
