"""One slot of the pool: a leased transactional id, its participant, and the one place where it is recovered."""

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass

from dualwrite.coordinator.concurrency.background import Background
from dualwrite.coordinator.ports import DecisionStore, KafkaParticipant, Lease, LeaseLostError, Outcome
from dualwrite.coordinator.recovery.sequence import ParticipantFactory, recover
from dualwrite.coordinator.rules.lease import LeaseContradictedError
from dualwrite.coordinator.slots.log_fields import Fields
from dualwrite.errors import DecisionLostError, FencedError, InvalidTransactionStateError

_LOG = logging.getLogger("dualwrite")
_LOG.addHandler(logging.NullHandler())  # without logging set up, silence: not logging's last resort, stderr
_LOG.addFilter(Fields())


@dataclass
class Counters:
    """What a DualWrite has done since it was made."""

    units: int = 0
    """Units of work that began."""
    committed: int = 0
    """Those that are in both, or will be as soon as recovery reaches Kafka."""
    rolled_back: int = 0
    """Those that left nothing on either side."""
    in_doubt: int = 0
    """Those whose outcome was not known when their caller was told."""
    finished_later: int = 0
    """Those whose Kafka side was left to recovery, whatever their outcome."""
    recoveries: int = 0
    """Recoveries that ended well: each slot begins with one."""
    heuristic: int = 0
    """Heuristic outcomes that they found: units of work that did not end alike on both sides (see outcomes())."""
    replayed: int = 0
    """Units of work whose records were produced again, as Kafka had aborted them (``replay``)."""

    def __post_init__(self) -> None:
        self._lock = threading.Lock()

    def add(self, name: str, more: int = 1) -> None:
        """Count ``more`` of ``name``, from whatever thread."""
        with self._lock:
            setattr(self, name, getattr(self, name) + more)


class Slot:
    """A transactional id that this process has leased.

    It is warm while it has a participant. A unit of work borrows the participant and gives it back if nothing is left
    open; otherwise the slot has none, and recovery is the one way to get another. A slot whose lease was lost is of no
    use any more: its pool drops it. One that Kafka alone calls fenced is recovered: under the row's lock, while the
    lease is valid, nobody else can have a right to it.

    :param when_idle: called when the background has done what it had to do.
    :param observe: called with each step's name.
    :param repair: called after each recovery, with the slot ready; says what it has done, if anything was to be done.
    """

    def __init__(
        self,
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
        """What uses the slot. The pool's."""
        self._store = store
        self._factory = factory
        self._counters = counters
        self._observe = observe
        self._repair = repair
        self._recovering = threading.Lock()
        self._participant: KafkaParticipant | None = None
        """The last one that was made."""
        self._is_ready = False
        """True if it has nothing open in Kafka, and nobody uses it."""
        self._is_finished = False
        """True once it was closed with nothing left to be recovered."""
        self._contradiction: LeaseContradictedError | None = None
        self._closed: FencedError | InvalidTransactionStateError | None = None
        self._background = Background(lambda: store.in_thread(self.recover), lease.transactional_id, when_idle)

    @property
    def contradiction(self) -> LeaseContradictedError | None:
        """If the slot is lost because the database has forgotten something, or the process was copied: that."""
        return self._contradiction

    @property
    def transactional_id(self) -> str:
        """The slot's name in Kafka and in the state table."""
        return self.lease.transactional_id

    @property
    def pending(self) -> bool:
        """True while the background finishes what an earlier unit of work left."""
        return self._background.running

    @property
    def last_error(self) -> Exception | None:
        """Why the background has not finished yet, if it has tried."""
        return self._background.last_error

    @property
    def is_warm(self) -> bool:
        """True if a unit of work can begin at once."""
        return self._is_ready

    @property
    def is_fenced(self) -> bool:
        """True if the slot is lost."""
        return isinstance(self._closed, FencedError)

    def recover(self) -> Outcome:
        """Bring the slot to where it is ready; say what was found open. Does nothing if it is ready.

        One at a time: a second caller waits, and finds it done.

        :raises LeaseLostError: if another process has taken over.
        """
        with self._recovering:
            self._check_open()
            first = Outcome.NOTHING
            while not self._is_ready:  # what a repair has done may have to be finished
                outcome = self._recover_once()
                first = outcome if first is Outcome.NOTHING else first
            if self._background.closed:  # close() did not wait for this: nobody else would release the participant
                self._close_participant()
        return first

    def _recover_once(self) -> Outcome:
        if self._participant is not None:
            self._participant.close()  # of a use that was interrupted, if it has not done that itself
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
            told = {"outcome": outcome.value}
            _LOG.info("%s: recovery found a transaction open: %s", self.transactional_id, outcome.value, extra=told)
        repaired = None if self._repair is None else self._repair(self)
        if repaired is Outcome.REPLAYED:
            self._counters.add("replayed")
        return repaired or outcome

    def lend(self) -> KafkaParticipant:
        """The participant of a slot that was made ready, which is not ready any more."""
        assert self._is_ready
        assert self._participant is not None
        self._is_ready = False
        return self._participant

    def give_back(self, participant: KafkaParticipant) -> None:
        """Take back a participant with nothing open in Kafka: the slot is ready. One that was closed meanwhile, as its
        unit of work had not ended in time, closes it."""
        self._participant = participant
        self._is_ready = True
        if self._background.closed:
            self._close_participant()

    def finish_later(self) -> None:
        """Recover in the background; if the slot is lost, whoever has taken it does that."""
        self._counters.add("finished_later")
        if not self.is_fenced:
            self._background.start()

    def hurry(self) -> None:
        """Let the background do at once what it has to do, as a unit of work waits for it."""
        self._background.hurry()

    def resume(self) -> None:
        """Begin what :meth:`finish_later` was asked for, if an interrupt kept it from beginning."""
        self._background.resume()

    def fence(self, error: FencedError) -> None:
        """The slot is lost: whoever has taken it completes what this one left. The pool drops it after its use."""
        if self._closed is None:
            _LOG.warning("%s: lost: %s", self.transactional_id, error)
            if isinstance(error, LeaseContradictedError):
                self._contradiction = error
                self._closed = DecisionLostError(str(error))
            else:
                self._closed = FencedError(str(error))

    def close(self, timeout: float) -> bool:
        """Give the background up to ``timeout`` seconds, then release all. True if nothing is left to be recovered."""
        done = self._background.close(timeout)
        if not done:
            _LOG.warning("%s: closed while a unit of work is not finished in Kafka", self.transactional_id)
        self._closed = self._closed or InvalidTransactionStateError("this DualWrite is closed: make a new one")
        self._is_finished = self._is_finished or (done and self.is_warm)
        if self._is_ready:
            self._close_participant()
        return self._is_finished

    def _close_participant(self) -> None:
        """Close it, and note that after it: a close that was interrupted is repeated."""
        assert self._participant is not None
        self._participant.close()
        self._is_ready = False

    def _make(self) -> KafkaParticipant:
        self._participant = self._factory()
        return self._participant

    def _check_open(self) -> None:
        if self._closed is not None:
            raise type(self._closed)(str(self._closed))
