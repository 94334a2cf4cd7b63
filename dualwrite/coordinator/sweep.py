"""The sweep: recover what dead owners left, so that nobody's open transaction holds up consumers.

It takes every slot of the application whose owner is dead or silent, of whatever pool size, ends its transaction as the
database has decided, and gives the slot back. No producer is made for that: the verbs of recovery are enough.
"""

import logging
import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from dualwrite.client.control import ControlPlane
from dualwrite.coordinator.book import LeaseBook
from dualwrite.coordinator.kept import KeptTransaction
from dualwrite.coordinator.leasing import Candidate
from dualwrite.coordinator.participants import DecisionStore, Lease, LeaseLostError, Outcome
from dualwrite.coordinator.recovery import Recoverable, settle
from dualwrite.coordinator.slots import Counters
from dualwrite.errors import KafkaUnavailableError
from dualwrite.ids import PreparedTxnState

THREADS = 8
"""That recover at the same time, where the database lets more than one write."""

CHUNK = 100
"""Slots that are leased in one transaction: few enough to be recovered before their leases run out."""

_LOG = logging.getLogger("dualwrite")

Settlers = Callable[[], AbstractContextManager[Callable[[str], Recoverable]]]
"""For one thread: makes what recovers a transactional id, as often as is needed."""


class ControlRecovery:
    """The verbs of recovery without a producer, whichever wrote the transaction."""

    def __init__(self, control: ControlPlane, transactional_id: str) -> None:
        self._control = control
        self._transactional_id = transactional_id

    def init_transactions(self, keep_prepared_txn: bool = False) -> None:
        """See KafkaParticipant; only with ``keep_prepared_txn``."""
        assert keep_prepared_txn
        self._kept = KeptTransaction(self._control, self._transactional_id)

    def complete_transaction(self, state: PreparedTxnState) -> Outcome:
        """See KafkaParticipant."""
        return self._kept.complete(state)

    def close(self) -> None:
        """The control plane goes on to the next."""


@contextmanager
def by_control_plane(config: Any) -> Iterator[Callable[[str], Recoverable]]:
    """Recovers one transactional id after the other over the same connections."""
    control = ControlPlane(config)
    try:
        yield lambda transactional_id: ControlRecovery(control, transactional_id)
    finally:
        control.close()


class Sweeper:
    """Recovers the slots of dead owners: in the background when told to look, or now.

    :param settlers: of the Kafka side.
    :param observe: called with each step's name.
    """

    def __init__(
        self,
        book: LeaseBook,
        store: DecisionStore,
        settlers: Settlers,
        counters: Counters,
        observe: Callable[[str], None],
    ) -> None:
        self._book = book
        self._store = store
        self._settlers = settlers
        self._counters = counters
        self._observe = observe
        self._sweeping = threading.RLock()
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None

    def look(self, *, again: bool) -> None:
        """Begin a sweep in the background, if there is something to do and none is under way.

        :param again: read the rows again; else the last look will do.
        """
        if self._stopped.is_set() or (self._thread is not None and self._thread.is_alive()):
            return
        candidates = self._book.left_behind(again=again)
        if candidates:
            self._thread = threading.Thread(
                target=self._sweep_quietly, args=(candidates,), name="dualwrite-sweep", daemon=True
            )
            self._thread.start()

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Keep the background from sweeping until the block ends: what is found, is found by this thread."""
        with self._sweeping:
            yield

    def sweep(self) -> dict[str, Outcome]:
        """Recover all that is left behind or free, now; what was found, by transactional id.

        :raises KafkaUnavailableError: if Kafka does not answer, or whatever else kept a slot from being recovered; the
            others are recovered.
        """
        with self._sweeping:
            found, errors = self._recover_all(self._book.left_behind(free_too=True))
        if errors:
            raise errors[0]
        return found

    def stop(self, timeout: float) -> None:
        """Begin nothing new, and wait up to ``timeout`` seconds for what is under way."""
        self._stopped.set()
        if self._thread is not None:
            self._thread.join(timeout)

    def _sweep_quietly(self, candidates: Sequence[Candidate]) -> None:
        try:
            with self._sweeping:
                _, errors = self._recover_all(candidates)
        except Exception as error:  # noqa: BLE001 - logged, and tried again at the next beat
            errors = [error]
        for reason in errors:
            _LOG.warning("what a dead process left was not recovered: %s; trying again", reason)

    def _recover_all(self, candidates: Sequence[Candidate]) -> tuple[dict[str, Outcome], list[Exception]]:
        """Recover slots that are still as they were seen. Unavailability ends it; other errors cost one slot each."""
        found: dict[str, Outcome] = {}
        errors: list[Exception] = []
        for start in range(0, len(candidates), CHUNK):
            if self._is_over(errors):
                break
            leases = self._book.take(candidates[start : start + CHUNK])
            try:
                self._recover_chunk(leases, found, errors)
            finally:
                for finished in (True, False):
                    ended = [lease for lease in leases if (lease.transactional_id in found) is finished]
                    self._book.give_back(ended, finished=finished)
        return found, errors

    def _recover_chunk(self, leases: Sequence[Lease], found: dict[str, Outcome], errors: list[Exception]) -> None:
        todo: queue.SimpleQueue[Lease] = queue.SimpleQueue()
        for lease in leases:
            todo.put(lease)
        count = 1 if self._store.one_writer else min(THREADS, len(leases))
        # Not a pool's threads: those would keep a program from ending while Kafka does not answer.
        others = [
            threading.Thread(target=self._work, args=(todo, found, errors), name="dualwrite-sweep", daemon=True)
            for _ in range(count - 1)
        ]
        for thread in others:
            thread.start()
        self._work(todo, found, errors)
        for thread in others:
            thread.join()

    def _work(self, todo: "queue.SimpleQueue[Lease]", found: dict[str, Outcome], errors: list[Exception]) -> None:
        """One thread's part: recover one slot after the other until there is none."""
        with self._settlers() as recoverable:
            while not self._is_over(errors):
                try:
                    lease = todo.get_nowait()
                except queue.Empty:
                    return
                self._recover_one(lease, recoverable, found, errors)

    def _recover_one(
        self,
        lease: Lease,
        recoverable: Callable[[str], Recoverable],
        found: dict[str, Outcome],
        errors: list[Exception],
    ) -> None:
        name = lease.transactional_id
        try:
            outcome = settle(self._store, lease, recoverable(name), self._observe)
        except LeaseLostError as error:
            _LOG.info("%s: somebody else recovers it: %s", name, error)
        except Exception as error:  # noqa: BLE001 - kept for whoever asked for the sweep
            errors.append(error)
        else:
            found[name] = outcome
            self._counters.add("recoveries")
            if outcome is not Outcome.NOTHING:
                _LOG.info("%s: recovery found a transaction open: %s", name, outcome.value)

    def _is_over(self, errors: Sequence[Exception]) -> bool:
        """True once nobody wants it any more, or Kafka does not answer."""
        return self._stopped.is_set() or any(isinstance(error, KafkaUnavailableError) for error in errors)
