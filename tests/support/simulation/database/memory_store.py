"""A DecisionStore over the database in memory, for one process."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import NamedTuple, TypeVar

from dualwrite.coordinator.rules.lease import Lease, LeaseLostError
from dualwrite.coordinator.rules.lease_memory import RowSeen, Unmatched
from dualwrite.coordinator.rules.recovery_decision import Outcome
from dualwrite.ids import PreparedTxnState
from tests.support.simulation.database.memory_database import MemoryDatabase, MemoryTransaction
from tests.support.simulation.scheduler import SimulatedProcess

T = TypeVar("T")


class MemoryHeld(NamedTuple):
    """A LockedStateRow."""

    database: MemoryDatabase
    transaction: MemoryTransaction
    lease: Lease
    state: PreparedTxnState

    def verify(self) -> None:
        self.database.call(f"verify {self.lease.transactional_id}")
        row = self.transaction.read(self.lease.transactional_id)
        if self.transaction.has_ended or row is None or row.token != self.lease.fencing_token:
            raise LeaseLostError(self.lease)


class MemoryStore:
    """A DecisionStore, for one process."""

    one_writer = False
    checks_lease = False

    def __init__(self, database: MemoryDatabase, process: SimulatedProcess) -> None:
        self.database = database
        self.process = process

    def in_thread(self, act: Callable[[], T]) -> T:
        return act()

    @contextmanager
    def transaction(self, name: str) -> Iterator[MemoryTransaction]:
        self.process.require_alive()
        transaction = self.database.begin(self.process)
        try:
            self.database.call(name)
            yield transaction
            self.database.scheduler.pause()
            if name.startswith("lock "):
                transaction.rollback()
            else:
                transaction.commit()
                self.database.scheduler.pause()
        except BaseException:
            if self.process.is_alive:
                transaction.rollback()
            raise

    @contextmanager
    def locked(self, lease: Lease) -> Iterator[MemoryHeld]:
        with self.transaction(f"lock {lease.transactional_id}") as transaction:
            transaction.lock(lease.transactional_id)
            state = transaction.locked_state(lease)
            self.database.after_lock(transaction)
            yield MemoryHeld(self.database, transaction, lease, state)

    @contextmanager
    def locked_at_once(self, leases: Sequence[Lease]) -> Iterator[Mapping[Lease, MemoryHeld]]:
        with self.transaction("lock at once") as transaction:
            held = {}
            for lease in sorted(leases, key=by_name):
                if transaction.lock(lease.transactional_id, waits=False):
                    with suppress(LeaseLostError):
                        state = transaction.locked_state(lease)
                        held[lease] = MemoryHeld(self.database, transaction, lease, state)
            self.database.after_lock(transaction)
            yield held

    def record(self, lease: Lease, outcome: Outcome) -> None:
        with self.transaction("record") as transaction:
            transaction.lock(lease.transactional_id)
            transaction.locked_state(lease)
            transaction.put_on_record(lease.transactional_id, outcome)
            transaction.store(lease, PreparedTxnState())
        lease.memory.committed()

    def mark_recovered(self, lease: Lease, unclaimed: PreparedTxnState) -> None:
        name = lease.transactional_id
        with self.transaction(f"mark {name}") as transaction:
            transaction.lock(name)
            state = transaction.locked_state(lease)
            for _ in filter(None, (state, unclaimed)):
                transaction.put_on_record(name, Outcome.HEURISTIC_HAZARD)
            if state:
                transaction.store(lease, PreparedTxnState())
            row = transaction.read(name)
            assert row is not None
            transaction.write(name, row._replace(is_new=False))
        lease.memory.committed()
        lease.memory.is_new = False

    def note_outcome(self, transactional_id: str, state: PreparedTxnState, outcome: Outcome, detail: str) -> None:
        self.note_unmatched(transactional_id, [Unmatched(state, outcome, detail)], None)

    def outcome_insert_sql(self, transactional_id: str, unit: Unmatched) -> str:
        return f"INSERT {transactional_id} {unit}"

    def note_unmatched(self, transactional_id: str, units: Sequence[Unmatched], row: RowSeen | None) -> None:
        with self.transaction("note") as transaction:
            for unit in units:
                transaction.put_on_record(transactional_id, unit.outcome)
            if row is not None:
                transaction.lock(transactional_id)
                now = transaction.read(transactional_id)
                if now is not None and (now.token, now.state) == (row.fencing_token, row.state):
                    transaction.write(transactional_id, now._replace(state=PreparedTxnState()))


def by_name(lease: Lease) -> str:
    """The order in which rows are locked."""
    return lease.transactional_id
