"""The beginning of a unit's database transaction, repeated if the library's own heartbeat conflicts with it.

A transaction that is going to read a snapshot locks the state row first. The heartbeat may write the row between the
snapshot and the lock; the database then refuses the lock with a serialization failure (PostgreSQL's SQLSTATE 40001).
The user has done nothing in that transaction yet, so this module rolls it back and begins it again.
"""

import logging
from collections.abc import Callable

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from dualwrite.coordinator.concurrency.step_errors import database_error_of
from dualwrite.coordinator.rules.lease import Lease
from dualwrite.coordinator.sql.dialects.base import ErrorMeaning
from dualwrite.coordinator.sql.dialects.supported import database_of
from dualwrite.coordinator.sql.unit_bounds import begin_unit
from dualwrite.coordinator.unit.unit_transaction import UnitTransaction

_LOG = logging.getLogger("dualwrite")

ATTEMPTS = 5
"""The most transactions begun for one unit of work. Heartbeats are a third of ``lease_timeout`` apart."""


def begin_transaction(
    connection: Connection, make: Callable[[], UnitTransaction], lease: Lease | None, *, checked: bool
) -> None:
    """Begin the transaction of a unit of work; see :func:`begin_unit`.

    :param make: begins SQLAlchemy's transaction on ``connection``; called once per attempt.
    :raises DBAPIError: if the last of ATTEMPTS attempts met a serialization failure as well, or for any other error.
    """
    for attempt in range(1, ATTEMPTS + 1):
        transaction = make()
        try:
            begin_unit(connection, lease, checked=checked)
        except Exception as error:
            if attempt == ATTEMPTS or not _is_conflict(connection, database_error_of(error)):
                raise
            name = "" if lease is None else f"{lease.transactional_id}: "
            _LOG.debug("%sthe transaction is begun again: %s", name, getattr(error, "orig", error))
        else:
            return
        transaction.rollback()


def _is_conflict(connection: Connection, error: DBAPIError | None) -> bool:
    return error is not None and database_of(connection.dialect).meaning_of(error) is ErrorMeaning.CONFLICT
