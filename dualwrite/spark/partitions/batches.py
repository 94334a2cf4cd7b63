"""Begins the batches of a job whose partitions are written one by one, on Spark's driver; forgets old batches.

A batch has a row with the number of its partitions and its target. The row exists before the tasks begin. Each task
locks it in shared mode while it writes, so both stay the same meanwhile. They may change until the first partition is
written.

The job has a row, too: batch -1. It has the highest number that was forgotten. A batch is remembered, and others are
forgotten, under the lock of that row. A batch is not forgotten before all of its partitions are written: it can be run
again until it is complete, however long that takes.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sqlalchemy import Connection, Engine, bindparam, delete, func, select, update

from dualwrite.coordinator.sql.dialects.supported import database_of
from dualwrite.coordinator.sql.engine.database_errors import as_library_errors, connected
from dualwrite.coordinator.sql.engine.error_meanings import clear_errors
from dualwrite.coordinator.sql.own_tables import ours
from dualwrite.coordinator.sql.tables import spark_progress as table
from dualwrite.coordinator.sql.unit_bounds import begin_writing
from dualwrite.errors import BatchChangedError
from dualwrite.spark.known.retention import last_beyond, memory_of, require_remembered
from dualwrite.spark.known.targets import ADVICE, require_rows_there, require_same_target, target_columns
from dualwrite.spark.partitions.progress import BATCH_ROW, BegunBatch, batch_in, insert_row, select_batch

_JOB_ROW = -1
"""The number of the batch whose row is the job's."""
_UNFINISHED = "write the rest of the batch there; if that is gone, or was wrong, begin the batch under another job"


def begin_batch(
    engine: Engine, batch: BegunBatch, dbtable: str, keep: int, *, skips: bool = False
) -> BegunBatch | None:
    """Store the number of the batch's partitions and its target, before any partition is written. Forget complete
    batches beyond the ``keep`` with the highest numbers.

    :param dbtable: the target table, as the user calls it.
    :param skips: do not compare the batch if it is complete.
    :returns: the batch as its tasks must find it; None if it is complete and to be skipped.
    :raises BatchChangedError: if a part of the batch was written with another number of partitions or to another
        target, or if its number is so low that it was forgotten. A retry cannot help.
    :raises DatabaseNotReadyError: before ``dualwrite db upgrade``.
    """
    _make_job_row(engine, batch.job)
    with _transaction(engine) as connection:
        if _find(connection, batch) is None and _remember(connection, batch, keep):
            return batch
        return _begin_again(connection, batch, dbtable, skips=skips)


def _make_job_row(engine: Engine, job: str) -> None:
    """Insert the row of a job that has none. In a transaction of its own: MariaDB would let drivers that insert the
    same row wait for each other."""
    with _transaction(engine) as connection:
        if connection.scalar(_job_row(job), execution_options=ours(connection)) is None:
            insert_row(connection, BegunBatch(job, _JOB_ROW, 0, None), BATCH_ROW)


def _remember(connection: Connection, batch: BegunBatch, keep: int) -> bool:
    """Insert the row of a batch, and forget others. False if another driver has just inserted it."""
    forgotten_to = connection.scalar(
        _job_row(batch.job, table.c.forgotten_to).with_for_update(), execution_options=ours(connection)
    )
    if not insert_row(connection, batch, BATCH_ROW):
        return False
    memory = memory_of(connection, table, _batches(batch.job), batch.batch_id, forgotten_to)
    require_remembered(str(batch), batch.batch_id, keep, memory)
    last = last_beyond(connection, table, _batches(batch.job), keep)
    if last is not None:
        _forget(connection, batch.job, last, forgotten_to)
    return True


def _forget(connection: Connection, job: str, last: int, forgotten_to: int | None) -> None:
    """Forget the complete batches up to the number ``last``."""
    number, is_one = table.c.batch_id, table.c.batch_id == bindparam("number")
    complete = (
        select(number)
        .where(table.c.job == job, number.between(0, last))
        .group_by(number)
        .having(func.count() > func.max(table.c.partitions))  # its own row, and one for each partition
    )
    numbers = list(connection.scalars(complete, execution_options=ours(connection)))
    if not numbers:
        return
    connection.execute(
        delete(table).where(table.c.job == job, is_one),
        [{"number": each} for each in numbers],
        execution_options=ours(connection),
    )
    highest = max(numbers) if forgotten_to is None else max(*numbers, forgotten_to)
    _change(connection, job, _JOB_ROW, forgotten_to=highest)


def _begin_again(connection: Connection, batch: BegunBatch, dbtable: str, *, skips: bool) -> BegunBatch | None:
    """Begin a batch that was begun before. If the number of its partitions or its target must change, wait for the
    tasks that are writing it."""
    known = _find(connection, batch)
    if known is not None and known != batch:
        known = _find(connection, batch, lock=True)
    if known is None:
        raise BatchChangedError(f"{batch} was forgotten just now: raise keepBatches, or begin fewer batches at once")
    if (
        known.target is None
    ):  # then its row goes on telling that an earlier release may have forgotten others (memory_of)
        batch = batch._replace(target=None)
    written, rows = connection.execute(
        select(func.count(), func.sum(table.c.row_count)).where(*_of(batch), table.c.partition != BATCH_ROW),
        execution_options=ours(connection),
    ).one()
    if not written:
        if known != batch:
            values = {"partitions": batch.partitions, **target_columns(batch.target)}
            _change(connection, batch.job, batch.batch_id, **values)
        return batch
    is_complete = written == known.partitions
    if is_complete and skips:
        return None
    if batch.target is not None:
        require_same_target(str(batch), known.target, batch.target, ADVICE if is_complete else _UNFINISHED)
    if known.partitions != batch.partitions:
        raise BatchChangedError(
            f"{batch} has {batch.partitions} partitions now and had {known.partitions} when {written} of them were "
            "written: run it with as many partitions as before, or write the missing rows by hand and go on with the "
            "next batch"
        )
    if not skips:
        require_rows_there(connection, str(batch), int(rows), dbtable)
    return known


def _find(connection: Connection, batch: BegunBatch, *, lock: bool = False) -> BegunBatch | None:
    """The batch as it was begun; None if it was not, or was forgotten."""
    statement = select_batch(batch)
    row = connection.execute(
        statement.with_for_update() if lock else statement, execution_options=ours(connection)
    ).one_or_none()
    return None if row is None else batch_in(row, batch)


def _change(connection: Connection, job: str, batch_id: int, **values: Any) -> None:
    """Change a batch's row, or the job's."""
    row = (table.c.job == job, table.c.batch_id == batch_id, table.c.partition == BATCH_ROW)
    now = database_of(connection.dialect).now()
    connection.execute(update(table).where(*row).values(updated_at=now, **values), execution_options=ours(connection))


def _job_row(job: str, *columns: Any) -> Any:
    """Select ``columns`` of the job's row, or its number if none are given."""
    return select(*(columns or (table.c.batch_id,))).where(table.c.job == job, table.c.batch_id == _JOB_ROW)


def _batches(job: str) -> Any:
    """The condition that finds the rows of the job's batches."""
    return (table.c.job == job) & (table.c.partition == BATCH_ROW) & (table.c.batch_id != _JOB_ROW)


def _of(batch: BegunBatch) -> tuple[Any, Any]:
    return table.c.job == batch.job, table.c.batch_id == batch.batch_id


@contextmanager
def _transaction(engine: Engine) -> Iterator[Connection]:
    with as_library_errors(engine.dialect), connected(engine) as connection, connection.begin():
        begin_writing(connection)
        with clear_errors(engine):
            yield connection
