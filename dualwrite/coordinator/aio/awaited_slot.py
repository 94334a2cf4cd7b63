"""A slot whose participant blocks, for a unit of work in an event loop: each call that may wait runs in a thread.
Most records are added without a thread, which would cost several times as much as adding one.

One call at a time: a participant is not thread-safe. Outside ``greenlet_spawn``, where nothing can be awaited (the
event loop has ended), the participant is called directly.
"""

import asyncio
import functools
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import wait as wait_in_thread
from contextlib import suppress
from typing import Any, TypeVar

from dualwrite.coordinator.aio.thread_calls import submitted
from dualwrite.coordinator.ports.kafka import (
    CommitsInBackground,
    KafkaParticipant,
    commits_in_background,
    name_of_open_transaction,
    produce_at_once_of,
)
from dualwrite.coordinator.process.greenlets import in_greenlet, wait_for
from dualwrite.coordinator.rules.lease import Lease
from dualwrite.coordinator.rules.recovery_decision import Outcome
from dualwrite.coordinator.slots.slot import Slot
from dualwrite.errors import FencedError, InvalidTransactionStateError
from dualwrite.ids import PreparedTxnState
from dualwrite.records.outgoing import OnDelivery, OutgoingRecord

T = TypeVar("T")

IN_A_ROW = 100
"""Records that are added without a thread in a row. The next one uses a thread, so that a task that produces without
end does not block the loop."""


class AwaitedSlot:
    """A LentSlot over ``slot`` whose participant is awaited."""

    is_leased = True

    def __init__(self, slot: Slot, threads: ThreadPoolExecutor) -> None:
        self._slot = slot
        self._threads = threads

    @property
    def lease(self) -> Lease:
        """See Slot."""
        return self._slot.lease

    @property
    def transactional_id(self) -> str:
        """The slot's name in Kafka and in the state table; see Slot."""
        return self._slot.transactional_id

    def lend(self) -> KafkaParticipant:
        """Lend the participant of a ready slot; see Slot."""
        return AwaitedParticipant(self._slot.lend(), self._threads)

    def give_back(self, participant: KafkaParticipant) -> None:
        """Take back a participant without an open transaction; see Slot."""
        assert isinstance(participant, AwaitedParticipant)
        self._slot.give_back(participant.blocking)

    def finish_later(self) -> None:
        """Recover in the background; see Slot."""
        self._slot.finish_later()

    def fence(self, error: FencedError) -> None:
        """Note that the slot is lost; see Slot."""
        self._slot.fence(error)


class AwaitedParticipant:
    """A KafkaParticipant over ``blocking``, for one unit of work. Delivery callbacks run in the event loop's thread,
    before the call during which they came due returns.

    A cancelled call goes on in its thread, and its result is lost: after that, and after an error of a callback, the
    transaction can only be aborted.

    :param threads: threads that call ``blocking``.
    """

    def __init__(self, blocking: KafkaParticipant, threads: ThreadPoolExecutor) -> None:
        self.blocking = blocking
        self._threads = threads
        self._at_once = produce_at_once_of(blocking)
        self._commits = commits_in_background(blocking)
        self._in_a_row = 0
        self._calls: list[Future[Any]] = []
        """The last call, and cancelled ones that may still be in progress."""
        self._objection: BaseException | None = None
        self._reports: deque[Callable[[], None]] = deque()

    @property
    def is_reusable(self) -> bool:
        """See KafkaParticipant."""
        is_reusable = self._objection is None and self.blocking.is_reusable
        self._tell_quietly()
        return is_reusable

    def init_transactions(self, keep_prepared_txn: bool = False) -> None:
        """Fence every earlier producer of the transactional id; see KafkaParticipant."""
        self._call(lambda: self.blocking.init_transactions(keep_prepared_txn))

    def begin_transaction(self) -> None:
        """Begin a transaction, without a request; see KafkaParticipant."""
        if self._commits is not None and self._commits.is_committing:
            self._call(self.blocking.begin_transaction)  # it waits
            return
        self.blocking.begin_transaction()
        self._tell()

    def produce(self, record: OutgoingRecord) -> None:
        """Add a record to the transaction; see KafkaParticipant."""
        record = self._reporting(record)
        if not self._added(record):
            self._call(lambda: self.blocking.produce(record))

    def produce_at_once(self, record: OutgoingRecord) -> bool:
        """Add a record without waiting, in a greenlet or not; see ProducesAtOnce."""
        return self._added(self._reporting(record))

    def send_offsets_to_transaction(self, positions: Sequence[Any], group_metadata: Any) -> None:
        """Commit a consumer group's offsets as part of the transaction (KIP-447); see KafkaParticipant."""
        self._require_sound()
        self._call(lambda: self.blocking.send_offsets_to_transaction(positions, group_metadata))

    @property
    def open_transaction(self) -> PreparedTxnState:
        """The state that names the open transaction; see NamesOpenTransaction."""
        return name_of_open_transaction(self.blocking)

    def prepare_transaction(self) -> PreparedTxnState:
        """Flush, and require every acknowledgement; see KafkaParticipant."""
        self._require_sound()
        return self._call(self.blocking.prepare_transaction)

    def complete_transaction(self, state: PreparedTxnState) -> Outcome:
        """Commit the open transaction if ``state`` identifies it, abort it otherwise; see KafkaParticipant."""
        return self._call(lambda: self.blocking.complete_transaction(state))

    def commit_transaction(self) -> None:
        """Commit the transaction; see KafkaParticipant."""
        self._call(self.blocking.commit_transaction)

    @property
    def is_committing(self) -> bool:
        """True if a commit was sent, and its answer was not collected; see CommitsInBackground."""
        return self._commits is not None and self._commits.is_committing

    def send_commit(self) -> None:
        """Send the commit of the transaction, but do not wait; see CommitsInBackground."""
        self._call(self._sender().send_commit)

    def collect_commit(self, *, wait: bool) -> bool:
        """Collect the answer to a commit that was sent; see CommitsInBackground."""
        return self._call(lambda: self._sender().collect_commit(wait=wait))

    def _sender(self) -> CommitsInBackground:
        assert self._commits is not None
        return self._commits

    def abort_transaction(self) -> None:
        """Abort the transaction; see KafkaParticipant."""
        self._call(self.blocking.abort_transaction)

    def close(self) -> None:
        """Release sockets and threads; see KafkaParticipant."""
        with suppress(Exception):  # a callback's: no caller is left to act on it
            self._call(self.blocking.close)
        self._tell_quietly()

    def _call(self, act: Callable[[], T]) -> T:
        # All of them: one that was cancelled before it had a thread is done, and has waited for none.
        previous = [call for call in self._calls if not call.done()]

        def run() -> T:
            wait_in_thread(previous)
            return act()

        if not in_greenlet():
            outcome = run()
            self._tell()
            return outcome
        self._in_a_row = 0
        future = submitted(self._threads, run)
        self._calls = [*previous, future]
        try:
            outcome = wait_for(asyncio.wrap_future(future))
        except BaseException as error:
            # If it was cancelled, it may have had its effect, or have it yet.
            if not isinstance(error, Exception) and self._objection is None:
                self._objection = error
            raise
        finally:
            self._tell()
        return outcome

    def _added(self, record: OutgoingRecord) -> bool:
        """True if the record needed no thread. No call is in progress: only a cancelled one goes on, and after that
        :meth:`_reporting` refuses records."""
        if self._at_once is None or self._in_a_row == IN_A_ROW or not self._at_once(record):
            return False
        self._in_a_row += 1
        return True

    def _reporting(self, record: OutgoingRecord) -> OutgoingRecord:
        self._require_sound()
        on_delivery = record.on_delivery
        if on_delivery is None:
            return record
        return record.reporting_to(functools.partial(self._note_report, on_delivery))

    def _require_sound(self) -> None:
        if self._objection is not None:
            raise InvalidTransactionStateError(
                f"the Kafka transaction of this unit of work can only be aborted, since {self._objection!r} was raised "
                "by a call that had begun, or by a delivery callback"
            ) from self._objection

    def _note_report(self, on_delivery: OnDelivery, error: Any, message: Any) -> None:
        """Note a delivery report, in any thread."""
        self._reports.append(functools.partial(on_delivery, error, message))

    def _tell(self) -> None:
        """Call the delivery callbacks that are due."""
        while self._reports:
            try:
                self._reports.popleft()()
            except BaseException as error:
                if self._objection is None:
                    self._objection = error
                raise

    def _tell_quietly(self) -> None:
        """Like :meth:`_tell`, after the end of the unit of work, where an error can change nothing."""
        while self._reports:
            with suppress(Exception):
                self._tell()
