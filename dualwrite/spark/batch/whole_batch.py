"""A whole batch as one atomic write, on the driver: begin a run, let tasks prepare, decide once, complete.

If the driver dies before the decision, the next run of the job aborts what its tasks have prepared. If it dies after
the decision, any process of the application completes the rest.
"""

import logging
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from dualwrite.coordinator.rules.lease import LeaseContradictedError
from dualwrite.coordinator.rules.two_phase import RESUME, resume_timeout_ms
from dualwrite.coordinator.sql.dialects.base import ErrorMeaning
from dualwrite.coordinator.sql.dialects.supported import database_of
from dualwrite.coordinator.sql.engine.database_errors import first_line
from dualwrite.coordinator.sql.lease_transfer import Decided
from dualwrite.errors import DatabaseBusyError, InvalidTransactionStateError
from dualwrite.spark.batch.runs import Run, Runs, RunState
from dualwrite.spark.batch.staging import Attempt, drop_outdated, make_staging, move_rows
from dualwrite.spark.batch.task_input import Observe, TaskInput, no_observer, runs_of
from dualwrite.spark.batch.tasks import PreparedTask
from dualwrite.spark.error_translation import database_errors_translated, refused_row
from dualwrite.spark.plan.columns import match_columns, plan_of
from dualwrite.spark.plan.options import WriteOptions
from dualwrite.spark.tables.target_table import checked_target_of
from dualwrite.spark.workers import Worker, first_connection, require_kafka, require_known_settings, worker_of

_LOG = logging.getLogger("dualwrite")

PATIENCE = 10.0
"""Seconds for which the driver retries to complete decided transactions in Kafka before it leaves them to other
processes. If the brokers do not answer, one attempt takes step_timeout()."""
_PAUSE = 0.2
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
        require_known_settings(options)
        with first_connection(engine) as connection:
            target = checked_target_of(connection, options.dbtable)
        return TaskInput(options, plan, match_columns(plan, target, options), target.keeps, None, self._on_step)

    def begin(self, work: TaskInput, batch_id: int | None) -> TaskInput:
        """Begin a run, and end the job's previous one. The result has no run if the batch is already committed.

        :raises KafkaUnavailableError: if the cluster does not answer; no run has begun then.
        """
        options = self._options
        if batch_id is None or not self._runs.is_committed(self._job, batch_id):
            require_kafka(options, f"job {self._job!r}")
        self._observe("BEGIN_RUN")
        staging = make_staging(self._worker.engine, options.dbtable, work.columns)
        run = self._runs.begin(self._job, batch_id, staging.qualified_name, self.run_seconds)
        self.complete()  # of the previous run
        if staging.is_new:
            drop_outdated(self._worker.engine, options.dbtable, self._runs.is_staging)
        return work if run is None else work.of(run)

    def commit(self, work: TaskInput, tasks: Iterable[PreparedTask | None], batch_id: int | None) -> None:
        """Decide the run, and complete it in Kafka. A batch that was committed before has no second effect.

        After any error but InDoubtError, the run is rolled back on both sides, at the latest by the job's next run.

        :param tasks: the result of each task, as Spark reports them.
        :param batch_id: the batch's number in the job; None if it has none.

        :raises FencedError: if another run of the job has begun.
        :raises InputError: if the database refuses a row.
        :raises DatabaseUnavailableError: if the database connection was lost before the decision.
        :raises DatabaseBusyError: if the table is locked, or was changed meanwhile: the batch may be run again.
        :raises InvalidTransactionStateError: if ``tasks`` has a partition twice, or one of another run.
        :raises InDoubtError: if the outcome is not known.
        """
        run, options = work.run, self._options
        if run is None:
            return
        try:
            winners = _winners(run, tasks)
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
                    lambda connection: self._move(connection, run, work, attempts),
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

    def _write_returned(
        self, work: TaskInput, run: Run, winners: Sequence[PreparedTask], batch_id: int | None
    ) -> Decided | None:
        """Write the rows that tasks have returned, unless ``run`` cannot be committed any more."""
        if not any(winner.rows for winner in winners) or not self._runs.may_commit(run, batch_id):
            return None
        return work.write_returned(self._worker, winners)

    def _move(self, connection: Connection, run: Run, work: TaskInput, attempts: Sequence[Attempt]) -> int:
        """Move the rows of ``attempts``. An error here concerns the target table, not a table of this library."""
        options = self._options
        try:
            return move_rows(connection, run, options.dbtable, work.columns, options.upsert_keys, attempts)
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
        self.complete("prepared transactions are not aborted in Kafka")

    def complete(self, warning: str = "decided transactions are not complete in Kafka") -> None:
        """Commit or abort in Kafka, as decided, the transactions of this process's leases and of dead processes.

        Never raises, because the decision stands.

        :param warning: the message to log if that takes longer than PATIENCE.
        """
        deadline = time.monotonic() + PATIENCE
        while True:
            errors = self._complete_once()
            if not errors:
                return
            if time.monotonic() >= deadline:
                _LOG.warning("%s; recovery will end them later: %s", warning, errors[0])
                return
            time.sleep(_PAUSE)

    def _complete_once(self) -> Sequence[Exception]:
        try:
            left = self._runs.completable()
            if left:
                self._observe("COMPLETE_KAFKA")
            outcomes, errors = self._worker.branches.sweep_left()
            return errors if set(left).difference(outcomes) else ()
        except Exception as error:  # noqa: BLE001 - see complete()
            return (error,)

    @property
    def run_seconds(self) -> float:
        """How long a run may last, and how long its prepared transactions stay open."""
        if self._options.two_phase != RESUME:
            return self._options.run_timeout
        return min(self._options.run_timeout, resume_timeout_ms(self._options.kafka_config) * _TIMEOUT_SHARE / 1000)


def _winners(run: Run, tasks: Iterable[PreparedTask | None]) -> list[PreparedTask]:
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
            raise InvalidTransactionStateError(
                f"partition {part} of job {run.job!r} is committed twice (attempts {winners[part].attempt.attempt} and "
                f"{task.attempt.attempt}): commit one attempt of each partition"
            )
        winners[part] = task
    return list(winners.values())


def job_of(options: WriteOptions) -> str:
    """The job's name; one run of a job is open at a time.

    :raises ConfigurationError: if no job is given: another write of the application could have the same batch number,
        and the batch would count as committed.
    """
    return options.require_job() if options.batch_id is not None else options.job or options.application
