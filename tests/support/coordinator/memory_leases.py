"""Leases in memory, with a clock that a test sets: several pools share it instead of a database."""

import threading
from collections.abc import Collection, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace

from dualwrite.coordinator.rules.identities import UNKNOWN_CLUSTER, ClusterIdentity
from dualwrite.coordinator.rules.lease import Lease, LeaseLostError
from dualwrite.coordinator.rules.slot_rules import Candidate, SlotRow, application_of


class MemoryLeases:
    """A Leases. ``locked`` rows are passed over, as those that a unit of work's COMMIT holds.
    ``is_moved``: the database is another one than at the last look."""

    def __init__(self) -> None:
        self.now = 0.0
        self.locked: set[str] = set()
        self.looks = 0
        self.rows_read = 0
        self.is_moved = False
        self._version = 0
        self._guard = threading.Lock()
        self._rows: dict[str, SlotRow] = {}
        self._ends: dict[str, float | None] = {}

    def row(self, name: str) -> SlotRow:
        """The row as it is now."""
        end = self._ends[name]
        return replace(self._rows[name], remaining=None if end is None else end - self.now)

    def owners(self) -> dict[str, str]:
        """Who holds what."""
        return {name: row.owner for name, row in self._rows.items()}

    def limited(self, seconds: float, name: str, setting: str) -> AbstractContextManager[object]:
        return nullcontext()

    def rows(self, application: str | None, cluster: ClusterIdentity = UNKNOWN_CLUSTER) -> list[SlotRow]:
        with self._guard:
            self.looks += application is not None
            wanted = [name for name in self._rows if (application or application_of(name)) == application_of(name)]
            self.rows_read += len(wanted)
            return [self.row(name) for name in wanted]

    def is_unchanged(self, cluster: ClusterIdentity) -> bool:
        return not self.is_moved

    def name_of(self, application: str) -> str:
        return application

    def take(self, candidates: Sequence[Candidate], owner: str, seconds: float, most: int) -> list[Lease]:
        with self._guard:
            taken: list[Lease] = []
            for candidate in candidates:
                name, token = candidate.row.transactional_id, candidate.row.fencing_token
                present = self._rows[name].fencing_token if name in self._rows else 0
                if len(taken) < most and name not in self.locked and present == token:
                    self._rows[name] = SlotRow(name, candidate.row.number, token + 1, owner)
                    self._ends[name] = self.now + seconds
                    taken.append(Lease(name, token + 1))
            return taken

    def renew(
        self, leases: Collection[Lease], owner: str, seconds: float, former: Collection[str] = ()
    ) -> list[LeaseLostError]:
        with self._guard:
            visible = [lease for lease in leases if lease.transactional_id not in self.locked]
            valid = [lease for lease in visible if self._is_valid(lease)]
            signed = [lease for lease in valid if self._rows[lease.transactional_id].owner == owner]
            for lease in signed:
                self._version += 1
                lease.memory.renews(self._version - 1, self._version)
                lease.memory.renewed(self._version)
                self._ends[lease.transactional_id] = self.now + seconds
            return [LeaseLostError(lease) for lease in visible if lease not in valid]

    def give_back(self, leases: Collection[Lease], *, finished: bool) -> None:
        with self._guard:
            for lease in leases:
                if self._is_valid(lease):
                    name = lease.transactional_id
                    self._ends[name] = None if finished else self.now
                    if finished:
                        self._rows[name] = replace(self._rows[name], owner="")

    def _is_valid(self, lease: Lease) -> bool:
        return self._rows[lease.transactional_id].fencing_token == lease.fencing_token
