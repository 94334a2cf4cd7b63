"""A trigger that keeps the state row as it is: each UPDATE succeeds, and changes nothing."""

from collections.abc import Iterator

import pytest
from sqlalchemy import Engine

from dualwrite.coordinator.rules.lease import LeaseLostError
from dualwrite.coordinator.rules.slot_rules import Candidate, SlotStatus
from dualwrite.coordinator.sql.lease_transfer import TransferredLeases
from dualwrite.coordinator.sql.tables import kafka_transaction_state as table
from dualwrite.ids import PreparedTxnState, ProducerIdentity
from tests.support.coordinator.event_table import TakingStore, ready_engine, slot_rows

ID = "orders-0"
STATE = PreparedTxnState(ProducerIdentity(42, 7))
PROTECTING = {
    "sqlite": [f"CREATE TRIGGER keep BEFORE UPDATE ON {table.name} BEGIN SELECT RAISE(IGNORE); END"],
    "postgresql": [
        "CREATE FUNCTION keep() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'",
        f"CREATE TRIGGER keep BEFORE UPDATE ON {table.name} FOR EACH ROW EXECUTE FUNCTION keep()",
    ],
}
"""By dialect, the statements that make the trigger; MariaDB's cannot do this without an error."""


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.postgresql)])
def engine(request: pytest.FixtureRequest) -> Iterator[Engine]:
    engine = ready_engine(request.getfixturevalue(f"{request.param}_url"))
    yield engine
    engine.dispose()


def protect_rows(engine: Engine) -> None:
    with engine.begin() as connection:
        for statement in PROTECTING[engine.dialect.name]:
            connection.exec_driver_sql(statement)


def test_a_state_that_is_not_in_the_row_does_not_count_as_stored(engine: Engine) -> None:
    store = TakingStore(engine)
    lease = store.take_over(ID, "me")
    protect_rows(engine)
    with engine.connect() as connection, connection.begin(), pytest.raises(LeaseLostError, match=ID):
        store.store(connection, lease, STATE)
    assert slot_rows(engine)[ID].prepared_txn_state == ""


def test_a_lease_that_is_not_in_the_row_does_not_count_as_taken(engine: Engine) -> None:
    store = TakingStore(engine)
    store.take_over(ID, "me")
    protect_rows(engine)
    (row,) = store.leases.rows("orders")
    assert store.leases.take([Candidate(row, SlotStatus.DEAD)], "heir", 30.0, most=1) == []
    assert slot_rows(engine)[ID].owner == "me"


def test_branches_whose_states_are_not_in_the_rows_are_not_decided(engine: Engine) -> None:
    store = TakingStore(engine)
    leases = [store.take_over(name, "me") for name in (ID, "orders-1")]
    protect_rows(engine)
    decided = [(lease, STATE) for lease in leases]
    with engine.connect() as connection, pytest.raises(LeaseLostError, match="stored 0 of 2 states"):
        TransferredLeases(engine).store_all(connection, decided, "me", 30.0)
    assert {row.prepared_txn_state for row in slot_rows(engine).values()} == {""}
