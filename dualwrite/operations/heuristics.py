"""Heuristic outcomes: units of work that did not end alike on both sides, until an operator has seen to them."""

from sqlalchemy import Engine, delete, insert

from dualwrite.coordinator.database import SqlDecisionStore, clear_errors, columns_naming
from dualwrite.coordinator.databases.supported import database_of
from dualwrite.coordinator.participants import Lease
from dualwrite.coordinator.tables import kafka_transaction_outcome as table
from dualwrite.coordinator.verdict import Outcome
from dualwrite.ids import PreparedTxnState

HEURISTIC_ABORT = Outcome.HEURISTIC_ABORT.value


class HeuristicRecords:
    """The rows of ``kafka_transaction_outcome``."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._store = SqlDecisionStore(engine)
        self._database = database_of(engine.dialect)

    def add_abort(self, lease: Lease, state: PreparedTxnState) -> int:
        """Record that what ``state`` names is aborted though it was decided to commit, and take that decision out of
        the row of ``lease``, in one transaction: whoever dies before Kafka has aborted it leaves it to recovery, which
        aborts it then, so that the record is true in any case. Returns the record's number.

        :raises LeaseLostError: if somebody else has taken the slot; nothing is recorded.
        :raises DatabaseNotReadyError: if the table is missing.
        """
        with self._store.transaction(commit=True) as connection, clear_errors(self._engine):
            self._store.store(connection, lease, PreparedTxnState())
            added = connection.execute(
                insert(table).values(
                    transactional_id=lease.transactional_id,
                    **columns_naming(state),
                    outcome=HEURISTIC_ABORT,
                    detail="an operator terminated it in Kafka: its rows are in the database, its records are lost",
                    found_at=self._database.now(),
                )
            )
            key = added.inserted_primary_key
            assert key is not None
            return int(key[0])

    def withdraw(self, number: int, lease: Lease, state: PreparedTxnState) -> None:
        """Take a record back, and put its decision into the row again: it did not come to that.

        :raises LeaseLostError: if somebody else has taken the slot, and has aborted it: the record stays.
        """
        with self._store.transaction(commit=True) as connection, clear_errors(self._engine):
            self._store.store(connection, lease, state)
            connection.execute(delete(table).where(table.c.id == number))
