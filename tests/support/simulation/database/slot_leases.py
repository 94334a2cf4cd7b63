"""Leases over the database in memory; their clock is the scheduler's."""

from collections.abc import Collection, Sequence
from contextlib import AbstractContextManager, nullcontext

from dualwrite.coordinator.rules.identities import UNKNOWN_CLUSTER, ClusterIdentity
from dualwrite.coordinator.rules.lease import Lease, LeaseLostError, require_row
from dualwrite.coordinator.rules.slot_rules import (
    Candidate,
    SlotRow,
    SlotStatus,
    application_of,
    is_another,
    slot_number,
)
from dualwrite.ids import PreparedTxnState
from tests.support.simulation.database.memory_database import MemoryTransaction, StateRow
from tests.support.simulation.database.memory_store import MemoryStore, by_name

LEFT_ALONE, CHANGED_CLUSTER = "a slot was left to its cluster", "a slot changed its cluster"
_CERTAIN = (SlotStatus.DEAD, SlotStatus.ABANDONED)


class MemorySlotLeases:
    """Leases, for the process of ``store``."""

    def __init__(self, store: MemoryStore) -> None:
        self._store = store
        self._database = store.database
        self._cluster = UNKNOWN_CLUSTER
        """As of the last :meth:`rows`."""

    def limited(self, seconds: float, name: str, setting: str) -> AbstractContextManager[object]:
        return nullcontext()

    def rows(self, application: str | None, cluster: ClusterIdentity = UNKNOWN_CLUSTER) -> list[SlotRow]:
        self._database.call("rows")
        found = []
        for name, row in sorted(self._database.rows.items()):
            whose = application_of(name)
            if whose is not None and application in (None, whose):
                left = None if row.expires_at is None else row.expires_at - self._database.scheduler.now
                its_cluster = ClusterIdentity.of(row.cluster).cluster_id
                is_foreign = is_another(its_cluster, cluster.cluster_id)
                if row.owner and left is not None and left <= 0 and is_foreign:
                    self._database.happened(LEFT_ALONE)
                found.append(SlotRow(name, slot_number(whose, name) or 0, row.token, row.owner, left, its_cluster))
        if application is not None:
            self._cluster = cluster
        return found

    def is_unchanged(self, cluster: ClusterIdentity) -> bool:
        self._database.call("identity")
        return cluster == self._cluster

    def name_of(self, application: str) -> str:
        return application

    def take(self, candidates: Sequence[Candidate], owner: str, seconds: float, most: int) -> list[Lease]:
        taken: list[Lease] = []
        with self._store.transaction(f"take {[each.row.transactional_id for each in candidates]}") as transaction:
            for candidate in candidates:
                if len(taken) < most and transaction.lock(candidate.row.transactional_id, waits=False):
                    taken += self._taken(transaction, candidate, owner, seconds)
        return taken

    def _taken(self, transaction: MemoryTransaction, candidate: Candidate, owner: str, seconds: float) -> list[Lease]:
        name, now = candidate.row.transactional_id, self._database.scheduler.now
        row = transaction.read(name)
        if row is None:
            row = StateRow(0, 0, PreparedTxnState(), "", None, is_new=True)
        if (row.token, row.owner) != (candidate.row.fencing_token, candidate.row.owner):
            return []
        is_over = not row.owner or row.expires_at is None or row.expires_at <= now
        if not is_over and candidate.status not in _CERTAIN:
            return []
        is_from_another = is_another(ClusterIdentity.of(row.cluster).cluster_id, self._cluster.cluster_id)
        if is_from_another:
            self._database.happened(CHANGED_CLUSTER)
            transaction.leaves(name, row.state)
        version = next(self._database.versions)
        token = self._database.next_token(row.token)
        transaction.write(
            name,
            row._replace(
                token=token,
                version=version,
                owner=owner,
                expires_at=now + seconds,
                cluster=str(self._cluster) or row.cluster,
                is_new=is_from_another or row.is_new,
            ),
        )
        lease = Lease(name, token)
        lease.memory.renewed(version)
        lease.memory.is_new = is_from_another or row.is_new
        lease.memory.read(row.state)
        return [lease]

    def renew(
        self, leases: Collection[Lease], owner: str, seconds: float, former: Collection[str] = ()
    ) -> list[LeaseLostError]:
        lost: list[LeaseLostError] = []
        renewed: list[tuple[Lease, int]] = []
        with self._store.transaction("renew") as transaction:
            for lease in sorted(leases, key=by_name):
                since = lease.memory.since()
                if not transaction.lock(lease.transactional_id, waits=False):
                    continue
                row = transaction.read(lease.transactional_id)
                try:
                    require_row(lease, None if row is None else row.seen, since)
                except LeaseLostError as error:
                    lost.append(error)
                    continue
                assert row is not None
                version = next(self._database.versions)
                lease.memory.renews(row.version, version)
                ends = self._database.scheduler.now + seconds
                transaction.write(lease.transactional_id, row._replace(owner=owner, version=version, expires_at=ends))
                renewed.append((lease, version))
        for lease, version in renewed:
            lease.memory.renewed(version)
        return lost

    def give_back(self, leases: Collection[Lease], *, finished: bool) -> None:
        with self._store.transaction(f"give back, finished={finished}") as transaction:
            for lease in sorted(leases, key=by_name):
                transaction.lock(lease.transactional_id)
                row = transaction.read(lease.transactional_id)
                if row is not None and row.token == lease.fencing_token:
                    ended = row._replace(owner="", expires_at=None)
                    now = self._database.scheduler.now
                    transaction.write(lease.transactional_id, ended if finished else row._replace(expires_at=now))
