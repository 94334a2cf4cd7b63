"""What one DualWrite holds: the leases that its units of work use, and those under which it recovers others' slots."""

import logging
import threading
from collections.abc import Callable, Collection, Sequence
from weakref import WeakValueDictionary

from dualwrite.coordinator.leasing import Candidate, Onlooker, SlotRow, Standing, choose, left_behind
from dualwrite.coordinator.owners import describe, is_gone
from dualwrite.coordinator.participants import Lease, Leases

_LOG = logging.getLogger("dualwrite")


class LeaseBook:
    """The leases of one owner. Thread-safe.

    :param leases: of the database.
    :param application: whose slots they are.
    :param owner: how leases are signed (owners.py).
    :param timeout: seconds after which a lease runs out.
    """

    def __init__(self, leases: Leases, application: str, owner: str, timeout: float) -> None:
        self._leases = leases
        self._application = application
        self._owner = owner
        self._timeout = timeout
        # Held from a look at the rows until what was taken is noted, so that it is not thought abandoned.
        self._looking = threading.Lock()
        self._guard = threading.Lock()
        """Of _held, for a moment: a heartbeat does not wait for a look."""
        self._held: WeakValueDictionary[str, Lease] = WeakValueDictionary()
        """By transactional id, for as long as somebody has the lease in hand: whoever was interrupted between taking it
        and noting it holds nothing, and it is there to be taken again."""
        self.seen: Sequence[SlotRow] = ()
        """The rows as they were read last."""

    @property
    def owner(self) -> str:
        """How its leases are signed."""
        return self._owner

    def lease_one(self, pool_size: int, observe: Callable[[str], None]) -> Lease | None:
        """Lease a slot for a unit of work; None if none is to be had. It is to be recovered first."""
        with self._looking:
            self.seen = self._leases.rows(self._application)
            for candidate in choose(self._application, pool_size, self.seen, self._onlooker()):
                observe("RECOVER_TAKE_OVER")
                taken = self._take([candidate])
                if taken:
                    return taken[0]
        return None

    def left_behind(self, *, free_too: bool = False, again: bool = True) -> list[Candidate]:
        """What there is to recover, see leasing.py; by the last look at the rows, unless ``again``."""
        with self._looking:
            if again:
                self.seen = self._leases.rows(self._application)
            return left_behind(self.seen, self._onlooker(), free_too=free_too)

    def take(self, candidates: Sequence[Candidate]) -> list[Lease]:
        """Lease those of ``candidates`` that are as they were."""
        with self._looking:
            return self._take(candidates)

    def renew(self) -> list[Lease]:
        """Renew all; those that somebody else has taken are returned, and held no longer."""
        with self._guard:
            held = list(self._held.values())
        lost = self._leases.renew(held, self._owner, self._timeout) if held else []
        self.forget(lost)
        return lost

    def give_back(self, leases: Collection[Lease], *, finished: bool) -> None:
        """End ``leases``; see Leases. An error is logged: they run out by themselves."""
        if not leases:
            return
        try:
            self._leases.give_back(leases, finished=finished)
        except Exception as error:  # noqa: BLE001 - see above
            whose = {"application": self._application}
            _LOG.warning("%s: the leases were not given back: %s", self._application, error, extra=whose)
        self.forget(leases)

    def forget(self, leases: Collection[Lease]) -> None:
        """Hold ``leases`` no longer; what becomes of their rows is for whoever looks at them next."""
        with self._guard:
            for lease in leases:
                if self._held.get(lease.transactional_id) == lease:
                    del self._held[lease.transactional_id]

    def _take(self, candidates: Sequence[Candidate]) -> list[Lease]:
        taken = self._leases.take(candidates, self._owner, self._timeout, most=len(candidates))
        with self._guard:
            self._held.update({lease.transactional_id: lease for lease in taken})
        names = {lease.transactional_id for lease in taken}
        for candidate in candidates:
            row = candidate.row
            if row.transactional_id in names and candidate.standing is not Standing.FREE:
                _LOG.info(
                    "%s: taken over from %s: %s", row.transactional_id, describe(row.owner), candidate.standing.value
                )
        return taken

    def _onlooker(self) -> Onlooker:
        with self._guard:
            return Onlooker(self._owner, frozenset(self._held), is_gone)
