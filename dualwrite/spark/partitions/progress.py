"""Records which partitions of a job's batches are written. So a task that Spark runs again has no second effect.

The unit of work that writes a partition first inserts the partition's row. A second attempt waits for the first, and
finds the row if the first attempt committed. This holds for every kind of attempt: a retry, a speculative copy, or an
attempt on an executor that Spark believes to be dead.

The batch has a row, too, with the number of its partitions. It exists before the tasks begin, and they lock it while
they write. With another number of partitions, the same partition has other rows. So a run of the batch with another
number waits for the tasks, and is refused if one of them was committed.
"""

from typing import Any, NamedTuple

from sqlalchemy import Connection, Engine, Row, delete, func, insert, select, update
from sqlalchemy.exc import IntegrityError

from dualwrite.coordinator.sql.dialects.supported import database_of
from dualwrite.coordinator.sql.engine.error_meanings import clear_errors
from dualwrite.coordinator.sql.own_tables import ours
from dualwrite.coordinator.sql.tables import spark_progress as table
from dualwrite.coordinator.sql.unit_bounds import begin_writing
from dualwrite.errors import BatchChangedError
from dualwrite.spark.plan.rows import RowsDigest

_BATCH_ROW = -1
"""The partition of the batch's own row."""


class BatchPartition(NamedTuple):
    """One partition of a batch, and the number of the batch's partitions."""

    job: str
    batch_id: int
    partition: int
    partitions: int

    @property
    def batch(self) -> str:
        """The batch's name, for messages."""
        return _batch_name(self.job, self.batch_id)

    def __str__(self) -> str:
        return f"partition {self.partition} of {self.batch}"


def begin_batch(engine: Engine, job: str, batch_id: int, partitions: int, keep: int) -> None:
    """Store the number of the batch's partitions, before any partition is written. Forget batches older than the last
    ``keep``.

    :raises BatchChangedError: if a part of the batch was written with another number of partitions, or if the batch is
        so old that it was forgotten. A retry cannot help.
    :raises DatabaseNotReadyError: before ``dualwrite db upgrade``.
    """
    with engine.begin() as connection:
        begin_writing(connection)
        with clear_errors(engine):
            if not _is_recorded(connection, job, batch_id, partitions, keep):
                _change_partitions(connection, job, batch_id, partitions)
            connection.execute(
                delete(table).where(table.c.job == job, table.c.batch_id <= batch_id - keep),
                execution_options=ours(connection),
            )


def _is_recorded(connection: Connection, job: str, batch_id: int, partitions: int, keep: int) -> bool:
    """Insert the batch's row, unless it exists; False if it has another number of partitions."""
    batch_row = BatchPartition(job, batch_id, _BATCH_ROW, partitions)
    row = _select_row(connection, batch_row)
    if row is not None:
        return bool(row.partitions == partitions)
    latest = connection.scalar(
        select(func.max(table.c.batch_id)).where(table.c.job == job), execution_options=ours(connection)
    )
    if latest is not None and batch_id <= latest - keep:
        raise BatchChangedError(
            f"{_batch_name(job, batch_id)} is older than the {keep} batches that are remembered (option keepBatches; "
            f"the latest is {latest}), so it is not known whether it was written"
        )
    return _insert(connection, batch_row)


def _change_partitions(connection: Connection, job: str, batch_id: int, partitions: int) -> None:
    """Change the number of the batch's partitions. Waits for attempts that are writing it."""
    batch_row = _select(BatchPartition(job, batch_id, _BATCH_ROW, partitions))
    partitions_before = connection.scalar(batch_row.with_for_update(), execution_options=ours(connection))
    batch = (table.c.job == job, table.c.batch_id == batch_id)
    written = connection.scalar(
        select(func.count()).where(*batch, table.c.partition != _BATCH_ROW), execution_options=ours(connection)
    )
    if written and partitions_before != partitions:
        raise BatchChangedError(
            f"{_batch_name(job, batch_id)} has {partitions} partitions now and had {partitions_before} when {written} "
            "of them were written: run it with as many partitions as before, or write the missing rows by hand and go "
            "on with the next batch"
        )
    values = {"partitions": partitions, "updated_at": _now(connection)}
    connection.execute(
        update(table).where(*batch, table.c.partition == _BATCH_ROW).values(values), execution_options=ours(connection)
    )


def claim(connection: Connection, share: BatchPartition) -> bool:
    """Insert the row of ``share``, in the unit of work that is going to write the partition. Waits for another attempt
    that is writing it. False if the partition is already written.

    :raises BatchChangedError: if the batch is written with another number of partitions, or was forgotten.
    """
    with clear_errors(connection.engine):
        batch_partitions = connection.scalar(
            _select(share._replace(partition=_BATCH_ROW)).with_for_update(read=True), execution_options=ours(connection)
        )
    if batch_partitions != share.partitions:
        reason = (
            "is not remembered any more"
            if batch_partitions is None
            else f"has {batch_partitions} partitions in another run"
        )
        raise BatchChangedError(
            f"{share.batch} {reason}, and this task belongs to a run with {share.partitions}: it writes nothing"
        )
    if _insert(connection, share):
        return True
    # MariaDB shows rows that are not on disk yet; a commit that changes something puts them there.
    of_share = (table.c.job == share.job, table.c.batch_id == share.batch_id, table.c.partition == share.partition)
    connection.execute(
        update(table).where(*of_share).values(updated_at=_now(connection)), execution_options=ours(connection)
    )
    return False


def finish(connection: Connection, share: BatchPartition, digest: RowsDigest) -> None:
    """Store the digest of the rows of ``share``, in the same transaction."""
    connection.execute(
        update(table)
        .where(table.c.job == share.job, table.c.batch_id == share.batch_id, table.c.partition == share.partition)
        .values(row_count=digest.count, digest=digest.checksum),
        execution_options=ours(connection),
    )


def require_same(connection: Connection, share: BatchPartition, digest: RowsDigest) -> None:
    """Check that ``share`` was written with the same rows.

    :param digest: the digest of the rows that the partition has now.
    :raises BatchChangedError: if the rows differ.
    """
    row = _select_row(connection, share)
    if row is not None and (row.row_count, row.digest) != (digest.count, digest.checksum):
        raise BatchChangedError(
            f"{share} was written with {row.row_count} rows, and has {digest.count} now"
            f"{', which differ' if row.row_count == digest.count else ''}: the written rows stay, and this run writes "
            "none of the partition's rows"
        )


def _insert(connection: Connection, row: BatchPartition) -> bool:
    """Insert ``row``; False if it exists. Uses a savepoint, as a failed INSERT would end PostgreSQL's transaction."""
    try:
        with clear_errors(connection.engine), connection.begin_nested():
            connection.execute(
                insert(table).values(**row._asdict(), row_count=0, digest="", updated_at=_now(connection)),
                execution_options=ours(connection),
            )
    except IntegrityError:
        return False
    return True


def _select_row(connection: Connection, share: BatchPartition) -> Row[Any] | None:
    statement = _select(share).add_columns(table.c.row_count, table.c.digest)
    return connection.execute(statement, execution_options=ours(connection)).one_or_none()


def _select(share: BatchPartition) -> Any:
    """Select the row of ``share``: its number of partitions."""
    of_share = (table.c.job == share.job, table.c.batch_id == share.batch_id, table.c.partition == share.partition)
    return select(table.c.partitions).where(*of_share)


def _now(connection: Connection) -> Any:
    return database_of(connection.dialect).now()


def _batch_name(job: str, batch_id: int) -> str:
    return f"batch {batch_id} of job {job!r}"
