"""The statement by which a unit of work stores its state."""

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import ColumnElement, Connection, Dialect, Update, bindparam, case, func, null, or_, update

from dualwrite.coordinator.sql.dialects.base import Database
from dualwrite.coordinator.sql.fencing import is_under_token
from dualwrite.coordinator.sql.own_tables import PLAIN
from dualwrite.coordinator.sql.tables import kafka_transaction_state as table


def store_statement(database: Database, lease_timeout: float | None = None) -> Update:
    """The one statement that a unit of work costs: a compare-and-set.

    It finds the row of_id if that is still of_token's, has of_version or or_version (the lease is being renewed), and
    holds of_state with of_anchor ("" for none). It writes new_state, new_anchor and new_first_record, and that the row
    is not UNRECOVERED: the database may have forgotten the recovery that noted this.

    :param lease_timeout: seconds for which it also renews a lease that is valid; None not to. The heartbeat passes over
        locked rows, so it may miss a busy slot, whose units lock the row, again and again.
    """
    version = func.coalesce(table.c.lease_version, 0)
    expiry: dict[str, ColumnElement[Any]] = {}
    if lease_timeout is not None:
        is_valid = database.seconds_until(table.c.lease_expires_at) > 0
        renewed = database.from_now(lease_timeout)
        expiry["lease_expires_at"] = case((is_valid, renewed), else_=table.c.lease_expires_at)
    return (
        update(table)
        .where(is_under_token(bindparam("of_id"), bindparam("of_token")))
        .where(or_(version == bindparam("of_version"), version == bindparam("or_version")))
        .where(table.c.prepared_txn_state == bindparam("of_state"))
        .where(func.coalesce(table.c.anchor, "") == bindparam("of_anchor"))
        .where(*database.store_conditions())
        .values(
            prepared_txn_state=bindparam("new_state"),
            anchor=bindparam("new_anchor"),
            first_record=bindparam("new_first_record"),
            outcome=null(),
            updated_at=database.now(),
            **expiry,
        )
    )


class CompiledUpdate:
    """``statement`` as text for one dialect, its tables in ``schema``. Looking it up in SQLAlchemy's compiled cache
    would add half of its time.

    For columns whose values the driver takes as they are.
    """

    def __init__(self, statement: Update, dialect: Dialect, schema: str | None = None) -> None:
        names: dict[str, Any] = (
            {} if schema is None else {"schema_translate_map": {None: schema}, "render_schema_translate": True}
        )
        compiled = statement.compile(dialect=dialect, **names)
        self._text = str(compiled)
        self._constants = compiled.params
        self._order: Sequence[str] | None = getattr(compiled, "positiontup", None)

    def run(self, connection: Connection, values: Mapping[str, object]) -> int:
        """Execute it with the parameters ``values``; the number of rows that it found."""
        named = {**self._constants, **values}
        parameters = named if self._order is None else tuple([named[name] for name in self._order])
        return connection.exec_driver_sql(self._text, parameters, PLAIN).rowcount
