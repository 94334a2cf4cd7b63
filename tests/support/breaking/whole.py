"""What the ablations of tests/simulation put in place of a safeguard; see tests/support/breaking/breakable.py.

Each stands for the product without one of its safeguards. The broken functions use private parts as the originals do.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, NamedTuple

from dualwrite.broker import connection
from dualwrite.broker.api.context import BrokerContext
from dualwrite.broker.api.records import produce
from dualwrite.broker.api.transactions import end_txn
from dualwrite.broker.core import transaction_rules as rules
from dualwrite.broker.core.commands import Decision
from dualwrite.broker.core.partitions import APPEND, BatchVerdict, PartitionState
from dualwrite.broker.runtime.flusher import Flusher
from dualwrite.broker.runtime.partition import Partition
from dualwrite.client.admin.control_plane import ControlPlane
from dualwrite.client.engine.contract import Operation
from dualwrite.client.engine.engine import Engine
from dualwrite.client.engine.transaction_requests import TransactionRequests
from dualwrite.coordinator.recovery import prepared_predecessor, sequence
from dualwrite.coordinator.recovery.sequence import Recovery
from dualwrite.coordinator.rules.lease import Lease, LeaseLostError
from dualwrite.coordinator.rules.machine import Event
from dualwrite.coordinator.rules.recovery_decision import RecoveryDecision
from dualwrite.coordinator.rules.slot_rules import SlotObserver, SlotRow, SlotStatus
from dualwrite.coordinator.slots import slot as slots
from dualwrite.coordinator.steps.driver import UnitDriver
from dualwrite.ids import OngoingTransaction, PreparedTxnState, ProducerIdentity
from dualwrite.wire.apis import ApiKey, Message
from tests.support.breaking.breakable import Breakable
from tests.support.simulation.database import memory_database, slot_leases
from tests.support.simulation.database.memory_database import MemoryDatabase, MemoryTransaction, StateRow
from tests.support.simulation.database.memory_store import MemoryHeld, MemoryStore
from tests.support.simulation.database.memory_unit import MemoryUnit
from tests.support.simulation.older_producer import OlderProducer

REQUIRE_ROW = Breakable(memory_database, "require_row")
COMMIT = Breakable(MemoryTransaction, "commit")
LOCKED = Breakable(MemoryStore, "locked")
LOCKED_AT_ONCE = Breakable(MemoryStore, "locked_at_once")
VERIFY = Breakable(MemoryHeld, "verify")
VERSION_OF_NEW_END = Breakable(end_txn, "_TV2")
STORE_STATE = Breakable(MemoryUnit, "store")
CARRY_OUT = Breakable(MemoryUnit, "carry_out")
RESTART = Breakable(MemoryDatabase, "restart")
RECOVER = Breakable(slots, "recover")
VERDICT = Breakable(prepared_predecessor, "verdict")
PREPARE_TRANSACTION = Breakable(Engine, "prepare_transaction")
FINISH_LATER = Breakable(UnitDriver, "_finish_later")
LAST_STABLE_OFFSET = Breakable(Partition, "last_stable_offset")
DECIDE_BATCH = Breakable(PartitionState, "decide")
BEGUN_SESSION = Breakable(OlderProducer, "begun_session")
INIT = Breakable(TransactionRequests, "init")
IDENTIFIES = Breakable(PreparedTxnState, "identifies")
REQUIRE_STATE = Breakable(memory_database, "require_state")
STORING = Breakable(memory_database, "storing")
NEXT_TOKEN = Breakable(MemoryDatabase, "next_token")
REQUIRE_RENEWED_ROW = Breakable(slot_leases, "require_row")
STATUS = Breakable(SlotObserver, "status")
HAS_COMMITTED = Breakable(sequence, "has_committed")
COMPLETE = Breakable(Recovery, "_complete")
ROUTES = Breakable(connection, "ROUTES")


class UnlockedRow(NamedTuple):
    """A row that was read and is not locked."""

    state: PreparedTxnState

    def verify(self) -> None:
        """Read nothing."""


def believed(lease: Any, row: Any, since: Any = None) -> None:
    """In place of REQUIRE_ROW: a process that had the lease still has it."""


def token_alone(lease: Any, row: Any, since: Any = None) -> None:
    """In place of REQUIRE_ROW and of REQUIRE_RENEWED_ROW: only another process's lease contradicts this one's."""
    if row is None or row.fencing_token != lease.fencing_token:
        raise LeaseLostError(lease)


@contextmanager
def read_without_lock(self: MemoryStore, lease: Any) -> Iterator[Any]:
    """In place of LOCKED: the row as committed now, whoever writes it."""
    with self.transaction(f"lock {lease.transactional_id}") as transaction:
        state = transaction.locked_state(lease)
        transaction.rollback()
        yield UnlockedRow(state)


@contextmanager
def read_all_without_lock(self: MemoryStore, leases: Any) -> Iterator[Any]:
    """The same, in place of LOCKED_AT_ONCE."""
    with self.transaction("lock at once") as transaction:
        states = {lease: UnlockedRow(transaction.locked_state(lease)) for lease in leases}
        transaction.rollback()
        yield states


def next_number(self: MemoryDatabase, token: int) -> int:
    """In place of NEXT_TOKEN."""
    return token + 1


def storing_the_state_alone(row: StateRow, state: PreparedTxnState) -> StateRow:
    """In place of STORING."""
    return row._replace(state=state)


def not_read_again(self: MemoryHeld) -> None:
    """In place of VERIFY."""
    self.database.call("not verified")


_recover = slots.recover


def initialized_first(store: Any, lease: Any, factory: Any, observe: Any) -> Any:
    """In place of RECOVER: a producer begins as usual, and recovery comes after that."""
    first = factory()
    try:
        first.init_transactions()
    finally:
        first.close()
    return _recover(store, lease, factory, observe)


def kept_under_the_new_identity(entry: Any, timeout_ms: int, moment: Any) -> Decision:
    """In place of KEEP_PREPARED: the answer has the client's new identity for the kept transaction's."""
    decision = _keep_prepared(entry, timeout_ms, moment)
    assert decision.reply is not None
    return decision._replace(reply=decision.reply._replace(ongoing=decision.reply.producer))


_keep_prepared = rules._keep_prepared


def guessed(driver: UnitDriver) -> Event:
    """In place of the step that reads the decision: a COMMIT that raised has failed."""
    driver.release_database()
    return Event.NOT_COMMITTED


def prepared_without_waiting(self: Engine, now: float) -> Operation:
    """In place of PREPARE_TRANSACTION: the transaction is prepared once its records are on their way."""
    operation = _prepare_transaction(self, now)
    if not operation.is_done:
        self._verb.finish(self._machine.prepared or PreparedTxnState(self._machine.identity))
    return operation


_prepare_transaction = Engine.prepare_transaction


def used_again(driver: UnitDriver) -> Event:
    """In place of the step that leaves Kafka to recovery: the producer goes on."""
    driver._needs_recovery, driver._reusable = False, True
    return Event.DONE


def whole_log(self: Partition) -> int:
    """In place of LAST_STABLE_OFFSET."""
    return self.state.high_watermark


def without_duplicates_check(self: PartitionState, header: Any, begins_at_zero: bool = False) -> BatchVerdict:
    """In place of DECIDE_BATCH: a batch that is sent again is appended again."""
    verdict = _decide(self, header, begins_at_zero)
    return APPEND if verdict.duplicate_of >= 0 and not verdict.error else verdict


_decide = PartitionState.decide


def committed_whatever_is_open(stored: PreparedTxnState, ongoing: Any) -> RecoveryDecision:
    """In place of VERDICT: what is open is what the database has decided."""
    if ongoing is None:
        return RecoveryDecision.NOTHING
    return RecoveryDecision.COMMIT if stored else RecoveryDecision.ABORT


def remembering_commit(self: MemoryTransaction) -> None:
    """In place of COMMIT: remembers what was there before the last unit of work."""
    database: Any = self._database
    if self._units:
        database.before_last_unit = dict(database.rows), list(database.units)
    _commit(self)


_commit = MemoryTransaction.commit


def forgetful_restart(self: Any, seconds: float) -> None:
    """In place of RESTART: the last COMMIT of a unit of work, which was answered, was not on disk."""
    _restart(self, seconds)
    if hasattr(self, "before_last_unit"):
        self.rows, self.units = self.before_last_unit


_restart = MemoryDatabase.restart
_carry_out = MemoryUnit.carry_out


def remembered(self: Any, state: PreparedTxnState) -> None:
    """In place of STORE_STATE: the state travels with the COMMIT, as one message."""
    self.unsent = state


def stored_with_commit(self: Any) -> None:
    """In place of CARRY_OUT: locks the row as late as the message arrives; a reader may have read the old state."""
    has_client, state = not self.connection.is_in_flight, getattr(self, "unsent", None)
    try:
        if state is not None:
            self.connection.store(self.lease, state)
        _carry_out(self)
    except (LeaseLostError, OSError):
        if has_client:
            raise
        self.connection.is_in_flight = False
        self.connection.rollback()


def plain_session(control: ControlPlane, transactional_id: str) -> ProducerIdentity:
    """In place of BEGUN_SESSION: aborts what is open, as librdkafka's request does on Apache Kafka."""
    return control.init_producer_id(transactional_id, two_phase_commit=True, keep_prepared_txn=False).producer


def init_that_aborts(self: TransactionRequests, keeps: bool, refuses: bool, now: float) -> Operation:
    """In place of INIT: also at the end of a recovery."""
    return _init(self, keeps, False, now)


_init = TransactionRequests.init


def same_producer(self: PreparedTxnState, ongoing: OngoingTransaction) -> bool:
    """In place of IDENTIFIES: without the anchor."""
    return bool(self) and self.producer == ongoing.producer


_status = SlotObserver.status


def status_in_any_cluster(self: SlotObserver, row: SlotRow) -> SlotStatus:
    """In place of STATUS: what the row says is believed to be about the cluster in use."""
    return _status(self, replace(row, cluster_id=self.cluster_id))


_complete = Recovery._complete


def looked_for_in_any_cluster(self: Recovery[Any], lease: Lease, state: PreparedTxnState) -> None:
    """In place of COMPLETE: the log of the cluster in use is believed to show how each state's transaction ended."""
    if state:
        lease.memory.is_new = False
    _complete(self, lease, state)


class DiskNotAwaited:
    """A Flusher for which nothing waits."""

    must_wait = False

    def __init__(self, flusher: Flusher) -> None:
        self.hurry = flusher.hurry


async def answered_at_once(request: Message, version: int, broker: BrokerContext) -> Message | None:
    """In place of Produce's handler: it answers before the disk has the records."""
    flusher: Any = DiskNotAwaited(broker.flusher)
    return await produce.handle(request, version, replace(broker, flusher=flusher))


ROUTES_WITHOUT_WAIT = {
    **connection.ROUTES,
    ApiKey.PRODUCE: connection.ROUTES[ApiKey.PRODUCE]._replace(handle=answered_at_once),
}
"""In place of ROUTES."""


def never(*_: Any) -> bool:
    """In place of a question whose answer is no."""
    return False
