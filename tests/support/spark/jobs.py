"""A database, and the runs of drivers and tasks in it."""

from collections.abc import Callable

from sqlalchemy import BigInteger, Column, Connection, Engine, Integer, MetaData, Table, insert, select

from dualwrite.coordinator.rules.lease import Lease
from dualwrite.coordinator.rules.slot_rules import Candidate, SlotRow, SlotStatus
from dualwrite.coordinator.sql.decision_store import SqlDecisionStore
from dualwrite.coordinator.sql.lease_store import SqlLeases
from dualwrite.coordinator.sql.tables import spark_batch, spark_run
from dualwrite.ids import PreparedTxnState, ProducerIdentity
from dualwrite.spark.batch.known_batches import BatchContent
from dualwrite.spark.batch.runs import RUN_COLUMN, Owner, Run, Runs, RunState
from dualwrite.spark.known.targets import BatchTarget
from tests.support.coordinator.event_table import slot_rows

STAGED = (None, "staged")
staged = Table("staged", MetaData(), Column(RUN_COLUMN, BigInteger), Column("n", Integer))
things = Table("things", MetaData(), Column("n", Integer))
STATE = PreparedTxnState(ProducerIdentity(7, 3))
LONG = 1000.0


def ignore(step: str) -> None:
    """Nobody observes."""


class Jobs:
    """A database, with what drivers and tasks do there."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.leases = SqlLeases(engine, SqlDecisionStore(engine))
        things.create(engine)
        staged.create(engine)

    def driver(self, name: str = "driver") -> Runs:
        return Runs(self.engine, Owner(name, LONG), SqlDecisionStore(self.engine))

    def begin(self, driver: Runs, batch_id: int | None = None, job: str = "job", seconds: float = LONG) -> Run:
        run = driver.begin(job, batch_id, STAGED, seconds)
        assert run is not None
        return run

    def lease(self, number: int) -> Lease:
        row = Candidate(SlotRow(f"a-{number}", number), SlotStatus.FREE)
        (lease,) = self.leases.take([row], "task", LONG, 1)
        return lease

    def task(self, run: Run, number: int) -> Lease:
        """One that has staged a row, and has handed over what it has prepared."""
        runs, lease = self.driver("task"), self.lease(number)
        with runs.writing(run) as connection:
            connection.execute(insert(staged).values({RUN_COLUMN: run.run_id, "n": number}))
        return runs.transfer_lease(run, lease)

    def move(self, run: Run) -> Callable[[Connection], BatchContent]:
        def move(connection: Connection) -> BatchContent:
            rows = select(staged.c.n).where(staged.c[RUN_COLUMN] == run.run_id)
            connection.execute(insert(things).from_select(["n"], rows))
            return BatchContent(1, target=BatchTarget(things.name, None, None))

        return move

    def commit(
        self,
        driver: Runs,
        run: Run,
        leases: list[Lease],
        batch_id: int | None = None,
        keep: int = 100,
        observe: Callable[[str], None] = ignore,
    ) -> RunState:  # fmt: skip
        return driver.commit(run, batch_id, [(lease, STATE) for lease in leases], self.move(run), observe, keep)

    def values(self, table: Table) -> list[int]:
        with self.engine.connect() as connection:
            return sorted(connection.scalars(select(table.c.n)))

    def states(self) -> dict[str, tuple[str, str]]:
        """State and owner of each slot."""
        return {name: (row.prepared_txn_state, row.owner) for name, row in slot_rows(self.engine).items()}

    def batches(self) -> list[int]:
        with self.engine.connect() as connection:
            return sorted(connection.scalars(select(spark_batch.c.batch_id)))

    def state(self, job: str = "job") -> str:
        with self.engine.connect() as connection:
            return str(connection.scalar(select(spark_run.c.state).where(spark_run.c.job == job)))
