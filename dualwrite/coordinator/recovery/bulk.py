"""Recovery of many slots that nobody is going to use: their rows are locked in one transaction, and Kafka is asked by
several threads meanwhile.

For each slot the order is that of ``recovery.py``, for its reasons: lock the row, fence Kafka and keep what is
prepared, read the token again, complete. Each step is done for all slots before the next is done for any.
"""

import functools
import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack

from dualwrite.coordinator.concurrency.waiting import LOOK_INTERVAL, TaskThread
from dualwrite.coordinator.ports import DecisionStore, HeldDecision, Lease, LeaseLostError, Outcome
from dualwrite.coordinator.recovery.prepared_predecessor import NotLookedAtError
from dualwrite.coordinator.recovery.sequence import Recoverable, settle, unclaimed_transaction
from dualwrite.errors import KafkaUnavailableError

THREADS = 8
"""That ask Kafka at the same time."""

_LOG = logging.getLogger("dualwrite")

Settler = Callable[[str], Recoverable]
"""Makes what recovers a transactional id. For one thread at a time."""

Settlers = Callable[[], AbstractContextManager[Settler]]
"""Makes a Settler that may be used until the block ends."""

_Task = Callable[[Lease, Settler], None]


class BulkRecovery:
    """One sweep over slots whose leases the caller holds. A context manager: it closes what it has opened.

    A slot's error costs that slot alone, but for KafkaUnavailableError: then nothing more is begun.

    :param is_stopped: True once nobody wants the rest any more.
    :param observe: called with the name of each step before it, from several threads (see DualWrite's ``on_step``);
        RECOVER_LOCK is for all slots of a call.
    """

    def __init__(
        self, store: DecisionStore, settlers: Settlers, is_stopped: Callable[[], bool], observe: Callable[[str], None]
    ) -> None:
        self.found: dict[str, Outcome] = {}
        """What was found open under the transactional ids that are done, and what became of it."""
        self.errors: list[Exception] = []
        self._store = store
        self._settlers = settlers
        self._is_stopped = is_stopped
        self._observe = observe
        self._heuristic: dict[Lease, Outcome] = {}
        """What is to be put on record, once no row is locked."""
        self._unclaimed: set[Lease] = set()
        """Where a transaction is to be put on record, once no row is locked, and to be ended after that."""
        self._has_ended = False
        self._opened = ExitStack()
        self._crew: list[Settler] = []

    def __enter__(self) -> "BulkRecovery":
        return self

    def __exit__(self, *_: object) -> None:
        self._has_ended = True
        self._opened.close()

    @property
    def is_over(self) -> bool:
        """True once no further slot is to be taken."""
        return self._is_unwanted() or _is_out_of_reach(self.errors)

    def settle(self, leases: Sequence[Lease]) -> None:
        """End what is open under ``leases``; see ``found`` and ``errors`` for how that went."""
        if not leases:
            return
        held: Mapping[Lease, HeldDecision] = {}
        self._heuristic.clear()
        self._unclaimed.clear()
        try:
            self._observe("RECOVER_LOCK")
            with self._store.locked_at_once(leases) as held:
                self._settle_held(held)
        except Exception as error:  # noqa: BLE001 - kept for whoever asked for the sweep
            self.errors.append(error)
            return
        self._in_parallel(_shares(list(self._heuristic), 1), self._record)
        # Somebody has the others locked: a unit of work of the dead owner's that has not ended in the database, or a
        # process that has taken over. It is waited for, each row in a transaction of its own.
        others = [lease for lease in leases if lease not in held or lease in self._unclaimed]
        self._in_parallel(_shares(others, 1 if self._store.one_writer else THREADS), self._settle_alone)

    def _is_unwanted(self) -> bool:
        return self._has_ended or self._is_stopped()

    def _settle_held(self, held: Mapping[Lease, HeldDecision]) -> None:
        made: dict[Lease, Recoverable] = {}
        fenced: set[Lease] = set()
        valid: set[Lease] = set()

        def fence(lease: Lease, settler: Settler) -> None:
            made[lease] = settler(lease.transactional_id)
            self._observe("RECOVER_FENCE_KAFKA")
            made[lease].init_transactions(keep_prepared_txn=True)
            fenced.add(lease)

        def complete(lease: Lease, _: Settler) -> None:
            if lease in valid and unclaimed_transaction(lease, made[lease]):
                self._unclaimed.add(lease)
            elif lease in valid:
                self._observe("RECOVER_COMPLETE")
                outcome = made[lease].complete_transaction(held[lease].state)
                if outcome.is_heuristic:
                    self._heuristic[lease] = outcome
                else:
                    self._note(lease, outcome)

        shares = _shares(list(held), THREADS)  # the same in both steps: what a thread has made is its own
        try:
            self._in_parallel(shares, fence)
            valid.update(lease for lease in fenced if self._is_valid(held[lease]))
            self._in_parallel(shares, complete)
        finally:
            for recoverable in list(made.values()):  # threads that are left may add to it
                recoverable.close()

    def _record(self, lease: Lease, _: Settler) -> None:
        outcome = self._heuristic.pop(lease)
        self._observe("RECOVER_RECORD")
        self._store.record(lease, outcome)
        self._note(lease, outcome)

    def _settle_alone(self, lease: Lease, settler: Settler) -> None:
        make = functools.partial(settler, lease.transactional_id)
        self._note(lease, settle(self._store, lease, make, self._observe))

    def _is_valid(self, held: HeldDecision) -> bool:
        """Read the token again. All are locked through one connection: if that is lost, all of them are."""
        try:
            held.verify()
        except LeaseLostError as error:
            _taken_over(error)
            return False
        return True

    def _note(self, lease: Lease, outcome: Outcome) -> None:
        self.found[lease.transactional_id] = outcome
        if outcome is not Outcome.NOTHING:
            told = {"outcome": outcome.value}
            _LOG.info("%s: recovery found a transaction open: %s", lease.transactional_id, outcome.value, extra=told)

    def _in_parallel(self, shares: Sequence[Sequence[Lease]], task: _Task) -> None:
        """Do ``task`` for each lease, each share in a thread of its own; the first is this one's."""
        while len(self._crew) < len(shares):
            self._crew.append(self._opened.enter_context(self._settlers()))
        before = len(self.errors)
        work = [
            functools.partial(self._work, share, settler, task, before)
            for share, settler in zip(shares, self._crew, strict=False)
        ]
        # Not a pool's threads: those would keep a program from ending while Kafka does not answer.
        others = [TaskThread(functools.partial(self._store.in_thread, each), "dualwrite-sweep") for each in work[1:]]
        try:
            for worker in others:
                worker.start()
            for each in work[:1]:
                each()
            for worker in others:
                while not worker.join(LOOK_INTERVAL):
                    pass
        except BaseException:
            # Threads may be left, after an interrupt. The locks are given up next, and then the leases: what a thread
            # began after that would fence whoever has the slot by then.
            self._has_ended = True
            raise

    def _work(self, share: Sequence[Lease], settler: Settler, task: _Task, before: int) -> None:
        """``before``: the errors that an earlier step has had. What that has done for others is not left half done."""
        for lease in share:
            if self._is_unwanted() or _is_out_of_reach(self.errors[before:]):
                return
            try:
                task(lease, settler)
            except LeaseLostError as error:
                _taken_over(error)
            except Exception as error:  # noqa: BLE001 - kept for whoever asked for the sweep
                self.errors.append(error)


def _shares(leases: Sequence[Lease], most: int) -> list[Sequence[Lease]]:
    """``leases`` in up to ``most`` parts of about the same length."""
    return [leases[first::most] for first in range(min(most, len(leases)))]


def _is_out_of_reach(errors: Sequence[Exception]) -> bool:
    return any(isinstance(error, KafkaUnavailableError) and not isinstance(error, NotLookedAtError) for error in errors)


def _taken_over(error: LeaseLostError) -> None:
    _LOG.info("%s: somebody else recovers it: %s", error.lease.transactional_id, error)
