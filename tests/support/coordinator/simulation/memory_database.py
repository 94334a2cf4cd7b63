"""The state table and the users' rows in memory, with row locks: a DecisionStore, Leases and UnitDatabases over them.

What is written shows when its transaction commits. Every call takes time, in which other threads go on, and in which
the process may be killed or stalled, before its effect and after it.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from itertools import count
from typing import Any, NamedTuple, TypeVar

from dualwrite.coordinator.rules.identities import UNKNOWN_CLUSTER, ClusterIdentity
from dualwrite.coordinator.rules.lease import Lease, LeaseLostError, require_row
from dualwrite.coordinator.rules.lease_memory import RowSeen, Unmatched
from dualwrite.coordinator.rules.machine import DualWriteMachine
from dualwrite.coordinator.rules.recovery_decision import Outcome
from dualwrite.coordinator.rules.slot_rules import Candidate, SlotRow, SlotStatus, application_of, slot_number
from dualwrite.errors import DatabaseBusyError, InvalidTransactionStateError
from dualwrite.ids import PreparedTxnState
from tests.support.coordinator.simulation.scheduler import Scheduler, SimulatedProcess, SimulatedThread

T = TypeVar("T")
LOCK_TIMEOUT = 30.0
_CERTAIN = (SlotStatus.DEAD, SlotStatus.ABANDONED)


class StateRow(NamedTuple):
    token: int
    version: int
    state: PreparedTxnState
    owner: str
    expires_at: float | None
    is_new: bool

    @property
    def seen(self) -> RowSeen:
        return RowSeen(self.token, self.version, self.state)


@dataclass
class MemoryDatabase:
    """What is committed; and the locks of the open transactions."""

    scheduler: Scheduler
    rows: dict[str, StateRow] = field(default_factory=dict)
    units: list[str] = field(default_factory=list)
    """The rows of the applications' own table."""
    outcomes: list[tuple[str, str]] = field(default_factory=list)
    locks: "dict[str, MemoryTransaction]" = field(default_factory=dict)
    waiting: list[SimulatedThread] = field(default_factory=list)
    transactions: "list[MemoryTransaction]" = field(default_factory=list)
    violations: list[str] = field(default_factory=list)
    versions: Iterator[int] = field(default_factory=lambda: count(1))
    is_lost: Callable[[], int] = lambda: 0
    """Asked at a unit's COMMIT: 1 if the connection is lost before its effect, 2 if after it, 3 if meanwhile: the
    server carries out what it has received."""
    later: Callable[[Callable[[], None]], None] = lambda act: act()
    """Let something happen at the server, a while later."""

    def call(self, name: str) -> None:
        """A request on its way: then comes its effect."""
        self.scheduler.pause()
        self.scheduler.note(name)

    def begin(self, process: SimulatedProcess) -> "MemoryTransaction":
        transaction = MemoryTransaction(self, process)
        self.transactions.append(transaction)
        return transaction

    def left_by(self, process: SimulatedProcess) -> "list[MemoryTransaction]":
        """The open transactions of a dead process, which the server has not noticed yet."""
        return [
            transaction
            for transaction in self.transactions
            if transaction.process is process and not transaction.has_ended
        ]


class MemoryTransaction:
    def __init__(self, database: MemoryDatabase, process: SimulatedProcess) -> None:
        self.process = process
        self.has_ended = False
        self.is_in_flight = False
        """True while its last request is on its way: the server carries it out before it notices a lost connection."""
        self._database = database
        self._rows: dict[str, StateRow] = {}
        self._units: list[str] = []
        self._outcomes: list[tuple[str, str]] = []
        self._stored: Lease | None = None

    def lock(self, name: str, *, waits: bool = True) -> bool:
        """Lock a row, or the gap where it will be."""
        locks, scheduler = self._database.locks, self._database.scheduler
        until = scheduler.now + (LOCK_TIMEOUT if waits else 0)
        while locks.get(name, self) is not self:
            if scheduler.now >= until:
                if not waits:
                    return False
                raise DatabaseBusyError(f"the row of {name} is locked")
            me = scheduler.current
            assert me is not None
            self._database.waiting.append(me)
            scheduler.wait(until)
        self._require_open()
        locks[name] = self
        return True

    def read(self, name: str) -> StateRow | None:
        return self._rows.get(name) or self._database.rows.get(name)

    def write(self, name: str, row: StateRow) -> None:
        self._require_open()
        assert self._database.locks[name] is self
        self._rows[name] = row

    def insert(self, unit: str) -> None:
        self._require_open()
        self._units.append(unit)

    def put_on_record(self, name: str, outcome: Outcome) -> None:
        self._outcomes.append((name, outcome.value))

    def locked_state(self, lease: Lease) -> PreparedTxnState:
        """As sql/decision_store.py."""
        row = self.read(lease.transactional_id)
        require_row(lease, None if row is None else row.seen)
        assert row is not None
        memory = lease.memory
        if memory.state is None:
            memory.read(row.state)
        elif memory.pending is not None and memory.pending.is_same_as(row.state):
            memory.committed()
        return row.state

    def store(self, lease: Lease, state: PreparedTxnState) -> None:
        """A compare-and-set, as sql/decision_store.py."""
        self.lock(lease.transactional_id)
        row, memory = self.read(lease.transactional_id), lease.memory
        if memory.state is None:
            self.locked_state(lease)
        memory.writes(state)
        require_row(lease, None if row is None else row.seen)
        assert row is not None
        if row.state != memory.state:
            raise LeaseLostError(lease)
        self._stored = lease
        self.write(lease.transactional_id, row._replace(state=state))

    def commit(self) -> None:
        self._require_open()
        database = self._database
        if self._stored is not None:
            token = database.rows[self._stored.transactional_id].token
            if token != self._stored.fencing_token:
                database.violations.append(f"two owners: {self._stored} commits under the token {token}")
        database.rows.update(self._rows)
        database.units.extend(self._units)
        database.outcomes.extend(self._outcomes)
        self._end()

    def rollback(self) -> None:
        if not self.has_ended and not self.is_in_flight:
            self._end()

    def _end(self) -> None:
        self.has_ended = True
        database = self._database
        database.transactions.remove(self)
        for name in [name for name, holder in database.locks.items() if holder is self]:
            del database.locks[name]
        waiting, database.waiting[:] = list(database.waiting), []
        for thread in waiting:
            database.scheduler.wake(thread)

    def _require_open(self) -> None:
        if self.has_ended:
            raise OSError("the server has closed the connection")


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
            yield MemoryHeld(self.database, transaction, lease, transaction.locked_state(lease))

    @contextmanager
    def locked_at_once(self, leases: Sequence[Lease]) -> Iterator[Mapping[Lease, MemoryHeld]]:
        with self.transaction("lock at once") as transaction:
            held = {}
            for lease in sorted(leases, key=_by_name):
                if transaction.lock(lease.transactional_id, waits=False):
                    with suppress(LeaseLostError):
                        state = transaction.locked_state(lease)
                        held[lease] = MemoryHeld(self.database, transaction, lease, state)
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
            transaction.locked_state(lease)
            row = transaction.read(name)
            assert row is not None
            transaction.write(name, row._replace(is_new=False))
            if unclaimed:
                transaction.put_on_record(name, Outcome.HEURISTIC_HAZARD)
        lease.memory.is_new = False

    def note_outcome(self, transactional_id: str, state: PreparedTxnState, outcome: Outcome, detail: str) -> None:
        self.note_unmatched(transactional_id, [Unmatched(state, outcome, detail)], None)

    def outcome_insert_sql(self, transactional_id: str, unit: Unmatched) -> str:
        return f"INSERT {transactional_id} {unit}"

    def note_unmatched(self, transactional_id: str, units: Sequence[Unmatched], row: RowSeen | None) -> None:
        with self.transaction("note") as transaction:
            for unit in units:
                transaction.put_on_record(transactional_id, unit.outcome)


class MemorySlotLeases:
    """Leases over a MemoryStore; its clock is the scheduler's."""

    def __init__(self, store: MemoryStore) -> None:
        self._store = store
        self._database = store.database

    def limited(self, seconds: float, name: str, setting: str) -> AbstractContextManager[object]:
        return nullcontext()

    def rows(self, application: str | None, cluster: ClusterIdentity = UNKNOWN_CLUSTER) -> list[SlotRow]:
        self._database.call("rows")
        found = []
        for name, row in sorted(self._database.rows.items()):
            whose = application_of(name)
            if whose is not None and application in (None, whose):
                left = None if row.expires_at is None else row.expires_at - self._database.scheduler.now
                found.append(SlotRow(name, slot_number(whose, name) or 0, row.token, row.owner, left))
        return found

    def is_unchanged(self, cluster: ClusterIdentity) -> bool:
        self._database.call("identity")
        return True

    def name_of(self, application: str) -> str:
        return application

    def take(self, candidates: Sequence[Candidate], owner: str, seconds: float, most: int) -> list[Lease]:
        taken: list[Lease] = []
        with self._store.transaction(f"take {[each.row.transactional_id for each in candidates]}") as transaction:
            for candidate in candidates:
                if len(taken) < most and transaction.lock(candidate.row.transactional_id, waits=False):
                    taken += self._taken(transaction, candidate, owner, seconds)
        return taken

    def _taken(self, transaction: MemoryTransaction, candidate: Candidate, owner: str, seconds: float) -> list[Lease]:
        name, now = candidate.row.transactional_id, self._database.scheduler.now
        row = transaction.read(name)
        if row is None:
            row = StateRow(0, 0, PreparedTxnState(), "", None, is_new=True)
        if (row.token, row.owner) != (candidate.row.fencing_token, candidate.row.owner):
            return []
        is_over = not row.owner or row.expires_at is None or row.expires_at <= now
        if not is_over and candidate.status not in _CERTAIN:
            return []
        version = next(self._database.versions)
        transaction.write(
            name, row._replace(token=row.token + 1, version=version, owner=owner, expires_at=now + seconds)
        )
        lease = Lease(name, row.token + 1)
        lease.memory.renewed(version)
        lease.memory.is_new = row.is_new
        lease.memory.read(row.state)
        return [lease]

    def renew(
        self, leases: Collection[Lease], owner: str, seconds: float, former: Collection[str] = ()
    ) -> list[LeaseLostError]:
        lost: list[LeaseLostError] = []
        renewed: list[tuple[Lease, int]] = []
        with self._store.transaction("renew") as transaction:
            for lease in sorted(leases, key=_by_name):
                since = lease.memory.since()
                if not transaction.lock(lease.transactional_id, waits=False):
                    continue
                row = transaction.read(lease.transactional_id)
                try:
                    require_row(lease, None if row is None else row.seen, since)
                except LeaseLostError as error:
                    lost.append(error)
                    continue
                assert row is not None
                version = next(self._database.versions)
                lease.memory.renews(row.version, version)
                ends = self._database.scheduler.now + seconds
                transaction.write(lease.transactional_id, row._replace(owner=owner, version=version, expires_at=ends))
                renewed.append((lease, version))
        for lease, version in renewed:
            lease.memory.renewed(version)
        return lost

    def give_back(self, leases: Collection[Lease], *, finished: bool) -> None:
        with self._store.transaction(f"give back, finished={finished}") as transaction:
            for lease in sorted(leases, key=_by_name):
                transaction.lock(lease.transactional_id)
                row = transaction.read(lease.transactional_id)
                if row is not None and row.token == lease.fencing_token:
                    ended = row._replace(owner="", expires_at=None)
                    now = self._database.scheduler.now
                    transaction.write(lease.transactional_id, ended if finished else row._replace(expires_at=now))


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
            self._database.later(self.carry_out)
            raise OSError("the connection was lost during the COMMIT")
        self.carry_out()
        self._database.scheduler.pause()
        if loss == 2:
            raise OSError("the connection was lost after the COMMIT")
        self.was_committed = True

    def carry_out(self) -> None:
        """The server's part of the COMMIT."""
        self.connection.is_in_flight = False
        self.connection.commit()

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


def _by_name(lease: Lease) -> str:
    return lease.transactional_id
