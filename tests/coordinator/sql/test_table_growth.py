"""What units of work cost PostgreSQL in the long run: no new pages, no new index entries, and few bytes of its log."""

import pytest
from sqlalchemy import Engine, text

from dualwrite.coordinator.sql.tables import kafka_transaction_state
from dualwrite.ids import PreparedTxnState, ProducerIdentity
from tests.support.coordinator.event_table import TakingStore, ready_engine
from tests.support.servers.postgresql import PostgreSQL
from tests.support.waiting import eventually

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


def turn_autovacuum_off(engine: Engine) -> None:
    """The snapshot of its ANALYZE, of a system's table too, keeps old versions of rows, on a busy machine for long."""
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.execute(text("ALTER SYSTEM SET autovacuum = off"))
        connection.execute(text("SELECT pg_reload_conf()"))
        assert eventually(lambda: connection.scalar(text("SHOW autovacuum")) == "off")


@pytest.mark.slow
@pytest.mark.postgresql
def test_ten_thousand_units_leave_the_state_table_as_small_as_it_was(own_postgresql: PostgreSQL) -> None:
    engine = ready_engine(own_postgresql.url, isolation_level="READ COMMITTED")
    turn_autovacuum_off(engine)
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
