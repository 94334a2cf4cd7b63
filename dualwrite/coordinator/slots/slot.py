"""One slot of the pool: a leased transactional id, its participant, and its recovery."""

import logging
from collections.abc import Callable
from dataclasses import InitVar, dataclass

from dualwrite.coordinator.concurrency.background import Background
from dualwrite.coordinator.concurrency.step_errors import is_step_error
from dualwrite.coordinator.ports.database import DecisionStore
from dualwrite.coordinator.ports.kafka import CommitsInBackground, KafkaParticipant, commits_in_background
from dualwrite.coordinator.ports.runtime import Lock, Runtime
from dualwrite.coordinator.recovery.sequence import ParticipantFactory, recover
from dualwrite.coordinator.rules.lease import Lease, LeaseContradictedError, LeaseLostError
from dualwrite.coordinator.rules.recovery_decision import Outcome
from dualwrite.coordinator.slots.log_fields import Fields
from dualwrite.errors import DecisionLostError, FencedError, InvalidTransactionStateError

_LOG = logging.getLogger("dualwrite")
_LOG.addHandler(logging.NullHandler())  # silent if logging is not configured, instead of Python's default, stderr
_LOG.addFilter(Fields())


@dataclass
class Counters:
    """Counters of a DualWrite since it was made.

    :param lock: for threads that count at the same time.
    """

    lock: InitVar[Lock]

    units: int = 0
    """Units of work that began."""
    committed: int = 0
    """Units of work that are on both sides, or will be as soon as recovery reaches Kafka."""
    rolled_back: int = 0
    """Units of work that were rolled back on both sides."""
    in_doubt: int = 0
    """Units of work whose outcome was not known when they returned to their caller."""
    finished_later: int = 0
    """Units of work whose Kafka transaction was left to recovery, with any outcome."""
    recoveries: int = 0
    """Successful recoveries: each slot begins with one."""
    heuristic: int = 0
    """Heuristic outcomes found: units of work that ended differently on the two sides (see outcomes())."""
    replayed: int = 0
    """Units of work whose records were produced again after Kafka had aborted them (``replay``)."""
    dead_letters: int = 0
    """Records that DeadLetters has put aside in a dead-letter topic."""

    def __post_init__(self, lock: Lock) -> None:
        self._lock = lock

    def add(self, name: str, more: int = 1) -> None:
        """Add ``more`` to the counter ``name``, from any thread."""
        with self._lock:
            setattr(self, name, getattr(self, name) + more)


class Slot:
    """A transactional id that this process has leased.

    It is warm while it has a participant. A unit of work borrows the participant and gives it back if no transaction is
    left open; otherwise the slot has none, and only recovery makes another. The pool drops a slot whose lease was lost.
    A slot that is fenced in Kafka only is recovered: under the row's lock, while the lease is valid, no other process
    can have a right to it.

    :param when_idle: called when the background work is done.
    :param observe: called with each step's name.
    :param repair: called after each recovery, with the slot ready; returns its outcome, None if there was nothing to
        repair.
    """

    is_leased = True

    def __init__(
        self,
        runtime: Runtime,
        lease: Lease,
        store: DecisionStore,
        factory: ParticipantFactory,
        counters: Counters,
        when_idle: Callable[[], None],
        observe: Callable[[str], None],
        repair: "Callable[[Slot], Outcome | None] | None" = None,
    ) -> None:
        self.lease = lease
        self.user: object | None = None
        """The user of the slot. For the pool only."""
        self._store = store
        self._factory = factory
        self._counters = counters
        self._observe = observe
        self._repair = repair
        self._recovering = runtime.lock()
        self._participant: KafkaParticipant | None = None
        """The last participant that was made."""
        self._commits: CommitsInBackground | None = None
        """The same, if it can send commits without waiting."""
        self._is_ready = False
        """True if it has no open transaction in Kafka, and is not in use."""
        self._is_recovering = False
        """True until a recovery that has begun has returned: another user must not begin before."""
        self._is_finished = False
        """True once it was closed and needs no recovery."""
        self._is_unfinished = False
        """True once it was closed while an earlier unit of work was being completed."""
        self._contradiction: LeaseContradictedError | None = None
        self._closed: FencedError | InvalidTransactionStateError | None = None
        self._background = Background(
            runtime, lambda: store.in_thread(self._complete), lease.transactional_id, when_idle
        )

    @property
    def contradiction(self) -> LeaseContradictedError | None:
        """The error if the slot is lost because the database has lost a commit, or the process was copied."""
        return self._contradiction

    @property
    def transactional_id(self) -> str:
        """The slot's name in Kafka and in the state table."""
        return self.lease.transactional_id

    @property
    def pending(self) -> bool:
        """True while an earlier unit of work is not known to be complete in Kafka, and the slot is not in use for
        another."""
        return self.is_busy or self.is_committing

    @property
    def is_busy(self) -> bool:
        """True while the background completes an earlier unit of work: the slot cannot be used."""
        return self._background.is_running

    @property
    def is_committing(self) -> bool:
        """True if the slot is ready, and the answer to the commit of its last unit of work was not collected."""
        return self._is_ready and self._commits is not None and self._commits.is_committing

    @property
    def is_unfinished(self) -> bool:
        """True if it was closed before the background had completed an earlier unit of work."""
        return self._is_unfinished

    @property
    def last_error(self) -> Exception | None:
        """The error of the background's last attempt, if it has failed."""
        return self._background.last_error

    @property
    def is_warm(self) -> bool:
        """True if a unit of work can begin at once. The last commit may still be unanswered: the unit waits for its
        answer before its first record."""
        return self._is_ready and not self._is_recovering

    @property
    def is_ready(self) -> bool:
        """True if its participant has no open transaction and is not in use; for a repair, during the recovery."""
        return self._is_ready

    @property
    def is_fenced(self) -> bool:
        """True if the slot is lost."""
        return isinstance(self._closed, FencedError)

    def recover(self, user: object | None = None) -> Outcome:
        """Make the slot ready; return the outcome. Does nothing if it is ready.

        One at a time: a second caller waits, and finds the slot ready.

        :param user: for a caller whose wait for this call may be cancelled: does nothing if the slot has another user
            by now, who may have begun a transaction.
        :raises LeaseLostError: if another process has taken over.
        """
        with self._recovering:
            if user is not None and self.user is not user:
                return Outcome.NOTHING
            self._check_open()
            first = Outcome.NOTHING
            while not self.is_warm:  # a repair may itself need recovery
                self._is_recovering = True  # until it has returned: one that raised is repeated
                outcome = self._recover_once()
                self._is_recovering = False
                first = outcome if first is Outcome.NOTHING else first
            if self._background.closed:  # close() did not wait for this, so release the participant here
                self._close_participant()
        return first

    def _recover_once(self) -> Outcome:
        if self._participant is not None:
            self._participant.close()  # after an interrupted use, which may not have closed it
        try:
            _, outcome = recover(self._store, self.lease, self._make, self._observe)
        except LeaseLostError as error:
            self.fence(error)
            raise
        self._is_ready = True
        self.lease.memory.completed()
        self._counters.add("recoveries")
        if outcome.is_heuristic:
            self._counters.add("heuristic")
        if outcome is not Outcome.NOTHING:
            log_fields = {"outcome": outcome.value}
            message = "%s: outcome of recovery: %s"
            _LOG.info(message, self.transactional_id, outcome.value, extra=log_fields)
        repaired = None if self._repair is None else self._repair(self)
        if repaired is Outcome.REPLAYED:
            self._counters.add("replayed")
        return repaired or outcome

    def collect_commit(self, *, wait: bool) -> None:
        """Collect the answer to the commit of the last unit of work, if there is one to come. After an error the slot
        is not warm: recovery completes that unit.

        :param wait: False to look only whether it has arrived.
        """
        if self._commits is None or not self.is_committing:
            return
        try:
            is_collected = self._commits.collect_commit(wait=wait)
        except BaseException as error:
            self._is_ready = False
            self._counters.add("finished_later")
            _LOG.info("%s: the commit of the last unit of work failed: %r", self.transactional_id, error)
            if not is_step_error(error):
                raise
        else:
            if is_collected:
                self.lease.memory.completed()

    def complete_later(self) -> None:
        """Wait in the background for the answer to the commit of the last unit of work, if there is one to come. The
        slot must not be in use."""
        if self.is_committing and not self.is_fenced:
            self._background.start_or_leave()

    def _complete(self) -> None:
        with self._recovering:
            self.collect_commit(wait=True)
            if self._background.closed and self._is_ready:
                self._close_participant()  # close() has not waited for this
                return
        self.recover()

    def lend(self) -> KafkaParticipant:
        """Lend the participant of a ready slot; the slot is not ready any more."""
        assert self._is_ready
        assert self._participant is not None
        self._is_ready = False
        return self._participant

    def give_back(self, participant: KafkaParticipant) -> None:
        """Take back a participant without an open transaction: the slot is ready. If the slot was closed meanwhile, as
        its unit of work had not ended in time, it closes the participant."""
        self._participant = participant
        self._is_ready = True
        if self._background.closed:
            self._close_participant()

    def finish_later(self) -> None:
        """Recover in the background; if the slot is lost, its new owner recovers it. If the process can start no thread
        now, the next heartbeat, or unit of work that waits for a slot, tries again: this one has ended."""
        self._counters.add("finished_later")
        if not self.is_fenced:
            self._background.start_or_leave()

    def hurry(self) -> None:
        """Let the background try at once, as a unit of work waits for it."""
        self._background.hurry()

    def resume(self) -> None:
        """Begin the work of :meth:`finish_later`, if it could not begin."""
        self._background.resume()

    def fence(self, error: FencedError) -> None:
        """Note that the slot is lost: its new owner recovers it. The pool drops it after its use."""
        if self._closed is None:
            _LOG.warning("%s: lost: %s", self.transactional_id, error)
            if isinstance(error, LeaseContradictedError):
                self._contradiction = error
                self._closed = DecisionLostError(str(error))
            else:
                self._closed = FencedError(str(error))

    def close(self, timeout: float) -> bool:
        """Give the background up to ``timeout`` seconds, then release all. True if the slot needs no recovery."""
        self.complete_later()
        done = self._background.close(timeout) and not self.is_committing
        self._is_unfinished = self._is_unfinished or not done
        self._closed = self._closed or InvalidTransactionStateError("this DualWrite is closed: make a new one")
        self._is_finished = self._is_finished or (done and self.is_warm)
        if self._is_ready and not self._background.is_running:
            self._close_participant()
        return self._is_finished

    def _close_participant(self) -> None:
        """Close the participant, and note that afterwards: an interrupted close is repeated."""
        assert self._participant is not None
        self._participant.close()
        self._is_ready = False

    def _make(self) -> KafkaParticipant:
        self._participant = made = self._factory()
        self._commits = commits_in_background(made)
        return made

    def _check_open(self) -> None:
        if self._closed is not None:
            raise type(self._closed)(str(self._closed))
