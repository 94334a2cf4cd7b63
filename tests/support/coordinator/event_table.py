"""A user's table, beside the state table."""

import threading
import time
from collections.abc import Mapping
from datetime import datetime, timezone
from typing import Any

from sqlalchemy import Column, Engine, Integer, MetaData, String, Table, create_engine, event, inspect, select, update

from dualwrite.coordinator.rules.lease import Lease
from dualwrite.coordinator.rules.slot_rules import Candidate, SlotRow, SlotStatus
from dualwrite.coordinator.sql.decision_store import SqlDecisionStore
from dualwrite.coordinator.sql.lease_store import SqlLeases
from dualwrite.coordinator.sql.tables import VERSION_TABLE, kafka_transaction_state
from dualwrite.errors import DatabaseBusyError
from dualwrite.schema import upgrade_engine

HEAD = "0008"
"""The version of the tables that this release has."""

user_metadata = MetaData()
events = Table(
    "events",
    user_metadata,
    Column("id", Integer, primary_key=True),
    Column("value", String(100), nullable=False, unique=True),
)
CONFIG = {"bootstrap.servers": "nowhere:9092"}

_made_by: dict[str, list[tuple[str, Any]]] = {}
"""By dialect, the statements that made the tables in an empty database."""
NOW = datetime(2026, 1, 2, tzinfo=timezone.utc)
FREE: Mapping[str, Any] = {
    "transactional_id": "orders-0",
    "prepared_txn_state": "7:3",
    "fencing_token": 12,
    "owner": "",
    "updated_at": NOW,
}


def ready_engine(url: str, **options: Any) -> Engine:
    engine = create_engine(url, **options)
    make_tables(engine)
    user_metadata.create_all(engine)
    return engine


def refuse_inserts(engine: Engine, name: str) -> None:
    """Let SQLite refuse each new row of the table ``name``, as it does for a constraint."""
    with engine.begin() as connection:
        trigger = f"CREATE TRIGGER refuses BEFORE INSERT ON {name} BEGIN SELECT RAISE(ABORT, 'refused'); END"
        connection.exec_driver_sql(trigger)


def make_tables(engine: Engine) -> None:
    """As ``upgrade_engine`` does in an empty database, whose statements are run again without asking for what is there:
    most tests need the tables, and few how they came."""
    dialect = engine.dialect.name
    if inspect(engine).has_table(VERSION_TABLE):
        upgrade_engine(engine)
        return
    if dialect not in _made_by:
        _made_by[dialect] = statements_of_upgrade(engine)
        return
    with engine.begin() as connection:
        for statement, parameters in _made_by[dialect]:
            connection.exec_driver_sql(statement, parameters)


def statements_of_upgrade(engine: Engine) -> list[tuple[str, Any]]:
    """Make the tables, by an engine without the options of ``engine``; return the statements that did."""
    engine = create_engine(engine.url)
    said: list[tuple[str, Any]] = []

    def note(_: Any, __: Any, statement: str, parameters: Any, *___: Any) -> None:
        if statement.split(None, 1)[0] in ("CREATE", "ALTER", "INSERT", "UPDATE"):
            said.append((statement, parameters or None))

    event.listen(engine, "before_cursor_execute", note)
    upgrade_engine(engine)
    engine.dispose()
    return said


def stored_values(engine: Engine) -> list[str]:
    with engine.connect() as connection:
        return list(connection.scalars(select(events.c.value).order_by(events.c.id)))


class TakingStore(SqlDecisionStore):
    """A store that takes leases over whoever holds them, as if every owner were known to be dead.

    :param patience: seconds to go on trying while the row is locked or changes.
    """

    def __init__(self, engine: Engine, lock_timeout: float = 30.0, patience: float = 20.0) -> None:
        super().__init__(engine, lock_timeout)
        self.leases = SqlLeases(engine, self)
        self._patience = patience

    def take_over(self, transactional_id: str, owner: str) -> Lease:
        application, _, number = transactional_id.rpartition("-")
        deadline = time.monotonic() + self._patience
        while True:
            rows = [row for row in self.leases.rows(application) if row.transactional_id == transactional_id]
            row = rows[0] if rows else SlotRow(transactional_id, int(number))
            taken = self.leases.take([Candidate(row, SlotStatus.DEAD)], owner, 30.0, most=1)
            if taken:
                return taken[0]
            if time.monotonic() > deadline:
                raise DatabaseBusyError("the row is locked")
            time.sleep(0.005)


def await_sweeps() -> None:
    """Wait for the sweeps that closed DualWrites have begun: they still use the database and the cluster of a test."""
    for thread in threading.enumerate():
        if thread.name == "dualwrite-sweep":
            thread.join(20)


def is_closed(driver: Any, engine: Engine) -> bool:
    """True if the driver's connection cannot be used any more."""
    try:
        driver.cursor().execute("SELECT 1")
    except engine.dialect.loaded_dbapi.Error:
        return True
    driver.rollback()
    return False


def expire_leases(engine: Engine) -> None:
    """Every lease has run out: its owners are paused, or on a machine that is gone."""
    with engine.begin() as connection:
        past = datetime(2000, 1, 1, tzinfo=timezone.utc)
        connection.execute(update(kafka_transaction_state).values(lease_expires_at=past))


def slot_rows(engine: Engine) -> dict[str, Any]:
    """The rows of the state table by transactional id."""
    with engine.connect() as connection:
        return {row.transactional_id: row for row in connection.execute(select(kafka_transaction_state))}
