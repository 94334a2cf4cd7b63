"""One task of a run, on an executor: it stages its rows, prepares its records, and transfers both to the run.

The task writes rows as they come, and holds at most ``batchsize`` of them in memory. It gives each chunk first to the
Kafka producer, which sends it in the background. Then it writes the chunk to the database, in a transaction that checks
that the run is open.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from sqlalchemy import Connection, TableClause

from dualwrite.coordinator.branch import Branch, Branches
from dualwrite.coordinator.rules.lease import Lease
from dualwrite.ids import PreparedTxnState
from dualwrite.records.outgoing import OutgoingRecord
from dualwrite.spark.batch.runs import Run, Runs
from dualwrite.spark.batch.staging import Attempt
from dualwrite.spark.plan.rows import ConvertedRow
from dualwrite.spark.tables.bulk_load import Loader, chunks

Observe = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class PreparedTask:
    """The result of a task, which it sends to Spark's driver.

    :param lease: its lease, now the run's; None if the partition has no row, and so no transaction.
    :param state: its prepared transaction; None if the partition has no row.
    """

    run: Run
    attempt: Attempt
    lease: Lease | None = None
    state: PreparedTxnState | None = None


class BatchTask:
    """One attempt at one partition.

    :param staged: the table of staged rows.
    :param part: the partition's number; the rows of a later partition win in an upsert.
    :param attempt: a number that no other attempt of the run has.
    """

    def __init__(
        self, runs: Runs, run: Run, staged: TableClause, part: int, attempt: int, batchsize: int, observe: Observe
    ) -> None:
        self._runs = runs
        self._run = run
        self._staged = staged
        self._part = part
        self._attempt = attempt
        self._batchsize = batchsize
        self._observe = observe
        self._staged_rows = 0

    def write(self, branches: Branches, rows: Iterable[ConvertedRow]) -> PreparedTask:
        """Stage and prepare ``rows``, and transfer them to the run.

        :raises FencedError: if the run has ended. The Kafka transaction is aborted. The end of the run deletes the
            staged rows.
        """
        row_chunks = chunks(rows, self._batchsize)
        first_chunk = next(row_chunks, None)
        if first_chunk is None:
            return PreparedTask(self._run, Attempt(self._part, self._attempt, 0))
        self._runs.require_still_open(self._run)  # sooner than after taking a slot
        with branches.branch(self._observe) as branch:
            self._write_chunk(branch, first_chunk)
            for chunk in row_chunks:
                self._write_chunk(branch, chunk)
            state = branch.prepare()
            lease = branch.transfer(lambda lease: self._runs.transfer_lease(self._run, lease))
            return PreparedTask(self._run, Attempt(self._part, self._attempt, self._staged_rows), lease, state)

    def _write_chunk(self, branch: Branch, chunk: list[ConvertedRow]) -> None:
        branch.produce_many(
            OutgoingRecord(row.topic, row.value, row.key, row.partition, 0, row.headers) for row in chunk
        )
        self._observe("STAGE_ROWS")
        with self._runs.writing(self._run) as connection:
            self._stage(connection, chunk)

    def _stage(self, connection: Connection, chunk: list[ConvertedRow]) -> None:
        marks = (self._run.run_id, self._part, self._attempt)
        loader, numbered = Loader(connection, self._staged), enumerate(chunk, self._staged_rows)
        if isinstance(chunk[0].values, str):
            mark_texts = "\t".join(map(str, marks))
            loader.write_lines([f"{mark_texts}\t{number}\t{row.values}\n" for number, row in numbered])
        else:
            loader.write([(*marks, number, *row.values) for number, row in numbered])
        self._staged_rows += len(chunk)
