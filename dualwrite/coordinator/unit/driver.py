"""The blocking driver: performs the machine's steps on a KafkaParticipant, a SQLAlchemy connection and the state table.

It decides nothing. It reports every step that raises to the machine as failed, and keeps the error.
"""

import logging
import math
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType

from sqlalchemy import Connection, Engine
from sqlalchemy.orm import Session

from dualwrite.coordinator.concurrency.step_errors import is_own
from dualwrite.coordinator.concurrency.watchdog import Limit, within_limit
from dualwrite.coordinator.ports import (
    DecisionStore,
    KafkaParticipant,
    LeaseLostError,
    name_of_open_transaction,
)
from dualwrite.coordinator.recovery.sequence import was_committed
from dualwrite.coordinator.rules.machine import DualWriteMachine, Event, Result, Step, UnitState
from dualwrite.coordinator.slots.lent_slot import LentSlot
from dualwrite.coordinator.slots.unmatched import UnmatchedUnits
from dualwrite.coordinator.sql.connecting import take_from_lost_pool
from dualwrite.coordinator.sql.engine_checks import discard, require_idle
from dualwrite.coordinator.unit.beginning import begin_transaction
from dualwrite.coordinator.unit.ending import UnitFate
from dualwrite.coordinator.unit.observers import Watch, no_observer
from dualwrite.coordinator.unit.session import UnitSession, flush_all, forget_sessions
from dualwrite.coordinator.unit.unit_transaction import LEAVE_TO_END, UnitTransaction
from dualwrite.errors import FencedError, InvalidTransactionStateError, PrepareFailedError
from dualwrite.ids import PreparedTxnState

_LOG = logging.getLogger("dualwrite")
_INTERRUPTED = "this unit of work was interrupted, and the interrupt was caught inside its block: it is rolled back"


class UnitDriver:
    """One unit of work, from ``begin`` to ``finish`` and ``release``.

    The driver borrows the slot's participant. It gives the participant back only after an end that leaves nothing open
    in Kafka; after any other end the slot is recovered. After an interrupt at any point, ``finish`` and ``release`` are
    called again: they continue from there.

    :param slot: ready, and used by this unit alone.
    :param observe: called before each step with its name; an exception of it counts as the step's failure.
    :param limit: time limit for each step in the database; no limit by default.
    :param unmatched: keeps a record that must wait: of a transaction that was ended outside the unit's control.
    """

    def __init__(
        self,
        engine: Engine,
        store: DecisionStore,
        slot: LentSlot,
        observe: Callable[[str], None],
        limit: Limit | None = None,
        unmatched: UnmatchedUnits | None = None,
    ) -> None:
        self.machine = DualWriteMachine()
        self.slot = slot
        self.watch: Watch | None = None
        """The observers of each step; None if there are none."""
        self.process = os.getpid()
        self.is_released = False
        """True once the unit of work has ended, and gives back its connection and its participant."""
        self.interrupt: BaseException | None = None
        """The first exception in a step from outside (an interrupt, a time limit): it must reach the caller."""
        self._engine = engine
        self._store = store
        self._observe = observe
        self.limit = limit or Limit(math.inf, slot.transactional_id)
        """The time limit for each step in the database."""
        self._participant = slot.lend()
        self._is_lent = True
        self._reusable = True
        self._needs_recovery = False
        self._left_to_recovery = False
        self._connection: Connection | None = None
        self._transaction: UnitTransaction | None = None
        self._has_begun = False
        """True once the database transaction has begun: from then on the block may end it."""
        self._session: Session | None = None
        self._records = 0
        self._prepared = PreparedTxnState()
        self._doom: BaseException | None = None
        self._end: BaseException | None = None
        self._fate = UnitFate(unmatched)

    @property
    def commit_was_asked(self) -> bool:
        """True once the database may have received the COMMIT."""
        return self._transaction is not None and self._transaction.was_asked

    @property
    def left_rows(self) -> bool:
        """True if the database transaction was ended outside the unit's control and may have left rows."""
        return self._fate.left_rows

    @property
    def is_on_record(self) -> bool:
        """True once it is on record that the database transaction was ended outside the unit's control."""
        return self._fate.is_on_record

    @property
    def database_committed(self) -> bool:
        """True if the database driver has reported a successful COMMIT."""
        return self._transaction is not None and self._transaction.was_committed

    @property
    def connection(self) -> Connection:
        """The unit's connection.

        :raises InvalidTransactionStateError: outside the block.
        """
        self.require_user_code()
        assert self._connection is not None
        return self._connection

    @property
    def session(self) -> Session:
        """An ORM session in the same database transaction, made at first use; it is flushed before Kafka is prepared.

        :raises InvalidTransactionStateError: outside the block.
        """
        if self._session is None:
            self._session = UnitSession(bind=self.connection, join_transaction_mode="rollback_only")
        self.require_user_code()
        return self._session

    def begin(self) -> None:
        """Begin the database transaction; Kafka's begins with the first record. ``machine`` has the error, if any."""
        self.machine.advance(Event.BEGIN)
        self._perform_steps()

    def produce(self, send: Callable[[KafkaParticipant], None]) -> None:
        """Add a record, or offsets, by ``send(participant)``. The first call begins the Kafka transaction.

        If it cannot begin, this call and every further one raise that error, and the unit of work is rolled back.

        :raises InvalidTransactionStateError: outside the block.
        """
        self.require_user_code()
        if self.machine.state is UnitState.RUNNING:
            self.machine.advance(Event.PRODUCE)
            self._perform_steps()
        if self.machine.error is not None:
            raise self.machine.error
        try:
            send(self._participant)
        except BaseException as error:
            self._note(error)
            raise
        self._records += 1

    def produce_at_once(self, send: Callable[[KafkaParticipant], bool]) -> bool:
        """Like :meth:`produce`, if no step must come first and ``send(participant)`` returns that it added the record.
        Otherwise nothing was added; return False."""
        if self.machine.state is not UnitState.PRODUCING or self.machine.error is not None:
            return False
        try:
            is_added = send(self._participant)
        except BaseException as error:
            self._note(error)
            raise
        self._records += is_added
        return is_added

    def finish(self, error: BaseException | None) -> None:
        """Commit both sides if ``error`` is None, roll both back otherwise. ``machine`` has the result."""
        if self.machine.step not in (None, Step.RUN, Step.FINISH_LATER):
            # An interrupt came between two steps. It is not known whether the last step had its effect.
            self.machine.advance(Event.FAILED, error or InvalidTransactionStateError(_INTERRUPTED))
        if self.machine.in_user_code:
            error = error or self._failure_before_leaving()
            self.machine.advance(Event.LEFT if error is None else Event.RAISED, error)
        self._perform_steps()

    def doom(self, error: BaseException) -> None:
        """Note that an inner block raised ``error``: the unit of work is rolled back even if the outer block catches
        it."""
        self._doom = self._doom or error

    @contextmanager
    def dooming(self) -> Iterator[None]:
        """Let an error in the ``with`` block roll the unit back, even if the user's code catches it."""
        try:
            yield
        except BaseException as error:
            self._end = self._end or error
            raise

    def _perform_steps(self) -> None:
        """Perform one step after the other, until user code runs or the unit has ended."""
        while (step := self.machine.step) is not None and step is not Step.RUN:
            if step is Step.FINISH_LATER:
                self._reusable = False
            self.machine.advance(*self._perform(step))

    def _perform(self, step: Step) -> tuple[Event, BaseException | None]:
        if self.watch is None:
            return self._act(step)
        self.watch.step_began(step)
        event, error = self._act(step)
        self.watch.step_ended(step, error)
        return event, error

    def _act(self, step: Step) -> tuple[Event, BaseException | None]:
        try:
            if self._observe is not no_observer:
                self._observe(step.name)
        except BaseException as error:  # noqa: BLE001 - counts as the step's own failure
            return self._failed(step, error, is_own=isinstance(error, Exception))
        try:
            return _ACTIONS[step](self), None
        except BaseException as error:  # noqa: BLE001 - the machine decides what follows; the caller gets the error
            return self._failed(step, error, is_own=is_own(error))

    def _failed(self, step: Step, error: BaseException, *, is_own: bool) -> tuple[Event, BaseException]:
        if self.interrupt is None and not is_own:
            self.interrupt = error
        where = {"step": step.name, "state": self.machine.state.value}
        _LOG.info("%s: %s failed: %r", self.slot.transactional_id, step.name, error, extra=where)
        self._note(error)
        return Event.FAILED, error

    def _note(self, error: BaseException) -> None:
        """Note what ``error`` means for the slot. Errors of callbacks come here, too, and may concern another slot."""
        if isinstance(error, FencedError):
            self._reusable = False
        if isinstance(error, LeaseLostError) and error.lease == self.slot.lease:
            self.slot.fence(error)

    def _begin_database(self) -> Event:
        with self.limit:
            self._connection = self._engine.connect()
            self.limit.watch(self._connection.connection)
            require_idle(self._connection)
            begin_transaction(
                self._connection, self._make_transaction, self.slot.lease, checked=self._store.checks_lease
            )
        self._has_begun = True
        return Event.DONE

    def _make_transaction(self) -> UnitTransaction:
        assert self._connection is not None
        self._transaction = UnitTransaction(self._connection, self.machine, self._ask_fate)
        return self._transaction

    def _begin_kafka(self) -> Event:
        self._participant.begin_transaction()
        return Event.DONE

    def _prepare_kafka(self) -> Event:
        if not self._records:
            # Kafka has no transaction then, and a state without a record could name the session's next transaction.
            raise InvalidTransactionStateError(
                "every produce() of this unit of work raised: there is nothing to commit"
            )
        self._prepared = self._participant.prepare_transaction()
        if not self._prepared:
            raise PrepareFailedError("the Kafka transaction was prepared without an identity")
        return Event.DONE

    @within_limit
    def _store_state(self) -> Event:
        assert self._connection is not None
        assert self._transaction is not None
        self._fate.require_open(self._transaction, storing=True)
        with self._fate.noted(self._transaction):
            self._store.store(self._connection, self.slot.lease, self._prepared)
        return Event.DONE

    @within_limit
    def _commit_database(self) -> Event:
        assert self._transaction is not None
        self._transaction.commit()
        self.slot.lease.memory.committed()
        return Event.DONE

    def _commit_kafka(self) -> Event:
        self._participant.commit_transaction()
        self.slot.lease.memory.completed()
        return Event.DONE

    def _read_decision(self) -> Event:
        assert self._connection is not None
        with self.limit:
            # If the COMMIT had no effect, the transaction is still open and holds the lock of the row.
            discard(self._connection)
            committed = was_committed(self._store, self.slot.lease, self._prepared)
        if not committed:
            self.slot.lease.memory.rolled_back()
        return Event.COMMITTED if committed else Event.NOT_COMMITTED

    @within_limit
    def _rollback_database(self) -> Event:
        try:
            if self._connection is not None:
                self._ask_fate()
                # The heuristic record needs a connection; in a pool of one that is this one.
                # A transaction that was interrupted as it began may be open without the driver's knowledge.
                is_known = self._has_begun or self.interrupt is None
                if is_known and self._transaction_is_ours() and not self._fate.left_rows:
                    self._connection.rollback()
                else:
                    discard(self._connection)
            self.slot.lease.memory.rolled_back()
        finally:
            if self._fate.left_rows:
                state = self._prepared or name_of_open_transaction(self._participant)
                self._fate.put_on_record(self._store, self.slot.transactional_id, state)
        return Event.DONE

    def _abort_kafka(self) -> Event:
        self._participant.abort_transaction()
        return Event.DONE

    def _finish_later(self) -> Event:
        self._needs_recovery = True
        self._participant.close()
        self.slot.finish_later()
        self._left_to_recovery = True
        return Event.DONE

    def _ask_fate(self) -> None:
        if self._transaction is not None and self._has_begun:
            self._fate.ask(self._transaction, self.machine.error)

    def _transaction_is_ours(self) -> bool:
        return (
            self._connection is not None
            and self._transaction is not None
            and self._transaction.is_active
            and not self._connection.invalidated
            and self._connection.get_transaction() is self._transaction
        )

    def _failure_before_leaving(self) -> BaseException | None:
        """The error that prevents the commit, if any. Flushing may run user code that produces records."""
        if self._doom is not None:
            caught = InvalidTransactionStateError(
                f"an inner block of this unit of work raised {self._doom!r}, and the error was caught: all of the unit "
                "is rolled back; let the error leave the outer block, or use a savepoint (begin_nested) instead"
            )
            caught.__cause__ = self._doom
            return caught
        if self._end is not None:
            return self._end
        try:
            transaction = self._transaction
            sessions = [] if transaction is None else transaction.sessions
            if self._session is not None or sessions:
                flush_all([*sessions, self._session] if self._session is not None else sessions)
            if transaction is None:
                return InvalidTransactionStateError(f"this unit of work has no database transaction: {LEAVE_TO_END}")
            if not self._transaction_is_ours():
                return transaction.end()
            if transaction.refused is not None:
                return transaction.refused
            if self.machine.state is UnitState.RUNNING:  # with records, STORE_STATE makes this check
                self.limit.begin()
                self._fate.require_open(transaction, storing=False)
        except BaseException as error:  # noqa: BLE001 - the unit is rolled back, and the caller of finish raises it
            self.limit.explain(error)
            return error
        finally:
            self.limit.rest()
        return None

    def require_user_code(self) -> None:
        """Pass inside the block.

        :raises InvalidTransactionStateError: before it, after it, and while it is being left.
        """
        if not self.machine.in_user_code:
            state, result = f"is {self.machine.state.value!r}", self.machine.result
            if result is not None:
                state = f"has ended ({'committed' if result is Result.SUCCEEDED else self.machine.state.value})"
            raise InvalidTransactionStateError(f"this unit of work {state}: tx can be used only inside its own block")

    def release(self) -> None:
        """Give the connection back to its pool, and the participant to the slot."""
        self.is_released = True
        self.release_database()
        if not self._is_lent:
            return
        if self._needs_recovery or self.machine.result is None:
            if not self._left_to_recovery:
                self._finish_later()
        elif self._reusable and self._participant.is_reusable:
            self._is_lent = False  # first: given back twice, the participant could be in use by another unit
            self.slot.give_back(self._participant)
        else:
            self._participant.close()
        self._is_lent = False

    def drop_database(self) -> None:
        """Like :meth:`release_database`, when the database cannot be reached any more: its event loop has ended."""
        if self._connection is not None:
            discard(self._connection)

    def release_database(self) -> None:
        """Give back the connection; a transaction still open on it is rolled back."""
        try:
            self.limit.begin()  # the session, or the pool, may roll back
            if self._transaction is not None:
                if self.machine.in_user_code:  # the block was never left: its open transaction ends here
                    self._ask_fate()
                forget_sessions(self._transaction)
            if self._session is not None:
                Session.close(self._session)  # UnitSession.close would flush
            if self._connection is not None:
                if self._connection.get_transaction() is not None:
                    # For example after a COMMIT that raised. SQLAlchemy would pool the connection with it open.
                    discard(self._connection)
                take_from_lost_pool(self._connection)
                self._connection.close()
        except Exception as error:
            if not is_own(error):
                raise  # a time limit: it must reach the caller, and release() is called again
            # The unit of work has ended; a caller that got this error might run it again.
            _LOG.exception("%s: releasing the connection failed", self.slot.transactional_id)
        finally:
            self.limit.rest()


_ACTIONS: Mapping[Step, Callable[[UnitDriver], Event]] = MappingProxyType(
    {
        Step.BEGIN_DATABASE: UnitDriver._begin_database,
        Step.BEGIN_KAFKA: UnitDriver._begin_kafka,
        Step.PREPARE_KAFKA: UnitDriver._prepare_kafka,
        Step.STORE_STATE: UnitDriver._store_state,
        Step.COMMIT_DATABASE: UnitDriver._commit_database,
        Step.COMMIT_KAFKA: UnitDriver._commit_kafka,
        Step.READ_DECISION: UnitDriver._read_decision,
        Step.ROLLBACK_DATABASE: UnitDriver._rollback_database,
        Step.ABORT_KAFKA: UnitDriver._abort_kafka,
        Step.FINISH_LATER: UnitDriver._finish_later,
    }
)
