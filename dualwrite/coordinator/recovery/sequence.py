"""Recovery: bring the Kafka side of one transactional id where the database's decision says, then make it usable again.

The caller has taken the lease (``Leases.take``), which fenced the predecessor in the database. From then on everything
happens under the row's lock, in an order in which every step has its reason. It is safe to run again after any failure,
and at the same time as another process: one ends up as the owner, the others get LeaseLostError.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

from dualwrite.coordinator.ports import (
    DecisionStore,
    HeldDecision,
    KafkaParticipant,
    Lease,
    Outcome,
    name_of_left_transaction,
)
from dualwrite.ids import PreparedTxnState

ParticipantFactory = Callable[[], KafkaParticipant]


class Recoverable(Protocol):
    """Of a KafkaParticipant, what it takes to end what a predecessor left."""

    def init_transactions(self, keep_prepared_txn: bool = False) -> None:
        """See KafkaParticipant."""

    def complete_transaction(self, state: PreparedTxnState) -> Outcome:
        """See KafkaParticipant."""

    def close(self) -> None:
        """See KafkaParticipant."""


def recover(
    store: DecisionStore, lease: Lease, factory: ParticipantFactory, observe: Callable[[str], None]
) -> tuple[KafkaParticipant, Outcome]:
    """Complete or abort what a predecessor left, and return a participant that is ready to begin, with what was done.

    What remains exposed: if this process loses the row's lock (its database connection dies) *and* is paused between
    the last ``verify`` and the plain init, a successor may have prepared a transaction that the plain init aborts.
    Nothing in Kafka ties a plain init to a lease; the window is one request long.

    :param observe: called with the name of each step before it (see DualWrite's ``on_step``).
    :raises LeaseLostError: if another process has taken over: it recovers.
    :raises FencedError: if a newer producer came in between; if the lease is still valid, run recovery again.
    :raises KafkaUnavailableError: if Kafka does not answer. The lock is released; run recovery again.
    """
    participant = factory()
    try:
        with _completed(store, lease, participant, observe) as (held, outcome, unclaimed):
            if not outcome.is_heuristic:
                held.verify()
                observe("RECOVER_INIT")
                # Still under the lock: this init would abort whatever a successor had prepared.
                participant.init_transactions()
        if not outcome.is_heuristic:
            if lease.memory.is_new:
                store.mark_recovered(lease, unclaimed)
            return participant, outcome
        # Before the slot is used, which overwrites the state; and again after that, from the beginning.
        observe("RECOVER_RECORD")
        _record(store, lease, outcome, unclaimed)
    except BaseException:
        participant.close()
        raise
    participant.close()
    return recover(store, lease, factory, observe)[0], outcome


def settle(
    store: DecisionStore, lease: Lease, factory: Callable[[], Recoverable], observe: Callable[[str], None]
) -> Outcome:
    """As :func:`recover`, for a slot that nobody is going to use: no producer is made."""
    participant = factory()
    try:
        with _completed(store, lease, participant, observe) as (_, outcome, unclaimed):
            pass
    finally:
        participant.close()
    if outcome.is_heuristic:
        observe("RECOVER_RECORD")
        _record(store, lease, outcome, unclaimed)
        if unclaimed:
            settle(store, lease, factory, observe)  # it is on record, and is aborted now
    return outcome


def unclaimed_transaction(lease: Lease, recoverable: Recoverable) -> PreparedTxnState:
    """The transaction that ``recoverable`` has found open under a row that is new; the empty state if there is none, or
    the row is not new.

    No unit of work of that row has begun it. Another row may have decided to commit it: one of another database or
    schema, or one that was deleted. So it goes on record before it is aborted.
    """
    return name_of_left_transaction(recoverable) if lease.memory.is_new else PreparedTxnState()


def _record(store: DecisionStore, lease: Lease, outcome: Outcome, unclaimed: PreparedTxnState) -> None:
    if unclaimed:
        store.mark_recovered(lease, unclaimed)
    else:
        store.record(lease, outcome)


@contextmanager
def _completed(
    store: DecisionStore, lease: Lease, participant: Recoverable, observe: Callable[[str], None]
) -> Iterator[tuple[HeldDecision, Outcome, PreparedTxnState]]:
    """End what a predecessor left, but for an unclaimed transaction, which is yielded; the row's lock is held until the
    block ends."""
    observe("RECOVER_LOCK")
    # Before anything is said to Kafka. Whoever reads the row unlocked may read it, be slow, and abort the prepared
    # transaction of a unit that a successor has committed meanwhile. While the lock is held nobody can take over,
    # and no unit of work can commit. Taking the lock also waits for the predecessor's database transaction to end.
    with store.locked(lease) as held:
        observe("RECOVER_FENCE_KAFKA")
        # Fences the predecessor in Kafka, and keeps what it prepared: a plain init would abort it undecided.
        participant.init_transactions(keep_prepared_txn=True)
        # Again, after Kafka is fenced. If the lock was lost meanwhile, the transaction seen now may be a
        # successor's. A successor that takes over from here on fences this producer before it does anything else.
        held.verify()
        unclaimed = unclaimed_transaction(lease, participant)
        if unclaimed:
            yield held, Outcome.HEURISTIC_HAZARD, unclaimed
            return
        observe("RECOVER_COMPLETE")
        yield held, participant.complete_transaction(held.state), unclaimed


def was_committed(store: DecisionStore, lease: Lease, prepared: PreparedTxnState) -> bool:
    """Settle a database COMMIT of unknown outcome: True if the row holds ``prepared``.

    The row's lock is free only after the unit's database transaction has ended, and the token shows that nobody has
    written the row since; so another state means that the transaction was rolled back, for good.

    :raises LeaseLostError: if another process has taken over: it completed both sides, and may have written the row.
    """
    with store.locked(lease) as held:
        return prepared.is_same_as(held.state)
