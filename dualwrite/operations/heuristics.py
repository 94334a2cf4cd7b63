"""Heuristic outcomes: units of work that ended differently on the two sides, until an operator acknowledges them."""

from sqlalchemy import Engine, delete

from dualwrite.coordinator.rules.lease import Lease
from dualwrite.coordinator.rules.recovery_decision import Outcome
from dualwrite.coordinator.sql.decision_store import SqlDecisionStore
from dualwrite.coordinator.sql.dialects.supported import database_of
from dualwrite.coordinator.sql.engine.error_meanings import clear_errors
from dualwrite.coordinator.sql.outcome_rows import insert_outcome
from dualwrite.coordinator.sql.own_tables import ours
from dualwrite.coordinator.sql.tables import kafka_transaction_outcome as table
from dualwrite.ids import PreparedTxnState

_TERMINATED = (
    "{by} terminated it in Kafka: its rows are in the database, and read_committed consumers will not see its records"
)


class HeuristicRecords:
    """The rows of ``kafka_transaction_outcome``.

    :param by: the operator, for the detail of a row; None if the name is not known.
    """

    def __init__(self, engine: Engine, by: str | None = None) -> None:
        self._engine = engine
        self._detail = _TERMINATED.format(by=by or "an operator")
        self._store = SqlDecisionStore(engine)
        self._database = database_of(engine.dialect)

    def add_abort(self, lease: Lease, state: PreparedTxnState) -> int:
        """Record that the transaction of ``state`` is aborted although the database decided to commit it. The same
        database transaction removes that decision from the row of ``lease``. If this process dies before Kafka has
        aborted the transaction, recovery aborts it, so the record is true in any case. Returns the record's number.

        :raises LeaseLostError: if another process has taken the slot. Nothing is recorded.
        :raises DatabaseNotReadyError: if the table is missing.
        """
        with self._store.transaction(commit=True) as connection, clear_errors(self._engine):
            self._store.store(connection, lease, PreparedTxnState())
            number = insert_outcome(
                connection, lease.transactional_id, state, Outcome.HEURISTIC_ABORT, self._detail, self._database.now()
            )
        lease.memory.committed()
        return number

    def withdraw(self, number: int, lease: Lease, state: PreparedTxnState) -> None:
        """Withdraw a record, and restore its decision in the row, because the transaction was not aborted.

        :raises LeaseLostError: if another process has taken the slot and aborted the transaction. The record stays.
        """
        with self._store.transaction(commit=True) as connection, clear_errors(self._engine):
            self._store.store(connection, lease, state)
            connection.execute(delete(table).where(table.c.id == number), execution_options=ours(connection))
        lease.memory.committed()
