"""Which batches of a job are remembered: those with the highest numbers, however far apart.

Writers of whole batches and of partitions have a table each, and one rule. A job remembers its latest ``keepBatches``
batches, and the highest number that it has forgotten. A number that is not remembered was not written if it is above
that one. If it is not above, it is not known whether it was written.
"""

from typing import NamedTuple

from sqlalchemy import ColumnElement, Connection, Table, case, func, select

from dualwrite.coordinator.sql.own_tables import ours
from dualwrite.errors import BatchChangedError


class JobMemory(NamedTuple):
    """What a job remembers, beside a number that it does not remember.

    :param latest: the highest remembered number; None if there is none.
    :param higher: how many remembered numbers are higher than that number.
    :param forgotten_to: the highest number that may have been forgotten; None if none was.
    """

    latest: int | None
    higher: int
    forgotten_to: int | None


def batch_name(job: str, batch_id: int | None) -> str:
    """The batch's name, for messages."""
    return f"batch {batch_id} of job {job!r}"


def require_remembered(batch: str, batch_id: int, keep: int, memory: JobMemory) -> None:
    """Pass if it is known that the batch, which is not remembered, was not written, and if it would be remembered.

    :param batch: the batch's name, for messages.
    :param keep: how many batches of the job are remembered.
    :raises BatchChangedError: if it is not known whether the batch was written: look in the table, and give the batch a
        new number if it was not. Or if ``keep`` batches have higher numbers: it would be forgotten as soon as it is
        written, and a second run would be refused.
    """
    is_forgotten = memory.forgotten_to is not None and batch_id <= memory.forgotten_to
    reason = (
        "it is not known whether it was written"
        if is_forgotten
        else "it would be forgotten at once: raise keepBatches"
        if memory.higher >= keep
        else None
    )
    if reason is not None:
        raise BatchChangedError(
            f"{batch} is older than the {keep} batches that are remembered (option keepBatches; the latest is "
            f"{memory.latest}), so {reason}"
        )


def memory_of(
    connection: Connection, batches: Table, of_job: ColumnElement[bool], batch_id: int, forgotten_to: int | None
) -> JobMemory:
    """What the job remembers, beside the number ``batch_id``. The caller has the lock of the job's row, and may have
    stored that number.

    An earlier release does not store what it has forgotten. It may have forgotten each number below those that it has
    left.

    :param batches: a table with the columns batch_id and table_name, which is NULL in the rows of an earlier release.
    :param of_job: finds the rows of the job's batches, one for each.
    :param forgotten_to: from the job's row.
    """
    number = batches.c.batch_id
    is_earlier = batches.c.table_name.is_(None) & (number != batch_id)
    higher, earlier = (func.sum(case((condition, 1), else_=0)) for condition in (number > batch_id, is_earlier))
    lowest_other = func.min(case((number != batch_id, number)))
    lowest, latest, higher_count, earlier_count = connection.execute(
        select(lowest_other, func.max(number), higher, earlier).where(of_job), execution_options=ours(connection)
    ).one()
    if earlier_count:
        forgotten_to = lowest - 1 if forgotten_to is None else max(forgotten_to, lowest - 1)
    return JobMemory(latest, int(higher_count or 0), forgotten_to)


def last_beyond(connection: Connection, batches: Table, of_job: ColumnElement[bool], keep: int) -> int | None:
    """The highest number below the ``keep`` highest; None if there is none. See :func:`memory_of`."""
    number = batches.c.batch_id
    below = select(number).where(of_job).order_by(number.desc()).offset(keep).limit(1)
    last: int | None = connection.scalar(below, execution_options=ours(connection))
    return last
