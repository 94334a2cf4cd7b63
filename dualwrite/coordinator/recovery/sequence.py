"""The sequence of recovery: Kafka follows the database's decision, for one slot or for many. Implemented here only.

The caller has taken the leases (``Leases.take``), which fenced the predecessors in the database. Then come five steps,
whose order matters: lock the row, fence Kafka and keep the prepared transaction, read the fencing token again,
complete, record. Recovery may run again after any failure, and at the same time as another process: one of them ends up
as the owner, the others get LeaseLostError.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Generic, Protocol, TypeVar

from dualwrite.coordinator.ports.database import DecisionStore, LockedStateRow
from dualwrite.coordinator.ports.kafka import KafkaParticipant, has_committed, name_of_left_transaction
from dualwrite.coordinator.rules.lease import Lease, LeaseLostError
from dualwrite.coordinator.rules.recovery_decision import DETAILS, Outcome
from dualwrite.ids import PreparedTxnState

ParticipantFactory = Callable[[], KafkaParticipant]
Observe = Callable[[str], None]
"""Called with the name of each step before it (see DualWrite's ``on_step``)."""


class RecoveryParticipant(Protocol):
    """The part of a KafkaParticipant that ends a predecessor's transaction."""

    def init_transactions(self, keep_prepared_txn: bool = False) -> None:
        """Fence every earlier producer of the transactional id; see KafkaParticipant."""

    def complete_transaction(self, state: PreparedTxnState) -> Outcome:
        """Commit the open transaction if ``state`` identifies it, abort it otherwise; see KafkaParticipant."""

    def close(self) -> None:
        """Release sockets and threads; see KafkaParticipant."""


class StepRunner(Protocol):
    """Runs the steps: for one slot in the caller's thread, or for many in several threads."""

    def for_each(self, leases: Sequence[Lease], step: Callable[[Lease], None]) -> None:
        """Run ``step`` for each of ``leases``, and return when all are done."""

    def taken_over(self, error: LeaseLostError) -> None:
        """Note that another process recovers the slot of ``error``."""


class SingleSlotRunner:
    """The StepRunner for one slot: every error is raised."""

    def for_each(self, leases: Sequence[Lease], step: Callable[[Lease], None]) -> None:
        """Run ``step`` for each of ``leases``, and return when all are done; see StepRunner."""
        for lease in leases:
            step(lease)

    def taken_over(self, error: LeaseLostError) -> None:
        """Raise ``error``: another process recovers its slot; see StepRunner."""
        raise error


R = TypeVar("R", bound=RecoveryParticipant)


class Recovery(Generic[R]):
    """One run of the sequence, over slots whose leases the caller holds.

    :param make: makes the RecoveryParticipant for the slot of a lease.
    """

    def __init__(self, store: DecisionStore, make: Callable[[Lease], R], runner: StepRunner, observe: Observe) -> None:
        self.participants: dict[Lease, R] = {}
        self.outcomes: dict[Lease, Outcome] = {}
        """The outcomes of the leases whose slots are completed."""
        self.unclaimed: dict[Lease, PreparedTxnState] = {}
        """By the lease of a new row: the transaction found open under it, which stays open until it is on record; the
        empty state if only the row's own state is to be put on record."""
        self.forgotten: dict[Lease, PreparedTxnState] = {}
        """By lease: the transaction of a unit of work of this process that Kafka has committed, and that the database
        does not know."""
        self._store = store
        self._make = make
        self._runner = runner
        self._observe = observe

    def close(self) -> None:
        """Close all participants. May be called again."""
        while self.participants:  # threads that an interrupt has left may add to it
            self.participants.popitem()[1].close()

    @contextmanager
    def completed(
        self, locks: AbstractContextManager[Mapping[Lease, LockedStateRow]]
    ) -> Iterator[Mapping[Lease, LockedStateRow]]:
        """Complete the slots whose rows ``locks`` locks, and hold the locks until the block ends."""
        self._observe("RECOVER_LOCK")
        # Before any request to Kafka. Without the lock, a slow process could abort the prepared transaction of a unit
        # that a successor has committed meanwhile. While the lock is held, no process can take over, and no unit of
        # work can commit. The lock also waits until the predecessor's database transaction ends.
        with locks as held:
            fenced: set[Lease] = set()
            valid: set[Lease] = set()

            def fence(lease: Lease) -> None:
                participant = self.participants[lease] = self._make(lease)
                self._observe("RECOVER_FENCE_KAFKA")
                # Fences the predecessor in Kafka and keeps its prepared transaction: a plain init would abort it
                # undecided.
                participant.init_transactions(keep_prepared_txn=True)
                fenced.add(lease)

            def complete(lease: Lease) -> None:
                if lease in valid:
                    self._complete(lease, held[lease].state)

            self._runner.for_each(list(held), fence)
            # Check again, after Kafka is fenced: if the lock was lost meanwhile, the transaction seen now may be a
            # successor's. A successor that takes over later fences this producer before it does anything else.
            for lease in (lease for lease in held if lease in fenced):
                try:
                    held[lease].verify()
                except LeaseLostError as error:
                    self._runner.taken_over(error)
                else:
                    valid.add(lease)
            self._runner.for_each(list(held), complete)
            yield held

    def _complete(self, lease: Lease, state: PreparedTxnState) -> None:
        """End the predecessor's transaction, unless the row is new and something must go on record first:

        - The open transaction: no unit of work of this row began it. Another row may have decided to commit it, in
          another database or schema, or one that was deleted.
        - The row's own state: its transaction was in another cluster. This one's log is not asked, because it may have
          a transaction of the same producer id, epoch and offset: each cluster counts them from the beginning.

        Then look for a unit of work whose COMMIT was in doubt, and that Kafka has committed although the row does not
        know it. Not before: today's Apache Kafka fences a process that is about to commit it only with the end.
        """
        participant, doubtful = self.participants[lease], lease.memory.doubtful
        if lease.memory.is_new:
            unclaimed = name_of_left_transaction(participant)
            if unclaimed or state:
                self.unclaimed[lease] = unclaimed
                self.outcomes[lease] = Outcome.HEURISTIC_HAZARD
                return
        self._observe("RECOVER_COMPLETE")
        outcome = participant.complete_transaction(state)
        if doubtful and not outcome.is_heuristic and has_committed(participant, doubtful):
            self.forgotten[lease] = doubtful
            outcome = Outcome.HEURISTIC_COMMIT
        self.outcomes[lease] = outcome

    def record(self, lease: Lease) -> None:
        """Put the heuristic outcome of ``lease`` on record, after its row's lock was released."""
        self._observe("RECOVER_RECORD")
        outcome = self.outcomes[lease]
        if lease in self.forgotten:
            self._store.note_outcome(lease.transactional_id, self.forgotten[lease], outcome, DETAILS[outcome])
            lease.memory.doubtful = None
        elif lease in self.unclaimed:
            self._store.mark_recovered(lease, self.unclaimed[lease])
        else:
            self._store.record(lease, outcome)


def recover(
    store: DecisionStore, lease: Lease, factory: ParticipantFactory, observe: Observe
) -> tuple[KafkaParticipant, Outcome]:
    """Complete or abort the predecessor's transaction; return a participant that is ready to begin, and the outcome.

    If this process loses the row's lock (its database connection dies) *and* is paused between the last ``verify`` and
    the last init, a successor may have begun a transaction. The init leaves it open and is refused. On Apache Kafka 4.4
    the init aborts it: there this window remains, one request long.

    :raises LeaseLostError: if another process has taken over: it recovers.
    :raises FencedError: if a newer producer came in between; if the lease is still valid, run recovery again.
    :raises KafkaUnavailableError: if Kafka does not answer. The lock is released; run recovery again.
    """
    recovery = Recovery(store, lambda _: factory(), SingleSlotRunner(), observe)
    try:
        with recovery.completed(_locked(store, lease)) as held:
            participant, outcome = recovery.participants[lease], recovery.outcomes[lease]
            if not outcome.is_heuristic:
                held[lease].verify()
                observe("RECOVER_INIT")
                # Still under the lock: on Apache Kafka this init would abort a successor's prepared transaction.
                participant.init_transactions()
        if not outcome.is_heuristic:
            if lease.memory.is_new:
                store.mark_recovered(lease, PreparedTxnState())
            return participant, outcome
        # Record before the slot is used, which overwrites the state. Then recover again, from the beginning.
        recovery.record(lease)
    except BaseException:
        recovery.close()
        raise
    recovery.close()
    return recover(store, lease, factory, observe)[0], outcome


def recover_without_producer(
    store: DecisionStore, lease: Lease, factory: Callable[[], RecoveryParticipant], observe: Observe
) -> Outcome:
    """Like :func:`recover`, for a slot that no unit of work is going to use: no producer is made."""
    recovery = Recovery(store, lambda _: factory(), SingleSlotRunner(), observe)
    try:
        with recovery.completed(_locked(store, lease)):
            pass
    finally:
        recovery.close()
    outcome = recovery.outcomes[lease]
    if outcome.is_heuristic:
        recovery.record(lease)
    if recovery.unclaimed:
        recover_without_producer(store, lease, factory, observe)  # aborts what is on record now
    return outcome


@contextmanager
def _locked(store: DecisionStore, lease: Lease) -> Iterator[Mapping[Lease, LockedStateRow]]:
    """Lock the row of ``lease``; waits for a unit of work or a process that has it locked."""
    with store.locked(lease) as held:
        yield {lease: held}


def was_committed(store: DecisionStore, lease: Lease, prepared: PreparedTxnState) -> bool:
    """Find the outcome of a database COMMIT that raised: True if the row holds ``prepared``.

    The row's lock is free only after the unit's database transaction has ended, and the token shows that no process has
    written the row since; so another state means that the transaction was rolled back for good.

    :raises LeaseLostError: if another process has taken over: it completed both sides, and may have written the row.
    """
    with store.locked(lease) as held:
        return prepared.is_same_as(held.state)
