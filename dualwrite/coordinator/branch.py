"""A branch: a Kafka transaction prepared by this process and decided by another, with other branches (a Spark batch).

A branch uses a slot of the pool like a unit of work, but has no database transaction of its own. It ends by
transferring its lease; if it ends before that, its Kafka transaction is aborted.
"""

import logging
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from dualwrite.coordinator.manager.unit_manager import UnitManager
from dualwrite.coordinator.ports.kafka import ProducesMany
from dualwrite.coordinator.rules.lease import Lease, LeaseContradictedError, LeaseLostError
from dualwrite.coordinator.rules.recovery_decision import Outcome
from dualwrite.coordinator.slots.pool import Pool
from dualwrite.coordinator.slots.slot import Slot
from dualwrite.coordinator.sql.decision_store import SqlDecisionStore
from dualwrite.errors import FencedError, InvalidTransactionStateError, PrepareFailedError
from dualwrite.ids import PreparedTxnState
from dualwrite.records.outgoing import OutgoingRecord

_LOG = logging.getLogger("dualwrite")


class Branch:
    """One branch, inside its block; for one thread.

    :param user: the user of ``slot`` in ``pool``; the slot is ready.
    :param store: has the row of the slot's lease.
    :param observe: called before each step with its name; an exception of it counts as the step's failure.
    """

    def __init__(
        self, pool: Pool, user: object, slot: Slot, store: SqlDecisionStore, observe: Callable[[str], None]
    ) -> None:
        self._pool = pool
        self._store = store
        self._user = user
        self._slot = slot
        self._observe = observe
        self._participant = slot.lend()
        self._has_begun = False
        self._prepared: PreparedTxnState | None = None
        self._is_reusable = True
        self._may_be_transferred = False
        """True if the lease may belong to another owner."""

    @property
    def lease(self) -> Lease:
        """The lease of its transactional id, until it is transferred."""
        return self._slot.lease

    def produce(self, record: OutgoingRecord) -> None:
        """Add a record; see Transaction.produce. The first one begins the Kafka transaction.

        :raises LeaseLostError: if another process has taken over, and the store checks that.
        :raises KafkaUnavailableError: and every other error of the participant. The branch must end.
        """
        self._begin()
        self._participant.produce(record)

    def produce_many(self, records: Iterable[OutgoingRecord]) -> None:
        """Add records; see ProducesMany.

        :raises KafkaUnavailableError: as :meth:`produce`.
        """
        self._begin()
        if isinstance(self._participant, ProducesMany):
            self._participant.produce_many(records)
            return
        for record in records:
            self._participant.produce(record)

    def _begin(self) -> None:
        if not self._has_begun:
            self._observe("BEGIN_KAFKA")
            if self._store.checks_lease:
                self._store.require(self.lease)
            # If an exception comes here, it is not known whether the participant has begun: the slot makes another.
            self._is_reusable = False
            self._participant.begin_transaction()
            self._has_begun = True
            self._is_reusable = True

    def prepare(self) -> PreparedTxnState:
        """Flush; return the state that identifies the transaction, after every record was acknowledged.

        :raises PrepareFailedError: if a record was not acknowledged, or none was produced.
        """
        if not self._has_begun:
            raise InvalidTransactionStateError("nothing was produced: there is nothing to prepare")
        self._observe("PREPARE_KAFKA")
        self._prepared = self._participant.prepare_transaction()
        if not self._prepared:
            raise PrepareFailedError("the Kafka transaction was prepared without an identity")
        return self._prepared

    def transfer(self, sign: Callable[[Lease], Lease]) -> Lease:
        """Transfer the lease with the prepared transaction: this process no longer uses either.

        :param sign: writes the new owner into the lease's row, commits, and returns the lease as the row has it now
            (TransferredLeases.transfer). If it raises, it is unknown whether it did: recovery takes the lease.
        :returns: the result of ``sign``.
        :raises InvalidTransactionStateError: if no transaction is prepared.
        """
        if not self._prepared:
            raise InvalidTransactionStateError("nothing is prepared: there is nothing to transfer")
        self._observe("TRANSFER_LEASE")
        self._may_be_transferred = True
        transferred = sign(self.lease)
        self._participant.close()  # sends nothing to Kafka: the transaction stays prepared
        self._pool.forget_transferred(self._user, finished=True)
        return transferred

    def end(self) -> None:
        """End the branch. Unless it was transferred, abort the transaction or leave that to recovery."""
        if self._may_be_transferred:  # if transfer() has returned, the pool has forgotten the slot
            self._participant.close()
            self._pool.forget_transferred(self._user, finished=False)
            return
        try:
            if self._has_begun:
                self._observe("ABORT_KAFKA")
                self._participant.abort_transaction()
        except BaseException as error:
            _LOG.info("%s: ABORT_KAFKA failed: %r", self._slot.transactional_id, error)
            self._participant.close()
            self._slot.finish_later()
            if not isinstance(error, Exception):
                raise
            return
        if self._is_reusable and self._participant.is_reusable:
            self._slot.give_back(self._participant)
        else:
            self._participant.close()

    def note(self, error: BaseException) -> None:
        """Note that ``error`` came out of the block: it may mean that the slot or its participant is lost."""
        if isinstance(error, FencedError):
            self._is_reusable = False
        if isinstance(error, LeaseLostError) and error.lease == self.lease:
            self._slot.fence(error)


class Branches:
    """The branches of one process, for Spark's batches.

    :param manager: of the DualWrite whose slots they use.
    """

    def __init__(self, manager: UnitManager) -> None:
        self._manager = manager

    @property
    def store(self) -> SqlDecisionStore:
        """The decision store, which makes the library's own transactions; it has checked that the tables exist."""
        return self._manager.store

    @property
    def owner(self) -> str:
        """The signature of this process on its leases."""
        return self._manager.process.pool.owner

    def sweep_left(self, *, is_any_left: bool = False) -> tuple[dict[str, Outcome], list[Exception]]:
        """Recover now the slots that this owner has signed and those of dead owners; and from now on look for such
        slots regularly, like a process that has leased one. Without such slots Kafka is not asked.

        :param is_any_left: True if the caller knows of one.
        :returns: as UnitManager.sweep.
        """
        self._manager.require_outside()
        pool = self._manager.process.pool
        pool.start_heartbeat()
        if not (is_any_left or pool.registry.may_need_recovery()):
            return {}, []
        return self._manager.process.sweeper.attempt(free_too=False)

    def record_contradiction(self, error: LeaseContradictedError) -> None:
        """Put on record the units of work that ``error`` reports to be on one side alone. If the database does not
        accept the record now, it waits for the heartbeat."""
        unmatched = self._manager.process.pool.unmatched
        unmatched.add(error)
        unmatched.record()

    @contextmanager
    def branch(self, observe: Callable[[str], None] | None = None) -> Iterator[Branch]:
        """A branch, for the length of the block.

        :param observe: instead of ``on_step``, for its own steps.
        :raises NoFreeSlotError: if every slot is in use; and the error of the slot's recovery.
        :raises InvalidTransactionStateError: inside a unit of work.
        """
        self._manager.require_outside()
        pool = self._manager.process.pool
        user = object()
        try:
            slot = pool.acquire(user)
            slot.recover()
            branch = Branch(pool, user, slot, self.store, observe or self._manager.settings.observe)
            try:
                yield branch
            except BaseException as error:
                branch.note(error)
                raise
            finally:
                branch.end()
        finally:
            pool.release(user)
