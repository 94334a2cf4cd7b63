"""The state table's rows for an operator: those of one application, or all."""

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any

from sqlalchemy import Engine, select
from sqlalchemy.exc import DBAPIError

from dualwrite.coordinator.process.owner import is_gone
from dualwrite.coordinator.process.this_process import THIS_PROCESS
from dualwrite.coordinator.rules.identities import ClusterIdentity
from dualwrite.coordinator.rules.slot_rules import SlotObserver, SlotRow, slot_number
from dualwrite.coordinator.sql.dialects.supported import database_of
from dualwrite.coordinator.sql.engine.error_meanings import clear_errors
from dualwrite.coordinator.sql.identity_rows import read_identity
from dualwrite.coordinator.sql.outcome_store import in_utc
from dualwrite.coordinator.sql.own_tables import ours
from dualwrite.coordinator.sql.row_types import moment_of, require_types
from dualwrite.coordinator.sql.state_row import is_of, state_of
from dualwrite.coordinator.sql.tables import UNRECOVERED
from dualwrite.coordinator.sql.tables import kafka_transaction_state as table
from dualwrite.errors import ConfigurationError
from dualwrite.operations.views import RowView

OBSERVER = SlotObserver(owner="", held=(), is_gone=is_gone)
"""SlotObserver of an observer, which holds no slots."""

_LOOKS, _PAUSE = 5, 0.02
"""A row is locked if it is at each of so many looks; and seconds between two."""


def state_rows(
    engine: Engine,
    *,
    application: str | None = None,
    transactional_ids: Collection[str] | None = None,
    cluster_id: str | None = None,
) -> dict[str, RowView]:
    """The rows by transactional id. Locks nothing.

    :param application: only the slots of this application; None for all.
    :param transactional_ids: only these; None for all.
    :param cluster_id: the Kafka cluster in use, if known. A slot with open work in another cluster is then FOREIGN.
    :raises DatabaseNotReadyError: if there is no state table.
    :raises ConfigurationError: if a row contains an invalid state, or a value of another type than its column. The
        message names the row.
    """
    database = database_of(engine.dialect)
    remaining = database.seconds_until(table.c.lease_expires_at).label("remaining")
    moment = database.exact_column(table.c.updated_at).label("updated_at")
    columns = [column for column in table.columns if column not in (table.c.updated_at, table.c.lease_expires_at)]
    query = select(*columns, moment, remaining).order_by(table.c.transactional_id)
    if application is not None:
        query = query.where(table.c.transactional_id.startswith(f"{application}-", autoescape=True))
    if transactional_ids is not None:
        query = query.where(table.c.transactional_id.in_(transactional_ids))
    with engine.connect() as connection, clear_errors(engine):
        records: Sequence[Any] = connection.execute(query, execution_options=ours(connection)).all()
    observer = replace(OBSERVER, cluster_id=cluster_id)
    rows = {}
    for row in records:
        name = row.transactional_id
        number = slot_number(name.rpartition("-")[0] if application is None else application, name)
        if number is None and application is not None:
            continue
        require_types(row)
        lease_seconds = None if row.remaining is None else float(row.remaining)
        cluster = ClusterIdentity.of(row.cluster_id).cluster_id
        slot = SlotRow(name, -1 if number is None else number, row.fencing_token, row.owner, lease_seconds, cluster)
        try:
            state = state_of(row)
        except ConfigurationError as error:
            raise ConfigurationError(f"row {name!r} of {table.name}: {error}") from None
        is_new = row.outcome == UNRECOVERED
        rows[name] = RowView(slot, observer.status(slot), state, in_utc(moment_of(row, "updated_at")), is_new)
    return rows


def slot_prefix(engine: Engine, application: str) -> str:
    """The name that the transactional ids of ``application`` begin with in this database. A declared copy adds to it.

    :raises CopiedDatabaseError: in an undeclared copy of a declared one.
    :raises DatabaseNotReadyError: before ``dualwrite db upgrade``.
    """
    with engine.connect() as connection, clear_errors(engine):
        return read_identity(connection).name_of(application)


def locked_rows(engine: Engine, transactional_ids: Collection[str]) -> set[str]:
    """Those of ``transactional_ids`` whose rows another database transaction has locked.

    A process that was killed in its COMMIT leaves such a transaction: the server may finish it minutes later. Each look
    locks the row for a moment, and waits for no lock. Empty if this login or this database may not lock rows, as a
    replica, and on SQLite, whose locks end with their process.
    """
    locked = set(transactional_ids)
    for number in range(_LOOKS):
        if number and locked:  # another process may have looked at the same moment
            THIS_PROCESS.sleep(_PAUSE)
        locked = {name for name in locked if _is_locked(engine, name)}
    return locked


def _is_locked(engine: Engine, name: str) -> bool:
    row = select(table.c.transactional_id).where(is_of(name))
    with engine.connect() as connection:
        options = ours(connection)
        try:
            free = database_of(engine.dialect).lock_at_once(connection, row, options)
            return not free and bool(connection.execute(row, execution_options=options).all())
        except DBAPIError:  # the login has SELECT only, which suffices for a list
            return False


def is_refused(engine: Engine, error: DBAPIError) -> bool:
    """True if the database has refused a statement, as for want of a right; False if it was lost, or is in a trouble
    that may pass."""
    return not error.connection_invalidated and database_of(engine.dialect).meaning_of(error) is None
