"""Which partitions of a job's batches are written, so that a task that Spark runs again has no second effect.

The unit of work that writes a partition first inserts the partition's row. So of two concurrent attempts the second
waits for the first, and finds its row if the first committed. This holds for every kind of attempt: a retry, a
speculative copy, or an attempt on an executor that Spark believes to be dead.

The batch has a row, too, with the number of its partitions. It exists before the tasks begin, and they lock it while
they write. A run of the batch with another number of partitions, where the same partition has other rows, waits for
them, and is refused if one of them was committed.
"""

from typing import Any, NamedTuple

from sqlalchemy import Connection, Engine, Row, delete, func, insert, select, update
from sqlalchemy.exc import IntegrityError

from dualwrite.coordinator.sql.decision_store import begin_writing, clear_errors
from dualwrite.coordinator.sql.dialects.supported import database_of
from dualwrite.coordinator.sql.own_tables import ours
from dualwrite.coordinator.sql.tables import spark_progress as table
from dualwrite.errors import BatchChangedError
from dualwrite.spark.plan.rows import RowsDigest

_BATCH = -1
"""The partition of the batch's own row."""


class Share(NamedTuple):
    """One partition of a batch, and the number of the batch's partitions."""

    job: str
    batch_id: int
    partition: int
    partitions: int

    @property
    def batch(self) -> str:
        """The batch's name, for messages."""
        return _said(self.job, self.batch_id)

    def __str__(self) -> str:
        return f"partition {self.partition} of {self.batch}"


def begin_batch(engine: Engine, job: str, batch_id: int, partitions: int, keep: int) -> None:
    """Store the number of the batch's partitions, before any is written; forget batches older than the last ``keep``.

    :raises BatchChangedError: if a part of the batch was written with another number of partitions, or if the batch is
        so old that it was forgotten.
    :raises DatabaseNotReadyError: before ``dualwrite db upgrade``.
    """
    with engine.begin() as connection:
        begin_writing(connection)
        with clear_errors(engine):
            if not _is_noted(connection, job, batch_id, partitions, keep):
                _change(connection, job, batch_id, partitions)
            connection.execute(
                delete(table).where(table.c.job == job, table.c.batch_id <= batch_id - keep),
                execution_options=ours(connection),
            )


def _is_noted(connection: Connection, job: str, batch_id: int, partitions: int, keep: int) -> bool:
    """Insert the batch's row, unless it exists; False if it has another number of partitions."""
    wanted = Share(job, batch_id, _BATCH, partitions)
    row = _row(connection, wanted)
    if row is not None:
        return bool(row.partitions == partitions)
    latest = connection.scalar(
        select(func.max(table.c.batch_id)).where(table.c.job == job), execution_options=ours(connection)
    )
    if latest is not None and batch_id <= latest - keep:
        raise BatchChangedError(
            f"{_said(job, batch_id)} is older than the {keep} batches that are remembered (option keepBatches; the "
            f"latest is {latest}), so it is not known whether it was written"
        )
    return _added(connection, wanted)


def _change(connection: Connection, job: str, batch_id: int, partitions: int) -> None:
    """Change the number of the batch's partitions. Waits for attempts that are writing it."""
    its_own = _select(Share(job, batch_id, _BATCH, partitions))
    before = connection.scalar(its_own.with_for_update(), execution_options=ours(connection))
    batch = (table.c.job == job, table.c.batch_id == batch_id)
    written = connection.scalar(
        select(func.count()).where(*batch, table.c.partition != _BATCH), execution_options=ours(connection)
    )
    if written and before != partitions:
        raise BatchChangedError(
            f"{_said(job, batch_id)} has {partitions} partitions now and had {before} when {written} of them were "
            "written: run it as it was, or finish what is missing by hand and go on with the next batch"
        )
    values = {"partitions": partitions, "updated_at": _now(connection)}
    connection.execute(
        update(table).where(*batch, table.c.partition == _BATCH).values(values), execution_options=ours(connection)
    )


def claim(connection: Connection, share: Share) -> bool:
    """Insert the row of ``share``, in the transaction of the unit of work that is going to write it. Waits for another
    attempt that is writing it. False if it is already written.

    :raises BatchChangedError: if the batch is written with another number of partitions, or was forgotten.
    """
    with clear_errors(connection.engine):
        batch = connection.scalar(
            _select(share._replace(partition=_BATCH)).with_for_update(read=True), execution_options=ours(connection)
        )
    if batch != share.partitions:
        now = "is forgotten" if batch is None else f"is written in {batch} partitions by another run"
        raise BatchChangedError(f"{share.batch} {now}, and this task is one of {share.partitions}: it writes nothing")
    if _added(connection, share):
        return True
    # MariaDB shows rows that are not on disk yet; a commit that changes something puts them there.
    of_share = (table.c.job == share.job, table.c.batch_id == share.batch_id, table.c.partition == share.partition)
    connection.execute(
        update(table).where(*of_share).values(updated_at=_now(connection)), execution_options=ours(connection)
    )
    return False


def finish(connection: Connection, share: Share, digest: RowsDigest) -> None:
    """Store the digest of the rows of ``share``, in the same transaction."""
    connection.execute(
        update(table)
        .where(table.c.job == share.job, table.c.batch_id == share.batch_id, table.c.partition == share.partition)
        .values(row_count=digest.count, digest=digest.checksum),
        execution_options=ours(connection),
    )


def require_same(connection: Connection, share: Share, digest: RowsDigest) -> None:
    """Check that ``share``, which is written, had the same rows.

    :raises BatchChangedError: if it had others.
    """
    row = _row(connection, share)
    if row is not None and (row.row_count, row.digest) != (digest.count, digest.checksum):
        raise BatchChangedError(
            f"{share} was written with {row.row_count} rows, and has {digest.count} now"
            f"{', which are others' if row.row_count == digest.count else ''}: what was written stays, and this run "
            "writes nothing of it"
        )


def _added(connection: Connection, row: Share) -> bool:
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


def _row(connection: Connection, share: Share) -> Row[Any] | None:
    statement = _select(share).add_columns(table.c.row_count, table.c.digest)
    return connection.execute(statement, execution_options=ours(connection)).one_or_none()


def _select(share: Share) -> Any:
    """The row of ``share``; its number of partitions first."""
    of_share = (table.c.job == share.job, table.c.batch_id == share.batch_id, table.c.partition == share.partition)
    return select(table.c.partitions).where(*of_share)


def _now(connection: Connection) -> Any:
    return database_of(connection.dialect).now()


def _said(job: str, batch_id: int) -> str:
    return f"batch {batch_id} of job {job!r}"
