"""One task of a run, on an executor: it stages its rows, prepares its records, and hands both over to the run.

It writes rows as they come, and holds at most ``batchsize`` of them in memory. Each portion goes first to Kafka, whose
producer sends meanwhile, and then to the database, in a transaction that checks that the run is open.
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
    """The prepared result of a task, which it sends to the driver.

    :param lease: handed over to the run; None if there was no row, and so no transaction.
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
        self._number = 0

    def write(self, dual_write: DualWrite, rows: Iterable[Written]) -> PreparedTask:
        """Stage and prepare ``rows``, and hand them over to the run.

        :raises FencedError: if the run has ended. Kafka is rolled back; the end of the run deletes the staged rows.
        """
        portions = chunks(rows, self._batchsize)
        first = next(portions, None)
        if first is None:
            return PreparedTask(self._run, Attempt(self._part, self._attempt, 0))
        self._runs.require_still_open(self._run)  # sooner than after taking a slot
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
