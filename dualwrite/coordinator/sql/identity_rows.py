"""The database's identity, and an operator's declaration that it was moved or copied."""

import secrets
from typing import NamedTuple

from sqlalchemy import Connection, delete, insert, select, update

from dualwrite.coordinator.rules.identities import WHAT_TO_DO, DatabaseIdentity, is_outdated, is_same_database
from dualwrite.coordinator.sql.dialects.supported import database_of
from dualwrite.coordinator.sql.own_tables import ours, schema_of
from dualwrite.coordinator.sql.tables import dualwrite_database as databases
from dualwrite.coordinator.sql.tables import kafka_transaction_record as records
from dualwrite.coordinator.sql.tables import kafka_transaction_state as states
from dualwrite.errors import ConfigurationError, CopiedDatabaseError

WHAT_TO_GRANT = "GRANT EXECUTE ON FUNCTION pg_control_system() TO the user that the application logs in as"
"""The privilege that PostgreSQL needs to tell its identity. Other databases need none."""

_SUFFIX_BYTES = 4


def read_identity(connection: Connection) -> DatabaseIdentity:
    """The identity of the database of ``connection``.

    :raises CopiedDatabaseError: if this table declares another database a copy: this database is a copy of that one.
    """
    identity, declared = _identity(connection)
    if declared is not None:
        raise CopiedDatabaseError(
            f"this database is {identity.database_id}, and is a copy of {declared}, which was declared a copy itself: "
            f"{WHAT_TO_DO}"
        )
    return identity


def _identity(connection: Connection) -> tuple[DatabaseIdentity, str | None]:
    """The identity of the database, and the identity that its table declares a copy, if that is another one."""
    here = database_of(connection.dialect).identity(connection, schema_of(connection))
    declared = connection.execute(
        select(databases.c.database_id, databases.c.id_suffix), execution_options=ours(connection)
    ).all()
    if here is None:
        return DatabaseIdentity(None, declared[0].id_suffix if declared else ""), None
    for row in declared:
        if is_same_database(row.database_id, here):
            return DatabaseIdentity(here, row.id_suffix, is_outdated(row.database_id, here)), None
    return DatabaseIdentity(here), declared[0].database_id if declared else None


def keep_up_to_date(connection: Connection) -> None:
    """Rename this database to its current identity in all rows that it has written, or that declare it a copy.

    Rows that a unit of work has locked stay unchanged until the next call. The caller commits.
    """
    here, _ = _identity(connection)
    options = ours(connection)
    lock = database_of(connection.dialect).lock_at_once
    for table, key in ((states, states.c.transactional_id), (databases, databases.c.database_id)):
        stored = connection.execute(select(key, table.c.database_id), execution_options=options).all()
        for name, database_id in stored:
            one = key == name
            if is_outdated(database_id, here.database_id) and lock(connection, select(key).where(one), options):
                renamed = update(table).where(one, table.c.database_id == database_id)
                connection.execute(renamed.values(database_id=here.database_id), execution_options=options)


def declare_moved(connection: Connection) -> int:
    """Make this database the owner of the state rows; return their number. The caller commits.

    The database that wrote them is gone, and so is its cluster if this database uses another one.
    """
    here = _required(connection)
    options = ours(connection)
    changed = connection.execute(
        update(states).values(database_id=here.database_id, cluster_id=None), execution_options=options
    )
    connection.execute(update(databases).values(database_id=here.database_id), execution_options=options)
    return changed.rowcount


class DeclaredCopy(NamedTuple):
    """The result of :func:`declare_copied`.

    :param id_suffix: follows the application's name in transactional ids from now on.
    :param deleted: the number of deleted state rows, which were the original's.
    :param not_given_back: those transactional ids among them whose lease was not given back when the copy was made.
    """

    id_suffix: str
    deleted: int = 0
    not_given_back: tuple[str, ...] = ()


def declare_copied(connection: Connection, *, forced: bool) -> DeclaredCopy:
    """Declare this database a copy that is used beside its original. The caller commits.

    Deletes the state rows and the kept records, which are the original's, and gives transactional ids a suffix that no
    other database has. Heuristic outcomes stay on record.

    :param forced: even if the state rows name this database as their writer. They do so in a copy of all files of the
        original, which has the same identity.
    :raises ConfigurationError: if a state row names this database as its writer, and ``forced`` is False.
    """
    here = _required(connection)
    options = ours(connection)
    names = connection.scalars(select(states.c.database_id), execution_options=options).all()
    if here.id_suffix and all(name is not None and is_same_database(name, str(here.database_id)) for name in names):
        return DeclaredCopy(here.id_suffix)  # it was declared before
    for name, transactional_id in connection.execute(
        select(states.c.database_id, states.c.transactional_id).where(states.c.database_id.is_not(None)),
        execution_options=options,
    ):
        if is_same_database(name, str(here.database_id)) and not forced:
            raise ConfigurationError(
                f"this database has written the state row of {transactional_id!r} itself: it is no copy. If it is one "
                "of all files of the original, which calls itself the same, say --yes"
            )
    held = connection.scalars(
        select(states.c.transactional_id).where(states.c.owner != "").order_by(states.c.transactional_id),
        execution_options=options,
    ).all()
    for table in (records, states, databases):
        connection.execute(delete(table), execution_options=options)
    made = DeclaredCopy(secrets.token_hex(_SUFFIX_BYTES), len(names), tuple(held))
    now = database_of(connection.dialect).now()
    connection.execute(
        insert(databases).values(database_id=here.database_id, id_suffix=made.id_suffix, declared_at=now),
        execution_options=options,
    )
    return made


def _required(connection: Connection) -> DatabaseIdentity:
    here, _ = _identity(connection)
    if here.database_id is None:
        raise ConfigurationError(
            f"this database does not say which it is, so dualwrite takes it for the original: {WHAT_TO_GRANT}"
        )
    return here
