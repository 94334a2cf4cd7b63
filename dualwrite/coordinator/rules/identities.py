"""Which two worlds an application works in: the database that holds its decisions, and the Kafka cluster.

A state row says which database has written it. In a copy of that database (a staging system made from production's
backup) the row names another one: what it says of Kafka is the original's to act upon, and the first recovery in the
copy would abort what the original has decided. So a copy leaves Kafka alone until an operator says what it is.
"""

from collections.abc import Iterable
from typing import NamedTuple

from dualwrite.errors import CopiedDatabaseError

WHAT_TO_DO = (
    "if the original is gone, run `dualwrite db moved --db URL`; if this is a copy beside it, run `dualwrite db copied "
    "--db URL`. Until then nothing is done in Kafka"
)


class ClusterIdentity(NamedTuple):
    """A Kafka cluster as an application sees it.

    :param cluster_id: what it calls itself; None if that is not known.
    :param place: device and inode of its one broker's data directory, if that is a directory of this machine.
    """

    cluster_id: str | None = None
    place: str | None = None

    def __str__(self) -> str:
        return f"{self.cluster_id or ''} {self.place or ''}".strip()

    @classmethod
    def of(cls, text: str | None) -> "ClusterIdentity":
        """What ``str()`` wrote."""
        cluster_id, _, place = (text or "").partition(" ")
        return cls(cluster_id or None, place or None)


UNKNOWN_CLUSTER = ClusterIdentity()


class DatabaseIdentity(NamedTuple):
    """The database of a state table.

    :param database_id: what tells it from its copies, in words that its own room of databases/ chooses; None if
        nothing does.
    :param id_suffix: what follows the application's name in transactional ids; empty but in a declared copy.
    :param is_outdated: an operator declared it a copy when one half of its identity was another; see
        :func:`is_outdated`.
    """

    database_id: str | None = None
    id_suffix: str = ""
    is_outdated: bool = False

    def name_of(self, application: str) -> str:
        """``application`` as its transactional ids begin here."""
        if not self.id_suffix or application.endswith(f"-{self.id_suffix}"):
            return application
        return f"{application}-{self.id_suffix}"


class RowIdentity(NamedTuple):
    """Where a state row says that it was written, and for which cluster."""

    transactional_id: str
    database_id: str | None
    cluster: ClusterIdentity


def is_same_database(stored: str, here: str) -> bool:
    """True if both name one database.

    A SQLite file is the same by device and inode; and by inode and path, as some file systems get another device number
    at each mount. A schema of a MariaDB server is the same by the server or by the state table's creation: each may
    change while the other stays.
    """
    if stored == here:
        return True
    kind, *old = stored.split(":", 3)
    other, *new = here.split(":", 3)
    if kind == other == "sqlite":
        return old[1] == new[1] and (old[0] == new[0] or old[2] == new[2])
    if kind == other == "mariadb":
        return old[2] == new[2] and (old[0] == new[0] or old[1] == new[1] != "")
    return False


def is_outdated(stored: str | None, here: str | None) -> bool:
    """True if both name one database, and ``stored`` is to be replaced: one half has changed. If the other half changed
    next, nothing of ``stored`` would be left to know the database by."""
    if stored is None or here is None or stored == here:
        return False
    return is_same_database(stored, here) and all(here.split(":", 3))


def has_moved_along(row: RowIdentity, cluster: ClusterIdentity) -> bool:
    """True if the cluster of ``row`` has moved, too: a SQLite file and its broker's directory were moved, or copied,
    together, so that nobody else's transactions are in reach."""
    before = row.cluster
    if before.cluster_id is None or before.cluster_id != cluster.cluster_id:
        return False
    return before.place is not None and cluster.place is not None and before.place != cluster.place


def require_original(rows: Iterable[RowIdentity], here: DatabaseIdentity, cluster: ClusterIdentity) -> None:
    """Pass if ``rows`` were written by this database, or by one that has moved here together with its broker.

    :raises CopiedDatabaseError: naming a row that was not.
    """
    for row in rows:
        if row.database_id is None or here.database_id is None or is_same_database(row.database_id, here.database_id):
            continue
        if not has_moved_along(row, cluster):
            raise CopiedDatabaseError(
                f"the state row of {row.transactional_id!r} was written by the database {row.database_id}, and this is "
                f"{here.database_id}: {WHAT_TO_DO}"
            )
