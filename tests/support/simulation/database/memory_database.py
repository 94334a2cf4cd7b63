"""The state table and the users' rows in memory, with transactions and row locks.

What is written shows when its transaction commits. Every call takes time, in which other threads go on, and in which
the process may be killed or stalled, before its effect and after it. A restart of the server ends what is open.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import count
from random import Random
from typing import NamedTuple

from dualwrite.coordinator.rules.lease import Lease, LeaseLostError, require_row
from dualwrite.coordinator.rules.lease_memory import RowSeen
from dualwrite.coordinator.rules.recovery_decision import Outcome
from dualwrite.errors import DatabaseBusyError
from dualwrite.ids import PreparedTxnState
from tests.support.simulation.scheduler import Scheduler, SimulatedProcess, SimulatedThread

LOCK_TIMEOUT = 30.0
_PROMOTED_AFTER = 0.3


class StateRow(NamedTuple):
    token: int
    version: int
    state: PreparedTxnState
    owner: str
    expires_at: float | None
    is_new: bool
    cluster: str = ""
    """The cluster that it was last leased for, as ``str()`` of a ClusterIdentity writes it."""

    @property
    def seen(self) -> RowSeen:
        return RowSeen(self.token, self.version, self.state)


class Kept(NamedTuple):
    """What a standby has that lags."""

    rows: dict[str, StateRow]
    units: list[str]
    outcomes: list[tuple[str, str]]


def require_state(lease: Lease, row: StateRow) -> None:
    """Require that ``row`` has the state that its owner has read or stored last.

    :raises LeaseLostError: if not.
    """
    if row.state != lease.memory.state:
        raise LeaseLostError(lease)


def storing(row: StateRow, state: PreparedTxnState) -> StateRow:
    """``row`` with ``state``. Its writer has recovered the row, even if the database has forgotten that."""
    return row._replace(state=state, is_new=False)


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
    token_steps: Random = field(default_factory=lambda: Random(0))
    is_lost: Callable[[], int] = lambda: 0
    """Asked at a unit's COMMIT: 1 if the connection is lost before its effect, 2 if after it, 3 if meanwhile: the
    server carries out what it has received."""
    later: Callable[[Callable[[], None]], None] = lambda act: act()
    """Let something happen at the server, a while later."""
    before_call: Callable[[], None] = lambda: None
    before_store: Callable[[SimulatedProcess], None] = lambda process: None
    """Called before a unit's state is on its way to the row."""
    after_commit: Callable[[SimulatedProcess], None] = lambda process: None
    """Called when a unit's COMMIT has taken effect, before its answer is on its way to ``process``."""
    after_lock: "Callable[[MemoryTransaction], None]" = lambda transaction: None
    """Called when recovery has locked the rows that it needs."""
    forgets_after: Callable[[], float | None] = lambda: None
    """Asked at a unit's COMMIT: None, or the seconds after which the server restarts and has forgotten it."""
    decided: dict[str, Lease] = field(default_factory=dict)
    """By unit: the lease under which it was committed."""
    forgotten: dict[str, Lease] = field(default_factory=dict)
    """The units among them that a restart has forgotten."""
    standbys: list[Kept] = field(default_factory=list)
    """What the next restarts that forget bring back, the oldest first."""
    forgotten_rows: set[str] = field(default_factory=set)
    """The slots whose first lease a restart has forgotten."""
    left_elsewhere: list[str] = field(default_factory=list)
    """The slots that were taken with a state whose transaction is in another cluster: each must be put on record."""
    replaced: set[str] = field(default_factory=set)
    """The units among these after which the same process has committed another, under the same lease."""
    happened: Callable[[str], None] = lambda what: None
    """Called with what is seen in the rows that must have happened in some run."""
    down_until: float = 0.0

    def call(self, name: str) -> None:
        """A request on its way: then comes its effect. A server that restarts is waited for."""
        self.before_call()
        self.scheduler.pause()
        while self.scheduler.now < self.down_until:
            self.scheduler.wait(self.down_until)
        self.scheduler.note(name)

    def restart(self, seconds: float) -> None:
        """Restart the server: what was committed stays, what is open ends without effect."""
        for transaction in list(self.transactions):
            transaction.end()
        self.down_until = self.scheduler.now + seconds

    def forget(self, kept: "Kept") -> None:
        """Restart as a standby that lagged: of all that was committed, ``kept`` is there.

        A standby that was ahead of it has something else, and can't be promoted any more."""
        if not any(standby is kept for standby in self.standbys):
            return
        while self.standbys.pop() is not kept:
            pass
        lost = self.units[len(kept.units) :]
        self.forgotten.update({unit: self.decided[unit] for unit in lost})
        self.forgotten_rows.update(self.rows.keys() - kept.rows.keys())
        self.rows, self.units, self.outcomes = dict(kept.rows), list(kept.units), list(kept.outcomes)
        self.restart(_PROMOTED_AFTER)

    def next_token(self, token: int) -> int:
        """A higher fencing token than the row's. After a lease or a row was forgotten, it is another one than before
        (sql/lease_store.py)."""
        return token + self.token_steps.randint(1, 1000)

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
        self._left_elsewhere: list[str] = []
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

    def leaves(self, name: str, state: PreparedTxnState) -> None:
        """Note that a process takes the slot, whose transaction with ``state`` is in another cluster."""
        if state:
            self._left_elsewhere.append(name)

    def put_on_record(self, name: str, outcome: Outcome) -> None:
        self._outcomes.append((name, outcome.value))

    def locked_state(self, lease: Lease) -> PreparedTxnState:
        """As sql/decision_store.py."""
        row = self.read(lease.transactional_id)
        require_row(lease, None if row is None else row.seen)
        assert row is not None
        lease.memory.found(row.state)
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
        require_state(lease, row)
        self._stored = lease
        self.write(lease.transactional_id, storing(row, state))

    def commit(self) -> None:
        self._require_open()
        database = self._database
        if self._stored is not None:
            token = database.rows[self._stored.transactional_id].token
            if token != self._stored.fencing_token:
                database.violations.append(f"two owners: {self._stored} commits under the token {token}")
        if self._units and self._stored is not None:
            self._decide(self._stored)
        database.rows.update(self._rows)
        database.units.extend(self._units)
        database.outcomes.extend(self._outcomes)
        database.left_elsewhere.extend(self._left_elsewhere)
        self.end()

    def _decide(self, lease: Lease) -> None:
        """Remember what this COMMIT replaces; and have it forgotten later, if that is to happen."""
        database = self._database
        database.replaced.update(unit for unit, former in database.forgotten.items() if former is lease)
        database.decided.update(dict.fromkeys(self._units, lease))
        seconds = database.forgets_after()
        if seconds is not None:
            kept = Kept(dict(database.rows), list(database.units), list(database.outcomes))
            database.standbys.append(kept)
            scheduler = database.scheduler
            scheduler.call_at(scheduler.now + seconds, lambda: database.forget(kept))

    def rollback(self) -> None:
        if not self.has_ended and not self.is_in_flight:
            self.end()

    def end(self) -> None:
        """Release the locks; what was not committed has no effect."""
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
