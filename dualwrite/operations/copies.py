"""Declares a database as moved or copied, for an operator, so that dualwrite may act in Kafka again."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sqlalchemy import Engine, select

from dualwrite.client.admin.cluster_client import DEFAULT_TIMEOUT
from dualwrite.coordinator.kafka.known_cluster import KnownCluster
from dualwrite.coordinator.rules.identities import (
    ClusterIdentity,
    DatabaseIdentity,
    RowIdentity,
    require_original,
)
from dualwrite.coordinator.sql.decision_store import SqlDecisionStore
from dualwrite.coordinator.sql.dialects.supported import database_of
from dualwrite.coordinator.sql.engine.error_meanings import clear_errors
from dualwrite.coordinator.sql.identity_rows import DeclaredCopy, declare_copied, declare_moved, read_identity
from dualwrite.coordinator.sql.own_tables import ours
from dualwrite.coordinator.sql.tables import kafka_transaction_state as table
from dualwrite.errors import CopiedDatabaseError


def moved(engine: Engine) -> int:
    """Declare that the original is gone. The state rows then belong to this database, and the next start recovers their
    Kafka transactions. Returns the number of rows.

    :raises ConfigurationError: if the database has no identity.
    :raises DatabaseNotReadyError: before ``dualwrite db upgrade``.
    """
    with SqlDecisionStore(engine).transaction(commit=True) as connection, clear_errors(engine):
        return declare_moved(connection)


def original_in_sight(engine: Engine) -> Path | None:
    """The original of this database, if the two are files in one directory: the file that has written a state row. None
    for a database on a server."""
    database = database_of(engine.dialect)
    if not database.is_file:
        return None
    with SqlDecisionStore(engine).connection() as connection, clear_errors(engine):
        here = DatabaseIdentity(database.identity(connection, None), form=database.halved_identity)
        written = connection.scalars(select(table.c.database_id), execution_options=ours(connection)).all()
        others = [name for name in written if name is not None and not here.is_same_as(name)]
        return database.file_beside(connection, others)


def require_no_copy(engine: Engine, kafka: Mapping[str, Any]) -> DatabaseIdentity:
    """Require that this database has written all of its state rows, or was moved together with its broker. Return its
    identity. A database without an identity passes.

    :raises CopiedDatabaseError: if another database has written a row. The message names some of the rows.
    :raises DatabaseNotReadyError: before ``dualwrite db upgrade``.
    :raises KafkaUnavailableError: if there is a row of another database, and Kafka does not answer.
    """
    columns = (table.c.transactional_id, table.c.database_id, table.c.cluster_id)
    with SqlDecisionStore(engine).connection() as connection, clear_errors(engine):
        here = read_identity(connection)
        rows = [
            RowIdentity(name, database_id, ClusterIdentity.of(cluster))
            for name, database_id, cluster in connection.execute(select(*columns), execution_options=ours(connection))
        ]
    is_file = database_of(engine.dialect).is_file
    others = [row for row in rows if row.database_id not in (None, here.database_id)]
    if others:
        require_original(
            others,
            here,
            KnownCluster(kafka, with_log_directory=True, timeout=DEFAULT_TIMEOUT)() if is_file else ClusterIdentity(),
        )
    return here


def reason_to_leave(engine: Engine, kafka: Mapping[str, Any]) -> str:
    """The reason why recovery does nothing in this database: it is a copy that no operator has declared. Empty if
    recovery works.

    :raises DatabaseNotReadyError: as :func:`require_no_copy`; also KafkaUnavailableError as there.
    """
    try:
        require_no_copy(engine, kafka)
    except CopiedDatabaseError as error:
        return str(error)
    return ""


def copied(engine: Engine, *, forced: bool = False) -> DeclaredCopy:
    """Declare a copy beside its original: delete the original's slots, and use new transactional ids. Sends no request
    to Kafka. A second call changes nothing.

    :param forced: even if this database has written state rows itself.
    :raises ConfigurationError: if the database has no identity; or if it has written rows, and ``forced`` is False.
    :raises DatabaseNotReadyError: before ``dualwrite db upgrade``.
    """
    with SqlDecisionStore(engine).transaction(commit=True) as connection, clear_errors(engine):
        return declare_copied(connection, forced=forced)
