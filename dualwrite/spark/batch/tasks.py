"""One task of a run, on an executor: its rows are staged, its records are prepared, and both are the run's then.

Rows go in as they come, no more than ``batchsize`` at a time in memory: each portion to Kafka first, which sends
meanwhile, and then to the database, in a transaction that sees the run open.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter

from sqlalchemy import Connection, TableClause

from dualwrite.coordinator.branch import Branch
from dualwrite.coordinator.dual_write import DualWrite
from dualwrite.coordinator.ports import Lease
from dualwrite.ids import PreparedTxnState
from dualwrite.spark.batch.runs import Run, Runs
from dualwrite.spark.batch.staging import Attempt
from dualwrite.spark.plan.rows import Written
from dualwrite.spark.tables.bulk_load import Loader, chunks

Observe = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class PreparedTask:
    """What a task has prepared, as it tells the driver.

    :param lease: handed over to the run; None if there was no row, and so no transaction.
    """

    run: Run
    attempt: Attempt
    lease: Lease | None = None
    state: PreparedTxnState | None = None


class BatchTask:
    """One attempt at one partition.

    :param staged: the table of staged rows.
    :param part: of the partition; the rows of a later one win in an upsert.
    :param attempt: no other attempt of the run has this number.
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
        self._number = 0

    def write(self, dual_write: DualWrite, rows: Iterable[Written]) -> PreparedTask:
        """Stage and prepare ``rows``, and hand them over to the run.

        :raises FencedError: if the run has ended. Nothing is left in Kafka; what is staged, the run's end deletes.
        """
        portions = chunks(rows, self._batchsize)
        first = next(portions, None)
        if first is None:
            return PreparedTask(self._run, Attempt(self._part, self._attempt, 0))
        self._runs.require_still_open(self._run)  # rather now than after a slot was taken
        with dual_write.part(self._observe) as part:
            self._take(part, first)
            for portion in portions:
                self._take(part, portion)
            state = part.prepare()
            handed = part.hand_over(lambda lease: self._runs.sign_over(self._run, lease))
            return PreparedTask(self._run, Attempt(self._part, self._attempt, self._number), handed, state)

    def _take(self, part: Branch, portion: list[Written]) -> None:
        for topic, rows in groupby(portion, attrgetter("topic")):
            part.produce_many(topic, [(row.value, row.key, row.partition, row.headers) for row in rows])
        self._observe("STAGE_ROWS")
        with self._runs.writing(self._run) as connection:
            self._stage(connection, portion)

    def _stage(self, connection: Connection, portion: list[Written]) -> None:
        marks = (self._run.run_id, self._part, self._attempt)
        loader, numbered = Loader(connection, self._staged), enumerate(portion, self._number)
        if isinstance(portion[0].values, str):
            begin = "\t".join(map(str, marks))
            loader.write_lines([f"{begin}\t{number}\t{row.values}\n" for number, row in numbered])
        else:
            loader.write([(*marks, number, *row.values) for number, row in numbered])
        self._number += len(portion)
