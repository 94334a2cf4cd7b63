"""The transaction of one unit of work in the database in memory."""

from contextlib import nullcontext
from typing import Any

from dualwrite.coordinator.rules.lease import Lease
from dualwrite.coordinator.rules.machine import DualWriteMachine
from dualwrite.errors import InvalidTransactionStateError
from dualwrite.ids import PreparedTxnState
from tests.support.simulation.database.memory_database import MemoryTransaction
from tests.support.simulation.database.memory_store import MemoryStore


class MemoryUnit:
    """A UnitDatabase."""

    limit = nullcontext()
    session: Any = None
    may_have_left_rows = is_on_record = is_lost = False
    has_unflushed = True

    def __init__(self, store: MemoryStore, lease: Lease) -> None:
        self.commit_was_sent = False
        self.was_committed = False
        self._store = store
        self._database = store.database
        self.lease = lease
        self._transaction: MemoryTransaction | None = None

    @property
    def connection(self) -> Any:
        assert self._transaction is not None
        return self._transaction

    def begin(self, machine: DualWriteMachine) -> None:
        self._database.call(f"begin {self.lease.transactional_id}")
        self._transaction = self._database.begin(self._store.process)

    def failure(self) -> BaseException | None:
        if self._transaction is None or self._transaction.has_ended:
            return InvalidTransactionStateError("the transaction was ended")
        return None

    def store(self, state: PreparedTxnState) -> None:
        self._database.before_store(self._store.process)
        self._database.call(f"store {self.lease.transactional_id} {state}")
        self.connection.store(self.lease, state)
        self._database.scheduler.pause()

    def commit(self) -> None:
        self.commit_was_sent = True
        self._database.call(f"commit {self.lease.transactional_id}")
        loss = self._database.is_lost()
        if loss == 1:
            raise OSError("the connection was lost before the COMMIT")
        if loss == 3:
            self.connection.is_in_flight = True
            self._database.later(self._carry_out_alone)
            raise OSError("the connection was lost during the COMMIT")
        self.carry_out()
        self._database.after_commit(self._store.process)
        self._database.scheduler.pause()
        if loss == 2:
            raise OSError("the connection was lost after the COMMIT")
        self.was_committed = True

    def carry_out(self) -> None:
        """The server's part of the COMMIT."""
        self.connection.is_in_flight = False
        self.connection.commit()

    def _carry_out_alone(self) -> None:
        """The same, for a client that has gone; unless the server has restarted meanwhile."""
        if not self.connection.has_ended:
            self.carry_out()

    def discard(self) -> None:
        if self._transaction is not None and self._store.process.is_alive:
            self._transaction.rollback()

    def roll_back(self, *, is_struck: bool) -> None:
        self._database.call(f"roll back {self.lease.transactional_id}")
        self.discard()

    def put_on_record(self, state: PreparedTxnState) -> None:
        raise AssertionError("no unit ends its own transaction here")

    def release(self) -> None:
        self.discard()
