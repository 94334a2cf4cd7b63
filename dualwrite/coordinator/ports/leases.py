"""The leases of slots, as a Protocol. ``sql/lease_store.py`` implements it."""

from collections.abc import Collection, Sequence
from contextlib import AbstractContextManager
from typing import Protocol

from dualwrite.coordinator.rules.identities import UNKNOWN_CLUSTER, ClusterIdentity
from dualwrite.coordinator.rules.lease import Lease, LeaseLostError
from dualwrite.coordinator.rules.slot_rules import Candidate, SlotRow


class Leases(Protocol):
    """The leases in the state table. Each method runs one short transaction; times are the database's.

    :raises DatabaseNotReadyError: from every method but ``limited``, if there is no state table.
    """

    def limited(self, seconds: float, name: str, setting: str) -> AbstractContextManager[object]:
        """Give the database ``seconds`` for all that is asked of it in the ``with`` block; then a connection in use is
        cut.

        :param name: the limit's subject, for the log.
        :param setting: the setting that defines it, for the user.
        """

    def rows(self, application: str | None, cluster: ClusterIdentity = UNKNOWN_CLUSTER) -> list[SlotRow]:
        """The slots of ``application`` that have a row, or those of all applications for None; nothing is locked.

        :param cluster: the caller's Kafka cluster; leases taken from then on are for that cluster.
        :raises CopiedDatabaseError: if a row of ``application`` was written by another database.
        """

    def is_unchanged(self, cluster: ClusterIdentity) -> bool:
        """True if the database is the one that the last look at the rows of an application has seen, and if that look
        was for ``cluster``: what it has read may be used. Reads no row of a slot.

        :raises CopiedDatabaseError: as ``rows`` does.
        """

    def name_of(self, application: str) -> str:
        """The prefix of the transactional ids of ``application``; it has a suffix in a database that was declared a
        copy. As of the last look at the rows."""

    def take(self, candidates: Sequence[Candidate], owner: str, seconds: float, most: int) -> list[Lease]:
        """Take up to ``most`` of ``candidates``, in order: raise the fencing token, sign as ``owner``.

        Skips a candidate whose row is locked or has changed since it was read. After that, writes of the former owner
        match no row.
        """

    def renew(
        self, leases: Collection[Lease], owner: str, seconds: float, former: Collection[str] = ()
    ) -> list[LeaseLostError]:
        """Extend ``leases`` to ``seconds`` from now, each under a new version; return the errors of lost leases.

        :param former: earlier signatures of ``owner``; a lease under one of them is signed as ``owner`` now.

        Skips a row that is locked: no process can take it now. Also skips a row that ``owner`` no longer signs: the
        lease was transferred, and its new owner renews it.
        """

    def give_back(self, leases: Collection[Lease], *, finished: bool) -> None:
        """End those of ``leases`` that are valid. If ``finished``, the slots are free for any process; otherwise the
        leases expire at once, so that the next process to look recovers the slots."""
