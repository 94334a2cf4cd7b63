"""The prepared tasks of a run that count, among the attempts that Spark reports; and what they have written."""

from collections.abc import Iterable, Sequence

from dualwrite.errors import InvalidTransactionStateError
from dualwrite.spark.batch.known_batches import BatchContent
from dualwrite.spark.batch.row_sums import digest_of
from dualwrite.spark.batch.runs import Run
from dualwrite.spark.batch.task_input import TaskInput
from dualwrite.spark.batch.tasks import PreparedTask


def winners_of(job: str, run: Run | None, tasks: Iterable[PreparedTask | None]) -> list[PreparedTask]:
    """The prepared tasks of ``run`` that count: one for each partition, as Spark reports them.

    :raises InvalidTransactionStateError: if there are two for a partition: its rows would be written twice.
    """
    winners: dict[int, PreparedTask] = {}
    for task in tasks:
        if task is None:
            continue
        if task.run != run:
            raise InvalidTransactionStateError(f"a task of {task.run} has written for {run}")
        part = task.attempt.part
        if part in winners:
            attempts = f"{winners[part].attempt.attempt} and {task.attempt.attempt}"
            raise InvalidTransactionStateError(
                f"partition {part} of job {job!r} is committed twice (attempts {attempts}): commit one attempt of each "
                "partition"
            )
        winners[part] = task
    return list(winners.values())


def content_of(winners: Sequence[PreparedTask], work: TaskInput) -> BatchContent:
    """The number of all rows of ``winners``, and their digest if each of them has summed its rows."""
    sums = [winner.row_sum for winner in winners if winner.row_sum is not None]
    if not work.sums or len(sums) < len(winners):
        return BatchContent(sum(winner.attempt.rows for winner in winners))
    return BatchContent(sum(part.rows for part in sums), digest_of(sums, work.plan, work.columns))
