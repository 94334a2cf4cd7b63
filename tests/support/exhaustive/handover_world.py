"""The small world of :mod:`tests.support.exhaustive.handover`: a state row, a transactional id, and its two owners."""

from collections import Counter
from enum import Enum
from typing import Any, NamedTuple

from dualwrite.broker.core.commands import AddPartitions, Command, EndTransaction, Reply
from dualwrite.broker.facts.transactions import TransactionRecorded
from dualwrite.coordinator.rules import lease as lease_rules
from dualwrite.coordinator.rules.lease import Lease, LeaseContradictedError, LeaseLostError
from dualwrite.coordinator.rules.lease_memory import LeaseMemory, RowSeen
from dualwrite.coordinator.rules.machine import Result, UnitState
from dualwrite.ids import NO_PRODUCER, PreparedTxnState, ProducerIdentity
from dualwrite.records.control import Marker
from dualwrite.wire.error_codes import ErrorCode
from tests.support.broker.transactions import TXN_ID, carried_out

NO_STATE = PreparedTxnState()

IN_OTHERS = "no record joins the transaction of another unit of work"
ENDS_OTHERS = "no request ends the transaction of another unit of work"
CONTRADICTED = "no state row contradicts what its owner remembers"
REFUSED_BY_ROW = "a zombie was refused by the state row"
LATE_REFUSED = "a request of a dead process came late, and was refused"


class RecoveryStage(Enum):
    """The next step of the recovery of an owner."""

    LOCK = "lock the state row"
    FENCE = "fence Kafka, and keep what is prepared"
    VERIFY = "read the fencing token again"
    COMPLETE = "end the open transaction"
    READY = "get a producer of its own"


class SlotOwner(NamedTuple):
    """A process that believes to own the slot.

    :param token: of its lease.
    :param known: the state that it has read or stored last.
    :param pending: the state whose COMMIT has an unknown end.
    :param unit: of its unit of work; None between two.
    :param recovery: of its recovery; None if it is warm.
    :param has_lock: its database connection holds the row's lock.
    :param is_cut: its database connection is lost, and with it the unit's transaction.
    :param read: the state that recovery has read under the lock.
    """

    token: int
    known: PreparedTxnState
    pending: PreparedTxnState | None = None
    unit: UnitState | None = None
    recovery: RecoveryStage | None = RecoveryStage.LOCK
    serial: int = 0
    identity: ProducerIdentity = NO_PRODUCER
    prepared: PreparedTxnState = NO_STATE
    has_lock: bool = False
    is_cut: bool = False
    read: PreparedTxnState = NO_STATE
    ongoing: ProducerIdentity = NO_PRODUCER

    def require(self, row: RowSeen) -> "SlotOwner":
        """The owner after it has looked at the locked ``row``.

        :raises LeaseLostError: if another process has taken over.
        """
        memory = LeaseMemory()
        memory.read(self.known)
        memory.renewed(self.token)
        if self.pending is not None:
            memory.writes(self.pending)
        try:
            lease_rules.require_row(Lease(TXN_ID, self.token, memory), row)
        except LeaseContradictedError as error:
            raise AssertionError(f"{CONTRADICTED}: {error}") from error
        if memory.pending is not None and memory.pending.is_same_as(row.state):
            memory.committed()
        assert memory.state is not None
        return self._replace(known=memory.state, pending=None)


class LeftTransaction(NamedTuple):
    """A database transaction without a process that waits for it: it holds the row's lock until it ends.

    :param may_commit: its COMMIT is on its way.
    """

    serial: int
    state: PreparedTxnState
    token: int
    may_commit: bool


class LateEnd(NamedTuple):
    """An EndTxn of unit ``serial`` that the network holds."""

    command: EndTransaction
    serial: int


class HandoverWorld(NamedTuple):
    """Everything that can differ.

    :param open: the unit whose records are in the open transaction.
    :param owners: by their tokens, so that two worlds that differ in the names of processes alone are one.
    :param decided: the units whose rows the database has.
    :param committed: the units whose records readers get; ``aborted`` those that they never get.
    :param told: the units whose callers were told, and what.
    :param began: the token under which each unit began.
    """

    entry: TransactionRecorded
    token: int = 1
    state: PreparedTxnState = NO_STATE
    owners: tuple[SlotOwner, ...] = ()
    open: int = 0
    fresh_id: int = 73
    left: tuple[LeftTransaction, ...] = ()
    late: LateEnd | None = None
    decided: frozenset[int] = frozenset()
    committed: frozenset[int] = frozenset()
    aborted: frozenset[int] = frozenset()
    told: frozenset[tuple[int, Result]] = frozenset()
    began: tuple[int, ...] = ()
    starts: int = 0

    @property
    def row(self) -> RowSeen:
        """The state row; each lease has one version, as it is not renewed here."""
        return RowSeen(self.token, self.token, self.state)

    @property
    def is_locked(self) -> bool:
        """True if some transaction holds the row's lock."""
        return bool(self.left) or any(owner.has_lock for owner in self.owners)

    def result(self, serial: int) -> Result | None:
        """What the caller of unit ``serial`` was told."""
        return next((result for told, result in self.told if told == serial), None)

    def with_owner(self, before: SlotOwner, after: SlotOwner | None) -> "HandoverWorld":
        """The world in which ``before`` has become ``after``, or is gone."""
        others = [owner for owner in self.owners if owner.token != before.token]
        owners = others if after is None else [*others, after]
        return self._replace(owners=tuple(sorted(owners, key=lambda owner: owner.token)))

    def commits(self, serial: int, state: PreparedTxnState) -> "HandoverWorld":
        """The world after the database has committed unit ``serial``."""
        return self._replace(state=state, decided=self.decided | {serial})


def required(owner: SlotOwner, world: HandoverWorld, seen: Counter[str]) -> SlotOwner | None:
    """``owner`` after it has looked at the row; None if another process has taken over."""
    try:
        return owner.require(world.row)
    except LeaseLostError:
        seen[REFUSED_BY_ROW] += 1
        return None


def arrive(world: HandoverWorld, command: Command, serial: int) -> tuple[HandoverWorld, Reply]:
    """A request of unit ``serial`` reaches the coordinator, and markers are written at once.

    :param serial: 0 for a request that may end any transaction: recovery's.
    """
    entry, fresh_id, reply = carried_out(world.entry, command, world.fresh_id)
    before, world = world, world._replace(entry=entry, fresh_id=fresh_id)
    if isinstance(command, AddPartitions):
        if reply.error is ErrorCode.NONE:
            assert before.open in (0, serial), f"{IN_OTHERS}: that of {serial} that of {before.open}"
            world = world._replace(open=serial)
    elif before.open and not world.entry.partitions:
        assert serial in (0, before.open), f"{ENDS_OTHERS}: {command} of {serial} that of {before.open}"
        is_commit = isinstance(command, EndTransaction) and command.result is Marker.COMMIT
        ended = (before.committed if is_commit else before.aborted) | {before.open}
        ended_world: dict[str, Any] = {"committed" if is_commit else "aborted": ended}
        world = world._replace(open=0, **ended_world)
    return world, reply
