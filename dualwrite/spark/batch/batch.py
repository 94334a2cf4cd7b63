"""A whole batch as one atomic write, on the driver: begin a run, let tasks prepare, decide once, complete.

If the driver dies before the decision, the next run of the job aborts what its tasks have prepared. If it dies after
the decision, any process of the application completes the rest.
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
"""Seconds for which the driver retries to complete decided transactions in Kafka before it leaves them to other
processes. If the brokers do not answer, one attempt takes step_timeout()."""
_PAUSE = 0.2
_SHARE = 0.9
"""The part of transaction.timeout.ms that a run may take if the broker does not support prepared transactions."""
_ZONE = "spark.sql.session.timeZone"
_STREAM = "sql.streaming.queryId"
"""A property of the thread that runs a micro-batch. If it is set, the rows must be read even if they are not written: a
stateful query updates its state meanwhile."""

Observe = Callable[[str], None]


@dataclass(frozen=True)
class Work:
    """The input of every task of a run; it can be sent to executors.

    :param run: None if the batch is already committed.
    """

    options: WriteOptions
    plan: WritePlan
    columns: tuple[TableColumn, ...]
    dialect: str
    run: Run | None
    on_step: Observe | None = None

    def of(self, run: Run) -> "Work":
        """This work for ``run``."""
        return replace(self, run=run)

    def write(
        self,
        rows: Iterable[Sequence[Any]],
        part: int,
        attempt: int,
        zone: str | None = None,
        batch_id: int | None = None,
    ) -> PreparedTask | None:
        """Write partition ``part``, as one attempt; None if the batch is already committed.

        :param attempt: a number that no other attempt of the run has.
        :param zone: the session's time zone, if the driver could not know it.
        :param batch_id: the batch, if the driver could not know it; a committed batch is not written then.
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
    """One whole batch, on its driver.

    :param on_step: called with the name of each step before it, on the driver and in tasks, so it must be possible to
        send it to executors. For tests.
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
        """True if tasks add their rows with PostgreSQL's COPY."""
        return copies(self._worker.engine.dialect)

    def look(self, schema: Mapping[str, Any], zone: str) -> Work:
        """Run every check, and begin nothing.

        :param schema: ``df.schema.jsonValue()``.
        :raises ConfigurationError: naming the option or column that is wrong.
        """
        options = self._options
        plan = plan_of(schema, options, zone)
        engine = self._worker.engine
        require_known_settings(options)
        with first_connection(engine) as connection:
            target = sound_target_of(connection, options.dbtable)
        return Work(options, plan, fit(plan, target, options), target.dialect, None, self._on_step)

    def begin(self, work: Work, batch_id: int | None) -> Work:
        """Begin a run, and end the job's previous one. The result has no run if the batch is already committed.

        :raises KafkaUnavailableError: if the cluster does not answer; no run has begun then.
        """
        options = self._options
        if batch_id is None or not self._runs.is_committed(self._job, batch_id):
            require_kafka(options, f"job {self._job!r}")
        self._observe("BEGIN_RUN")
        staging = make_staging(self._worker.engine, options.dbtable, work.columns)
        run = self._runs.begin(self._job, batch_id, staging.place, self._seconds())
        self.complete()  # of the previous run
        if staging.is_new:
            drop_outdated(self._worker.engine, options.dbtable, self._runs.is_staging)
        return work if run is None else work.of(run)

    def commit(self, work: Work, sides: Iterable[PreparedTask | None], batch_id: int | None) -> None:
        """Decide the run, and complete it in Kafka. A batch that was committed before has no second effect.

        After any error but InDoubtError, the run is rolled back on both sides, at the latest by the job's next run.

        :raises FencedError: if another run of the job has begun.
        :raises InputError: if the database refuses a row.
        :raises DatabaseUnavailableError: if the database connection was lost before the decision.
        :raises DatabaseBusyError: if the table is locked, or was changed meanwhile: the batch may be run again.
        :raises InvalidTransactionStateError: if ``sides`` has a partition twice, or one of another run.
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
        except BaseException as error:  # also an interrupt: the job's next run may be far away
            if isinstance(error, LeaseContradictedError):  # first: recovery changes the row
                self._worker.dual_write.record_contradiction(error)
            self.abort(run, batch_id)
            raise
        if state is RunState.COMMITTED:
            _LOG.info("job %s: %d partitions committed", run.job, len(attempts), extra={"batch": batch_id})
        self.complete()

    def _move(self, connection: Connection, run: Run, work: Work, attempts: Sequence[Attempt]) -> int:
        """Move the rows of ``attempts``. An error here is about the target table, not about a table of this library."""
        options = self._options
        try:
            return move_rows(connection, run, options.dbtable, work.columns, options.upsert_keys, attempts)
        except DBAPIError as error:
            trouble = database_of(connection.dialect).trouble(error)
            if trouble is None:
                raise
            what = f"job {run.job!r}"
            if trouble is ErrorMeaning.NOT_READY:  # for example a trigger's table
                raise refused(what, error) from error
            raise DatabaseBusyError(
                f"{what}: table {options.dbtable} takes no rows now: {first_line(error)}; run the batch again"
            ) from error

    def abort(self, run: Run | None, batch_id: int | None) -> None:
        """End ``run`` unless it is committed. The job's next run does what cannot be done now."""
        if run is None:
            return
        try:
            self._runs.end(run, batch_id)
        except Exception as error:  # noqa: BLE001 - it is not what the caller is to be told
            _LOG.warning("job %s: its run was not ended, the next one does that: %s", run.job, error)
            return
        self.complete("what was prepared is not aborted in Kafka")

    def complete(self, otherwise: str = "what was decided is not complete in Kafka") -> None:
        """End in Kafka, as decided, the transactions of this process's leases, and of dead processes. Never raises: the
        decision stands.

        :param otherwise: the warning to log if that takes too long.
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
    """Write ``df`` to a table and a topic atomically: all of its rows and records, or none.

    Executors prepare their records and stage their rows. Then one database transaction decides for all of them. In
    ``foreachBatch`` it makes a stream exactly-once::

        stream.writeStream.foreachBatch(lambda df, batch_id: write_batch(df, batch_id, **options))

    :param batch_id: the batch's number in the job. A batch that was committed before has no second effect. None writes
        in any case.
    :param on_step: for tests that end processes at an exact step; it must be possible to send it to executors.
    :param options: see OPTIONS (docs/spark-batches.md), by either of their names. A ``job`` has one run at a time: a
        new run ends the previous one.
    :raises ConfigurationError: naming the option or column that is wrong, before anything is written.
    :raises DatabaseUnavailableError: if the database cannot be reached, or the connection is lost; rolled back on both
        sides.
    :raises KafkaUnavailableError: if Kafka does not answer; rolled back on both sides.
    :raises InputError: if the table or Kafka cannot take a row; rolled back on both sides.
    :raises FencedError: if another run of the job has begun; rolled back on both sides.
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
    """Clean up after a dead driver of a job, now. Aborts its open run, and completes or aborts, as decided, the
    transactions of the application's dead processes.

    This is optional: the job's next run does the same. It fences a driver that is still alive.

    :param options: as for :func:`write_batch`.
    :returns: by transactional id, the transactions found open in Kafka, and their outcome.
    :raises DatabaseUnavailableError: if the database cannot be reached now.
    :raises KafkaUnavailableError: if Kafka does not answer. Other errors that kept a slot from being recovered are
        raised as well.
    """
    read = options_of(options)
    worker = worker_of(read)
    runs = _runs(worker, read)
    with first_connection(worker.engine):
        pass  # continue: this library's error is better than the driver's
    runs.end_job(job_of(read))
    runs.left()
    found, errors = worker.dual_write.sweep()
    if errors:
        raise errors[0]
    return {name: outcome for name, outcome in found.items() if outcome.value != "nothing"}


def _winners(run: Run, sides: Iterable[PreparedTask | None]) -> list[PreparedTask]:
    """The prepared tasks of ``run`` that count: one for each partition, as Spark reports them.

    :raises InvalidTransactionStateError: if there are two for a partition: its rows would be written twice.
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
    """Read ``rows`` and discard them."""
    for _ in rows:
        pass


def job_of(options: WriteOptions) -> str:
    """The job's name; one run of a job is open at a time.

    :raises ConfigurationError: if no job is given: another write of the application could have the same batch number,
        and the batch would count as committed.
    """
    return options.require_job() if options.batch_id is not None else options.job or options.application


def _writing(work: Work) -> Callable[[int, Iterable[Sequence[Any]]], Iterable[PreparedTask | None]]:
    """The function that each task calls with its partition."""

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
    """The default observer: does nothing."""
