"""A whole batch as one atomic write, on the driver: begin a run, let tasks prepare, decide once, complete.

If the driver dies before the decision, the next run of the job aborts what its tasks have prepared. If it dies after
the decision, any process of the application completes the rest.
"""

import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from dualwrite.coordinator.rules.lease import LeaseContradictedError
from dualwrite.coordinator.rules.two_phase import RESUME, resume_timeout_ms
from dualwrite.coordinator.sql.dialects.base import ErrorMeaning
from dualwrite.coordinator.sql.dialects.supported import database_of
from dualwrite.coordinator.sql.engine.database_errors import as_library_errors, first_line
from dualwrite.coordinator.sql.lease_transfer import Decided
from dualwrite.errors import BatchChangedError, DatabaseBusyError
from dualwrite.spark.batch.comparing import BatchResult, require_same_rows
from dualwrite.spark.batch.completing import complete
from dualwrite.spark.batch.known_batches import BatchContent, KnownBatch
from dualwrite.spark.batch.runs import Run, Runs, RunState
from dualwrite.spark.batch.staging import Attempt, drop_outdated, make_staging, move_rows
from dualwrite.spark.batch.task_input import Observe, TaskInput, no_observer, runs_of
from dualwrite.spark.batch.tasks import PreparedTask
from dualwrite.spark.batch.winners import content_of, winners_of
from dualwrite.spark.error_translation import database_errors_translated, refused_row
from dualwrite.spark.known.retention import batch_name
from dualwrite.spark.known.targets import COMPARE, batch_target_of, require_rows_there, require_same_target
from dualwrite.spark.plan.columns import match_columns, plan_of
from dualwrite.spark.plan.options import WriteOptions
from dualwrite.spark.tables.target_table import checked_target_of
from dualwrite.spark.workers import Worker, first_connection, require_kafka, worker_of

_LOG = logging.getLogger("dualwrite")

_TIMEOUT_SHARE = 0.9
"""The part of transaction.timeout.ms that a run may take if the broker does not support prepared transactions."""


class WholeBatch:
    """One whole batch, on Spark's driver.

    :param on_step: called with the name of each step before it, on the driver and in tasks. So it must be possible to
        pickle it. For tests.
    """

    def __init__(self, options: WriteOptions, on_step: Observe | None = None) -> None:
        self._options = options
        self._job = job_of(options)
        self._on_step = on_step
        self._observe = on_step or no_observer
        self._worker = worker_of(options)
        self._runs = runs_of(self._worker, options)

    @property
    def worker(self) -> Worker:
        """The engine and the DualWrite that the batch uses."""
        return self._worker

    @property
    def runs(self) -> Runs:
        """The runs of the batch's job."""
        return self._runs

    @property
    def takes_lines(self) -> bool:
        """True if the database takes lines of COPY, which Spark can write."""
        dialect = self._worker.engine.dialect
        return database_of(dialect).takes_lines(dialect)

    def check(self, schema: Mapping[str, Any], zone: str) -> TaskInput:
        """Check the options, the schema and the table. No run begins.

        :param schema: ``df.schema.jsonValue()``.
        :param zone: ``spark.sql.session.timeZone``.
        :raises ConfigurationError: naming the option or column that is wrong.
        """
        options = self._options
        plan = plan_of(schema, options, zone)
        engine = self._worker.engine
        with first_connection(engine) as connection:
            target = checked_target_of(connection, options.dbtable)
        return TaskInput(options, plan, match_columns(plan, target, options), target.keeps, None, self._on_step)

    def begin(self, work: TaskInput, batch_id: int | None) -> TaskInput:
        """Begin a run, and end the job's previous one. The result has no run if the batch is already committed.

        :raises BatchChangedError: if the batch was committed to another table or topic, or if the table is empty now.
            Give the batch another number or job, or restore the table.
        :raises KafkaUnavailableError: if the cluster does not answer; no run has begun then.
        :raises DatabaseUnavailableError: if the database cannot be reached, or the connection is lost.
        """
        with as_library_errors(self._worker.engine.dialect):
            return self._begin(work, batch_id)

    def _begin(self, work: TaskInput, batch_id: int | None) -> TaskInput:
        options = self._options
        known = self._runs.known(self._job, batch_id)
        if known is not None:
            self._require_same_target(work, known, batch_id)
        else:
            require_kafka(options, f"job {self._job!r}")
        self._observe("BEGIN_RUN")
        staging = make_staging(self._worker.engine, options.dbtable, work.columns)
        run = self._runs.begin(self._job, batch_id, staging.qualified_name, self.run_seconds)
        self.complete()  # of the previous run
        if staging.is_new:
            drop_outdated(self._worker.engine, options.dbtable, self._runs.is_staging)
        work = work.numbered(batch_id)
        return work if run is None else work.of(run)

    def commit(self, work: TaskInput, tasks: Iterable[PreparedTask | None], batch_id: int | None) -> BatchResult:
        """Decide the run, and complete it in Kafka. A batch that was committed before has no second effect: it is
        compared with what was committed, unless the option knownBatch is "skip".

        After any error but InDoubtError, the run is rolled back on both sides, at the latest by the job's next run.

        :param tasks: the result of each task, as Spark reports them.
        :param batch_id: the batch's number in the job; None if it has none.

        :raises BatchChangedError: if the batch was committed before with other rows or to another target, or if it is
            so old that it was forgotten. This run has written nothing.
        :raises FencedError: if another run of the job has begun.
        :raises InputError: if the database refuses a row.
        :raises DatabaseUnavailableError: if the database connection was lost before the decision.
        :raises DatabaseBusyError: if the table is locked, or was changed meanwhile: the batch may be run again.
        :raises InvalidTransactionStateError: if ``tasks`` has a partition twice, or one of another run.
        :raises InDoubtError: if the outcome is not known.
        """
        run, options = work.run, self._options
        if run is None:
            return self._compared(work, content_of(winners_of(self._job, run, tasks), work), batch_id)
        try:
            winners = winners_of(self._job, run, tasks)
            content = content_of(winners, work)
            decided = [
                (winner.lease, winner.state)
                for winner in winners
                if winner.lease is not None and winner.state is not None
            ]
            attempts = [winner.attempt for winner in winners]
            with database_errors_translated(f"job {run.job!r}"):
                returned = self._write_returned(work, run, winners, batch_id)
                if returned is not None:
                    decided.append(returned)
                state = self._runs.commit(
                    run,
                    batch_id,
                    decided,
                    lambda connection: self._move(connection, run, work, attempts, content),
                    self._observe,
                    options.keep_batches,
                )
        except BaseException as error:  # also an interrupt: the job's next run may be far away
            if isinstance(error, LeaseContradictedError):  # first: recovery changes the row
                self._worker.branches.record_contradiction(error)
            self.abort(run, batch_id)
            raise
        if state is RunState.COMMITTED:
            _LOG.info("job %s: %d partitions committed", run.job, len(attempts), extra={"batch": batch_id})
        self.complete()
        if state is RunState.COMMITTED:
            return BatchResult(True, content.rows, content.rows)
        return self._compared(work, content, batch_id)  # an earlier run has committed the batch

    def _compared(self, work: TaskInput, content: BatchContent, batch_id: int | None) -> BatchResult:
        """The result for a batch that was committed before, if ``content`` is what was committed."""
        name = batch_name(self._job, batch_id)
        with as_library_errors(self._worker.engine.dialect):
            known = self._runs.known(self._job, batch_id)
        if known is None:
            raise BatchChangedError(
                f"{name} was committed before and is not remembered any more: write fewer batches of a job at a time, "
                "or raise keepBatches"
            )
        _LOG.info("%s was committed before", name)
        if self._options.known_batch == COMPARE:
            self._require_same_target(work, known, batch_id)
            require_same_rows(name, known.content, content)
        return BatchResult(False, known.content.rows, known.content.rows)

    def _require_same_target(self, work: TaskInput, known: KnownBatch, batch_id: int | None) -> None:
        if self._options.known_batch != COMPARE:
            return
        name, dbtable = batch_name(self._job, batch_id), self._options.dbtable
        with first_connection(self._worker.engine) as connection:
            require_same_target(name, known.content.target, batch_target_of(connection, dbtable, work.plan.topic))
            require_rows_there(connection, name, known.content.rows, dbtable)

    def _write_returned(
        self, work: TaskInput, run: Run, winners: Sequence[PreparedTask], batch_id: int | None
    ) -> Decided | None:
        """Write the rows that tasks have returned, unless ``run`` cannot be committed any more."""
        if not any(winner.rows for winner in winners) or not self._runs.may_commit(run, batch_id):
            return None
        return work.write_returned(self._worker, winners)

    def _move(
        self, connection: Connection, run: Run, work: TaskInput, attempts: Sequence[Attempt], content: BatchContent
    ) -> BatchContent:
        """Move the rows of ``attempts``; return ``content`` with the target. An error here concerns the target table,
        not a table of this library."""
        options = self._options
        try:
            move_rows(connection, run, options.dbtable, work.columns, options.upsert_keys, attempts)
            return content._replace(target=batch_target_of(connection, options.dbtable, work.plan.topic))
        except DBAPIError as error:
            meaning = database_of(connection.dialect).meaning_of(error)
            if meaning is None:
                raise
            description = f"job {run.job!r}"
            if meaning is ErrorMeaning.NOT_READY:  # for example a trigger's table
                raise refused_row(description, error) from error
            raise DatabaseBusyError(
                f"{description}: table {options.dbtable} takes no rows now: {first_line(error)}; run the batch again"
            ) from error

    def abort(self, run: Run | None, batch_id: int | None) -> None:
        """End ``run`` unless it is committed. The job's next run does what cannot be done now."""
        if run is None:
            return
        try:
            self._runs.end(run, batch_id)
        except Exception as error:  # noqa: BLE001 - the caller needs the error that came before
            _LOG.warning("job %s: its run was not ended, the next one does that: %s", run.job, error)
            return
        warning = "prepared transactions are not aborted in Kafka"
        complete(self._worker, self._runs, self._observe, warning)

    def complete(self) -> None:
        """Complete decided transactions in Kafka; see :func:`dualwrite.spark.batch.completing.complete`."""
        complete(self._worker, self._runs, self._observe)

    @property
    def run_seconds(self) -> float:
        """How long a run may last, and how long its prepared transactions stay open."""
        if self._options.two_phase != RESUME:
            return self._options.run_timeout
        return min(self._options.run_timeout, resume_timeout_ms(self._options.kafka_config) * _TIMEOUT_SHARE / 1000)


def job_of(options: WriteOptions) -> str:
    """The job's name; one run of a job is open at a time.

    :raises ConfigurationError: if no job is given: another write of the application could have the same batch number,
        and the batch would count as committed.
    """
    return options.require_job() if options.batch_id is not None else options.job or options.application
