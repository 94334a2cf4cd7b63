"""The batches of a job that are committed: their numbers, their content and their target, in the database.

A batch's row is written in the transaction that decides the batch. The latest batches of each job are kept. The job's
own row has the highest number that was forgotten, because it is not known which lower numbers were written.
"""

from typing import NamedTuple

from sqlalchemy import Connection, delete, insert, select, update

from dualwrite.coordinator.sql.dialects.supported import database_of
from dualwrite.coordinator.sql.own_tables import ours
from dualwrite.coordinator.sql.tables import spark_batch, spark_run
from dualwrite.spark.known.retention import batch_name, last_beyond, memory_of, require_remembered
from dualwrite.spark.known.targets import BatchTarget, target_columns, target_in


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
    return KnownBatch(row.run_id, BatchContent(row.row_count, row.digest, target_in(row)))


def record_batch(
    connection: Connection, job: str, batch_id: int | None, run_id: int, content: BatchContent, keep: int
) -> None:
    """Remember the batch, in the transaction that decides it. Forget the lowest numbers if the job has more than
    ``keep`` batches. The caller has the lock of the job's row."""
    if batch_id is None:
        return
    connection.execute(
        insert(spark_batch).values(
            job=job,
            batch_id=batch_id,
            run_id=run_id,
            row_count=content.rows,
            digest=content.digest,
            committed_at=database_of(connection.dialect).now(),
            **target_columns(content.target),
        ),
        execution_options=ours(connection),
    )
    of_job = spark_batch.c.job == job
    last = last_beyond(connection, spark_batch, of_job, keep)
    if last is None:
        return
    connection.execute(
        delete(spark_batch).where(of_job, spark_batch.c.batch_id <= last), execution_options=ours(connection)
    )
    forgotten = update(spark_run).where(spark_run.c.job == job).values(forgotten_to=last)
    connection.execute(forgotten, execution_options=ours(connection))


def require_not_forgotten(connection: Connection, job: str, batch_id: int | None, keep: int) -> None:
    """Pass if a batch that is not remembered was not written, and would be remembered; see
    :func:`~dualwrite.spark.known.retention.require_remembered`. The caller has the lock of the job's row.

    :raises BatchChangedError: if not.
    """
    if batch_id is None:
        return
    forgotten_to = connection.scalar(
        select(spark_run.c.forgotten_to).where(spark_run.c.job == job), execution_options=ours(connection)
    )
    memory = memory_of(connection, spark_batch, spark_batch.c.job == job, batch_id, forgotten_to)
    require_remembered(batch_name(job, batch_id), batch_id, keep, memory)
