"""Statements of a listener or of on_step between the end of the block and the COMMIT. After one that fails, a database
may roll back at the COMMIT without an error: the state row says whether it did."""

from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest
from sqlalchemy import Connection, Engine, create_engine, event, insert, make_url, text
from sqlalchemy.exc import DBAPIError

from dualwrite.coordinator.dual_write import DualWrite
from dualwrite.errors import InvalidTransactionStateError
from tests.support.coordinator.event_table import events, ready_engine, stored_values
from tests.support.coordinator.fake_kafka import FakeKafka
from tests.support.coordinator.usual_unit import in_both, write, write_unit

Make = Callable[..., DualWrite]
AGAIN = insert(events).values(value="one")
"""Fails in a unit after the first, as the value is there."""


@pytest.fixture(params=["psycopg", "psycopg2"])
def postgresql_engine(request: pytest.FixtureRequest, postgresql_url: str) -> Iterator[Engine]:
    ready_engine(postgresql_url).dispose()
    engine = create_engine(make_url(postgresql_url).set(drivername=f"postgresql+{request.param}"))
    yield engine
    engine.dispose()


def execute_in_vain(connection: Connection, statement: Any = AGAIN) -> None:
    with suppress(DBAPIError):
        connection.execute(statement)


def execute_in_a_savepoint(connection: Connection) -> None:
    with suppress(DBAPIError), connection.begin_nested():
        connection.execute(AGAIN)


def before_commits(engine: Engine, act: Callable[[Connection], None]) -> None:
    """Let a listener do ``act`` in each unit of :func:`run`, as one does that writes a trail of all transactions."""

    def listener(connection: Connection) -> None:
        if connection.info.pop("is_in_unit", False):
            act(connection)

    event.listen(engine, "commit", listener)


def run(dual_write: DualWrite, value: str) -> None:
    with dual_write.transaction() as tx:
        write(tx, value)
        tx.connection.info["is_in_unit"] = True


@pytest.mark.postgresql
def test_a_statement_of_a_listener_that_fails_before_the_commit_leaves_the_unit_on_neither_side(
    make_dual_write: Make, postgresql_engine: Engine, kafka: FakeKafka
) -> None:
    dual_write = make_dual_write(postgresql_engine)
    write_unit(dual_write, "one")
    before_commits(postgresql_engine, execute_in_vain)
    with pytest.raises(InvalidTransactionStateError, match=r"a statement of a listener .* failed just before the COM"):
        run(dual_write, "two")
    assert in_both(postgresql_engine, kafka, "one")
    write_unit(dual_write, "three")
    assert in_both(postgresql_engine, kafka, "one", "three")
    assert dual_write.outcomes() == []
    assert (dual_write.counters.committed, dual_write.counters.rolled_back) == (2, 1)


@pytest.mark.postgresql
def test_a_statement_of_on_step_that_fails_before_the_commit_leaves_the_unit_on_neither_side(
    make_dual_write: Make, postgresql_engine: Engine, kafka: FakeKafka
) -> None:
    connections: list[Connection] = []

    def on_step(step: str) -> None:
        if step == "COMMIT_DATABASE" and connections:
            execute_in_vain(connections.pop())

    dual_write = make_dual_write(postgresql_engine, on_step=on_step)
    write_unit(dual_write, "one")

    def write_two() -> None:
        with dual_write.transaction() as tx:
            write(tx, "two")
            connections.append(tx.connection)

    with pytest.raises(InvalidTransactionStateError, match="of on_step failed just before the COMMIT"):
        write_two()
    assert in_both(postgresql_engine, kafka, "one")


def test_a_statement_that_fails_in_a_savepoint_before_the_commit_harms_nothing(
    make_dual_write: Make, engine: Engine, kafka: FakeKafka
) -> None:
    dual_write = make_dual_write(engine)
    write_unit(dual_write, "one")
    before_commits(engine, execute_in_a_savepoint)
    run(dual_write, "two")
    assert in_both(engine, kafka, "one", "two")


@pytest.mark.parametrize(
    ("statement", "kept"),
    [
        ("INSERT INTO events (value) VALUES ('one')", ["two"]),
        ("INSERT OR ROLLBACK INTO events (value) VALUES ('one')", []),
    ],
    ids=["statement", "transaction"],
)
def test_the_row_says_what_an_error_before_the_commit_has_rolled_back(
    make_dual_write: Make, sqlite_engine: Engine, kafka: FakeKafka, statement: str, kept: list[str]
) -> None:
    dual_write = make_dual_write(sqlite_engine)
    write_unit(dual_write, "one")
    before_commits(sqlite_engine, lambda connection: execute_in_vain(connection, text(statement)))
    with suppress(InvalidTransactionStateError):
        run(dual_write, "two")
    assert in_both(sqlite_engine, kafka, "one", *kept)


def test_a_unit_without_records_has_no_row_to_read(
    make_dual_write: Make, sqlite_engine: Engine, kafka: FakeKafka
) -> None:
    dual_write = make_dual_write(sqlite_engine)
    write_unit(dual_write, "one")
    before_commits(sqlite_engine, execute_in_vain)
    with dual_write.transaction() as tx:
        tx.execute(insert(events).values(value="two"))
        tx.connection.info["is_in_unit"] = True
    assert (stored_values(sqlite_engine), kafka.committed) == (["one", "two"], ["one"])
    assert dual_write.counters.committed == 2
