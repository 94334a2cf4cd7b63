"""The input of a batch's tasks, which the driver sends to executors."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from dualwrite.coordinator.sql.lease_transfer import Decided
from dualwrite.errors import InputError
from dualwrite.spark.batch.row_sums import RowSum, RowSummer
from dualwrite.spark.batch.runs import Owner, Run, Runs
from dualwrite.spark.batch.staging import Attempt, staged_clause
from dualwrite.spark.batch.tasks import PreparedTask, RunWriter, few_rows, portions_of, returned_portion
from dualwrite.spark.error_translation import database_errors_translated
from dualwrite.spark.known.targets import COMPARE
from dualwrite.spark.plan.columns import TableColumn, ValueFidelity, WritePlan
from dualwrite.spark.plan.options import WriteOptions
from dualwrite.spark.plan.rows import RowConverter
from dualwrite.spark.task_socket import SentToTask
from dualwrite.spark.unpickling import ReducedObject, reduced
from dualwrite.spark.workers import Worker, exclude_from_collection_in_a_task, worker_of

Observe = Callable[[str], None]

MOST_RETURNED = 2**20
"""The most bytes that one task returns: Spark sends larger results in another, slower way."""
_ASSUMED_TASKS = 1024
"""How many tasks a batch is assumed to have if the driver does not know."""


@dataclass(frozen=True)
class TaskInput(SentToTask):
    """The input of every task of a run. It can be pickled, to send it to executors.

    :param columns: the table's columns for ``plan.table``.
    :param run: None if the batch is already committed.
    :param on_step: called with the name of each step before it; for tests.
    :param sums: the tasks sum their rows, to compare the batch if it is run again.
    :param returned_bytes: a partition with at most so many bytes is returned to the driver, which writes its rows.
    """

    options: WriteOptions
    plan: WritePlan
    columns: tuple[TableColumn, ...]
    keeps: ValueFidelity
    run: Run | None
    on_step: Observe | None = None
    returned_bytes: int = 0
    sums: bool = False

    def __reduce__(self) -> ReducedObject:
        return reduced(self)

    def returning(self, tasks: int | None) -> "TaskInput":
        """This work, with the rows of small partitions returned to the driver, as far as the options allow.

        :param tasks: the number of tasks; None if it is not known.
        """
        share = self.options.driver_bytes // max(1, _ASSUMED_TASKS if tasks is None else tasks)
        return replace(self, returned_bytes=min(share, MOST_RETURNED))

    def of(self, run: Run) -> "TaskInput":
        """This work for ``run``."""
        return replace(self, run=run)

    def numbered(self, batch_id: int | None) -> "TaskInput":
        """This work for the batch ``batch_id``, whose tasks sum their rows if the batch has a number and the option
        knownBatch says that batches are compared."""
        return replace(self, sums=batch_id is not None and self.options.known_batch == COMPARE)

    def write(
        self,
        rows: Iterable[Sequence[Any]],
        part: int,
        attempt: int,
        zone: str | None = None,
        batch_id: int | None = None,
    ) -> PreparedTask:
        """Stage and prepare the rows of one partition, as one attempt. If the batch is already committed, only read and
        sum them.

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
        job = self.options.job or self.options.application if self.run is None else self.run.job
        name = f"partition {part} of job {job!r}"
        work = self if batch_id is None else self.numbered(batch_id)
        exclude_from_collection_in_a_task()
        with database_errors_translated(name):
            try:
                return work._prepared(rows, part, attempt, zone, batch_id)
            except InputError as error:
                raise InputError(f"{name}: {error}") from error

    def _prepared(
        self, rows: Iterable[Any], part: int, attempt: int, zone: str | None, batch_id: int | None
    ) -> PreparedTask:
        options, run = self.options, self.run
        if run is None and not self.sums:
            _drain(rows)
            return PreparedTask(None, Attempt(part, attempt, 0))
        plan = self.plan if zone is None else replace(self.plan, zone=zone)
        summer = RowSummer(plan) if self.sums else None
        converted = RowConverter(plan, self.columns, self.keeps).rows(rows if summer is None else summer.packed(rows))
        if summer is not None:
            converted = summer.converted(converted)
        if run is None:
            _drain(converted)
            return PreparedTask(None, Attempt(part, attempt, 0), row_sum=_sum_of(summer))
        few, converted = few_rows(converted, self.returned_bytes)
        if few is not None:
            return PreparedTask(run, Attempt(part, attempt, len(few)), rows=few, row_sum=_sum_of(summer))
        worker = worker_of(options)
        runs = runs_of(worker, options)
        if runs.known(run.job, batch_id) is not None:
            _drain(converted)
            return PreparedTask(run, Attempt(part, attempt, 0), row_sum=_sum_of(summer))
        writer = self._writer(runs, run, overlaps=True)
        lease, state = writer.write(worker.branches, portions_of(converted, part, attempt, options.batchsize))
        return PreparedTask(run, Attempt(part, attempt, writer.count), lease, state, row_sum=_sum_of(summer))

    def write_returned(self, worker: Worker, tasks: Sequence[PreparedTask]) -> Decided | None:
        """Stage and prepare the rows that ``tasks`` have returned, on the driver; return the lease and the prepared
        state. None if they have returned none.

        :raises FencedError: if the run has ended; and the other errors of :meth:`write`.
        """
        portion = returned_portion(tasks)
        if not portion or self.run is None:
            return None
        writer = self._writer(runs_of(worker, self.options), self.run, overlaps=False)
        return writer.write(worker.branches, [portion])

    def _writer(self, runs: Runs, run: Run, *, overlaps: bool) -> RunWriter:
        staged = staged_clause(run.staging, self.options.dbtable, self.columns)
        return RunWriter(runs, run, staged, self.on_step or no_observer, overlaps=overlaps)


def runs_of(worker: Worker, options: WriteOptions) -> Runs:
    """The runs of all jobs, in the database of ``worker``."""
    branches = worker.branches
    return Runs(worker.engine, Owner(branches.owner, options.lease_timeout), branches.store)


def no_observer(step: str) -> None:
    """The default observer: does nothing."""


def _sum_of(summer: RowSummer | None) -> RowSum | None:
    return None if summer is None else summer.sum


def _drain(rows: Iterable[object]) -> None:
    """Read ``rows`` and discard them."""
    for _ in rows:
        pass
