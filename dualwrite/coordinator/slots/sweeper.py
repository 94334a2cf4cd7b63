"""The sweep: recover the slots of dead owners, so that their open transactions do not hold up consumers.

It takes every slot of the application whose owner is dead or silent, also beyond the pool size, ends its transaction as
the database has decided, and gives the slot back. It needs no producer for that, only the calls of recovery.
"""

import logging
from collections.abc import Callable, Collection, Sequence
from typing import Protocol

from dualwrite.coordinator.concurrency.step_errors import is_step_error
from dualwrite.coordinator.concurrency.waiting import Flag, TaskThread
from dualwrite.coordinator.ports.database import DecisionStore
from dualwrite.coordinator.ports.runtime import Runtime
from dualwrite.coordinator.recovery.bulk import BulkRecovery, Recoverers
from dualwrite.coordinator.rules.lease import Lease
from dualwrite.coordinator.rules.recovery_decision import Outcome
from dualwrite.coordinator.rules.slot_rules import Candidate
from dualwrite.coordinator.slots.lease_registry import LeaseRegistry
from dualwrite.coordinator.slots.slot import Counters
from dualwrite.coordinator.slots.usage import left_elsewhere

CHUNK = 100
"""Slots leased in one transaction: few enough to be recovered before their leases expire."""

_LOG = logging.getLogger("dualwrite")


class Repairs(Protocol):
    """Work on a slot beyond recovery: a replay, which needs a producer."""

    def due(self, leases: Collection[Lease]) -> Collection[Lease]:
        """Those of ``leases``, which are recovered, that need it."""

    def repair(self, lease: Lease) -> Outcome:
        """Repair the slot and return the outcome; raises if it fails."""


class Sweeper:
    """Recovers the slots of dead owners, at once or in the background.

    :param recoverers: makes the RecoveryParticipants for Kafka.
    :param observe: called with each step's name.
    :param repairs: further work on recovered slots.
    """

    def __init__(
        self,
        runtime: Runtime,
        registry: LeaseRegistry,
        store: DecisionStore,
        recoverers: Recoverers,
        counters: Counters,
        observe: Callable[[str], None],
        repairs: Repairs | None = None,
    ) -> None:
        self._runtime = runtime
        self._repairs = repairs
        self._registry = registry
        self._store = store
        self._recoverers = recoverers
        self._counters = counters
        self._observe = observe
        self.alone = runtime.reentrant_lock()
        """Held during a sweep: ``with sweeper.alone:`` excludes sweeps in the background."""
        self._stopped = Flag(runtime)
        self._candidates: Sequence[Candidate] = ()
        """The slots for the background to recover."""
        self._worker = TaskThread(runtime, lambda: store.in_thread(self._sweep_quietly), "dualwrite-sweep")
        self._has_looked = False

    def look(self, *, again: bool) -> None:
        """Begin a sweep in the background, if a slot needs it and no sweep is in progress. The first look also warns of
        other applications whose slots no process recovers.

        :param again: read the rows again; otherwise use the last look.
        """
        if not self._has_looked:
            self._has_looked = True
            self._warn_of_others()
        if self._stopped.is_set() or self._worker.is_running:
            return
        candidates = self._registry.slots_to_recover(again=again)
        if candidates:
            self._candidates = candidates
            self._worker.start()

    def sweep(self) -> dict[str, Outcome]:
        """Recover now all slots that are free or of dead owners; return the outcomes by transactional id.

        :raises KafkaUnavailableError: if Kafka does not answer. Any other error of a slot's recovery is raised as well,
            after the other slots are recovered.
        """
        outcomes, errors = self.attempt()
        if errors:
            raise errors[0]
        return outcomes

    def attempt(
        self, only: Collection[str] | None = None, *, free_too: bool = True
    ) -> tuple[dict[str, Outcome], list[Exception]]:
        """Like :meth:`sweep`, but return the errors beside the outcomes.

        :param only: these transactional ids, unless a process holds them; None for all.
        :param free_too: also slots that were given back.
        """
        with self.alone:
            candidates = self._registry.slots_to_recover(free_too=free_too)
            if only is not None:
                candidates = [candidate for candidate in candidates if candidate.row.transactional_id in only]
            return self._recover_all(candidates)

    def wait(self, timeout: float) -> bool:
        """Wait up to ``timeout`` seconds for the sweep in progress; True if there is none then."""
        return self._worker.join(timeout)

    def stop(self, timeout: float) -> None:
        """Begin no further slot, and wait up to ``timeout`` seconds for the sweep in progress."""
        self._stopped.set()
        self._worker.join(timeout)

    def _warn_of_others(self) -> None:
        """Warn of other applications that no process recovers: they were renamed, or removed, after a crash."""
        whose = {"application": self._registry.application}
        try:
            others = self._registry.abandoned_elsewhere()
        except Exception as error:  # only logged: it is not this process's task
            if not is_step_error(error):
                raise
            _LOG.info("the slots of other applications were not checked: %s", error, extra=whose)
            return
        if others:
            _LOG.warning("%s: %s", self._registry.application, left_elsewhere(others), extra=whose)

    def _sweep_quietly(self) -> None:
        try:
            with self.alone:
                _, errors = self._recover_all(self._unchanged_candidates())
        except Exception as error:  # noqa: BLE001 - logged, and tried again at the next beat
            errors = [error]
        for reason in errors:
            _LOG.warning("a dead process's slot was not recovered: %s; trying again at the next heartbeat", reason)

    def _unchanged_candidates(self) -> Sequence[Candidate]:
        """The slots for the background, without those that the sweep before this one has taken: look again."""
        seen = {_taking(candidate) for candidate in self._candidates}
        return [candidate for candidate in self._registry.slots_to_recover() if _taking(candidate) in seen]

    def _recover_all(self, candidates: Sequence[Candidate]) -> tuple[dict[str, Outcome], list[Exception]]:
        """Recover slots that are unchanged. KafkaUnavailableError ends the sweep; other errors end one slot each."""
        with BulkRecovery(
            self._runtime, self._store, self._recoverers, self._stopped.is_set, self._observe
        ) as recovery:
            for start in range(0, len(candidates), CHUNK):
                if recovery.is_over:
                    break
                leases = self._registry.take(candidates[start : start + CHUNK])
                try:
                    self._recover_chunk(recovery, leases)
                finally:
                    done = [lease for lease in leases if lease.transactional_id in recovery.outcomes]
                    self._registry.give_back(done, finished=True)
                    self._registry.give_back(set(leases).difference(done), finished=False)
        return recovery.outcomes, recovery.errors

    def _recover_chunk(self, recovery: BulkRecovery, leases: Sequence[Lease]) -> None:
        recovery.recover_without_producer(leases)
        done = [lease for lease in leases if lease.transactional_id in recovery.outcomes]
        self._counters.add("recoveries", len(done))
        self._counters.add("heuristic", sum(recovery.outcomes[lease.transactional_id].is_heuristic for lease in done))
        if self._repairs is not None and done:
            self._repair(self._repairs, done, recovery)

    def _repair(self, repairs: Repairs, done: Sequence[Lease], recovery: BulkRecovery) -> None:
        """Repair recovered slots. If that fails, the slot is left to the next sweep of any process."""
        left = list(done)
        try:
            left = list(repairs.due(done))
            while left:
                recovery.outcomes[left[-1].transactional_id] = repairs.repair(left[-1])
                left.pop()
        except Exception as error:  # noqa: BLE001 - kept for the caller of the sweep
            recovery.errors.append(error)
            for lease in left:
                del recovery.outcomes[lease.transactional_id]


def _taking(candidate: Candidate) -> tuple[str, int]:
    """The slot, and the token of the last process that has taken it."""
    return candidate.row.transactional_id, candidate.row.fencing_token
