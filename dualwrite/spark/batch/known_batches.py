"""The batches of a job that are committed: their numbers, their content and their target, in the database.

A batch's row is written in the transaction that decides the batch. The latest batches of each job are kept. The job's
own row has the highest number that was forgotten, because it is not known which lower numbers were written.
"""

from typing import Any, NamedTuple

from sqlalchemy import Connection, case, delete, func, insert, select, update

from dualwrite.coordinator.sql.dialects.supported import database_of
from dualwrite.coordinator.sql.own_tables import ours
from dualwrite.coordinator.sql.tables import spark_batch, spark_run
from dualwrite.errors import BatchChangedError


class BatchTarget(NamedTuple):
    """Where a batch is written.

    :param table: the table, with its schema.
    :param table_id: tells the table from an earlier table of the same name (Database.table_id); None if not known.
    :param topic: None if each row names its topic.
    """

    table: str
    table_id: str | None
    topic: str | None


class BatchContent(NamedTuple):
    """What a batch is.

    :param rows: the number of its rows.
    :param digest: of its rows (row_sums.py); None if they are not to be compared.
    :param target: None if an earlier release has written the batch.
    """

    rows: int
    digest: str | None = None
    target: BatchTarget | None = None


class KnownBatch(NamedTuple):
    """A committed batch, and the run that has committed it."""

    run_id: int
    content: BatchContent


def known_batch(connection: Connection, job: str, batch_id: int | None) -> KnownBatch | None:
    """The committed batch with that number. None if it is not remembered, or has no number."""
    if batch_id is None:
        return None
    table = spark_batch.c
    row = connection.execute(
        select(table.run_id, table.row_count, table.digest, table.table_name, table.table_id, table.topic).where(
            table.job == job, table.batch_id == batch_id
        ),
        execution_options=ours(connection),
    ).one_or_none()
    if row is None:
        return None
    target = None if row.table_name is None else BatchTarget(row.table_name, row.table_id, row.topic)
    return KnownBatch(row.run_id, BatchContent(row.row_count, row.digest, target))


def record_batch(
    connection: Connection, job: str, batch_id: int | None, run_id: int, content: BatchContent, keep: int
) -> None:
    """Remember the batch, in the transaction that decides it. Forget the lowest numbers if the job has more than
    ``keep`` batches. The caller has the lock of the job's row."""
    if batch_id is None:
        return
    target = content.target
    values: dict[str, Any] = {} if target is None else dict(zip(_TARGET_COLUMNS, target, strict=True))
    connection.execute(
        insert(spark_batch).values(
            job=job,
            batch_id=batch_id,
            run_id=run_id,
            row_count=content.rows,
            digest=content.digest,
            committed_at=database_of(connection.dialect).now(),
            **values,
        ),
        execution_options=ours(connection),
    )
    of_job = spark_batch.c.job == job
    number = spark_batch.c.batch_id
    last_forgotten = connection.scalar(
        select(number).where(of_job).order_by(number.desc()).offset(keep).limit(1), execution_options=ours(connection)
    )
    if last_forgotten is None:
        return
    connection.execute(delete(spark_batch).where(of_job, number <= last_forgotten), execution_options=ours(connection))
    forgotten = update(spark_run).where(spark_run.c.job == job).values(forgotten_to=last_forgotten)
    connection.execute(forgotten, execution_options=ours(connection))


def require_remembered(connection: Connection, job: str, batch_id: int | None, keep: int) -> None:
    """Pass if it is known whether the batch was written: if its number is not among those that were forgotten, and
    would not be forgotten at once.

    :raises BatchChangedError: if it is not known. Nothing can tell whether the batch was written: look in the table,
        and give the batch a new number if it was not.
    """
    if batch_id is None:
        return
    forgotten_to = connection.scalar(
        select(spark_run.c.forgotten_to).where(spark_run.c.job == job), execution_options=ours(connection)
    )
    numbers = spark_batch.c.batch_id
    is_earlier_release = case((spark_batch.c.table_name.is_(None), 1), else_=0)
    latest, lowest, count, earlier = connection.execute(
        select(func.max(numbers), func.min(numbers), func.count(), func.sum(is_earlier_release)).where(
            spark_batch.c.job == job
        ),
        execution_options=ours(connection),
    ).one()
    is_forgotten = forgotten_to is not None and batch_id <= forgotten_to
    is_too_low = count >= keep and batch_id < lowest
    # A release before version 0006 of the tables forgets by the distance of numbers, and does not say so.
    may_be_forgotten = bool(earlier) and batch_id <= latest - keep
    if is_forgotten or is_too_low or may_be_forgotten:
        raise BatchChangedError(
            f"batch {batch_id} of job {job!r} is older than the {keep} batches that are remembered (option "
            f"keepBatches; the latest is {latest}), so it is not known whether it was written"
        )


_TARGET_COLUMNS = ("table_name", "table_id", "topic")
