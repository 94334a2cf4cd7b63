"""A run: one attempt of a Spark job to write a whole batch. Its state is in the database, in one row per job.

A new run of a job ends the previous one, under the row's lock. From then on, the tasks of the previous run transfer
nothing and its driver commits nothing, however long they were paused. The commit of the row *is* the decision about
all transactions that the run's tasks have prepared. It also stores the state of each prepared transaction, for
recovery.
"""

import logging
import secrets
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from typing import Any

from sqlalchemy import Connection, Engine, Row, Select, column, delete, func, insert, literal, select, table, update
from sqlalchemy.exc import DBAPIError, IntegrityError, SQLAlchemyError

from dualwrite.coordinator.process.watchdog import Limit
from dualwrite.coordinator.rules.lease import Lease
from dualwrite.coordinator.sql.decision_store import SqlDecisionStore
from dualwrite.coordinator.sql.dialects.base import ErrorMeaning
from dualwrite.coordinator.sql.dialects.supported import database_of
from dualwrite.coordinator.sql.engine.database_errors import refused_own_row
from dualwrite.coordinator.sql.engine.error_meanings import clear_errors
from dualwrite.coordinator.sql.lease_transfer import Decided, TransferredLeases
from dualwrite.coordinator.sql.own_tables import ours
from dualwrite.coordinator.sql.tables import OPEN_RUN, spark_run
from dualwrite.errors import DatabaseBusyError, DualWriteError, FencedError, InDoubtError
from dualwrite.spark.batch.known_batches import (
    BatchContent,
    KnownBatch,
    known_batch,
    record_batch,
    require_not_forgotten,
)

_LOG = logging.getLogger("dualwrite")

RUN_COLUMN = "dualwrite_run"
"""The column of a staging table with the run of a row."""

_LONGEST_SIGNATURE = 200
_RUN_COLUMNS = tuple(spark_run.c[name] for name in ("job", "run_id", "state", "staging_schema", "staging_table"))
"""Columns of a run. No timestamps: psycopg parses them only if PostgreSQL's DateStyle is ISO."""


class RunState(Enum):
    """The state of a run."""

    OPEN = OPEN_RUN
    COMMITTED = "committed"
    ABORTED = "aborted"


@dataclass(frozen=True, slots=True)
class Run:
    """A run that has begun.

    :param staging: the schema and the name of its staging table. The schema is None for the connection's own.
    """

    job: str
    run_id: int
    staging: tuple[str | None, str]

    @property
    def signature(self) -> str:
        """The signature of the run, as the owner of the leases that its tasks have transferred."""
        return f"{self.job.replace(' ', '_')[:_LONGEST_SIGNATURE]} run-{self.run_id}"


@dataclass(frozen=True, slots=True)
class Owner:
    """The process that completes decided transactions in Kafka.

    :param signature: of its process on leases (Branches.owner).
    :param seconds: the lease timeout. Other processes leave the transactions to this one for that time.
    """

    signature: str
    seconds: float


class Runs:
    """The runs of jobs, in the database of ``engine``.

    :param owner: becomes the owner of the leases of runs that end.
    :param store: opens the database transactions, on the same engine.
    """

    def __init__(self, engine: Engine, owner: Owner, store: SqlDecisionStore) -> None:
        self._engine = engine
        self._owner = owner
        self._store = store
        self._transferred = TransferredLeases(engine)
        self._database = database_of(engine.dialect)

    def begin(self, job: str, batch_id: int | None, staging: tuple[str | None, str], seconds: float) -> Run | None:
        """Begin a run, and end the previous one. None if the batch is already committed.

        The caller must then abort the transactions that the previous run has prepared.

        :param staging: the schema and the name of the run's staging table.
        :param seconds: how long the run may last, and how long its prepared transactions stay open.
        :raises ConfigurationError: if the database refuses the row of the job.
        :raises DatabaseBusyError: if the table ``staging`` is gone, because its target was changed meanwhile.
        """
        self._make_row(job, staging)
        with self._transaction() as (connection, limit):
            row = self._lock(connection, job)
            if row.state == RunState.OPEN.value:
                self._end(connection, _run_of(row), limit)
            if known_batch(connection, job, batch_id) is not None:
                self._write(connection, job)  # see end()
                return None
            self._require_staging(connection, staging)
            run = Run(job, secrets.randbits(62), staging)
            self._write(
                connection,
                job,
                run_id=run.run_id,
                state=RunState.OPEN.value,
                staging_schema=staging[0],
                staging_table=staging[1],
                expires_at=self._database.from_now(seconds),
            )
            return run

    def require_still_open(self, run: Run) -> None:
        """Pass if ``run`` is open. This takes no lock and does not wait, so the run may end right afterwards.

        :raises FencedError: if the run is not open.
        """
        with self._store.connection() as connection, clear_errors(self._engine):
            self._require_open(
                connection.execute(self._select_job(run.job), execution_options=ours(connection)).one_or_none(), run
            )

    def may_commit(self, run: Run, batch_id: int | None) -> bool:
        """True if ``run`` is open, and the batch is not committed. This takes no lock: :meth:`commit` has the last
        word."""
        try:
            self.require_still_open(run)
        except FencedError:
            return False
        return self.known(run.job, batch_id) is None

    @contextmanager
    def writing(self, run: Run) -> Iterator[Connection]:
        """A task's database transaction, for rows in bulk. The run stays open until the transaction ends.

        :raises FencedError: if the run is not open.
        """
        with self._transaction() as (connection, limit):
            self._require_open(self._lock(connection, run.job, read=True), run)
            with limit.resting():
                yield connection

    def transfer_lease(self, run: Run, lease: Lease) -> Lease:
        """Transfer ``lease`` to ``run``, for the rest of the run's time.

        :returns: the run's lease, with the row content that :meth:`commit` requires.
        :raises FencedError: if the run is not open any more.
        :raises LeaseLostError: if another process has taken over the lease.
        """
        with self._transaction() as (connection, _):
            row = self._lock(connection, run.job, read=True)
            self._require_open(row, run)
            return self._transferred.transfer(connection, lease, run.signature, float(row.remaining))

    def commit(
        self,
        run: Run,
        batch_id: int | None,
        decided: Sequence[Decided],
        move: Callable[[Connection], BatchContent],
        observe: Callable[[str], None],
        keep: int,
    ) -> RunState:
        """Decide the run, in one transaction: call ``move``, store the states of ``decided``, and mark the run and the
        batch as committed. Afterwards the owner must commit the decided transactions in Kafka, and abort all others
        that the run's tasks have prepared.

        :param decided: the leases and the prepared states of the tasks that count.
        :param move: moves the staged rows into the target table; returns what they are.
        :param observe: called with the name of each step before it. Its error counts as the step's.
        :param keep: how many batches of the job are remembered.
        :returns: ABORTED if an earlier run has committed the batch. This run is rolled back then.
        :raises FencedError: if another run has ended this one, or a lease of ``decided`` is lost. The caller must end
            the run.
        :raises LeaseContradictedError: if the database has lost the content that it had when a lease was transferred.
        :raises BatchChangedError: if the batch is so old that it was forgotten. The caller must end the run.
        :raises InDoubtError: if the connection was lost in the COMMIT, and the decision cannot be read.
        """
        is_sent = False
        try:
            observe("DECIDE")
            with self._transaction() as (connection, limit):
                row = self._lock(connection, run.job)
                if row is not None and (row.run_id, row.state) == (run.run_id, RunState.COMMITTED.value):
                    return RunState.COMMITTED  # called a second time
                self._require_open(row, run)
                if known_batch(connection, run.job, batch_id) is not None:
                    self._end(connection, run, limit)
                    return RunState.ABORTED
                require_not_forgotten(connection, run.job, batch_id, keep)
                observe("MOVE_ROWS")
                with limit.resting():
                    content = move(connection)
                observe("STORE_STATES")
                self._transferred.store_all(connection, decided, self._owner.signature, self._owner.seconds)
                self._clear(connection, run, limit)
                record_batch(connection, run.job, batch_id, run.run_id, content, keep)
                self._require_open(self._lock(connection, run.job), run)  # again: the move may take long
                self._write(connection, run.job, state=RunState.COMMITTED.value)
                observe("COMMIT_DATABASE")
                limit.begin()  # the COMMIT has the full time
                is_sent = True
        except Exception as error:
            if not is_sent:
                raise
            return self._read_outcome(run, batch_id, error, observe)
        return RunState.COMMITTED

    def end(self, run: Run, batch_id: int | None = None) -> RunState:
        """End ``run``, unless it is committed: the owner must abort what its tasks have prepared.

        :returns: the run's state; ABORTED also if another run has ended it.
        :raises InDoubtError: if a later run hides whether this one was committed.
        """
        with self._transaction() as (connection, limit):
            row = self._lock(connection, run.job)
            if row is None or row.run_id != run.run_id:
                return self._state_of_former(connection, run, batch_id)
            if row.state == RunState.OPEN.value:
                self._end(connection, run, limit)
                return RunState.ABORTED
            # The row that is read may not be on disk yet; after a later commit it is.
            self._write(connection, run.job)
            return RunState(row.state)

    def end_job(self, job: str) -> Run | None:
        """End the open run of ``job``, also if another process has begun it. None if no run is open."""
        with self._transaction() as (connection, limit):
            row = self._lock(connection, job)
            if row is None or row.state != RunState.OPEN.value:
                return None
            run = _run_of(row)
            self._end(connection, run, limit)
            return run

    def is_staging(self, qualified_name: tuple[str | None, str]) -> bool:
        """True if an open run, of any job, stages its rows in the table with that schema and name."""
        schema, name = qualified_name
        of_table = (spark_run.c.staging_table == name, spark_run.c.staging_schema.is_not_distinct_from(schema))
        is_open = spark_run.c.state == RunState.OPEN.value
        with self._store.connection() as connection, clear_errors(self._engine):
            return (
                connection.scalar(select(func.count()).where(*of_table, is_open), execution_options=ours(connection))
                != 0
            )

    def known(self, job: str, batch_id: int | None) -> KnownBatch | None:
        """The committed batch with that number; None if there is none."""
        if batch_id is None:
            return None
        with self._store.connection() as connection, clear_errors(self._engine):
            return known_batch(connection, job, batch_id)

    def completable(self) -> list[str]:
        """The transactional ids of ended runs whose leases the owner holds. Each of them is to be completed in Kafka.

        The owner does not renew these leases: processes of another application recover its own leases."""
        with self._transaction() as (connection, _):
            return self._transferred.ids_owned_by(connection, self._owner.signature)

    def _read_outcome(
        self, run: Run, batch_id: int | None, error: Exception, observe: Callable[[str], None]
    ) -> RunState:
        """The run's state after a COMMIT that failed with ``error`` and whose effect is unknown."""
        _LOG.info("%s: the COMMIT failed: %r", _title(run), error)
        try:
            observe("READ_DECISION")
            state = self.end(run, batch_id)
        except (SQLAlchemyError, DualWriteError, OSError) as read_error:
            raise InDoubtError(
                f"{_title(run)} is in both or in neither, and it is not known which: the COMMIT failed ({error}), and "
                f"the database could not be asked ({read_error}). Recovery ends both sides alike; a batch with an id "
                "may be written again, and has no second effect"
            ) from error
        if state is RunState.ABORTED:
            raise error
        return state

    def _end(self, connection: Connection, run: Run, limit: Limit) -> None:
        self._clear(connection, run, limit)
        self._write(connection, run.job, state=RunState.ABORTED.value)

    def _clear(self, connection: Connection, run: Run, limit: Limit) -> None:
        """Take over the undecided leases of ``run``, and delete its staged rows, without ``limit``."""
        self._transferred.transfer_back(connection, run.signature, self._owner.signature, self._owner.seconds)
        schema, name = run.staging
        staged = table(name, column(RUN_COLUMN), schema=schema)
        if connection.dialect.has_table(connection, name, schema=schema):
            with limit.resting():
                connection.execute(delete(staged).where(staged.c[RUN_COLUMN] == run.run_id))

    def _require_staging(self, connection: Connection, qualified_name: tuple[str | None, str]) -> None:
        """Keep the staging table from being dropped until the run that needs it is visible."""
        schema, name = qualified_name
        try:
            connection.execute(select(literal(1)).select_from(table(name, schema=schema)).limit(0))
        except DBAPIError as error:
            if self._database.meaning_of(error) is not ErrorMeaning.NOT_READY:
                raise
            raise DatabaseBusyError(
                f"the table for staged rows {name!r} is gone: its target was changed meanwhile; run the batch again"
            ) from error

    def _state_of_former(self, connection: Connection, run: Run, batch_id: int | None) -> RunState:
        """The state of ``run``, which was followed by another run."""
        if batch_id is None:
            raise InDoubtError(f"{_title(run)} was followed by another: it is not known whether it was committed")
        known = known_batch(connection, run.job, batch_id)
        is_committed = known is not None and known.run_id == run.run_id
        return RunState.COMMITTED if is_committed else RunState.ABORTED

    def _make_row(self, job: str, staging: tuple[str | None, str]) -> None:
        """Insert the row of a job that has none.

        :raises ConfigurationError: if the database refuses the row.
        """
        if self._has_row(job):
            return
        now = self._database.now()
        try:
            with self._transaction() as (connection, _):
                connection.execute(
                    insert(spark_run).values(
                        job=job,
                        run_id=0,
                        state=RunState.ABORTED.value,
                        staging_schema=staging[0],
                        staging_table=staging[1],
                        expires_at=now,
                        updated_at=now,
                    ),
                    execution_options=ours(connection),
                )
        except IntegrityError as error:
            if not self._has_row(job):
                raise refused_own_row(spark_run, error) from error
            _LOG.debug("%s: another run has just made the job's row", job)

    def _has_row(self, job: str) -> bool:
        with self._transaction() as (connection, _):
            row = select(spark_run.c.job).where(spark_run.c.job == job)
            return connection.scalar(row, execution_options=ours(connection)) is not None

    def _lock(self, connection: Connection, job: str, *, read: bool = False) -> Any:
        """Lock and read the row of ``job``.

        :param read: True for a shared lock, under which the row cannot change. Later readers do not overtake a waiting
            writer.
        """
        self._database.take_turn(connection, job, shared=read)
        return connection.execute(
            self._select_job(job).with_for_update(read=read), execution_options=ours(connection)
        ).one_or_none()

    def _select_job(self, job: str) -> Select[Any]:
        remaining = self._database.seconds_until(spark_run.c.expires_at).label("remaining")
        return select(*_RUN_COLUMNS, remaining).where(spark_run.c.job == job)

    @staticmethod
    def _require_open(row: Row[Any] | None, run: Run) -> None:
        if row is None or row.run_id != run.run_id or row.state != RunState.OPEN.value:
            raise FencedError(
                f"{_title(run)} has ended: another run of the job has begun, or recover_job has ended it. Batches that "
                "may be written at the same time need jobs of their own"
            )
        if row.remaining <= 0:
            raise FencedError(f"{_title(run)} has lasted longer than its runTimeout: raise that, or write less at once")

    def _write(self, connection: Connection, job: str, **values: Any) -> None:
        changed = update(spark_run).where(spark_run.c.job == job)
        connection.execute(
            changed.values(updated_at=self._database.now(), **values), execution_options=ours(connection)
        )

    @contextmanager
    def _transaction(self) -> Iterator[tuple[Connection, Limit]]:
        """A transaction, and the limit of its time. It rests for rows in bulk, which runTimeout limits."""
        limit = self._store.limit("a run")
        with self._store.transaction(commit=True, limit=limit) as connection, clear_errors(self._engine):
            yield connection, limit


def _run_of(row: Row[Any]) -> Run:
    return Run(row.job, row.run_id, (row.staging_schema, row.staging_table))


def _title(run: Run) -> str:
    return f"run {run.run_id} of job {run.job!r}"
