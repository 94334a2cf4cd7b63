"""Loads a file: checks everything first, skips what an earlier run loaded, then runs one unit of work per batch."""

from collections.abc import Callable
from contextlib import ExitStack

from sqlalchemy import Engine, Table, inspect

from dualwrite.coordinator.sql.dialects.supported import database_of
from dualwrite.coordinator.sql.engine.shown_url import command_on
from dualwrite.coordinator.sql.own_tables import schema_of
from dualwrite.coordinator.sql.tables import kafka_transaction_state, load_position
from dualwrite.errors import DatabaseNotReadyError, InputError
from dualwrite.loader.bad_rows import BadRowFile
from dualwrite.loader.batches import Batches
from dualwrite.loader.format import delimiter_hint
from dualwrite.loader.input import InputFile
from dualwrite.loader.job import LoadJob, LoadUnits, Progress
from dualwrite.loader.position import LoadPosition, read_position
from dualwrite.loader.rows import RowTyper
from dualwrite.loader.table import reflected


def load(
    job: LoadJob, engine: Engine, dual_write: LoadUnits, on_progress: Callable[[Progress], None] | None = None
) -> Progress:
    """Load the remaining rows of ``job``'s input, if there are any. Returns the progress.

    Checks everything that it can before the first write. A crash at any moment leaves only whole batches, in both the
    database and Kafka; another call continues from there.

    :param engine: the database of ``dual_write``.
    :param on_progress: called before the first batch, after each, and at the end.
    :raises InputError: if a row does not fit and ``job`` has no file for bad rows, or if the database refuses a row.
        Its batch is neither in the database nor in Kafka. Correct the input, and load again.
    :raises DatabaseNotReadyError: if the state tables are missing.
    :raises ConfigurationError: if the job contradicts itself, or the database silently changes values that do not fit.
    :raises DualWriteError: from the unit of work; see the classes. To load again is always safe.
    """
    job.check()
    with ExitStack() as stack:
        source = stack.enter_context(InputFile(job.path, job.form))
        table, typer = _checked(job, engine, source)
        bad_rows = None
        if job.bad_rows is not None:
            bad_rows = stack.enter_context(BadRowFile(job.bad_rows, job.load_key.source))
        batches = Batches(job, source, table, typer, bad_rows)
        dual_write.recover()
        with engine.connect() as connection:
            begin = read_position(connection, job.load_key)
        batches.skip(begin)
        return _write(batches, dual_write, source, begin, on_progress or _ignore)


def _write(
    batches: Batches, dual_write: LoadUnits, source: InputFile, begin: LoadPosition, tell: Callable[[Progress], None]
) -> Progress:
    """Write every batch, the first one from ``begin`` on."""

    def progress(fraction: float) -> Progress:
        return Progress(position.loaded, begin.loaded, fraction, position.bad, begin.bad)

    position = begin
    tell(progress(source.fraction()))
    try:
        for batch in batches:
            batch.write(dual_write, position)
            position = batch.end
            tell(progress(source.fraction()))
    except InputError as error:
        raise InputError(f"{error}; {_loaded(position.loaded)}") from error
    done = progress(1.0)
    tell(done)
    return done


def _checked(job: LoadJob, engine: Engine, source: InputFile) -> tuple[Table, RowTyper]:
    """The table and its converter, after every check that is possible without reading the rows."""
    table = reflected(job.table, engine, "; create it before loading into it")
    database = database_of(engine.dialect)
    with engine.connect() as connection:
        for needed in (kafka_transaction_state, load_position):
            if not inspect(connection).has_table(needed.name, schema=schema_of(connection)):
                raise DatabaseNotReadyError(
                    f"the database has no table {needed.name}; run: {command_on(engine, 'db upgrade')}"
                )
        database.require_strict(connection)
    typer = RowTyper(table, source.name, database, csv=source.columns is not None, null=job.null)
    if job.key is not None and job.key not in table.columns:
        raise InputError(f"key column {job.key!r} is not in table {table.fullname}")
    if source.columns is not None:
        try:
            typer.require(source.columns, source.name)
        except InputError as error:
            raise InputError(f"{error}{delimiter_hint(source.columns)}") from None
        if job.key is not None and job.key not in source.columns:
            raise InputError(f"key column {job.key!r} is not in {source.name}")
    return table, typer


def _loaded(rows: int) -> str:
    return f"the {rows:,} rows before this batch are loaded, this batch is not" if rows else "nothing is loaded"


def _ignore(progress: Progress) -> None:
    """The default of on_progress: does nothing."""
