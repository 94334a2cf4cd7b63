"""Batches of the input: each is first converted as a whole, then written as one unit of work."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby, islice

from sqlalchemy import Table, insert
from sqlalchemy.exc import DataError, IntegrityError

from dualwrite.errors import InputError
from dualwrite.loader.input import InputFile
from dualwrite.loader.job import LoadJob, LoadUnits
from dualwrite.loader.position import LoadPosition, advance
from dualwrite.loader.rows import Row, RowTyper, encode_key, encode_value


class Batches:
    """The input in batches, each converted as a whole before any of it is written."""

    def __init__(self, job: LoadJob, source: InputFile, table: Table, typer: RowTyper) -> None:
        self._job = job
        self._table = table
        self._source = source
        self._typer = typer
        self._rows = source.rows()
        self._done = 0

    def skip(self, position: LoadPosition) -> None:
        """Skip the rows that an earlier run loaded.

        :raises InputError: if those rows have changed since then.
        """
        self._done = sum(1 for _ in islice(self._rows, position.rows))
        if position.rows and (self._done < position.rows or self._source.digest() != position.digest):
            raise InputError(
                f"{self._source.path.name} has changed in the {position.rows:,} rows that were loaded from it before; "
                "load the new rows from a separate file"
            )

    def __iter__(self) -> "Iterator[LoadBatch]":
        """The remaining batches.

        :raises InputError: at a row that is malformed or does not fit the table.
        """
        while input_rows := list(islice(self._rows, self._job.batch_size)):
            rows = [self._typer.row(row) for row in input_rows]
            records = [self._record(line, row) for (line, _), row in zip(input_rows, rows, strict=True)]
            self._done += len(rows)
            lines = f"{self._source.path.name}, lines {input_rows[0].line} to {input_rows[-1].line}"
            end = LoadPosition(self._done, self._source.digest())
            yield LoadBatch(self._job, self._table, rows, records, lines, end)

    def _record(self, line: int, row: Row) -> tuple[bytes | None, bytes]:
        key = self._job.key
        where = f"{self._source.path.name}, line {line}"
        if key is not None and key not in row:
            raise InputError(f"{where}: key column {key!r} is missing")
        try:
            return None if key is None else encode_key(row[key]), encode_value(row)
        except ValueError as error:
            raise InputError(f"{where}: {error}") from None


@dataclass(frozen=True, slots=True)
class LoadBatch:
    """One unit of work, ready to be written."""

    job: LoadJob
    table: Table
    rows: list[Row]
    records: list[tuple[bytes | None, bytes]]
    lines: str
    end: LoadPosition

    def write(self, dual_write: LoadUnits, begin: LoadPosition) -> None:
        """Write the position after the batch, its records and its rows, as one unit of work.

        :raises InputError: if the database refuses a row, or another process has moved the position.
        """
        job = self.job
        try:
            with dual_write.transaction() as tx:
                advance(
                    tx.connection, job.load_key, begin, self.end
                )  # first, because it stops a second process with the same file
                for key, value in self.records:
                    tx.produce(job.topic, key=key, value=value)
                # one statement needs rows with the same columns, and a JSON line may leave some out
                for _, rows in groupby(self.rows, key=tuple):
                    tx.execute(insert(self.table), list(rows))
        except (DataError, IntegrityError) as error:
            reason = str(error.orig).strip().partition("\n")[0]
            raise InputError(f"{self.lines}: the database refuses a row: {reason}") from error
