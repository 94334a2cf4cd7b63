"""A whole batch as one act, from the driver's side: begin a run, let tasks prepare their sides, decide once, complete.

Whatever ends the driver before the decision, the next run of the job aborts what its tasks have prepared; whatever ends
it after that, what is left is completed by any process of the application.
"""

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from dualwrite.coordinator.recovery.two_phase import RESUME, timeout_ms
from dualwrite.coordinator.rules.lease import LeaseContradictedError
from dualwrite.coordinator.sql.dialects.base import ErrorMeaning
from dualwrite.coordinator.sql.dialects.supported import database_of
from dualwrite.errors import ConfigurationError, DatabaseBusyError, InputError, InvalidTransactionStateError
from dualwrite.spark.batch.preparing import prepared
from dualwrite.spark.batch.runs import Owner, Run, Runs, RunState
from dualwrite.spark.batch.staging import Attempt, drop_outdated, make_staging, move_rows, staged_clause
from dualwrite.spark.batch.tasks import BatchTask, PreparedTask
from dualwrite.spark.error_translation import as_raised_in_the_task, first_line, refused, told
from dualwrite.spark.plan.columns import TableColumn, WritePlan, fit, plan_of
from dualwrite.spark.plan.options import WriteOptions, options_of
from dualwrite.spark.plan.rows import RowConverter
from dualwrite.spark.tables.bulk_load import copies
from dualwrite.spark.tables.target_table import sound_target_of
from dualwrite.spark.workers import (
    Worker,
    first_connection,
    require_classic,
    require_kafka,
    require_known_settings,
    require_shared,
    worker_of,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_LOG = logging.getLogger("dualwrite")

PATIENCE = 10.0
"""Seconds in which the driver begins to complete in Kafka what was decided, again and again, before it leaves that to
others. One attempt takes step_timeout() where nobody answers."""
_PAUSE = 0.2
_SHARE = 0.9
"""Of transaction.timeout.ms, what a run may take where the broker does not keep what is prepared."""
_ZONE = "spark.sql.session.timeZone"
_STREAM = "sql.streaming.queryId"
"""A property of the thread that runs a micro-batch, whose rows must be used even if nobody needs them: a query with a
state keeps that state meanwhile."""

Observe = Callable[[str], None]


@dataclass(frozen=True)
class Work:
    """What every task of a run is given; it can be sent to executors.

    :param run: None if the batch is committed already.
    """

    options: WriteOptions
    plan: WritePlan
    columns: tuple[TableColumn, ...]
    dialect: str
    run: Run | None
    on_step: Observe | None = None

    def of(self, run: Run) -> "Work":
        """The same for ``run``."""
        return replace(self, run=run)

    def write(
        self,
        rows: Iterable[Sequence[Any]],
        part: int,
        attempt: int,
        zone: str | None = None,
        batch_id: int | None = None,
    ) -> PreparedTask | None:
        """One attempt at partition ``part``; None if the batch is committed already.

        :param attempt: a number that no other attempt of the run has.
        :param zone: the session's, if the driver could not know it.
        :param batch_id: if the driver could not know that; a batch that is committed is not written then.
        """
        if self.run is None:
            _drain(rows)
            return None
        options = self.options
        worker = worker_of(options)
        staged = staged_clause(self.run.staging, options.dbtable, self.columns)
        runs = _runs(worker, options)
        if batch_id is not None and runs.is_committed(self.run.job, batch_id):
            _drain(rows)
            return PreparedTask(self.run, Attempt(part, attempt, 0))
        task = BatchTask(runs, self.run, staged, part, attempt, options.batchsize, self.on_step or _ignore)
        plan = self.plan if zone is None else replace(self.plan, zone=zone)
        what = f"partition {part} of job {self.run.job!r}"
        with told(what):
            try:
                return task.write(worker.dual_write, RowConverter(plan, self.columns, self.dialect).rows(rows))
            except InputError as error:
                raise InputError(f"{what}: {error}") from error


class WholeBatch:
    """One whole batch, as its driver sees it.

    :param on_step: called with the name of each step before it, here and in tasks, so it must be one that can be sent
        to executors. For tests.
    """

    def __init__(self, options: WriteOptions, on_step: Observe | None = None) -> None:
        self._options = options
        self._job = job_of(options)
        self._on_step = on_step
        self._observe = on_step or _ignore
        self._worker = worker_of(options)
        self._runs = _runs(self._worker, options)

    @property
    def copies(self) -> bool:
        """True if tasks add their rows by PostgreSQL's COPY."""
        return copies(self._worker.engine.dialect)

    def look(self, schema: Mapping[str, Any], zone: str) -> Work:
        """Check everything that can be found wrong, and begin nothing.

        :param schema: ``df.schema.jsonValue()``.
        :raises ConfigurationError: naming what does not fit.
        """
        options = self._options
        plan = plan_of(schema, options, zone)
        engine = self._worker.engine
        require_known_settings(options)
        with first_connection(engine) as connection:
            target = sound_target_of(connection, options.dbtable)
        return Work(options, plan, fit(plan, target, options), target.dialect, None, self._on_step)

    def begin(self, work: Work, batch_id: int | None) -> Work:
        """Begin a run, which ends the job's one before. It has none if the batch is committed already.

        :raises KafkaUnavailableError: if the cluster does not answer; nothing is begun then.
        """
        options = self._options
        if batch_id is None or not self._runs.is_committed(self._job, batch_id):
            require_kafka(options, f"job {self._job!r}")
        self._observe("BEGIN_RUN")
        staging = make_staging(self._worker.engine, options.dbtable, work.columns)
        run = self._runs.begin(self._job, batch_id, staging.place, self._seconds())
        self.complete()  # of the run before
        if staging.is_new:
            drop_outdated(self._worker.engine, options.dbtable, self._runs.is_staging)
        return work if run is None else work.of(run)

    def commit(self, work: Work, sides: Iterable[PreparedTask | None], batch_id: int | None) -> None:
        """Decide, and complete what was decided. A batch that was committed before has no second effect.

        :raises FencedError: if another run of the job has begun; nothing is left then, as with all errors but the next.
        :raises InputError: if the database refuses a row.
        :raises DatabaseUnavailableError: if the database was lost before the decision.
        :raises DatabaseBusyError: if the table is locked, or was changed meanwhile: the batch may be run again.
        :raises InvalidTransactionStateError: if a partition is among ``sides`` twice, or one is of another run.
        :raises InDoubtError: if the outcome is not known.
        """
        run, options = work.run, self._options
        if run is None:
            return
        try:
            winners = _winners(run, sides)
            decided = [(won.lease, won.state) for won in winners if won.lease is not None and won.state is not None]
            attempts = [side.attempt for side in winners]
            with told(f"job {run.job!r}"):
                state = self._runs.commit(
                    run,
                    batch_id,
                    decided,
                    lambda connection: self._move(connection, run, work, attempts),
                    self._observe,
                    options.keep_batches,
                )
        except BaseException as error:  # an interrupt, too: it may be long until the job's next run
            if isinstance(error, LeaseContradictedError):  # first: recovery changes the row
                self._worker.dual_write.record_contradiction(error)
            self.abort(run, batch_id)
            raise
        if state is RunState.COMMITTED:
            _LOG.info("job %s: %d partitions committed", run.job, len(attempts), extra={"batch": batch_id})
        self.complete()

    def _move(self, connection: Connection, run: Run, work: Work, attempts: Sequence[Attempt]) -> int:
        """Move the rows of ``attempts``; what is wrong then is wrong with the target, and with no table of ours."""
        options = self._options
        try:
            return move_rows(connection, run, options.dbtable, work.columns, options.upsert_keys, attempts)
        except DBAPIError as error:
            trouble = database_of(connection.dialect).trouble(error)
            if trouble is None:
                raise
            what = f"job {run.job!r}"
            if trouble is ErrorMeaning.NOT_READY:  # of a trigger's, for one
                raise refused(what, error) from error
            raise DatabaseBusyError(
                f"{what}: table {options.dbtable} takes no rows now: {first_line(error)}; run the batch again"
            ) from error

    def abort(self, run: Run | None, batch_id: int | None) -> None:
        """End ``run`` unless it is committed, as well as can be: what cannot be done now, the next run does."""
        if run is None:
            return
        try:
            self._runs.end(run, batch_id)
        except Exception as error:  # noqa: BLE001 - it is not what the caller is to be told
            _LOG.warning("job %s: its run was not ended, the next one does that: %s", run.job, error)
            return
        self.complete("what was prepared is not aborted in Kafka")

    def complete(self, otherwise: str = "what was decided is not complete in Kafka") -> None:
        """Bring Kafka to where the database is, for all that this process has signed for, and dead ones. It never
        raises: what was decided has happened.

        :param otherwise: the warning if that takes too long.
        """
        deadline = time.monotonic() + PATIENCE
        while True:
            errors = self._complete_once()
            if not errors:
                return
            if time.monotonic() >= deadline:
                _LOG.warning("%s, and will be finished later: %s", otherwise, errors[0])
                return
            time.sleep(_PAUSE)

    def _complete_once(self) -> Sequence[Exception]:
        try:
            names = self._runs.left()
            if names:
                self._observe("COMPLETE_KAFKA")
            found, errors = self._worker.dual_write.sweep_left()
            return errors if set(names).difference(found) else ()
        except Exception as error:  # noqa: BLE001 - see complete()
            return (error,)

    def _seconds(self) -> float:
        if self._options.two_phase != RESUME:
            return self._options.run_timeout
        return min(self._options.run_timeout, timeout_ms(self._options.kafka_config) * _SHARE / 1000)


def write_batch(
    df: "DataFrame", batch_id: int | None = None, *, on_step: Observe | None = None, **options: Any
) -> None:
    """Write ``df`` to a table and a topic as one act: all of its rows and records, or none.

    Executors prepare their records and stage their rows; then one database transaction decides for all of them. In
    ``foreachBatch`` it makes a stream exactly-once::

        stream.writeStream.foreachBatch(lambda df, batch_id: write_batch(df, batch_id, **options))

    :param batch_id: of the job; a batch that was committed before has no second effect. None to write in any case.
    :param on_step: for tests that end processes at an exact place; it must be one that can be sent to executors.
    :param options: see OPTIONS (docs/spark-batches.md), by either of their names. One run of a ``job`` at a time: a
        later one ends it.
    :raises ConfigurationError: naming what is wrong with the options, or which column does not fit, before anything is
        written.
    :raises DatabaseUnavailableError: if the database cannot be reached, or is lost on the way; nothing is left then.
    :raises KafkaUnavailableError: if Kafka does not answer; nothing is left then.
    :raises InputError: if the table or Kafka cannot take a row; nothing is left then.
    :raises FencedError: if another run of the job has begun. Nothing is left of this one.
    :raises InDoubtError: if the outcome is not known; with a ``batch_id``, writing it again is safe.
    """
    require_classic(df)
    if df.isStreaming:
        raise ConfigurationError("the DataFrame is a stream: call this in writeStream.foreachBatch(…)")
    spark = df.sparkSession
    read = options_of({**options, "batch_id": batch_id})
    is_streaming = bool(spark.sparkContext.getLocalProperty(_STREAM))
    if is_streaming and read.batch_id is None:
        raise ConfigurationError(
            "a restarted query runs its last batch again, which would be written twice: give write_batch(df, batch_id, "
            "…) the number that foreachBatch comes with"
        )
    require_shared(read, str(spark.sparkContext.master))
    batch = WholeBatch(read, on_step)
    looked = batch.look(df.schema.jsonValue(), str(spark.conf.get(_ZONE)))
    df, plan = prepared(df, looked.plan, looked.columns if batch.copies else None)
    work = batch.begin(replace(looked, plan=plan), read.batch_id)
    if work.run is None:
        _LOG.info("job %s: batch %s was committed before", read.job, read.batch_id)
        if not is_streaming:
            return
    try:
        with as_raised_in_the_task():
            sides = df.rdd.mapPartitionsWithIndex(_writing(work)).collect()
    except BaseException:
        batch.abort(work.run, read.batch_id)
        raise
    batch.commit(work, sides, read.batch_id)


def recover_job(**options: Any) -> dict[str, Any]:
    """End what a dead driver of a job left, now: its open run is aborted, and what is left of the application's
    processes that are gone is completed or aborted, as was decided.

    Nobody needs it: the job's next run does the same. A driver that is alive is fenced by it.

    :param options: as for :func:`write_batch`.
    :returns: by transactional id, what was found open in Kafka, and what became of it.
    :raises DatabaseUnavailableError: if the database cannot be reached now.
    :raises KafkaUnavailableError: if Kafka does not answer; and whatever else kept a slot from being recovered.
    """
    read = options_of(options)
    worker = worker_of(read)
    runs = _runs(worker, read)
    with first_connection(worker.engine):
        pass  # rather an error of this library's than the driver's
    runs.end_job(job_of(read))
    runs.left()
    found, errors = worker.dual_write.sweep()
    if errors:
        raise errors[0]
    return {name: outcome for name, outcome in found.items() if outcome.value != "nothing"}


def _winners(run: Run, sides: Iterable[PreparedTask | None]) -> list[PreparedTask]:
    """What tasks of ``run`` have prepared and is to count: one side of each partition, as Spark names them.

    :raises InvalidTransactionStateError: if that is not so: the rows would be there twice.
    """
    winners: dict[int, PreparedTask] = {}
    for side in sides:
        if side is None:
            continue
        if side.run != run:
            raise InvalidTransactionStateError(f"a task of {side.run} has written for {run}")
        part = side.attempt.part
        if part in winners:
            raise InvalidTransactionStateError(
                f"partition {part} of job {run.job!r} is given to commit twice (attempts "
                f"{winners[part].attempt.attempt} and {side.attempt.attempt}): one attempt of each counts"
            )
        winners[part] = side
    return list(winners.values())


def _drain(rows: Iterable[object]) -> None:
    """Use ``rows``, which nobody needs."""
    for _ in rows:
        pass


def job_of(options: WriteOptions) -> str:
    """What names the runs of which one at a time is open.

    :raises ConfigurationError: if there is no job whose batch it would be: what the application writes elsewhere under
        the same number would pass for written.
    """
    return options.require_job() if options.batch_id is not None else options.job or options.application


def _writing(work: Work) -> Callable[[int, Iterable[Sequence[Any]]], Iterable[PreparedTask | None]]:
    """What each task does with its partition."""

    def write(part: int, rows: Iterable[Sequence[Any]]) -> Iterable[PreparedTask | None]:
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        return [work.write(rows, part, context.taskAttemptId())]

    return write


def _runs(worker: Worker, options: WriteOptions) -> Runs:
    dual_write = worker.dual_write
    return Runs(worker.engine, Owner(dual_write.owner, options.lease_timeout), dual_write.store)


def _ignore(step: str) -> None:
    """The observer when nobody observes."""
