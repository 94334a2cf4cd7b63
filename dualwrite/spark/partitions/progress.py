"""Records which partitions of a job's batches are written. So a task that Spark runs again has no second effect.

The unit of work that writes a partition first inserts the partition's row. A second attempt waits for the first, and
finds the row if the first attempt committed. This holds for every kind of attempt: a retry, a speculative copy, or an
attempt on an executor that Spark believes to be dead.

The batch has a row, too (batches.py), which the tasks lock while they write. With another number of partitions, the
same partition has other rows. So a run of the batch with another number waits for the tasks, and is refused if one of
them was committed. The same holds for a run with another target.
"""

from typing import Any, NamedTuple

from sqlalchemy import Connection, Row, insert, select, update
from sqlalchemy.exc import IntegrityError

from dualwrite.coordinator.sql.dialects.supported import database_of
from dualwrite.coordinator.sql.engine.database_errors import LOOK_FOR_ADDITIONS, refused_own_row
from dualwrite.coordinator.sql.engine.error_meanings import clear_errors
from dualwrite.coordinator.sql.own_tables import ours
from dualwrite.coordinator.sql.tables import spark_progress as table
from dualwrite.errors import BatchChangedError, ConfigurationError
from dualwrite.spark.known.retention import batch_name
from dualwrite.spark.known.targets import TARGET_COLUMNS, BatchTarget, target_columns, target_in
from dualwrite.spark.plan.rows import RowsDigest

BATCH_ROW = -1
"""The partition of the batch's own row."""


class BegunBatch(NamedTuple):
    """A batch, as a run writes it.

    :param partitions: the number of its partitions.
    :param target: None if it is not known, because an earlier release has begun the batch.
    """

    job: str
    batch_id: int
    partitions: int
    target: BatchTarget | None

    def __str__(self) -> str:
        return batch_name(self.job, self.batch_id)


class BatchPartition(NamedTuple):
    """One partition of a batch."""

    batch: BegunBatch
    partition: int

    def __str__(self) -> str:
        return f"partition {self.partition} of {self.batch}"


def claim(connection: Connection, share: BatchPartition) -> bool:
    """Insert the row of ``share``, in the unit of work that is going to write the partition. Waits for another attempt
    that is writing it. False if the partition is already written.

    :raises BatchChangedError: if another run of the batch has another number of partitions or another target, or if the
        batch was forgotten.
    :raises ConfigurationError: if the database refuses the row although it is not there.
    """
    batch = share.batch
    with clear_errors(connection.engine):
        row = connection.execute(
            select_batch(batch).with_for_update(read=True), execution_options=ours(connection)
        ).one_or_none()
    if row is None:
        raise _writes_nothing(batch, "is not remembered any more", f"with {batch.partitions}")
    current = batch_in(row, batch)
    if current.partitions != batch.partitions:
        raise _writes_nothing(batch, f"has {current.partitions} partitions in another run", f"with {batch.partitions}")
    if current.target != batch.target:
        raise _writes_nothing(batch, f"goes to {current.target} in another run", f"that writes to {batch.target}")
    if insert_row(connection, batch, share.partition):
        return True
    # MariaDB shows rows that are not on disk yet; a commit that changes something puts them there.
    connection.execute(
        update(table).where(*_of(share)).values(updated_at=_now(connection)), execution_options=ours(connection)
    )
    return False


def finish(connection: Connection, share: BatchPartition, digest: RowsDigest) -> None:
    """Store the digest of the rows of ``share``, in the same transaction.

    :raises ConfigurationError: if the database has not stored the row of ``share``: without it the partition would be
        written again.
    """
    stored = connection.execute(
        update(table).where(*_of(share)).values(row_count=digest.count, digest=digest.checksum),
        execution_options=ours(connection),
    ).rowcount
    if stored != 1:
        raise ConfigurationError(f"the database has not stored a row of {table.name}: {LOOK_FOR_ADDITIONS}")


def require_same(connection: Connection, share: BatchPartition, digest: RowsDigest) -> None:
    """Check that ``share`` was written with the same rows.

    :param digest: the digest of the rows that the partition has now.
    :raises BatchChangedError: if the rows differ.
    """
    content = select(table.c.row_count, table.c.digest).where(*_of(share))
    row = connection.execute(content, execution_options=ours(connection)).one_or_none()
    if row is not None and (row.row_count, row.digest) != (digest.count, digest.checksum):
        raise BatchChangedError(
            f"{share} was written with {row.row_count} rows, and has {digest.count} now"
            f"{', which differ' if row.row_count == digest.count else ''}: the written rows stay, and this run writes "
            "none of the partition's rows"
        )


def insert_row(connection: Connection, batch: BegunBatch, partition: int) -> bool:
    """Insert the row of a partition, or of ``batch`` itself; False if it exists. Uses a savepoint, as a failed INSERT
    would end PostgreSQL's transaction.

    :raises ConfigurationError: if the database refuses the row for another reason.
    """
    key = {"job": batch.job, "batch_id": batch.batch_id, "partition": partition}
    target = target_columns(batch.target) if partition == BATCH_ROW else {}
    row = {**key, **target, "partitions": batch.partitions, "row_count": 0, "digest": ""}
    try:
        with clear_errors(connection.engine), connection.begin_nested():
            connection.execute(
                insert(table).values(**row, updated_at=_now(connection)), execution_options=ours(connection)
            )
    except IntegrityError as error:
        there = select(table.c.partition).where(*_of(BatchPartition(batch, partition)))
        if connection.execute(there, execution_options=ours(connection)).first() is None:
            raise refused_own_row(table, error) from error
        return False
    return True


def select_batch(batch: BegunBatch) -> Any:
    """Select the row of ``batch``, for :func:`batch_in`."""
    columns = (table.c.partitions, *(table.c[name] for name in TARGET_COLUMNS))
    return select(*columns).where(*_of(BatchPartition(batch, BATCH_ROW)))


def batch_in(row: Row[Any], batch: BegunBatch) -> BegunBatch:
    """``batch`` as it is in ``row``."""
    return batch._replace(partitions=row.partitions, target=target_in(row))


def _writes_nothing(batch: BegunBatch, reason: str, run: str) -> BatchChangedError:
    return BatchChangedError(f"{batch} {reason}, and this task belongs to a run {run}: it writes nothing")


def _of(share: BatchPartition) -> tuple[Any, Any, Any]:
    """The condition that finds the row of ``share``."""
    batch = share.batch
    return table.c.job == batch.job, table.c.batch_id == batch.batch_id, table.c.partition == share.partition


def _now(connection: Connection) -> Any:
    return database_of(connection.dialect).now()
