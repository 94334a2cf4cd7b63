"""What a listener or on_step does between the end of the block and the COMMIT. After a statement that fails, a database
may roll back at the COMMIT without an error; and a listener may end the transaction past SQLAlchemy, by the driver. The
state row says what was committed."""

from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection, Engine, create_engine, event, insert, make_url, text
from sqlalchemy.exc import DBAPIError

from dualwrite.coordinator.dual_write import DualWrite
from dualwrite.errors import InvalidTransactionStateError
from tests.support.coordinator.event_table import events, ready_engine, stored_values
from tests.support.coordinator.fake_kafka import FakeKafka
from tests.support.coordinator.usual_unit import in_both, write, write_unit
from tests.support.servers.databases import EVERY, url_of

Make = Callable[..., DualWrite]
AGAIN = insert(events).values(value="one")
"""Fails in a unit after the first, as the value is there."""


@pytest.fixture(params=["psycopg", "psycopg2"])
def postgresql_engine(request: pytest.FixtureRequest, postgresql_url: str) -> Iterator[Engine]:
    ready_engine(postgresql_url).dispose()
    engine = create_engine(make_url(postgresql_url).set(drivername=f"postgresql+{request.param}"))
    yield engine
    engine.dispose()


@pytest.fixture(params=EVERY)
def every_engine(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Engine]:
    engine = ready_engine(url_of(request, tmp_path))
    yield engine
    engine.dispose()


def execute_in_vain(connection: Connection, statement: Any = AGAIN) -> None:
    with suppress(DBAPIError):
        connection.execute(statement)


def execute_in_a_savepoint(connection: Connection) -> None:
    with suppress(DBAPIError), connection.begin_nested():
        connection.execute(AGAIN)


def fail_past_sqlalchemy(connection: Connection) -> None:
    """On the driver's own cursor."""
    cursor = connection.connection.cursor()
    with suppress(Exception):
        cursor.execute("INSERT INTO events (value) VALUES ('one')")
    cursor.close()


def roll_back_past_sqlalchemy(connection: Connection) -> None:
    connection.connection.rollback()


def begin_again_past_sqlalchemy(connection: Connection) -> None:
    """The driver then has a transaction, which is another one."""
    connection.connection.rollback()
    cursor = connection.connection.cursor()
    cursor.execute("INSERT INTO events (value) VALUES ('trail')")
    cursor.close()


def commit_past_sqlalchemy(connection: Connection) -> None:
    connection.connection.commit()


def nothing(connection: Connection) -> None:
    """A listener that counts, for example."""


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
@pytest.mark.parametrize(
    ("act", "message", "cause"),
    [
        (execute_in_vain, r"a `commit` listener.* \(UniqueViolation", "UniqueViolation"),
        (fail_past_sqlalchemy, "a `commit` listener", "NoneType"),
    ],
)
def test_a_statement_of_a_listener_that_fails_before_the_commit_leaves_the_unit_on_neither_side(
    make_dual_write: Make,
    postgresql_engine: Engine,
    kafka: FakeKafka,
    act: Callable[[Connection], None],
    message: str,
    cause: str,
) -> None:
    dual_write = make_dual_write(postgresql_engine)
    write_unit(dual_write, "one")
    before_commits(postgresql_engine, act)
    with pytest.raises(InvalidTransactionStateError, match=message) as raised:
        run(dual_write, "two")
    assert type(raised.value.__cause__).__name__ == cause
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

    with pytest.raises(InvalidTransactionStateError, match=r"or on_step .* \(UniqueViolation"):
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


@pytest.mark.parametrize(
    ("act", "kept"),
    [
        (roll_back_past_sqlalchemy, ["one"]),
        (begin_again_past_sqlalchemy, ["one", "trail"]),
    ],
    ids=["rollback", "and-begin"],
)
def test_a_transaction_that_a_listener_ends_past_sqlalchemy_leaves_the_unit_on_neither_side(
    make_dual_write: Make, every_engine: Engine, kafka: FakeKafka, act: Callable[[Connection], None], kept: list[str]
) -> None:
    dual_write = make_dual_write(every_engine)
    write_unit(dual_write, "one")
    before_commits(every_engine, act)
    with pytest.raises(InvalidTransactionStateError, match="a `commit` listener"):
        run(dual_write, "two")
    assert stored_values(every_engine) == kept
    assert (kafka.committed, kafka.ongoing) == (["one"], None)
    write_unit(dual_write, "three")
    assert kafka.committed == ["one", "three"]
    assert stored_values(every_engine) == [*kept, "three"]
    assert (dual_write.counters.committed, dual_write.counters.rolled_back) == (2, 1)


@pytest.mark.parametrize("act", [fail_past_sqlalchemy, commit_past_sqlalchemy, nothing])
def test_a_listener_that_keeps_the_row_keeps_the_unit(
    make_dual_write: Make, every_engine: Engine, kafka: FakeKafka, act: Callable[[Connection], None]
) -> None:
    if act is fail_past_sqlalchemy and every_engine.dialect.name == "postgresql":
        pytest.skip("PostgreSQL rolls back")
    dual_write = make_dual_write(every_engine)
    write_unit(dual_write, "one")
    before_commits(every_engine, act)
    connected: list[object] = []
    event.listen(every_engine, "connect", lambda *_: connected.append(1))
    heard: list[str] = []
    event.listen(every_engine, "begin", lambda _: heard.append("begin"))
    event.listen(every_engine, "rollback", lambda _: heard.append("rollback"))
    run(dual_write, "two")
    assert heard == ["begin"]
    assert in_both(every_engine, kafka, "one", "two")
    assert dual_write.counters.committed == 2
    assert not connected, "the unit's connection has read the row"


@pytest.mark.parametrize("where", ["copy", "class", "connection"])
def test_a_listener_is_found_wherever_it_listens(
    make_dual_write: Make, sqlite_engine: Engine, kafka: FakeKafka, where: str
) -> None:
    dual_write = make_dual_write(sqlite_engine.execution_options(of="a copy"))
    places: dict[str, Any] = {"copy": sqlite_engine, "class": Engine}

    def write_one() -> None:
        with dual_write.transaction() as tx:
            write(tx, "one")
            event.listen(places.get(where, tx.connection), "commit", roll_back_past_sqlalchemy)

    try:
        with pytest.raises(InvalidTransactionStateError, match="a `commit` listener"):
            write_one()
    finally:
        if where == "class":
            event.remove(Engine, "commit", roll_back_past_sqlalchemy)
    assert in_both(sqlite_engine, kafka)


def test_a_pool_of_one_connection_is_enough_to_read_the_row(
    make_dual_write: Make, sqlite_url: str, kafka: FakeKafka
) -> None:
    engine = ready_engine(sqlite_url, pool_size=1, max_overflow=0, pool_timeout=5)
    dual_write = make_dual_write(engine)
    before_commits(engine, roll_back_past_sqlalchemy)
    with pytest.raises(InvalidTransactionStateError, match="a `commit` listener"):
        run(dual_write, "one")
    write_unit(dual_write, "two")
    assert in_both(engine, kafka, "two")
    engine.dispose()


@pytest.mark.parametrize("act", [roll_back_past_sqlalchemy, fail_past_sqlalchemy])
@pytest.mark.parametrize("where", ["on_step", "statement"])
def test_what_ends_the_transaction_after_the_state_was_stored_is_found(
    make_dual_write: Make, every_engine: Engine, kafka: FakeKafka, act: Callable[[Connection], None], where: str
) -> None:
    """By on_step, or by a listener that looks at each statement's plan on the driver's own cursor."""
    connections: list[Connection] = []

    def on_step(step: str) -> None:
        if step == "COMMIT_DATABASE" and where == "on_step" and connections:
            act(connections.pop())

    def after_statement(connection: Connection, _: Any, statement: str, *__: Any) -> None:
        if where == "statement" and connections and statement.startswith("UPDATE"):
            act(connections.pop())

    def write_two() -> None:
        with dual_write.transaction() as tx:
            write(tx, "two")
            connections.append(tx.connection)

    dual_write = make_dual_write(every_engine, on_step=on_step)
    write_unit(dual_write, "one")
    event.listen(every_engine, "after_cursor_execute", after_statement)
    if act is fail_past_sqlalchemy and every_engine.dialect.name != "postgresql":
        write_two()
        assert in_both(every_engine, kafka, "one", "two")
    else:
        with pytest.raises(InvalidTransactionStateError, match="another listener or on_step has ended the"):
            write_two()
        assert in_both(every_engine, kafka, "one")
