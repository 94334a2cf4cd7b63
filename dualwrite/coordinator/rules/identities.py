"""Identities of the database that holds an application's decisions, and of its Kafka cluster.

A state row names the database that wrote it. In a copy of that database (a staging system made from production's
backup) the row names the original: only the original may act on the row's Kafka transaction, and a recovery in the copy
would abort transactions that the original has decided. So a copy does nothing in Kafka until an operator declares it.
"""

from collections.abc import Iterable
from typing import NamedTuple

from dualwrite.coordinator.rules.slot_rules import named
from dualwrite.errors import CopiedDatabaseError

WHAT_TO_DO = (
    "if the original is gone, run `dualwrite db moved --db URL --yes`; if this is a copy beside it, run `dualwrite db "
    "copied --db URL`. Until then nothing is done in Kafka"
)


class ClusterIdentity(NamedTuple):
    """A Kafka cluster as an application sees it.

    :param cluster_id: Kafka's cluster id; None if it is not known.
    :param log_directory: device and inode of the data directory of its only broker, if it is on this machine.
    """

    cluster_id: str | None = None
    log_directory: str | None = None

    def __str__(self) -> str:
        return f"{self.cluster_id or ''} {self.log_directory or ''}".strip()

    @classmethod
    def of(cls, text: str | None) -> "ClusterIdentity":
        """Parse the text that ``str()`` wrote."""
        cluster_id, _, log_directory = (text or "").partition(" ")
        return cls(cluster_id or None, log_directory or None)


UNKNOWN_CLUSTER = ClusterIdentity()


class TwoPartIdentity(NamedTuple):
    """An identity of the form ``kind:part:part:part``. Two of the parts are halves: if one of them changes, it is still
    the same database.

    :param kind: the first word of such identities.
    :param fixed_index: the index of the part that never changes.
    :param half_indexes: the indexes of the two halves.
    """

    kind: str
    fixed_index: int
    half_indexes: tuple[int, int]

    def matches(self, stored: str, current: str) -> bool:
        """True if both are of this form, and differ at most in one half."""
        kind, *old = stored.split(":", 3)
        other, *new = current.split(":", 3)
        if not kind == other == self.kind:
            return False
        if old[self.fixed_index] != new[self.fixed_index]:
            return False
        return any(old[index] == new[index] != "" for index in self.half_indexes)


class DatabaseIdentity(NamedTuple):
    """The database of a state table.

    :param database_id: distinguishes it from its copies, in a form of its dialect's (sql/dialects/); None if nothing
        does.
    :param id_suffix: suffix of the application's name in transactional ids; empty except in a declared copy.
    :param is_outdated: an operator declared it a copy, and one half of its identity has changed since; see
        :meth:`outdates`.
    :param form: the form of ``database_id``, if half of it may change.
    """

    database_id: str | None = None
    id_suffix: str = ""
    is_outdated: bool = False
    form: TwoPartIdentity | None = None

    def is_same_as(self, stored: str) -> bool:
        """True if ``stored`` names this database, perhaps before one half of its identity has changed."""
        current = self.database_id
        if current is None:
            return False
        return stored == current or (self.form is not None and self.form.matches(stored, current))

    def outdates(self, stored: str | None) -> bool:
        """True if ``stored`` names this database and one half has changed, so that ``stored`` must be replaced. If the
        other half changed next, ``stored`` could no longer identify the database."""
        current = self.database_id
        if stored is None or current is None or stored == current:
            return False
        return self.is_same_as(stored) and all(current.split(":", 3))

    def name_of(self, application: str) -> str:
        """The prefix of the transactional ids of ``application`` in this database."""
        if not self.id_suffix or application.endswith(f"-{self.id_suffix}"):
            return application
        return f"{application}-{self.id_suffix}"


class RowIdentity(NamedTuple):
    """The database that wrote a state row, and the cluster that it is for, according to the row."""

    transactional_id: str
    database_id: str | None
    cluster: ClusterIdentity


def has_moved_along(row: RowIdentity, cluster: ClusterIdentity) -> bool:
    """True if the cluster of ``row`` has moved, too: a SQLite file and its broker's directory were moved, or copied,
    together, so that the original's transactions cannot be reached."""
    before = row.cluster
    if before.cluster_id is None or before.cluster_id != cluster.cluster_id:
        return False
    return None not in (before.log_directory, cluster.log_directory) and before.log_directory != cluster.log_directory


def require_original(rows: Iterable[RowIdentity], current: DatabaseIdentity, cluster: ClusterIdentity) -> None:
    """Require that ``rows`` were written by this database, or by one that was moved here together with its broker.

    :raises CopiedDatabaseError: if not; it names some of the rows.
    """
    copied: dict[str, str] = {}
    for row in rows:
        if row.database_id is None or current.database_id is None or current.is_same_as(row.database_id):
            continue
        if not has_moved_along(row, cluster):
            copied[row.transactional_id] = row.database_id
    if not copied:
        return
    names, writers = list(copied), named(list(dict.fromkeys(copied.values())))
    were_written = (
        f"the state row of {names[0]!r} was written"
        if len(names) == 1
        else f"the state rows of {len(names):,} slots ({named(names)}) were written"
    )
    raise CopiedDatabaseError(
        f"{were_written} by the database {writers}, and this is {current.database_id}: {WHAT_TO_DO}"
    )
