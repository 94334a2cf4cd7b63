"""The blocking driver: performs the machine's steps on a KafkaParticipant, a UnitDatabase and the state table.

It decides nothing. It reports every step that raises to the machine as failed, and keeps the error.
"""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, cast

from dualwrite.coordinator.concurrency.step_errors import is_step_error, unmasked
from dualwrite.coordinator.ports.database import DecisionStore, UnitDatabase
from dualwrite.coordinator.ports.kafka import (
    CommitsInBackground,
    SendsRecords,
    name_of_open_transaction,
    produce_at_once_of,
)
from dualwrite.coordinator.recovery.sequence import was_committed
from dualwrite.coordinator.rules.lease import LeaseLostError
from dualwrite.coordinator.rules.machine import DualWriteMachine, Event, Result, Step, UnitState
from dualwrite.coordinator.slots.lent_slot import LentSlot
from dualwrite.coordinator.steps.observers import UnitObservers, no_observer
from dualwrite.errors import (
    AnswerLostError,
    FencedError,
    InvalidTransactionStateError,
    KafkaRefusedError,
    KafkaUnavailableError,
    PrepareFailedError,
)
from dualwrite.ids import PreparedTxnState
from dualwrite.records.outgoing import OutgoingRecord

if TYPE_CHECKING:
    from sqlalchemy import Connection
    from sqlalchemy.orm import Session

_LOG = logging.getLogger("dualwrite")
_INTERRUPTED = "this unit of work was interrupted, and the interrupt was caught inside its block: it is rolled back"


class UnitDriver:
    """One unit of work, from ``begin`` to ``finish`` and ``release``.

    The driver borrows the slot's participant. It gives the participant back only after an end that leaves nothing open
    in Kafka; after any other end the slot is recovered. After an interrupt at any point, ``finish`` and ``release`` are
    called again: they continue from there.

    :param store: knows the decision if the COMMIT raised.
    :param database: the unit's database transaction.
    :param slot: ready, and used by this unit alone.
    :param observe: called before each step with its name; an exception of it counts as the step's failure.
    :param process_id: returns the id of the running process. The unit belongs to this one, and not to a forked child.
    :param sends_commit: do not wait for the answer to Kafka's commit. The participant is a CommitsInBackground then.
    """

    def __init__(
        self,
        store: DecisionStore,
        database: UnitDatabase,
        slot: LentSlot,
        observe: Callable[[str], None],
        process_id: Callable[[], int],
        *,
        sends_commit: bool = False,
    ) -> None:
        self.machine = DualWriteMachine()
        self.slot = slot
        self.watch: UnitObservers | None = None
        """The observers of each step; None if there are none."""
        self._process_id = process_id
        self._process = process_id()
        self.is_released = False
        """True once the unit of work has ended, and gives back its connection and its participant."""
        self.interrupt: BaseException | None = None
        """The first exception in a step from outside (an interrupt, a time limit): it must reach the caller."""
        self._store = store
        self._database = database
        self._observe = observe
        self._participant = participant = slot.lend()
        self._at_once = produce_at_once_of(participant)
        self._sender = cast(CommitsInBackground, participant) if sends_commit else None
        self._is_lent = True
        self._reusable = True
        self._needs_recovery = False
        self._left_to_recovery = False
        self._records = 0
        self._prepared = PreparedTxnState()
        self._inner_error: BaseException | None = None
        self._rollback_cause: BaseException | None = None

    @property
    def commit_was_sent(self) -> bool:
        """True once the database may have received the COMMIT."""
        return self._database.commit_was_sent

    @property
    def may_have_left_rows(self) -> bool:
        """True if the database transaction was ended outside the unit's control and may have left rows."""
        return self._database.may_have_left_rows

    @property
    def has_lost_database(self) -> bool:
        """True if the unit's database connection was lost before the unit was rolled back."""
        return self._database.is_lost

    @property
    def is_on_record(self) -> bool:
        """True once it is on record that the database transaction was ended outside the unit's control."""
        return self._database.is_on_record

    @property
    def database_committed(self) -> bool:
        """True if the database driver has reported a successful COMMIT."""
        return self._database.was_committed

    @property
    def connection(self) -> "Connection":
        """The unit's SQLAlchemy Connection.

        :raises InvalidTransactionStateError: outside the block.
        """
        self.require_user_code()
        return self._database.connection

    @property
    def session(self) -> "Session":
        """An ORM session in the same database transaction, made at first use; it is flushed before Kafka is prepared.

        :raises InvalidTransactionStateError: outside the block.
        """
        self.require_user_code()
        return self._database.session

    def begin(self) -> None:
        """Begin the database transaction; Kafka's begins with the first record. ``machine`` has the error, if any."""
        self.machine.advance(Event.BEGIN)
        self._perform_steps()

    def produce(self, record: OutgoingRecord) -> None:
        """Add a record. The first call, of this or of :meth:`send_offsets`, begins the Kafka transaction.

        If it cannot begin, this call and every further one raise that error, and the unit of work is rolled back.

        :raises InvalidTransactionStateError: outside the block.
        """
        self._begin_to_add()
        self._add(self._participant.produce, record)

    def refuse_record(self) -> None:
        """Note that a call to produce gave no valid record. The Kafka transaction begins, so that a unit of work whose
        every record was refused is not committed."""
        self._begin_to_add()

    def send_offsets(self, positions: Sequence[Any], group_metadata: Any) -> None:
        """Add a group's offsets to the Kafka transaction, as :meth:`produce` adds a record."""
        self._begin_to_add()
        self._add(self._participant.send_offsets_to_transaction, positions, group_metadata)

    def produce_at_once(self, record: OutgoingRecord) -> bool:
        """Like :meth:`produce`, if no step must come first and the participant can add the record at once. Otherwise
        nothing was added; return False."""
        if self._at_once is None or self.machine.state is not UnitState.PRODUCING or self.machine.error is not None:
            return False
        return self._add(self._at_once, record)

    def _begin_to_add(self) -> None:
        self.require_user_code()
        if self.machine.state is UnitState.RUNNING:
            self.machine.advance(Event.PRODUCE)
            self._perform_steps()
        if self.machine.error is not None:
            raise self.machine.error

    def _add(self, add: Callable[..., bool | None], *content: Any) -> bool:
        try:
            is_added = add(*content) is not False
        except BaseException as error:
            self._note(error)
            raise
        self._records += is_added
        return is_added

    def finish(self, error: BaseException | None) -> None:
        """Commit both sides if ``error`` is None, roll both back otherwise. ``machine`` has the result."""
        if self.machine.step not in (None, Step.RUN, Step.FINISH_LATER):
            # An interrupt came between two steps. It is not known whether the last step had its effect.
            self.machine.advance(Event.FAILED, InvalidTransactionStateError(_INTERRUPTED) if error is None else error)
        if self.machine.in_user_code:
            if error is None:  # not "or": an exception may have __bool__ or __len__, and be falsy
                error = self._failure_before_leaving()
            self.machine.advance(Event.LEFT if error is None else Event.RAISED, error)
        self._perform_steps()

    def require_rollback(self, error: BaseException) -> None:
        """Note that an inner block raised ``error``: the unit of work is rolled back even if the outer block catches
        it."""
        if self._inner_error is None:
            self._inner_error = error

    @contextmanager
    def rolling_back_on_error(self) -> Iterator[None]:
        """Let an error in the ``with`` block roll the unit back, even if the user's code catches it."""
        try:
            yield
        except BaseException as error:
            if self._rollback_cause is None:
                self._rollback_cause = error
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
            return self._failed(step, error, is_step_error=isinstance(error, Exception))
        try:
            return _ACTIONS[step](self), None
        except BaseException as raised:  # noqa: BLE001 - the machine decides what follows; the caller gets the error
            cause = unmasked(raised)
            return self._failed(step, cause, is_step_error=is_step_error(cause))

    def _failed(self, step: Step, error: BaseException, *, is_step_error: bool) -> tuple[Event, BaseException]:
        if self.interrupt is None and not is_step_error:
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
        self._database.begin(self.machine)
        return Event.DONE

    def _begin_kafka(self) -> Event:
        try:
            self._participant.begin_transaction()
        except (AnswerLostError, KafkaRefusedError) as error:
            if self._sender is None or not self._sender.is_committing:
                raise
            raise KafkaUnavailableError(
                f"{self.slot.transactional_id}: the commit of the slot's earlier unit of work was not confirmed "
                f"({error}), and recovery completes that one. This unit is rolled back on both sides; run it again"
            ) from error
        self.slot.lease.memory.completed()  # the slot's earlier unit, whose commit may have been sent only
        return Event.DONE

    def _prepare_kafka(self) -> Event:
        if not self._records:
            # Kafka has no transaction then, and a state without a record could name the session's next transaction.
            raise InvalidTransactionStateError(
                "every produce() of this unit of work raised an error: there is no record to commit"
            )
        self._prepared = self._participant.prepare_transaction()
        if not self._prepared:
            raise PrepareFailedError("the Kafka transaction was prepared without an identity")
        return Event.DONE

    def _store_state(self) -> Event:
        self._database.store(self._prepared)
        return Event.DONE

    def _commit_database(self) -> Event:
        self._database.commit()
        self.slot.lease.memory.committed()
        return Event.DONE

    def _commit_kafka(self) -> Event:
        if self._sender is not None:
            self._sender.send_commit()
            return Event.DONE
        self._participant.commit_transaction()
        self.slot.lease.memory.completed()
        return Event.DONE

    def _read_decision(self) -> Event:
        with self._database.limit:
            # If the COMMIT had no effect, the transaction is still open and holds the lock of the row.
            self._database.discard()
            committed = was_committed(self._store, self.slot.lease, self._prepared)
        return Event.COMMITTED if committed else Event.NOT_COMMITTED

    def _rollback_database(self) -> Event:
        try:
            self._database.roll_back(is_struck=self.interrupt is not None)
            self.slot.lease.memory.rolled_back()
        finally:
            if self._database.may_have_left_rows:
                self._database.put_on_record(self._prepared or name_of_open_transaction(self._participant))
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

    def _failure_before_leaving(self) -> BaseException | None:
        """The error that prevents the commit, if any. Listeners of the sessions may produce records meanwhile, and may
        catch an error that makes the unit fail."""
        for find in (self._caught_error, self._failure_to_send, self._database.failure, self._caught_error):
            if (failure := find()) is not None:
                return failure
        return None

    def _caught_error(self) -> BaseException | None:
        """The error that makes the unit fail although the application has caught it, if any."""
        if self._inner_error is not None:
            caught = InvalidTransactionStateError(
                f"an inner block of this unit of work raised {self._inner_error!r}, and the error was caught: all of "
                "the unit is rolled back; let the error leave the outer block, or use a savepoint (begin_nested) "
                "instead"
            )
            caught.__cause__ = self._inner_error
            return caught
        return self._rollback_cause

    def _failure_to_send(self) -> BaseException | None:
        """Send the records while the database writes the sessions' objects: two waits take the time of the longer one.
        Nothing depends on it: prepare sends what was not sent, and sees every record acknowledged."""
        participant = self._participant
        if not self._records or not self._database.has_unflushed or not isinstance(participant, SendsRecords):
            return None
        try:
            participant.send_records()
        except BaseException as error:  # noqa: BLE001 - the unit is rolled back, and the caller of finish raises it
            self._note(error)
            return error
        return None

    @property
    def is_inherited(self) -> bool:
        """True in a child that was forked inside the block."""
        return self._process != self._process_id()

    def inherited_error(self) -> InvalidTransactionStateError:
        """The error of using or ending the unit in such a child."""
        return InvalidTransactionStateError(
            f"this unit of work was begun in process {self._process}, which alone can use and end it: begin one after "
            "the fork"
        )

    def require_user_code(self) -> None:
        """Pass inside the block.

        :raises InvalidTransactionStateError: before it, after it, while it is being left, and in a forked child.
        """
        if self.is_inherited:
            raise self.inherited_error()
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
        elif self._sender is not None and self._sender.is_committing:
            self._finish_later()
        else:
            self._participant.close()
        self._is_lent = False

    def drop_database(self) -> None:
        """Like :meth:`release_database`, when the database cannot be reached any more: its event loop has ended."""
        self._database.discard()

    def release_database(self) -> None:
        """Give back the connection; a transaction still open on it is rolled back."""
        self._database.release()


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
