"""One transactional id in use by this process: its lease, its participant, and the one place where it is recovered."""

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass

from dualwrite.coordinator.background import Background
from dualwrite.coordinator.participants import DecisionStore, KafkaParticipant, Lease, Outcome
from dualwrite.coordinator.recovery import ParticipantFactory, recover
from dualwrite.errors import FencedError, InvalidTransactionStateError, KafkaUnavailableError

_LOG = logging.getLogger("dualwrite")
_LOG.addHandler(logging.NullHandler())  # without logging set up, silence: not logging's last resort, stderr


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
    """Recoveries that ended well, the first use's included."""


class Slot:
    """A transactional id that this process leases.

    It is ready while it has a participant. A unit of work borrows the participant and gives it back if nothing is left
    open; otherwise the slot has none, and recovery is the one way to get another. The lease is taken once: a process
    that was fenced never takes it back, so two applications of one name cannot fence each other in a loop.

    :param owner: written into the row for whoever wonders who holds the lease.
    :param observe: called with each step's name.
    """

    def __init__(
        self,
        transactional_id: str,
        store: DecisionStore,
        factory: ParticipantFactory,
        owner: str,
        observe: Callable[[str], None],
    ) -> None:
        self.transactional_id = transactional_id
        self.counters = Counters()
        self._store = store
        self._factory = factory
        self._owner = owner
        self._observe = observe
        self._use = threading.Condition()
        self._user: int | None = None
        self._recovering = threading.Lock()
        self._lease: Lease | None = None
        self._participant: KafkaParticipant | None = None
        self._closed: FencedError | InvalidTransactionStateError | None = None
        self._background = Background(self.recover, transactional_id)

    @property
    def lease(self) -> Lease:
        """The lease. Only for a slot that was made ready."""
        assert self._lease is not None
        return self._lease

    @property
    def pending(self) -> bool:
        """True while the background finishes what an earlier unit of work left."""
        return self._background.running

    def require_unused_here(self) -> None:
        """Refuse a thread that uses the slot already: waiting for itself would never end.

        :raises InvalidTransactionStateError: if this one does.
        """
        if self._user == threading.get_ident():
            raise InvalidTransactionStateError(
                "a unit of work is open in this thread already: use its tx, or end it before the next one"
            )

    def acquire(self) -> None:
        """Wait until no other thread uses the slot, and use it. Ask :meth:`require_unused_here` first.

        Whoever calls this does so inside the ``try`` that ends in :meth:`release_if_used_here`: an interrupt may come
        after the slot was taken, and before this returns.
        """
        with self._use:
            while self._user is not None:
                self._use.wait()
            self._user = threading.get_ident()

    def release(self) -> None:
        """Let the next one use the slot."""
        with self._use:
            self._user = None
            self._use.notify()

    def release_if_used_here(self) -> None:
        """Let the next one use the slot, if :meth:`acquire` got it for this thread."""
        if self._user == threading.get_ident():
            self.release()

    def make_ready(self, timeout: float) -> Outcome:
        """Recover if that is needed; wait up to ``timeout`` seconds for a recovery that is under way in the background.

        :raises KafkaUnavailableError: if it is not finished by then (retriable).
        :raises FencedError: if another process has taken over.
        """
        if not self._background.wait(timeout):
            raise KafkaUnavailableError(
                f"an earlier unit of work of {self.transactional_id!r} is not finished in Kafka after {timeout:g} s "
                f"of waiting; last error: {self._background.last_error}"
            ) from self._background.last_error
        return self.recover()

    def recover(self) -> Outcome:
        """Bring the slot to where it is ready; say what was found open. Does nothing if it is ready.

        One at a time: a second caller waits, and finds it done.
        """
        with self._recovering:
            self._check_open()
            if self._participant is not None:
                return Outcome.NOTHING
            try:
                if self._lease is None:
                    self._observe("RECOVER_TAKE_OVER")
                    # First of all: from here on a predecessor's units of work can no longer commit.
                    self._lease = self._store.take_over(self.transactional_id, self._owner)
                participant, outcome = recover(self._store, self._lease, self._factory, self._observe)
            except FencedError as error:
                self.fence(error)
                raise
            self._participant = participant
            if self._background.closed:  # close() did not wait for this: nobody else would release the participant
                self.lend().close()
            self.counters.recoveries += 1
        if outcome is not Outcome.NOTHING:
            _LOG.info("%s: recovery found a transaction open: %s", self.transactional_id, outcome.value)
        return outcome

    def lend(self) -> KafkaParticipant:
        """The participant of a slot that was made ready, which is not ready any more."""
        participant, self._participant = self._participant, None
        assert participant is not None
        return participant

    def give_back(self, participant: KafkaParticipant) -> None:
        """Take back a participant with nothing open in Kafka: the slot is ready."""
        self._participant = participant

    def finish_later(self, fenced: FencedError | None) -> None:
        """Recover in the background; if the unit of work was fenced, whoever fenced it does that."""
        self.counters.finished_later += 1
        if fenced is None:
            self._background.start()

    def fence(self, error: FencedError) -> None:
        """Close the slot for good: another process has taken over, and completes what this one left."""
        self._closed = self._closed or FencedError(
            f"another process has taken over {self.transactional_id!r}, so this one stays closed: stop one of the two, "
            f"or give the applications different names ({error})"
        )

    def _check_open(self) -> None:
        if self._closed is not None:
            raise type(self._closed)(str(self._closed))

    def close(self, timeout: float) -> None:
        """Give the background up to ``timeout`` seconds, then release all. What is left, the next start recovers."""
        if not self._background.close(timeout):
            _LOG.warning("%s: closed while a unit of work is not finished in Kafka", self.transactional_id)
        self._closed = self._closed or InvalidTransactionStateError("this DualWrite is closed: make a new one")
        if self._participant is not None:
            self.lend().close()
