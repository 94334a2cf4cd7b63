"""Recovery of many slots that no unit of work is going to use: their rows are locked in one transaction, and several
threads ask Kafka meanwhile. ``sequence.py`` has the steps; each is done for all slots before the next is done for any.
"""

import functools
import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack

from dualwrite.coordinator.concurrency.waiting import LOOK_INTERVAL, TaskThread
from dualwrite.coordinator.ports import DecisionStore, HeldDecision, Lease, LeaseLostError, Outcome
from dualwrite.coordinator.recovery.prepared_predecessor import NotLookedAtError
from dualwrite.coordinator.recovery.sequence import Recoverable, Recovery, settle
from dualwrite.errors import KafkaUnavailableError

THREADS = 8
"""That ask Kafka at the same time."""

_LOG = logging.getLogger("dualwrite")

Settler = Callable[[str], Recoverable]
"""Makes what recovers a transactional id. For one thread at a time."""

Settlers = Callable[[], AbstractContextManager[Settler]]
"""Makes a Settler that may be used until the block ends."""

_Step = Callable[[Lease], None]


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
        self._has_ended = False
        self._opened = ExitStack()
        self._crew: list[Settler] = []
        self._settlers_of: dict[Lease, Settler] = {}
        """That of the thread which has the lease in hand."""

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
        recovery = Recovery(self._store, self._make, self, self._observe)
        held: Mapping[Lease, HeldDecision] = {}
        try:
            with recovery.completed(self._store.locked_at_once(leases)) as held:
                recovery.close()
        except Exception as error:  # noqa: BLE001 - kept for whoever asked for the sweep
            self.errors.append(error)
            return
        finally:
            recovery.close()
            for lease, outcome in recovery.outcomes.items():
                if not outcome.is_heuristic:
                    self._note(lease, outcome)

        def record(lease: Lease) -> None:
            recovery.record(lease)
            self._note(lease, recovery.outcomes[lease])

        heuristic = [lease for lease, outcome in recovery.outcomes.items() if outcome.is_heuristic]
        self._in_threads([lease for lease in heuristic if lease not in recovery.unclaimed], record, 1)
        # Another transaction has the rest locked: a unit of work of the dead owner's that has not ended in the
        # database, or a process that has taken over. It is waited for, each row in a transaction of its own.
        others = [lease for lease in leases if lease not in held or lease in recovery.unclaimed]
        self._in_threads(others, self._settle_alone, 1 if self._store.one_writer else THREADS)

    def each(self, leases: Sequence[Lease], step: _Step) -> None:
        """See Runner. The same leases are in the same threads' hands each time: what a thread has made is its own."""
        self._in_threads(leases, step, THREADS)

    def taken_over(self, error: LeaseLostError) -> None:
        """See Runner."""
        _LOG.info("%s: another process recovers it: %s", error.lease.transactional_id, error)

    def _is_unwanted(self) -> bool:
        return self._has_ended or self._is_stopped()

    def _make(self, lease: Lease) -> Recoverable:
        return self._settlers_of[lease](lease.transactional_id)

    def _settle_alone(self, lease: Lease) -> None:
        self._note(lease, settle(self._store, lease, functools.partial(self._make, lease), self._observe))

    def _note(self, lease: Lease, outcome: Outcome) -> None:
        self.found[lease.transactional_id] = outcome
        if outcome is not Outcome.NOTHING:
            told = {"outcome": outcome.value}
            _LOG.info("%s: recovery found a transaction open: %s", lease.transactional_id, outcome.value, extra=told)

    def _in_threads(self, leases: Sequence[Lease], step: _Step, most: int) -> None:
        """Run ``step`` for each lease, in up to ``most`` threads; the first is this one."""
        shares = [leases[first::most] for first in range(min(most, len(leases)))]
        while len(self._crew) < len(shares):
            self._crew.append(self._opened.enter_context(self._settlers()))
        for share, settler in zip(shares, self._crew, strict=False):
            self._settlers_of.update(dict.fromkeys(share, settler))
        before = len(self.errors)
        work = [functools.partial(self._work, share, step, before) for share in shares]
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

    def _work(self, share: Sequence[Lease], step: _Step, before: int) -> None:
        """``before``: the errors that an earlier step has had. What that has done for others is not left half done."""
        for lease in share:
            if self._is_unwanted() or _is_out_of_reach(self.errors[before:]):
                return
            try:
                step(lease)
            except LeaseLostError as error:
                self.taken_over(error)
            except Exception as error:  # noqa: BLE001 - kept for whoever asked for the sweep
                self.errors.append(error)


def _is_out_of_reach(errors: Sequence[Exception]) -> bool:
    return any(isinstance(error, KafkaUnavailableError) and not isinstance(error, NotLookedAtError) for error in errors)
