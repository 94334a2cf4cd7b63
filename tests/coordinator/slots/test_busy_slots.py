"""A slot whose row is locked at each heartbeat keeps its lease: storing a state renews it, and so does the unit of work
that gets the slot when the heartbeat has missed it."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine, select, update

from dualwrite.coordinator.dual_write import DualWrite
from dualwrite.coordinator.manager.unit_manager import manager_of
from dualwrite.coordinator.sql.dialects.supported import database_of
from dualwrite.coordinator.sql.tables import kafka_transaction_state as table
from tests.support.coordinator.event_table import expire_leases, ready_engine, slot_rows
from tests.support.coordinator.usual_unit import write_unit

Make = Callable[..., DualWrite]
TIMEOUT = 600.0


def remaining(engine: Engine) -> float | None:
    """Seconds that the lease is still valid; None if it has no end."""
    with engine.connect() as connection:
        until = database_of(engine.dialect).seconds_until(table.c.lease_expires_at)
        seconds = connection.scalar(select(until))
    return None if seconds is None else float(seconds)


def shorten(engine: Engine, seconds: float) -> None:
    with engine.begin() as connection:
        connection.execute(update(table).values(lease_expires_at=database_of(engine.dialect).from_now(seconds)))


@pytest.fixture
def dual_write(make_dual_write: Make, engine: Engine) -> Iterator[DualWrite]:
    made = make_dual_write(engine, lease_timeout=TIMEOUT)
    write_unit(made, "first")
    yield made
    made.close()


def test_a_unit_renews_its_lease(dual_write: DualWrite, engine: Engine) -> None:
    shorten(engine, 60)
    write_unit(dual_write, "one")
    left = remaining(engine)
    assert left is not None
    assert TIMEOUT / 2 < left <= TIMEOUT


def test_a_lease_that_has_expired_is_not_renewed(dual_write: DualWrite, engine: Engine) -> None:
    """A process that waits for it may take it at once, as after close()."""
    expire_leases(engine)
    before = remaining(engine)
    write_unit(dual_write, "one")
    after = remaining(engine)
    assert (before is None, after is None) == (before is None, before is None)
    assert after is None or after <= 0


def test_a_lease_that_was_given_back_stays_free(dual_write: DualWrite, engine: Engine) -> None:
    """By close(), while a unit of another thread still runs."""
    with engine.begin() as connection:
        connection.execute(update(table).values(owner="", lease_expires_at=None))
    write_unit(dual_write, "one")
    (row,) = slot_rows(engine).values()
    assert (row.owner, row.lease_expires_at) == ("", None)


@pytest.mark.postgresql
@pytest.mark.parametrize("level", ["REPEATABLE READ", "SERIALIZABLE"])
def test_a_slot_that_is_locked_at_every_beat_is_kept(make_dual_write: Make, postgresql_url: str, level: Any) -> None:
    """At these levels a unit locks its row when it begins, and the heartbeat passes over it."""
    engine, other = ready_engine(postgresql_url, isolation_level=level), create_engine(postgresql_url)
    dual_write = make_dual_write(engine, lease_timeout=TIMEOUT)
    registry = manager_of(dual_write).process.pool.registry
    write_unit(dual_write, "first")
    for number in range(3):
        shorten(other, 60)
        with dual_write.transaction() as tx:
            tx.produce("events", str(number))
            assert registry.renew() == []
            assert (remaining(other) or 0) <= 60, "the row is locked"
        assert (remaining(other) or 0) > TIMEOUT / 2
    engine.dispose()
    other.dispose()


@pytest.mark.postgresql
@pytest.mark.parametrize("level", ["REPEATABLE READ", "SERIALIZABLE"])
def test_a_slot_that_only_units_without_records_use_is_kept(
    make_dual_write: Make, postgresql_url: str, level: Any
) -> None:
    engine, other = ready_engine(postgresql_url, isolation_level=level), create_engine(postgresql_url)
    dual_write = make_dual_write(engine, lease_timeout=TIMEOUT)
    pool = manager_of(dual_write).process.pool
    write_unit(dual_write, "first")
    (slot,) = pool.slots()
    for _ in range(3):
        shorten(other, 60)
        slot.lease.memory.renewed_at -= TIMEOUT
        with dual_write.transaction() as tx:
            tx.connection.exec_driver_sql("SELECT 1")
            assert (remaining(other) or 0) > TIMEOUT / 2
            version = slot.lease.memory.versions
            assert pool.registry.renew() == []
            assert slot.lease.memory.versions == version, "the row is locked"
    engine.dispose()
    other.dispose()


def test_a_unit_without_records_gets_another_slot_if_its_own_was_taken(make_dual_write: Make, engine: Engine) -> None:
    dual_write = make_dual_write(engine, lease_timeout=TIMEOUT, pool_size=2)
    write_unit(dual_write, "first")
    (slot,) = manager_of(dual_write).process.pool.slots()
    with engine.begin() as connection:
        connection.execute(update(table).values(fencing_token=table.c.fencing_token + 1, owner="another process"))
    slot.lease.memory.renewed_at -= TIMEOUT
    with dual_write.transaction() as tx:
        tx.connection.exec_driver_sql("SELECT 1")
    assert slot.is_fenced
    (used,) = manager_of(dual_write).process.pool.slots()
    assert used.transactional_id != slot.transactional_id
