"""Recovery of many slots that no unit of work is going to use: one transaction locks their rows, and several threads
call Kafka meanwhile. ``sequence.py`` has the steps; each step is done for all slots before the next one begins.
"""

import functools
import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack

from dualwrite.coordinator.concurrency.waiting import LOOK_INTERVAL, TaskThread
from dualwrite.coordinator.ports.database import DecisionStore, LockedStateRow
from dualwrite.coordinator.ports.runtime import Runtime
from dualwrite.coordinator.recovery.prepared_predecessor import EndingNotCheckedError
from dualwrite.coordinator.recovery.sequence import Recovery, RecoveryParticipant, recover_without_producer
from dualwrite.coordinator.rules.lease import Lease, LeaseLostError
from dualwrite.coordinator.rules.recovery_decision import Outcome
from dualwrite.errors import KafkaUnavailableError

THREADS = 8
"""The most threads that call Kafka at the same time."""

_LOG = logging.getLogger("dualwrite")

Recoverer = Callable[[str], RecoveryParticipant]
"""Makes the RecoveryParticipant of a transactional id. For one thread at a time."""

Recoverers = Callable[[], AbstractContextManager[Recoverer]]
"""Makes a Recoverer that may be used until the block ends."""

_Step = Callable[[Lease], None]


class BulkRecovery:
    """One sweep over slots whose leases the caller holds. A context manager: it closes its connections.

    An error stops the recovery of its own slot only; after KafkaUnavailableError no further slot is begun.

    :param is_stopped: True once the rest is not wanted any more.
    :param observe: called before each step with its name, from several threads (see DualWrite's ``on_step``);
        RECOVER_LOCK is for all slots of a call.
    """

    def __init__(
        self,
        runtime: Runtime,
        store: DecisionStore,
        recoverers: Recoverers,
        is_stopped: Callable[[], bool],
        observe: Callable[[str], None],
    ) -> None:
        self.outcomes: dict[str, Outcome] = {}
        """The outcomes of the recovered slots, by transactional id."""
        self.errors: list[Exception] = []
        self._runtime = runtime
        self._store = store
        self._recoverers = recoverers
        self._is_stopped = is_stopped
        self._observe = observe
        self._has_ended = False
        self._opened = ExitStack()
        self._crew: list[Recoverer] = []
        self._recoverers_of: dict[Lease, Recoverer] = {}
        """The Recoverer of the thread that works on the lease."""

    def __enter__(self) -> "BulkRecovery":
        return self

    def __exit__(self, *_: object) -> None:
        self._has_ended = True
        self._opened.close()

    @property
    def is_over(self) -> bool:
        """True once no further slot should be taken."""
        return self._is_unwanted() or _is_out_of_reach(self.errors)

    def recover_without_producer(self, leases: Sequence[Lease]) -> None:
        """End the open transactions of ``leases``; ``outcomes`` and ``errors`` have the results."""
        if not leases:
            return
        recovery = Recovery(self._store, self._make, self, self._observe)
        held: Mapping[Lease, LockedStateRow] = {}
        try:
            with recovery.completed(self._store.locked_at_once(leases)) as held:
                recovery.close()
        except Exception as error:  # noqa: BLE001 - kept for the caller of the sweep
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
        # Another transaction has locked the rest: a dead owner's unit of work that has not ended in the database, or a
        # process that has taken over. Wait for it, for each row in a transaction of its own.
        others = [lease for lease in leases if lease not in held or lease in recovery.unclaimed]
        self._in_threads(others, self._recover_alone, 1 if self._store.one_writer else THREADS)

    def for_each(self, leases: Sequence[Lease], step: _Step) -> None:
        """Run ``step`` for each lease, see StepRunner. Each lease stays with the same thread for all steps: a
        RecoveryParticipant belongs to one thread."""
        self._in_threads(leases, step, THREADS)

    def taken_over(self, error: LeaseLostError) -> None:
        """Note that another process recovers the slot of ``error``; see StepRunner."""
        _LOG.info("%s: another process recovers it: %s", error.lease.transactional_id, error)

    def _is_unwanted(self) -> bool:
        return self._has_ended or self._is_stopped()

    def _make(self, lease: Lease) -> RecoveryParticipant:
        return self._recoverers_of[lease](lease.transactional_id)

    def _recover_alone(self, lease: Lease) -> None:
        make = functools.partial(self._make, lease)
        self._note(lease, recover_without_producer(self._store, lease, make, self._observe))

    def _note(self, lease: Lease, outcome: Outcome) -> None:
        self.outcomes[lease.transactional_id] = outcome
        if outcome is not Outcome.NOTHING:
            log_fields = {"outcome": outcome.value}
            message = "%s: outcome of recovery: %s"
            _LOG.info(message, lease.transactional_id, outcome.value, extra=log_fields)

    def _in_threads(self, leases: Sequence[Lease], step: _Step, most: int) -> None:
        """Run ``step`` for each lease, in up to ``most`` threads; the first is this one."""
        shares = [leases[first::most] for first in range(min(most, len(leases)))]
        while len(self._crew) < len(shares):
            self._crew.append(self._opened.enter_context(self._recoverers()))
        for share, recoverer in zip(shares, self._crew, strict=False):
            self._recoverers_of.update(dict.fromkeys(share, recoverer))
        before = len(self.errors)
        tasks = [functools.partial(self._work, share, step, before) for share in shares]
        # Not threads of a pool: those would keep a program from ending while Kafka does not answer.
        others = [
            TaskThread(self._runtime, functools.partial(self._store.in_thread, task), "dualwrite-sweep")
            for task in tasks[1:]
        ]
        try:
            for worker in others:
                worker.start()
            for task in tasks[:1]:
                task()
            for worker in others:
                while not worker.join(LOOK_INTERVAL):
                    pass
        except BaseException:
            # After an interrupt threads may be left. Next the locks are released, and then the leases: a thread that
            # began a step after that would fence the slot's next owner.
            self._has_ended = True
            raise

    def _work(self, share: Sequence[Lease], step: _Step, before: int) -> None:
        """Run ``step`` for a share of the leases. ``before``: number of errors of earlier steps, which do not stop this
        one, so that no slot is left half recovered."""
        for lease in share:
            if self._is_unwanted() or _is_out_of_reach(self.errors[before:]):
                return
            try:
                step(lease)
            except LeaseLostError as error:
                self.taken_over(error)
            except Exception as error:  # noqa: BLE001 - kept for the caller of the sweep
                self.errors.append(error)


def _is_out_of_reach(errors: Sequence[Exception]) -> bool:
    return any(
        isinstance(error, KafkaUnavailableError) and not isinstance(error, EndingNotCheckedError) for error in errors
    )
