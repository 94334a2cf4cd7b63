"""The writing of a run's rows: it stages rows, prepares their records, and transfers both to the run.

A task, on an executor, writes its partition in portions of ``batchsize`` rows, and reads the next portion while one is
written to the database. A task with few rows does not write them but returns them to Spark's driver, which writes the
rows of all such tasks together, as if it were one more task.

Each portion is given first to the Kafka producer, which sends it in the background. Then it is written to the database,
in a transaction of its own that checks that the run is open.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any, NamedTuple

from sqlalchemy import Connection, TableClause

from dualwrite.coordinator.branch import Branch, Branches
from dualwrite.coordinator.rules.lease import Lease
from dualwrite.coordinator.sql.lease_transfer import Decided
from dualwrite.ids import PreparedTxnState
from dualwrite.records.outgoing import OutgoingRecord
from dualwrite.spark.batch.row_sums import RowSum
from dualwrite.spark.batch.runs import Run, Runs
from dualwrite.spark.batch.staging import Attempt
from dualwrite.spark.plan.converted_row import ConvertedRow
from dualwrite.spark.tables.bulk_load import Loader, chunks

Observe = Callable[[str], None]

_ROW_WEIGHT = 256
"""Bytes that a returned row is assumed to take beside its texts and binaries."""


@dataclass(frozen=True, slots=True)
class PreparedTask:
    """The result of a task, which it sends to Spark's driver.

    :param run: None if the batch was committed before, and the task has written nothing.
    :param lease: its lease, now the run's; None if the task has no transaction.
    :param state: its prepared transaction; None if it has none, because the partition has no row, or few.
    :param rows: all rows of the partition, if they are so few that the driver is to write them.
    :param row_sum: the sum of all rows of the partition, also if they were not written; None if the batch is not to be
        compared.
    """

    run: Run | None
    attempt: Attempt
    lease: Lease | None = None
    state: PreparedTxnState | None = None
    rows: tuple[ConvertedRow, ...] = ()
    row_sum: RowSum | None = None


class MarkedRows(NamedTuple):
    """Rows of one attempt, in order.

    :param first: the number of the first of them in its partition.
    """

    part: int
    attempt: int
    first: int
    rows: Sequence[ConvertedRow]


Portion = Sequence[MarkedRows]
"""Rows that are staged in one transaction."""


class _Stager:
    """Makes calls one after the other, in a thread if ``overlaps``. A context manager: its end waits for the thread."""

    def __init__(self, *, overlaps: bool) -> None:
        self._thread = ThreadPoolExecutor(1, "dualwrite-stage") if overlaps else None
        self._last: Future[None] | None = None

    def __enter__(self) -> "_Stager":
        return self

    def __exit__(self, *_: object) -> None:
        if self._thread is not None:
            self._thread.shutdown()

    def begin(self, call: Callable[[], None]) -> None:
        """Begin ``call``. The call before must have ended (:meth:`finish`)."""
        if self._thread is None:
            call()
        else:
            self._last = self._thread.submit(call)

    def finish(self) -> None:
        """Wait for the last call, and raise its error."""
        last, self._last = self._last, None
        if last is not None:
            last.result()


class RunWriter:
    """Writes rows of ``run``, with their records in one Kafka transaction.

    :param staged: the table of staged rows.
    :param overlaps: write a portion to the database in a thread, while the next rows come and records are sent. Not in
        a process of the user's, where an interrupt may come at any point.
    """

    def __init__(self, runs: Runs, run: Run, staged: TableClause, observe: Observe, *, overlaps: bool) -> None:
        self._runs = runs
        self._run = run
        self._staged = staged
        self._observe = observe
        self._overlaps = overlaps
        self.count = 0
        """How many rows it has written."""

    def write(self, branches: Branches, portions: Iterable[Portion]) -> Decided:
        """Stage and prepare ``portions``, and transfer them to the run; return the lease and the state.

        :param portions: at least one row.
        :raises FencedError: if the run has ended. The Kafka transaction is aborted. The end of the run deletes the
            staged rows.
        """
        self._runs.require_still_open(self._run)  # sooner than after taking a slot
        with branches.branch(self._observe) as branch, _Stager(overlaps=self._overlaps) as stager:
            for portion in portions:
                self._produce(branch, portion)
                stager.finish()
                self._observe("STAGE_ROWS")
                stager.begin(partial(self._stage_portion, portion))
            state = branch.prepare()
            stager.finish()  # before the transfer: the run would be decided without these rows
            return branch.transfer(lambda lease: self._runs.transfer_lease(self._run, lease)), state

    @staticmethod
    def _produce(branch: Branch, portion: Portion) -> None:
        record_of = OutgoingRecord.of_bytes  # RowConverter has checked each row
        branch.produce_many(
            record_of(topic, value, key, partition, headers)
            for marked in portion
            for _, topic, key, value, partition, headers, _ in marked.rows
        )

    def _stage_portion(self, portion: Portion) -> None:
        with self._runs.writing(self._run) as connection:
            self.stage(connection, portion)
        self.count += sum(len(marked.rows) for marked in portion)

    def stage(self, connection: Connection, portion: Portion) -> None:
        """Write ``portion`` into the table of staged rows, in the transaction of ``connection``."""
        loader, run_id = Loader(connection, self._staged), self._run.run_id
        if isinstance(portion[0].rows[0].values, bytes):
            texts: list[Any] = []
            for part, attempt, first, rows in portion:
                marks = f"{run_id}\t{part}\t{attempt}"
                for number, row in enumerate(rows, first):
                    texts += f"{marks}\t{number}\t".encode(), row.values, b"\n"
            loader.write_lines(texts)
            return
        loader.write(
            [
                (run_id, part, attempt, number, *row.values)
                for part, attempt, first, rows in portion
                for number, row in enumerate(rows, first)
            ]
        )


def few_rows(
    rows: Iterator[ConvertedRow], limit: int
) -> tuple[tuple[ConvertedRow, ...] | None, Iterator[ConvertedRow]]:
    """All of ``rows`` if they take at most ``limit`` bytes, None otherwise; and the rows from the first on."""
    head: list[ConvertedRow] = []
    weight = 0
    for row in rows:
        head.append(row)
        weight += row.weight + _ROW_WEIGHT
        if weight > limit:
            return None, chain(head, rows)
    return tuple(head), iter(head)


def portions_of(rows: Iterable[ConvertedRow], part: int, attempt: int, size: int) -> Iterator[Portion]:
    """``rows`` of one attempt in portions of up to ``size`` rows."""
    first = 0
    for chunk in chunks(rows, size):
        yield (MarkedRows(part, attempt, first, chunk),)
        first += len(chunk)


def returned_portion(tasks: Iterable[PreparedTask]) -> Portion:
    """The rows that ``tasks`` have returned, in the order of the partitions."""
    attempts = sorted((task.attempt, task.rows) for task in tasks if task.rows)
    return [MarkedRows(attempt.part, attempt.attempt, 0, rows) for attempt, rows in attempts]
