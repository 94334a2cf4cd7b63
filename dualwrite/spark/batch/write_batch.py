"""The functions that a user calls on Spark's driver: write one whole batch, and clean up after a dead driver."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from dualwrite.coordinator.manager.unit_manager import manager_of
from dualwrite.coordinator.sql.engine.database_errors import as_library_errors
from dualwrite.errors import ConfigurationError
from dualwrite.spark.batch.comparing import BatchResult
from dualwrite.spark.batch.packing import packed, rdd_of
from dualwrite.spark.batch.preparing import prepared
from dualwrite.spark.batch.task_input import Observe, TaskInput, runs_of
from dualwrite.spark.batch.tasks import PreparedTask
from dualwrite.spark.batch.whole_batch import WholeBatch, job_of
from dualwrite.spark.error_translation import as_raised_in_the_task
from dualwrite.spark.plan.options import options_of
from dualwrite.spark.workers import (
    WRITTEN_TWICE,
    first_connection,
    is_micro_batch,
    require_classic,
    require_number,
    require_shared,
    worker_of,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_ZONE = "spark.sql.session.timeZone"


def write_batch(
    df: "DataFrame", batch_id: int | None = None, *, on_step: Observe | None = None, **options: Any
) -> BatchResult:
    """Write ``df`` to a table and a topic atomically: all of its rows and records, or none.

    Executors prepare their records and stage their rows. Then one database transaction decides for all of them. In
    ``foreachBatch`` it makes a stream exactly-once::

        stream.writeStream.foreachBatch(lambda df, batch_id: write_batch(df, batch_id, **options))

    :param batch_id: the batch's number in the job. A batch that was committed before has no second effect: its rows are
        computed and compared with those that were committed, in any order and in any partitions. None writes in any
        case.
    :param on_step: for tests that end processes at an exact step; it must be possible to send it to executors.
    :param options: the options of OPTIONS (docs/spark-batches.md), by either of their names. A ``job`` has one run at a
        time: a new run ends the previous one.
    :returns: whether this call has written the batch, and its number of rows and records.
    :raises BatchChangedError: if the batch was committed before with other rows, to another table or topic, or to a
        table that is empty or was created again; or if it is so old that it was forgotten. Nothing is written: give
        other rows another number, and another target another job.
    :raises ConfigurationError: naming the option or column that is wrong, before anything is written.
    :raises DatabaseUnavailableError: if the database cannot be reached, or the connection is lost; rolled back on both
        sides.
    :raises KafkaUnavailableError: if Kafka does not answer; rolled back on both sides.
    :raises InputError: if the table or Kafka cannot take a row; rolled back on both sides.
    :raises FencedError: if another run of the job has begun; rolled back on both sides.
    :raises ConnectionError: if the result of a task has not reached this process; rolled back on both sides.
    :raises InDoubtError: if the outcome is not known; with a ``batch_id``, writing it again is safe.
    """
    require_classic(df)
    if df.isStreaming:
        raise ConfigurationError("the DataFrame is a stream: call this in writeStream.foreachBatch(…)")
    spark = df.sparkSession
    parsed = options_of({**options, "batch_id": batch_id})
    advice = "call write_batch(df, batch_id, …) with the number that foreachBatch passes"
    require_number(df, parsed.batch_id, f"{WRITTEN_TWICE}: {advice}")
    require_shared(parsed, str(spark.sparkContext.master))
    batch = WholeBatch(parsed, on_step)
    checked = batch.check(df.schema.jsonValue(), str(spark.conf.get(_ZONE)))
    df, plan = packed(*prepared(df, checked.plan, checked.columns if batch.takes_lines else None))
    work = batch.begin(replace(checked, plan=plan), parsed.batch_id)
    if work.run is None and not work.sums and not is_micro_batch(df):  # a stateful query updates its state meanwhile
        return batch.commit(work, [], parsed.batch_id)  # nothing needs its rows
    try:
        with as_raised_in_the_task():
            rdd = rdd_of(df, plan)  # only now the number of partitions is known
            partitions = rdd.getNumPartitions()
            work = work.returning(partitions)
            tasks = rdd.mapPartitionsWithIndex(_partition_function(work)).collect()
            _require_each(tasks, partitions)
    except BaseException:
        batch.abort(work.run, parsed.batch_id)
        raise
    return batch.commit(work, tasks, parsed.batch_id)


def recover_job(**options: Any) -> dict[str, Any]:
    """Clean up after a dead driver of a job, now. Abort its open run. Then commit or abort, as decided, the
    transactions of the application's dead processes.

    This is optional: the job's next run does the same. A driver that is still alive is fenced.

    :param options: as for :func:`write_batch`.
    :returns: the outcome of each transaction that was open in Kafka, by transactional id.
    :raises DatabaseUnavailableError: if the database cannot be reached now.
    :raises KafkaUnavailableError: if Kafka does not answer. Other errors that kept a slot from being recovered are
        raised as well.
    """
    parsed = options_of(options)
    worker = worker_of(parsed)
    runs = runs_of(worker, parsed)
    with first_connection(worker.engine):
        pass  # only to raise this library's error instead of the database driver's
    with as_library_errors(worker.engine.dialect):
        runs.end_job(job_of(parsed))
    outcomes, errors = manager_of(worker.dual_write).sweep()
    if errors:
        raise errors[0]
    return {name: outcome for name, outcome in outcomes.items() if outcome.value != "nothing"}


def _require_each(tasks: Sequence[PreparedTask | None], partitions: int) -> None:
    """Pass if each task's result is there. They come over a connection, whose end Spark takes for their end.

    :raises ConnectionError: if some are missing: their rows would be lost.
    """
    if len(tasks) != partitions:
        raise ConnectionError(
            f"the results of {len(tasks)} of {partitions} tasks have reached the driver's Python: nothing is written; "
            "run the batch again"
        )


def _partition_function(work: TaskInput) -> Callable[[int, Iterable[Sequence[Any]]], Iterable[PreparedTask | None]]:
    """The function that each task calls with its partition."""

    def write(part: int, rows: Iterable[Sequence[Any]]) -> Iterable[PreparedTask | None]:
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        return [work.write(rows, part, context.taskAttemptId())]

    return write
