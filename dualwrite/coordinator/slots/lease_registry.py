"""The leases that one DualWrite holds: those that its units of work use, and those for recovering other slots."""

import logging
from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager
from weakref import WeakValueDictionary

from dualwrite.coordinator.concurrency.step_errors import is_step_error
from dualwrite.coordinator.ports.leases import Leases
from dualwrite.coordinator.ports.runtime import Runtime
from dualwrite.coordinator.rules.identities import UNKNOWN_CLUSTER, ClusterIdentity
from dualwrite.coordinator.rules.lease import Lease, LeaseLostError
from dualwrite.coordinator.rules.slot_rules import (
    AbandonedApplication,
    Candidate,
    SlotObserver,
    SlotRow,
    SlotStatus,
    abandoned_applications,
    choose,
    describe_owner,
    left_in_another_cluster,
    slots_to_recover,
)
from dualwrite.coordinator.slots.free_slots import FreeSlots
from dualwrite.errors import CopiedDatabaseError

_LOG = logging.getLogger("dualwrite")

BEATS = 3
"""Renewals per ``lease_timeout``."""

_OVERDUE = 2 / BEATS
"""The part of ``lease_timeout`` after which a lease that was not renewed is overdue."""

_SHORTEST_LIMIT = 5.0
"""Minimum in seconds of the database's time limit, for short leases."""


class LeaseRegistry:
    """The leases of one owner. Thread-safe.

    :param leases: the leases in the database.
    :param application: the application that owns the slots.
    :param owner: the signature on leases (Runtime.new_owner).
    :param timeout: seconds after which a lease expires.
    :param cluster: returns the application's Kafka cluster; called before each look at the rows.
    """

    def __init__(
        self,
        runtime: Runtime,
        leases: Leases,
        application: str,
        owner: str,
        timeout: float,
        cluster: Callable[[], ClusterIdentity] = ClusterIdentity,
    ) -> None:
        self._runtime = runtime
        self._leases = leases
        self._application = application
        self._owner = owner
        self._timeout = timeout
        self._cluster = cluster
        self._has_warned = False
        self._former: tuple[str, ...] = ()
        """Its earlier signatures."""
        # A connection without an answer must not block the heartbeat until the leases have expired.
        self._patience = max(_SHORTEST_LIMIT, timeout / 3)
        # Held from a look at the rows until what was taken is noted, so that it is not thought abandoned.
        self._looking = runtime.lock()
        self._guard = runtime.lock()
        """Of _held, for a moment: a heartbeat does not wait for a look."""
        self._held: WeakValueDictionary[str, Lease] = WeakValueDictionary()
        """The leases by transactional id, as long as they are referenced: if an interrupt comes between taking a lease
        and noting it, the lease is not held and can be taken again."""
        self.seen: Sequence[SlotRow] = ()
        """The rows of the last look."""
        self._seen_in = UNKNOWN_CLUSTER
        """The cluster in use at that time."""
        self._free: FreeSlots | None = None
        """What that look found and no lease has tried yet, if a lease has looked last."""

    @property
    def owner(self) -> str:
        """The signature on its leases."""
        return self._owner

    @property
    def application(self) -> str:
        """The application that owns the slots."""
        return self._application

    @property
    def held(self) -> list[Lease]:
        """The leases that it holds and renews, in the order in which they were taken."""
        with self._guard:
            return list(self._held.values())

    def renew_signature(self) -> None:
        """Use another signature from now on: a copy of this process has the old one, and would regard the leases of
        this process as its own."""
        self._former = (*self._former, self._owner)
        self._owner = self._runtime.new_owner()

    def lease_one(self, pool_size: int, observe: Callable[[str], None]) -> Lease | None:
        """Lease a slot for a unit of work, which must recover it first; None if no slot is free."""
        taken: list[Lease] = []
        cluster = self._cluster()
        try:
            with self._looking, self._limit():
                free, lease = self._free, None
                if free is not None and free.suits(self._owner, cluster) and self._leases.is_unchanged(cluster):
                    lease = self._take_first(free.next_left, observe, taken)
                if lease is None:
                    lease = self._take_first(self._look_for_free(pool_size, cluster).next, observe, taken)
                return lease
        except BaseException:
            self.forget(taken)
            raise

    def _take_first(
        self, next_candidate: Callable[[], Candidate | None], observe: Callable[[str], None], taken: list[Lease]
    ) -> Lease | None:
        """Take the first slot that can be taken, and note it in ``taken``. No generator: an exception of a signal
        handler would be lost if it came while one is closed."""
        while (candidate := next_candidate()) is not None:
            observe("RECOVER_TAKE_OVER")
            taken[:] = self._take([candidate])
            if taken:
                return taken[0]
        return None

    def _look_for_free(self, pool_size: int, cluster: ClusterIdentity) -> FreeSlots:
        """The slots to try, the best first, by another look."""
        self._look(cluster)
        name, observer = self._leases.name_of(self._application), self._observer(cluster)
        candidates = choose(name, pool_size, self.seen, observer)
        self._free = free = FreeSlots(candidates, len(self.seen), observer.owner, cluster)
        return free

    def slots_to_recover(self, *, free_too: bool = False, again: bool = True) -> list[Candidate]:
        """The slots that need recovery, see slot_rules.py; reads the rows ``again``, or uses the last look."""
        cluster = self._cluster()
        with self._looking, self._limit():
            if again:
                self._look(cluster)
            observer = self._observer(cluster)
            self._warn_of_foreign(observer)
            return slots_to_recover(self.seen, observer, free_too=free_too)

    def may_need_recovery(self) -> bool:
        """True if the owner of a slot is gone: :meth:`slots_to_recover` may have it. False if it would have none, in
        whichever cluster; so this does not ask for the cluster."""
        with self._looking, self._limit():
            try:
                rows = self._leases.rows(self._application, self._seen_in)
            except CopiedDatabaseError:
                return True  # a SQLite file may have moved together with its broker, which only the cluster shows
            return bool(slots_to_recover(rows, self._observer()))

    def _warn_of_foreign(self, observer: SlotObserver) -> None:
        foreign = _foreign(self.seen, observer)
        if foreign and not self._has_warned:
            self._has_warned = True
            said = left_in_another_cluster(foreign, observer.cluster_id)
            _LOG.warning("%s: %s", self._application, said, extra={"application": self._application})

    def foreign(self) -> tuple[list[SlotRow], str | None]:
        """The slots that were left in another Kafka cluster, as of the last look; and the cluster in use."""
        return _foreign(self.seen, self._observer(self._seen_in)), self._seen_in.cluster_id

    def abandoned_elsewhere(self) -> list[AbandonedApplication]:
        """The other applications in the same table with slots that no process recovers."""
        return abandoned_applications(
            self._leases.rows(None), self._observer(), apart_from=self._leases.name_of(self._application)
        )

    def take(self, candidates: Sequence[Candidate]) -> list[Lease]:
        """Lease those of ``candidates`` that are unchanged."""
        with self._looking, self._limit():
            return self._take(candidates)

    def renew(self) -> list[LeaseLostError]:
        """Renew all leases; return the errors of lost leases, which are no longer held."""
        return self._renew(self.held)

    def is_overdue(self, lease: Lease) -> bool:
        """True if two heartbeats have not renewed ``lease``: they pass over a row that is locked."""
        return self._runtime.monotonic() > lease.memory.renewed_at + self._timeout * _OVERDUE

    def renew_overdue(self, lease: Lease) -> LeaseLostError | None:
        """Renew ``lease`` if it is overdue; return the error if it is lost. If the database fails, the lease stays as
        it is: the next unit of work finds out."""
        if not self.is_overdue(lease):
            return None
        try:
            lost = self._renew([lease])
        except Exception as error:
            if not is_step_error(error):
                raise
            whose = {"application": self._application}
            _LOG.warning("%s: the lease was not renewed: %s", lease.transactional_id, error, extra=whose)
            return None
        return next(iter(lost), None)

    def _renew(self, leases: Sequence[Lease]) -> list[LeaseLostError]:
        began = self._runtime.monotonic()
        versions = [lease.memory.versions for lease in leases]
        with self._limit():
            lost = self._leases.renew(leases, self._owner, self._timeout, self._former) if leases else []
        for lease, version in zip(leases, versions, strict=True):
            if lease.memory.versions != version:
                lease.memory.renewed_at = began
        self.forget([error.lease for error in lost])
        return lost

    def give_back(self, leases: Collection[Lease], *, finished: bool) -> None:
        """End ``leases``; see Leases. An error is only logged: the leases expire by themselves."""
        if not leases:
            return
        try:
            self._leases.give_back(leases, finished=finished)
        except Exception as error:
            if not is_step_error(error):
                raise
            whose = {"application": self._application}
            _LOG.warning("%s: the leases were not given back: %s", self._application, error, extra=whose)
        self.forget(leases)

    def forget(self, leases: Collection[Lease]) -> None:
        """Hold ``leases`` no longer; the next process that looks at their rows may take them."""
        with self._guard:
            for lease in leases:
                if self._held.get(lease.transactional_id) == lease:
                    del self._held[lease.transactional_id]

    def limited(self, seconds: float, setting: str) -> AbstractContextManager[object]:
        """Give the database ``seconds`` in the ``with`` block; see Leases.limited."""
        return self._leases.limited(seconds, self._application, setting)

    def _look(self, cluster: ClusterIdentity) -> None:
        self._free = None
        self.seen, self._seen_in = self._leases.rows(self._application, cluster), cluster

    def _limit(self) -> AbstractContextManager[object]:
        setting = f"a third of lease_timeout, at least {_SHORTEST_LIMIT:g} s"
        return self._leases.limited(self._patience, f"the leases of {self._application}", setting)

    def _take(self, candidates: Sequence[Candidate]) -> list[Lease]:
        began = self._runtime.monotonic()
        taken = self._leases.take(candidates, self._owner, self._timeout, most=len(candidates))
        for lease in taken:
            lease.memory.renewed_at = began
        try:
            with self._guard:
                self._held.update({lease.transactional_id: lease for lease in taken})
            self._log_taken(candidates, taken)
        except BaseException:
            self.forget(taken)  # the caller never gets them
            raise
        return taken

    @staticmethod
    def _log_taken(candidates: Sequence[Candidate], taken: Sequence[Lease]) -> None:
        names = {lease.transactional_id for lease in taken}
        for candidate in candidates:
            row = candidate.row
            if row.transactional_id in names and candidate.status is not SlotStatus.FREE:
                former = describe_owner(row.owner)
                _LOG.info("%s: taken over from %s: %s", row.transactional_id, former, candidate.status.value)

    def _observer(self, cluster: ClusterIdentity = UNKNOWN_CLUSTER) -> SlotObserver:
        with self._guard:
            return SlotObserver(self._owner, frozenset(self._held), self._runtime.is_gone, cluster.cluster_id)


def _foreign(rows: Sequence[SlotRow], observer: SlotObserver) -> list[SlotRow]:
    return [row for row in rows if observer.status(row) is SlotStatus.FOREIGN]
