"""What units of work cost PostgreSQL in the long run: no new pages, no new index entries, and few bytes of its log."""

import pytest
from sqlalchemy import Engine, text

from dualwrite.coordinator.sql.tables import kafka_transaction_state
from dualwrite.ids import PreparedTxnState, ProducerIdentity
from tests.support.coordinator.event_table import TakingStore, ready_engine

UNITS = 10_000
SLOTS = 10


def sizes(engine: Engine) -> tuple[int, int]:
    """Bytes of the state table and of its index."""
    name = kafka_transaction_state.name
    with engine.connect() as connection:
        row = connection.execute(text(f"SELECT pg_relation_size('{name}'), pg_relation_size('{name}_pkey')")).one()
        return row[0], row[1]


def updates(engine: Engine) -> tuple[int, int]:
    """Updates of rows so far, and how many of them were heap-only."""
    with engine.connect() as connection:
        connection.execute(text("SELECT pg_stat_force_next_flush()"))
        connection.commit()  # a backend reports after its transaction
        row = connection.execute(
            text("SELECT n_tup_upd, n_tup_hot_upd FROM pg_stat_user_tables WHERE relname = :name"),
            {"name": kafka_transaction_state.name},
        ).one()
        return row[0], row[1]


def log_position(engine: Engine) -> int:
    with engine.connect() as connection:
        return int(connection.scalar(text("SELECT pg_current_wal_lsn() - '0/0'")) or 0)


@pytest.mark.slow
@pytest.mark.postgresql
def test_ten_thousand_units_leave_the_state_table_as_small_as_it_was(postgresql_url: str) -> None:
    engine = ready_engine(postgresql_url, isolation_level="READ COMMITTED")
    with engine.begin() as connection:
        # The snapshot of its ANALYZE keeps old versions of rows, on a busy machine for long.
        connection.execute(text(f"ALTER TABLE {kafka_transaction_state.name} SET (autovacuum_enabled = off)"))
    store = TakingStore(engine)
    leases = [store.take_over(f"orders-{slot}", "host.example.com:4711") for slot in range(SLOTS)]
    size, began, (all_before, hot_before) = sizes(engine), log_position(engine), updates(engine)
    with engine.connect() as connection:
        for unit in range(UNITS):
            lease = leases[unit % SLOTS]
            with connection.begin():
                store.store(connection, lease, PreparedTxnState(ProducerIdentity(4711, unit % 30_000)))
            lease.memory.committed()
    all_after, hot_after = updates(engine)
    assert sizes(engine) == size
    assert hot_after - hot_before == all_after - all_before == UNITS
    assert (log_position(engine) - began) / UNITS < 400  # about 165, the commit included
    engine.dispose()
