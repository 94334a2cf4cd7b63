"""A trigger that keeps the state row as it is: the UPDATE succeeds, and no state is stored."""

import pytest
from sqlalchemy import Engine, select

from dualwrite.coordinator.rules.lease import Lease, LeaseLostError
from dualwrite.coordinator.sql.decision_store import SqlDecisionStore
from dualwrite.coordinator.sql.tables import kafka_transaction_state as table
from dualwrite.ids import PreparedTxnState, ProducerIdentity
from tests.support.coordinator.event_table import TakingStore, ready_engine

STATE = PreparedTxnState(ProducerIdentity(42, 7))

WITHOUT_A_STATE = {
    "sqlite": [
        f"CREATE TRIGGER keep BEFORE UPDATE OF prepared_txn_state ON {table.name} BEGIN SELECT RAISE(IGNORE); END"
    ],
    "postgresql": [
        "CREATE FUNCTION keep() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'",
        f"CREATE TRIGGER keep BEFORE UPDATE OF prepared_txn_state ON {table.name} FOR EACH ROW EXECUTE FUNCTION keep()",
    ],
}
"""By dialect, a trigger that keeps the row as it is, without an error."""


def take(engine: Engine) -> Lease:
    return TakingStore(engine).take_over("orders-0", "me")


@pytest.mark.parametrize("database", ["sqlite", pytest.param("postgresql", marks=pytest.mark.postgresql)])
def test_a_state_that_a_trigger_keeps_out_of_the_row_does_not_count_as_stored(
    database: str, request: pytest.FixtureRequest
) -> None:
    engine = ready_engine(request.getfixturevalue(f"{database}_url"))
    store, lease = SqlDecisionStore(engine), take(engine)
    with engine.begin() as connection:
        for statement in WITHOUT_A_STATE[database]:
            connection.exec_driver_sql(statement)
    with engine.connect() as connection, connection.begin(), pytest.raises(LeaseLostError, match="orders-0"):
        store.store(connection, lease, STATE)
    with engine.connect() as connection:
        assert connection.scalar(select(table.c.prepared_txn_state)) == ""
    engine.dispose()
