"""The database transaction of a unit of work as a UnitDatabase, through SQLAlchemy."""

import logging
from collections.abc import Callable
from functools import partial

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from dualwrite.coordinator.concurrency.step_errors import is_step_error
from dualwrite.coordinator.process.this_process import THIS_PROCESS
from dualwrite.coordinator.process.watchdog import Limit, within_limit
from dualwrite.coordinator.rules.machine import DualWriteMachine, Result, UnitState
from dualwrite.coordinator.slots.lent_slot import LentSlot
from dualwrite.coordinator.slots.unmatched import UnmatchedUnits
from dualwrite.coordinator.sql.decision_store import SqlDecisionStore
from dualwrite.coordinator.sql.engine.connecting import close_connection
from dualwrite.coordinator.sql.engine.database_errors import connected
from dualwrite.coordinator.sql.engine.engine_checks import discard, require_idle
from dualwrite.coordinator.sql.engine.error_meanings import is_read_only
from dualwrite.coordinator.sql.unit_bounds import make_durable
from dualwrite.coordinator.steps.driver import UnitDriver
from dualwrite.coordinator.unit.beginning import begin_transaction
from dualwrite.coordinator.unit.session import UnitSession, flush_all, is_pending, lost_savepoint
from dualwrite.coordinator.unit.session_factory import UnitSessions
from dualwrite.coordinator.unit.session_scope import SessionScope
from dualwrite.coordinator.unit.unit_fate import UnitFate
from dualwrite.coordinator.unit.unit_transaction import LEAVE_TO_END, UnitTransaction
from dualwrite.errors import DatabaseUnavailableError, InvalidTransactionStateError
from dualwrite.ids import PreparedTxnState

_LOG = logging.getLogger("dualwrite")
_LOST = (
    "the connection to the database was lost inside the block of this unit of work, and the error was caught: the unit "
    "was rolled back on both sides"
)


class SqlUnit:
    """See UnitDatabase.

    :param engine: makes the connection.
    :param store: stores the state, in this transaction.
    :param limit: time limit for each step.
    :param unmatched: keeps a record that must wait; None to log it only.
    :param sessions: makes the ORM session.
    """

    def __init__(
        self,
        engine: Engine,
        store: SqlDecisionStore,
        slot: LentSlot,
        limit: Limit,
        unmatched: UnmatchedUnits | None,
        sessions: UnitSessions,
    ) -> None:
        self.limit = limit
        """See UnitDatabase."""
        self._engine = engine
        self._store = store
        self._lease = slot.lease
        self._is_leased = slot.is_leased
        self._machine: DualWriteMachine
        self._connection: Connection | None = None
        self._transaction: UnitTransaction | None = None
        self._has_begun = False
        """True once the transaction has begun: from then on the block may end it."""
        self._stored: PreparedTxnState | None = None
        self._sessions = sessions
        self._session: UnitSession | None = None
        self._scope: SessionScope | None = None
        self._fate = UnitFate(unmatched)

    @property
    def commit_was_sent(self) -> bool:
        """True once the database may have received the COMMIT; see UnitDatabase."""
        return self._transaction is not None and self._transaction.was_asked

    @property
    def was_committed(self) -> bool:
        """True if the database driver has reported a successful COMMIT; see UnitDatabase."""
        return self._transaction is not None and self._transaction.was_committed

    @property
    def may_have_left_rows(self) -> bool:
        """True if the transaction was ended outside the unit's control and may have left rows; see UnitDatabase."""
        return self._fate.may_have_left_rows

    @property
    def is_lost(self) -> bool:
        """True if the connection was lost inside the block; see UnitDatabase."""
        return self._transaction is not None and self._transaction.is_lost

    @property
    def is_on_record(self) -> bool:
        """True once :meth:`put_on_record` was successful; see UnitDatabase."""
        return self._fate.is_on_record

    @property
    def connection(self) -> Connection:
        """SQLAlchemy's Connection, for the block; see UnitDatabase."""
        assert self._connection is not None
        return self._connection

    @property
    def session(self) -> UnitSession:
        """An ORM Session on it, made at first use, for the block; see UnitDatabase."""
        if self._session is None:
            self._session = self._sessions.make(self.connection)
        return self._session

    def begin(self, machine: DualWriteMachine) -> None:
        """Begin the transaction; see UnitDatabase."""
        self._machine = machine
        registry = self._sessions.registry
        scope = None if registry is None else SessionScope(registry, self._engine)
        with self.limit:
            self._connection = connected(self._engine)
            self.limit.watch(self._connection.connection)
            require_idle(self._connection)
            make_durable(self._connection)
            lease = self._lease if self._is_leased else None
            begin_transaction(self._connection, self._make_transaction, lease, checked=self._store.checks_lease)
        self._has_begun = True
        if scope is not None:
            self._scope = scope
            scope.enter(self.session)

    def _make_transaction(self) -> UnitTransaction:
        assert self._connection is not None
        self._transaction = UnitTransaction(self._connection, self._machine, self._ask_fate, self._is_stored)
        return self._transaction

    @property
    def has_unflushed(self) -> bool:
        """True if a session has objects whose rows are not written yet; see UnitDatabase."""
        return any(is_pending(session) for session in self._used_sessions())

    def _used_sessions(self) -> list[Session]:
        sessions = (
            [] if self._transaction is None else [tracked.session for tracked in self._transaction.sessions.values()]
        )
        return [*sessions, self._session] if self._session is not None else sessions

    def failure(self) -> BaseException | None:
        """Flush the sessions, and return the error that prevents a commit, if any; see UnitDatabase."""
        try:
            transaction = self._transaction
            is_over = transaction is not None and (transaction.refused is not None or transaction.is_lost)
            if not is_over and self._session is not None and self._transaction_is_ours():
                self._session.announce_commit()
            if not is_over and self._used_sessions():
                self._flush()
            if transaction is None:
                return InvalidTransactionStateError(f"this unit of work has no database transaction: {LEAVE_TO_END}")
            if not self._transaction_is_ours():
                return DatabaseUnavailableError(_LOST) if transaction.is_lost else transaction.end()
            if transaction.refused is not None:
                return transaction.refused
            if self._scope is not None and (failure := self._scope.failure()) is not None:
                return failure
            self._release_savepoints(transaction)
            if self._machine.state is UnitState.RUNNING:  # with records, STORE_STATE makes this check
                self.limit.begin()
                self._fate.require_open(transaction, storing=False)
        except BaseException as error:  # noqa: BLE001 - the unit is rolled back, and the caller of finish raises it
            self.limit.explain(error)
            return error
        finally:
            self.limit.rest()
        return None

    def _flush(self) -> None:
        """Write what the sessions have not written yet.

        :raises InvalidTransactionStateError: if a session has lost what it had written; see lost_savepoint.
        """
        flush_all(self._used_sessions)
        for session in self._used_sessions():
            if (error := lost_savepoint(session)) is not None:
                raise error

    def _release_savepoints(self, transaction: UnitTransaction) -> None:
        """Release the savepoints that the block has left open: a listener that rolled back to one before the COMMIT
        would undo the stored state, and leave the rows from before the savepoint."""
        while (savepoint := transaction.connection.get_nested_transaction()) is not None and savepoint.is_active:
            self.limit.begin()
            try:
                savepoint.commit()
            except DBAPIError:
                if not transaction.is_lost:
                    self._fate.require_open(transaction, storing=False)  # says more of a transaction that has ended
                raise

    @within_limit
    def store(self, state: PreparedTxnState) -> None:
        """Write ``state`` into the row of the lease; see UnitDatabase."""
        assert self._connection is not None
        assert self._transaction is not None
        self._flush()  # objects of delivery callbacks, which came as Kafka was prepared
        self._fate.require_open(self._transaction, storing=True)
        with self._fate.noted(self._transaction):
            self._store.store(self._connection, self._lease, state)
        self._stored = state

    def _is_stored(self) -> bool:
        assert self._connection is not None
        return self._stored is None or self._store.is_stored(self._connection, self._lease, self._stored)

    @within_limit
    def commit(self) -> None:
        """Commit the transaction; see UnitDatabase."""
        assert self._transaction is not None
        self._transaction.commit()

    @within_limit
    def roll_back(self, *, is_struck: bool) -> None:
        """Roll back what has begun, if anything; see UnitDatabase."""
        if self._connection is None:
            return
        self._ask_fate()
        # The heuristic record needs a connection; in a pool of one that is this one.
        # A transaction that was interrupted as it began may be open without the driver's knowledge.
        is_known = self._has_begun or not is_struck
        is_of_use = not is_read_only(self._machine.error, self._engine.dialect)  # after a failover a new one may be
        if is_known and is_of_use and self._transaction_is_ours() and not self._fate.may_have_left_rows:
            try:
                self._connection.rollback()
            except Exception:
                discard(self._connection)  # to SQLAlchemy the transaction has ended, and it would pool it open
                raise
        else:
            discard(self._connection)

    def put_on_record(self, state: PreparedTxnState) -> None:
        """Put on record that the transaction was ended outside the unit's control; see UnitDatabase."""
        self._fate.put_on_record(self._store, self._lease.transactional_id, state)

    def discard(self) -> None:
        """Drop the connection, and with it what is open in the database; see UnitDatabase."""
        if self._connection is not None:
            discard(self._connection)

    def release(self) -> None:
        """Give back the connection; see UnitDatabase."""
        try:
            self.limit.begin()  # the session, or the pool, may roll back
            if self._transaction is not None and self._machine.in_user_code:
                self._ask_fate()  # the block was never left: its open transaction ends here
            for end in (self._let_sessions_go, self._end_session, self._leave_scope, self._give_connection_back):
                self._release(end)
        finally:
            self.limit.rest()

    def _release(self, end: Callable[[], None]) -> None:
        try:
            end()
        except Exception as error:
            if not is_step_error(error):
                raise  # a time limit: it must reach the caller, and release() is called again
            # The unit of work has ended; a caller that got this error might run it again.
            _LOG.exception("%s: releasing the connection failed", self._lease.transactional_id)

    def _leave_scope(self) -> None:
        if self._scope is not None:
            self._scope.leave()

    def _let_sessions_go(self) -> None:
        while self._transaction is not None and self._transaction.sessions:
            name, tracked = next(iter(self._transaction.sessions.items()))
            self._release(partial(tracked.let_go, is_undone=self._is_undone))
            del self._transaction.sessions[name]

    def _end_session(self) -> None:
        if self._session is not None:
            self._session.end(is_undone=self._is_undone, resting=self.limit.resting)

    def _give_connection_back(self) -> None:
        if self._connection is not None:
            if self._connection.get_transaction() is not None:
                # For example after a COMMIT that raised. SQLAlchemy would pool the connection with it open.
                discard(self._connection)
            close_connection(self._connection)

    @property
    def _is_undone(self) -> bool | None:
        """True if the transaction has ended, or ends now, without any effect; None if that is not known."""
        if self.was_committed or self._machine.result is Result.SUCCEEDED:
            return False
        return None if self._machine.result is Result.IN_DOUBT else True

    def _ask_fate(self) -> None:
        if self._transaction is not None and self._has_begun:
            self._fate.ask(self._transaction, self._machine.error)

    def _transaction_is_ours(self) -> bool:
        return (
            self._connection is not None
            and self._transaction is not None
            and self._transaction.is_active
            and not self._connection.invalidated
            and self._connection.get_transaction() is self._transaction
        )


def unit_driver(
    engine: Engine,
    store: SqlDecisionStore,
    slot: LentSlot,
    observe: Callable[[str], None],
    unmatched: UnmatchedUnits | None = None,
    *,
    sends_commit: bool = False,
    sessions: UnitSessions = UnitSessions(),  # noqa: B008 - immutable
) -> UnitDriver:
    """The driver of a unit of work that uses ``slot`` and a connection of ``engine``; see UnitDriver and SqlUnit."""
    database = SqlUnit(engine, store, slot, store.limit(slot.transactional_id), unmatched, sessions)
    return UnitDriver(store, database, slot, observe, THIS_PROCESS.process_id, sends_commit=sends_commit)
