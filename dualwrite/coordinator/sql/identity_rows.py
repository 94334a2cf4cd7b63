"""Which database this is, and what an operator has said about it."""

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
"""What a PostgreSQL needs to say which it is; all other databases do."""

_SUFFIX_BYTES = 4


def read_identity(connection: Connection) -> DatabaseIdentity:
    """The identity of the database of ``connection``.

    :raises CopiedDatabaseError: if another database was declared a copy in this table: this one is a copy of that.
    """
    identity, declared = _identity(connection)
    if declared is not None:
        raise CopiedDatabaseError(
            f"this database is {identity.database_id}, and is a copy of {declared}, which was declared a copy itself: "
            f"{WHAT_TO_DO}"
        )
    return identity


def _identity(connection: Connection) -> tuple[DatabaseIdentity, str | None]:
    """The identity of the database, and the one that was declared a copy in its table if that is another."""
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
    """Let all rows that this database has written, or that declare it a copy, name it as it calls itself now.

    Rows that a unit of work has locked stay as they are until the next call. The caller commits.
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
    """The database that wrote the state rows is gone, and so is its cluster if this one is another: the rows are this
    database's from now on. Returns how many there are; the caller commits."""
    here = _required(connection)
    options = ours(connection)
    changed = connection.execute(
        update(states).values(database_id=here.database_id, cluster_id=None), execution_options=options
    )
    connection.execute(update(databases).values(database_id=here.database_id), execution_options=options)
    return changed.rowcount


class DeclaredCopy(NamedTuple):
    """What was done to a copy.

    :param id_suffix: of the application's name in transactional ids from now on.
    :param deleted: state rows that were the original's.
    :param not_given_back: the transactional ids among them whose owner had not given them back when the copy was made.
    """

    id_suffix: str
    deleted: int = 0
    not_given_back: tuple[str, ...] = ()


def declare_copied(connection: Connection, *, forced: bool) -> DeclaredCopy:
    """This database is a copy beside its original: the state rows and the kept records, which are the original's, are
    deleted, and transactional ids get a suffix that no other database has. The caller commits. Heuristic outcomes stay
    on record.

    :param forced: even if this database has written state rows itself, as a copy of all of its files has by its own
        account.
    :raises ConfigurationError: if it has, and ``forced`` is False.
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
