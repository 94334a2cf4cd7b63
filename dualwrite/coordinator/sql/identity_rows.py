"""The database's identity, and an operator's declaration that it was moved or copied."""

import secrets
from typing import NamedTuple

from sqlalchemy import Connection, delete, insert, select, update

from dualwrite.coordinator.rules.identities import WHAT_TO_DO, DatabaseIdentity
from dualwrite.coordinator.sql.dialects.supported import database_of
from dualwrite.coordinator.sql.own_tables import ours, schema_of
from dualwrite.coordinator.sql.tables import dualwrite_database as databases
from dualwrite.coordinator.sql.tables import kafka_transaction_record as records
from dualwrite.coordinator.sql.tables import kafka_transaction_state as states
from dualwrite.errors import ConfigurationError, CopiedDatabaseError

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
    """The identity of the database. Also the identity that its table declares a copy, if that is another database."""
    database = database_of(connection.dialect)
    identity = DatabaseIdentity(database.identity(connection, schema_of(connection)), form=database.halved_identity)
    declared = connection.execute(
        select(databases.c.database_id, databases.c.id_suffix), execution_options=ours(connection)
    ).all()
    if identity.database_id is None:
        return identity._replace(id_suffix=declared[0].id_suffix if declared else ""), None
    for row in declared:
        if identity.is_same_as(row.database_id):
            return identity._replace(id_suffix=row.id_suffix, is_outdated=identity.outdates(row.database_id)), None
    return identity, declared[0].database_id if declared else None


def keep_up_to_date(connection: Connection) -> None:
    """Rename this database to its current identity in all rows that it has written, or that declare it a copy.

    Rows that a unit of work has locked stay unchanged until the next call. The caller commits.
    """
    identity, _ = _identity(connection)
    options = ours(connection)
    lock = database_of(connection.dialect).lock_at_once
    for table, key in ((states, states.c.transactional_id), (databases, databases.c.database_id)):
        stored = connection.execute(select(key, table.c.database_id), execution_options=options).all()
        for name, database_id in stored:
            is_row = key == name
            if identity.outdates(database_id) and lock(connection, select(key).where(is_row), options):
                rename = update(table).where(is_row, table.c.database_id == database_id)
                connection.execute(rename.values(database_id=identity.database_id), execution_options=options)


def declare_moved(connection: Connection) -> int:
    """Make this database the owner of the state rows; return their number. The caller commits.

    The database that wrote them is gone, and so is its cluster if this database uses another one.
    """
    identity = _require_identity(connection)
    options = ours(connection)
    result = connection.execute(
        update(states).values(database_id=identity.database_id, cluster_id=None), execution_options=options
    )
    connection.execute(update(databases).values(database_id=identity.database_id), execution_options=options)
    return result.rowcount


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
    identity = _require_identity(connection)
    options = ours(connection)
    database_ids = connection.scalars(select(states.c.database_id), execution_options=options).all()
    if identity.id_suffix and all(name is not None and identity.is_same_as(name) for name in database_ids):
        return DeclaredCopy(identity.id_suffix)  # it was declared before
    for name, transactional_id in connection.execute(
        select(states.c.database_id, states.c.transactional_id).where(states.c.database_id.is_not(None)),
        execution_options=options,
    ):
        if identity.is_same_as(name) and not forced:
            raise ConfigurationError(
                f"this database has written the state row of {transactional_id!r} itself, so it does not look like a "
                "copy. A copy of all files of the original has the original's identity: if it is one, add --yes"
            )
    held_ids = connection.scalars(
        select(states.c.transactional_id).where(states.c.owner != "").order_by(states.c.transactional_id),
        execution_options=options,
    ).all()
    for table in (records, states, databases):
        connection.execute(delete(table), execution_options=options)
    declared = DeclaredCopy(secrets.token_hex(_SUFFIX_BYTES), len(database_ids), tuple(held_ids))
    now = database_of(connection.dialect).now()
    connection.execute(
        insert(databases).values(database_id=identity.database_id, id_suffix=declared.id_suffix, declared_at=now),
        execution_options=options,
    )
    return declared


def _require_identity(connection: Connection) -> DatabaseIdentity:
    identity, _ = _identity(connection)
    if identity.database_id is None:
        advice = database_of(connection.dialect).how_to_identify
        raise ConfigurationError(f"this database has no identity, so dualwrite takes it for the original: {advice}")
    return identity
