"""DualWrite as its user meets it: what one unit of work does, and a database that ends its transaction by itself."""

from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import Engine, insert, select, text
from sqlalchemy.exc import IntegrityError

from dualwrite.coordinator.dual_write import DualWrite
from dualwrite.coordinator.sql.tables import kafka_transaction_state
from dualwrite.coordinator.unit.transaction import Transaction
from dualwrite.errors import InvalidTransactionStateError
from tests.support.coordinator.event_table import events, ready_engine, stored_values
from tests.support.coordinator.fake_kafka import FakeKafka
from tests.support.coordinator.usual_unit import EventModel, in_both, raising, run_unit, write, write_unit, writing

Make = Callable[..., DualWrite]


# The plain way.


def test_a_unit_of_work_is_in_both(dual_write: DualWrite, sqlite_engine: Engine, kafka: FakeKafka) -> None:
    write_unit(dual_write, "one")
    write_unit(dual_write, "two")
    assert in_both(sqlite_engine, kafka, "one", "two")
    assert (dual_write.counters.units, dual_write.counters.committed, dual_write.counters.recoveries) == (2, 2, 1)


@pytest.mark.postgresql
def test_a_unit_of_work_is_in_both_on_postgresql(make_dual_write: Make, postgresql_url: str, kafka: FakeKafka) -> None:
    engine = ready_engine(postgresql_url)
    write_unit(make_dual_write(engine), "one")
    assert in_both(engine, kafka, "one")
    engine.dispose()


def test_records_go_out_while_the_user_code_runs(dual_write: DualWrite, kafka: FakeKafka) -> None:
    with dual_write.transaction() as tx:
        tx.produce("events", "one")
        assert kafka.ongoing is not None
        assert kafka.ongoing.values == ["one"]


def test_produce_passes_everything_on(dual_write: DualWrite, kafka: FakeKafka) -> None:
    seen: list[Any] = []
    with dual_write.transaction() as tx:
        tx.produce("t", b"v", b"k", 3, 99, {"h": b"1"}, lambda error, message: seen.append((error, message)))
    assert seen == [(None, ("t", 3, 99, b"k", (("h", b"1"),)))]
    assert kafka.committed == ["v"]


def test_a_unit_that_produces_nothing_touches_neither_kafka_nor_the_row(
    dual_write: DualWrite, sqlite_engine: Engine, kafka: FakeKafka
) -> None:
    write_unit(dual_write, "one")
    before = list(kafka.requests)
    with sqlite_engine.connect() as connection:
        row = connection.execute(select(kafka_transaction_state)).one()
    with dual_write.transaction() as tx:
        tx.execute(insert(events).values(value="only here"))
    assert kafka.requests == before
    with sqlite_engine.connect() as connection:
        assert connection.execute(select(kafka_transaction_state)).one() == row
    assert stored_values(sqlite_engine) == ["one", "only here"]


def test_a_unit_that_only_produces_is_committed(dual_write: DualWrite, kafka: FakeKafka) -> None:
    with dual_write.transaction() as tx:
        tx.produce("events", "one")
    assert kafka.committed == ["one"]


def test_queries_see_the_units_own_writes(dual_write: DualWrite) -> None:
    with dual_write.transaction() as tx:
        write(tx, "one")
        assert tx.scalar(select(events.c.value)) == "one"
        assert tx.scalars(select(events.c.value)).all() == ["one"]
        tx.execute(insert(events), [{"value": "two"}, {"value": "three"}])
        assert len(tx.execute(select(events)).all()) == 3


def test_an_orm_session_is_in_the_same_transaction(
    dual_write: DualWrite, sqlite_engine: Engine, kafka: FakeKafka
) -> None:
    with dual_write.transaction() as tx:
        tx.session.add(EventModel(value="one"))  # flushed by the block's end, not before
        tx.produce("events", "one")
    with pytest.raises(ValueError, match="no"):
        run_unit(
            dual_write,
            lambda tx: tx.session.add(EventModel(value="two")),
            lambda tx: tx.session.flush(),
            lambda tx: tx.produce("events", "two"),
            raising(ValueError("no")),
        )
    assert in_both(sqlite_engine, kafka, "one")


def test_a_flush_that_fails_at_the_end_rolls_both_back(
    dual_write: DualWrite, sqlite_engine: Engine, kafka: FakeKafka
) -> None:
    write_unit(dual_write, "one")
    with pytest.raises(IntegrityError):
        run_unit(
            dual_write,
            lambda tx: tx.session.add(EventModel(value="one")),
            lambda tx: tx.produce("events", "again"),
        )
    assert in_both(sqlite_engine, kafka, "one")
    assert kafka.aborted == ["again"]


def test_savepoints_are_free_to_use(dual_write: DualWrite, sqlite_engine: Engine, kafka: FakeKafka) -> None:
    with dual_write.transaction() as tx:
        with tx.connection.begin_nested() as savepoint:
            tx.execute(insert(events).values(value="undone"))
            savepoint.rollback()
        with tx.connection.begin_nested():
            write(tx, "one")
    assert in_both(sqlite_engine, kafka, "one")


# The database ends the transaction by itself.


@pytest.mark.parametrize("goes_on", [False, True])
def test_a_transaction_that_sqlite_ended_in_the_block_is_rolled_back_on_both_sides(
    dual_write: DualWrite, sqlite_engine: Engine, kafka: FakeKafka, goes_on: bool
) -> None:
    write_unit(dual_write, "one")

    def give_up(tx: Transaction) -> None:
        with pytest.raises(IntegrityError):
            tx.execute(text("INSERT OR ROLLBACK INTO events (value) VALUES ('one')"))

    more = [writing("three")] if goes_on else []  # the driver begins another transaction then
    with pytest.raises(InvalidTransactionStateError, match="SQLite ended the transaction"):
        run_unit(dual_write, writing("two"), give_up, *more)
    assert in_both(sqlite_engine, kafka, "one")
    write_unit(dual_write, "four")
    assert in_both(sqlite_engine, kafka, "one", "four")


def test_the_error_after_a_commit_past_sqlalchemy_reports_rows_without_records(
    dual_write: DualWrite, sqlite_engine: Engine, kafka: FakeKafka
) -> None:
    write_unit(dual_write, "one")
    told = "after a commit it is in the database, without its records"
    with pytest.raises(InvalidTransactionStateError, match=told):
        run_unit(dual_write, writing("two"), lambda tx: tx.connection.connection.cursor().execute("COMMIT"))
    assert stored_values(sqlite_engine) == ["one", "two"]
    assert (kafka.committed, kafka.ongoing) == (["one"], None)


def test_a_savepoint_that_is_open_at_the_end_is_committed_with_the_unit(
    dual_write: DualWrite, sqlite_engine: Engine, kafka: FakeKafka
) -> None:
    run_unit(dual_write, lambda tx: tx.connection.begin_nested(), writing("one"))
    write_unit(dual_write, "two")
    assert in_both(sqlite_engine, kafka, "one", "two")


@pytest.mark.postgresql
@pytest.mark.parametrize("produces", [False, True])
def test_a_unit_that_caught_the_error_of_a_failed_statement_is_never_said_to_be_committed(
    make_dual_write: Make, postgresql_url: str, kafka: FakeKafka, produces: bool
) -> None:
    engine = ready_engine(postgresql_url)
    dual_write = make_dual_write(engine)

    def fail(tx: Transaction) -> None:
        with pytest.raises(IntegrityError):
            tx.execute(insert(events).values(value="one"))

    first = writing("one") if produces else lambda tx: tx.execute(insert(events).values(value="one"))
    with pytest.raises(InvalidTransactionStateError, match="PostgreSQL will roll all of it back"):
        run_unit(dual_write, first, fail)
    assert in_both(engine, kafka)
    assert dual_write.counters.rolled_back == 1
    engine.dispose()
