"""The input of a batch's tasks, which the driver sends to executors."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from dualwrite.errors import InputError
from dualwrite.spark.batch.runs import Owner, Run, Runs
from dualwrite.spark.batch.staging import Attempt, staged_clause
from dualwrite.spark.batch.tasks import BatchTask, PreparedTask
from dualwrite.spark.error_translation import database_errors_translated
from dualwrite.spark.plan.columns import TableColumn, ValueFidelity, WritePlan
from dualwrite.spark.plan.options import WriteOptions
from dualwrite.spark.plan.rows import RowConverter
from dualwrite.spark.workers import Worker, worker_of

Observe = Callable[[str], None]


@dataclass(frozen=True)
class TaskInput:
    """The input of every task of a run. It can be pickled, to send it to executors.

    :param columns: the table's columns for ``plan.table``.
    :param run: None if the batch is already committed.
    :param on_step: called with the name of each step before it; for tests.
    """

    options: WriteOptions
    plan: WritePlan
    columns: tuple[TableColumn, ...]
    keeps: ValueFidelity
    run: Run | None
    on_step: Observe | None = None

    def of(self, run: Run) -> "TaskInput":
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
        """Stage and prepare the rows of one partition, as one attempt. None if the batch is already committed.

        :param rows: all rows of the partition.
        :param part: the partition's number, counted from 0.
        :param attempt: a number that no other attempt of the run has.
        :param zone: the session's time zone, if the driver could not know it.
        :param batch_id: the batch's number, if the driver could not know it. A committed batch is not written then.
        :raises InputError: if the table or Kafka cannot take a row.
        :raises FencedError: if the run has ended.
        :raises DatabaseUnavailableError: if the database connection was lost. As after every error, the driver ends the
            run, which rolls back both sides.
        """
        if self.run is None:
            _drain(rows)
            return None
        options = self.options
        worker = worker_of(options)
        staged = staged_clause(self.run.staging, options.dbtable, self.columns)
        runs = runs_of(worker, options)
        if batch_id is not None and runs.is_committed(self.run.job, batch_id):
            _drain(rows)
            return PreparedTask(self.run, Attempt(part, attempt, 0))
        task = BatchTask(runs, self.run, staged, part, attempt, options.batchsize, self.on_step or no_observer)
        plan = self.plan if zone is None else replace(self.plan, zone=zone)
        work = f"partition {part} of job {self.run.job!r}"
        with database_errors_translated(work):
            try:
                return task.write(worker.branches, RowConverter(plan, self.columns, self.keeps).rows(rows))
            except InputError as error:
                raise InputError(f"{work}: {error}") from error


def runs_of(worker: Worker, options: WriteOptions) -> Runs:
    """The runs of all jobs, in the database of ``worker``."""
    branches = worker.branches
    return Runs(worker.engine, Owner(branches.owner, options.lease_timeout), branches.store)


def no_observer(step: str) -> None:
    """The default observer: does nothing."""


def _drain(rows: Iterable[object]) -> None:
    """Read ``rows`` and discard them."""
    for _ in rows:
        pass
