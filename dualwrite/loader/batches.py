"""Batches of the input: each is first converted as a whole, then written as one unit of work."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby, islice

from sqlalchemy import Table, insert
from sqlalchemy.exc import DBAPIError, IntegrityError

from dualwrite.coordinator.sql.engine.database_errors import first_line, refuses_row
from dualwrite.errors import InputError
from dualwrite.loader.bad_rows import BadRow, BadRowFile
from dualwrite.loader.input import InputFile, InputRow, MalformedRow
from dualwrite.loader.job import LoadJob, LoadUnits
from dualwrite.loader.position import LoadPosition, advance, require_moved
from dualwrite.loader.rows import Row, RowTyper, encode_key, encode_value

Record = tuple[bytes | None, bytes]


class Batches:
    """The input in batches, each converted as a whole before any of it is written.

    :param bad_rows: the file for rows that do not fit; None to stop at the first one.
    """

    def __init__(
        self, job: LoadJob, source: InputFile, table: Table, typer: RowTyper, bad_rows: BadRowFile | None = None
    ) -> None:
        self._job = job
        self._table = table
        self._source = source
        self._typer = typer
        self._items = source.items()
        self._done = 0
        self._bad = 0
        self._bad_rows = bad_rows

    def skip(self, position: LoadPosition) -> None:
        """Skip the rows that an earlier run loaded, or put into the file for bad rows.

        :raises InputError: if those rows have changed since then.
        """
        self._done = sum(1 for _ in islice(self._items, position.rows))
        self._bad = position.bad
        if position.rows and (self._done < position.rows or self._source.digest() != position.digest):
            raise InputError(
                f"{self._source.name} has changed in the {position.rows:,} rows that were loaded from it before; "
                f"load the new rows from a separate file{self._advice()}"
            )

    def __iter__(self) -> "Iterator[LoadBatch]":
        """The remaining batches.

        :raises InputError: at a row that is malformed or does not fit the table, if there is no file for bad rows.
        """
        while True:
            first, begins = None, self._done
            rows: list[Row] = []
            records: list[Record] = []
            bad: list[BadRow] = []
            for item in islice(self._items, self._job.batch_size):
                first, last = item.line if first is None else first, item.line
                self._done += 1
                try:
                    row, record = self._converted(item)
                except InputError as error:
                    if self._bad_rows is None:
                        raise
                    bad.append(BadRow(self._done, item.line, str(error), self._source.raw()))
                else:
                    rows.append(row)
                    records.append(record)
            if self._done == begins:
                return
            self._bad += len(bad)
            lines = f"{self._source.name}, " + (f"line {first}" if first == last else f"lines {first} to {last}")
            end = LoadPosition(self._done, self._source.digest(), self._bad)
            yield LoadBatch(self._job, self._table, rows, records, lines, end, bad, self._bad_rows)

    def _converted(self, item: InputRow | MalformedRow) -> tuple[Row, Record]:
        if isinstance(item, MalformedRow):
            raise InputError(item.message)
        row = self._typer.row(item)
        return row, self._record(item.line, row)

    def _record(self, line: int, row: Row) -> Record:
        key = self._job.key
        where = f"{self._source.name}, line {line}"
        if key is not None and key not in row:
            raise InputError(f"{where}: key column {key!r} is missing")
        try:
            return None if key is None else encode_key(row[key]), encode_value(row)
        except ValueError as error:
            raise InputError(f"{where}: {error}") from None

    def _advice(self) -> str:
        """The other reasons why the digest may differ."""
        if self._job.path is None:
            return ", or send this input from its beginning, with every row of the run before"
        form = self._source.form
        if form.encoding != "utf-8" or form.delimiter not in (None, ","):
            return "; or use the --encoding and the --delimiter of the run before"
        return ""


@dataclass(frozen=True, slots=True)
class LoadBatch:
    """One unit of work, ready to be written."""

    job: LoadJob
    table: Table
    rows: list[Row]
    records: list[Record]
    lines: str
    end: LoadPosition
    bad: list[BadRow]
    bad_rows: BadRowFile | None

    def write(self, dual_write: LoadUnits, begin: LoadPosition) -> None:
        """Write the position after the batch, its bad rows, its records and its rows, as one unit of work.

        :raises InputError: if the database refuses a row, another process has moved the position, or the bad rows
            cannot be written to their file. The unit was rolled back on both sides.
        :raises ConfigurationError: if the database refuses the position. The unit was rolled back on both sides.
        """
        job = self.job
        try:
            with dual_write.transaction() as tx:
                engine = tx.connection.engine
                # first, because it stops a second process with the same file
                advance(tx.connection, job.load_key, begin, self.end)
                if self.bad_rows is not None:
                    self.bad_rows.write(begin.rows, self.bad)
                for key, value in self.records:
                    tx.produce(job.topic, key=key, value=value)
                # one statement needs rows with the same columns, and a JSON line may leave some out
                for _, rows in groupby(self.rows, key=tuple):
                    tx.execute(insert(self.table), list(rows))
        except InputError as error:
            if isinstance(error.__cause__, IntegrityError):
                with engine.connect() as connection:
                    require_moved(connection, job.load_key, begin, error.__cause__)
            raise
        except DBAPIError as error:
            if not refuses_row(error):
                raise
            raise InputError(f"{self.lines}: the database refuses a row: {first_line(error)}") from error
