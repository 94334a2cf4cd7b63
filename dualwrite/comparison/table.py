"""Reads the keys of a table with plain SQL: of all rows, or once more of the rows with some keys."""

from collections.abc import Iterator, Sequence
from typing import Any

from sqlalchemy import Engine, Select, select, text

from dualwrite.comparison.job import ComparisonJob
from dualwrite.comparison.key_lookup import exact_values
from dualwrite.comparison.key_text import column_key, is_float, row_digest, value_reader
from dualwrite.coordinator.sql.dialects.supported import database_of
from dualwrite.errors import InputError
from dualwrite.loader.table import reflected

_BATCH = 5_000

RowKeys = list[tuple[bytes | None, bytes | None]]
"""Keys and digests. A key is None if a column of it is NULL, a digest if values are not compared."""


class TableKeys:
    """The keys of the rows that ``job`` compares.

    :raises InputError: if the table or a column is missing.
    """

    def __init__(self, engine: Engine, job: ComparisonJob) -> None:
        self._engine = engine
        table = reflected(job.table, engine)
        for name in job.key:
            if name not in table.columns:
                raise InputError(
                    f"table {table.fullname} has no column {name!r}; it has {', '.join(table.columns.keys())}"
                )
        database = database_of(engine.dialect)
        for column in table.columns:
            if is_float(column.type, database):
                column.type.asdecimal = False  # a Decimal would have ten digits of it
        self._key = [table.columns[name] for name in job.key]
        columns = list(table.columns) if job.values else self._key
        self._readers = [(column.name, value_reader(column, database)) for column in columns]
        self._key_at = [columns.index(column) for column in self._key]
        self._with_values = job.values
        self._select = select(*columns)
        if job.where is not None:
            # A colon is no parameter. The new line ends a comment.
            condition = job.where.replace(":", r"\:")
            self._select = self._select.where(text(f"({condition}\n)"))

    def read(self) -> Iterator[RowKeys]:
        """The keys of all rows, in batches, as one statement sees them."""
        return self._read(self._select)

    def read_again(self, keys: Sequence[bytes] | None) -> Iterator[RowKeys]:
        """The keys of the rows with ``keys``, and perhaps of others; of all rows if ``keys`` is None."""
        values = None if keys is None or len(self._key) > 1 else exact_values(keys, self._key[0].type)
        if values is None:
            return self.read()
        return self._read(self._select.where(self._key[0].in_(values)))

    def _read(self, statement: "Select[Any]") -> Iterator[RowKeys]:
        options = {"stream_results": True, "yield_per": _BATCH}
        with self._engine.connect() as connection:
            for rows in connection.execution_options(**options).execute(statement).partitions():
                yield [self._seen(row) for row in rows]

    def _seen(self, row: Sequence[Any]) -> tuple[bytes | None, bytes | None]:
        values = [read(value) for (_, read), value in zip(self._readers, row, strict=True)]
        try:
            key = column_key([values[at] for at in self._key_at])
        except (TypeError, ValueError) as error:
            names = ",".join(column.name for column in self._key)
            raise InputError(f"--key {names}: a value has no text ({error}); compare another column") from None
        if not self._with_values:
            return key, None
        names_and_values = zip((name for name, _ in self._readers), values, strict=True)
        return key, row_digest(dict(names_and_values))
