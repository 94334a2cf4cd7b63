"""Listeners of the application's own that end a transaction past SQLAlchemy, or that set a connection up: both sides
stay equal, and the setting stays as the listener made it."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection, Engine, create_engine, event, text
from sqlalchemy.engine import NestedTransaction
from sqlalchemy.orm import Session

from dualwrite.coordinator.dual_write import DualWrite
from dualwrite.coordinator.rules.recovery_decision import Outcome
from dualwrite.coordinator.sql.dialects.unit_transactions import TransactionEndedError
from dualwrite.coordinator.unit.transaction import Transaction
from dualwrite.errors import ConfigurationError, InvalidTransactionStateError
from tests.support.coordinator.aio.async_dual_writes import AsyncPlace, run
from tests.support.coordinator.aio.async_dual_writes import write as write_async
from tests.support.coordinator.event_table import ready_engine, stored_values
from tests.support.coordinator.fake_kafka import FakeKafka
from tests.support.coordinator.usual_unit import EventModel, in_both, raising, run_unit, write_unit, writing
from tests.support.servers.databases import EVERY, url_of

Make = Callable[..., DualWrite]


@pytest.fixture(params=EVERY)
def every_engine(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Engine]:
    engine = ready_engine(url_of(request, tmp_path))
    yield engine
    engine.dispose()


def commit_past_sqlalchemy(connection: Connection) -> None:
    """In a unit that has :func:`marked` its connection."""
    if connection.info.pop("is_in_unit", False):
        connection.connection.commit()


def marked(tx: Transaction) -> None:
    tx.connection.info["is_in_unit"] = True


@pytest.mark.parametrize(
    ("end", "error"),
    [
        (raising(KeyError("the block fails")), KeyError),
        (lambda tx: tx.connection.rollback(), InvalidTransactionStateError),
        (lambda tx: tx.session.rollback(), InvalidTransactionStateError),
        (lambda tx: tx.connection.close(), InvalidTransactionStateError),
    ],
    ids=["error", "rollback", "session", "close"],
)
def test_a_rollback_listener_that_commits_past_sqlalchemy_finds_nothing_to_commit(
    make_dual_write: Make,
    every_engine: Engine,
    kafka: FakeKafka,
    end: Callable[[Transaction], object],
    error: type[Exception],
) -> None:
    dual_write = make_dual_write(every_engine)
    write_unit(dual_write, "one")
    event.listen(every_engine, "rollback", commit_past_sqlalchemy)
    with pytest.raises(error):
        run_unit(dual_write, writing("two"), marked, end)
    assert in_both(every_engine, kafka, "one")
    write_unit(dual_write, "three")
    assert in_both(every_engine, kafka, "one", "three")


def test_a_rollback_listener_that_commits_finds_nothing_of_a_task(place: AsyncPlace) -> None:
    async def main() -> None:
        async with place.engine() as engine, place.dual_write(engine) as dual_write:
            event.listen(engine.sync_engine, "rollback", commit_past_sqlalchemy)

            async def fail() -> None:
                async with dual_write.transaction() as tx:
                    await write_async(tx, "one")
                    tx.connection.info["is_in_unit"] = True
                    raise KeyError("the block fails")

            with pytest.raises(KeyError):
                await fail()

    run(main())
    assert place.in_both()


@pytest.mark.filterwarnings("ignore:nested transaction already deassociated")
@pytest.mark.parametrize("where", ["commit", "on_step"])
def test_a_savepoint_that_is_left_open_cannot_be_rolled_back_before_the_commit(
    make_dual_write: Make, every_engine: Engine, kafka: FakeKafka, where: str
) -> None:
    """Its rollback would undo the stored state, and keep the rows from before the savepoint."""
    left_open: list[NestedTransaction] = []

    def undo(*_: Any) -> None:
        while left_open:
            left_open.pop().rollback()

    def on_step(step: str) -> None:
        if step == "COMMIT_DATABASE" and where == "on_step":
            undo()

    def leave_open(tx: Transaction) -> None:
        left_open.append(tx.connection.begin_nested())

    dual_write = make_dual_write(every_engine, on_step=on_step)
    if where == "commit":
        event.listen(every_engine, "commit", undo)
    run_unit(dual_write, writing("one"), leave_open, writing("two"), leave_open, writing("three"))
    assert in_both(every_engine, kafka, "one", "two", "three")


def test_a_savepoint_of_a_session_may_be_left_open(
    make_dual_write: Make, every_engine: Engine, kafka: FakeKafka
) -> None:
    def leave_open(tx: Transaction) -> None:
        tx.session.begin_nested()
        add(tx.session, "one")
        own = Session(tx.connection)
        own.begin_nested()
        add(own, "two")

    def add(session: Session, value: str) -> None:
        session.add(EventModel(value=value))

    def produce(tx: Transaction) -> None:
        tx.produce("events", value="one")
        tx.produce("events", value="two")

    dual_write = make_dual_write(every_engine)
    run_unit(dual_write, leave_open, produce)
    assert (sorted(stored_values(every_engine)), kafka.committed) == (["one", "two"], ["one", "two"])
    with pytest.raises(KeyError):
        run_unit(dual_write, leave_open, produce, raising(KeyError("the block fails")))
    run_unit(dual_write, writing("three"))
    assert sorted(stored_values(every_engine)) == ["one", "three", "two"]
    assert kafka.committed == ["one", "two", "three"]


@pytest.mark.postgresql
def test_a_savepoint_that_is_left_open_after_a_statement_has_failed_is_named(
    make_dual_write: Make, postgresql_url: str, kafka: FakeKafka
) -> None:
    engine = ready_engine(postgresql_url)

    def fail(tx: Transaction) -> None:
        tx.connection.begin_nested()
        with suppress(Exception):
            tx.execute(text("SELECT 1 / 0"))

    with pytest.raises(InvalidTransactionStateError, match="a statement of this unit of work failed"):
        run_unit(make_dual_write(engine), writing("one"), fail)
    assert in_both(engine, kafka)
    engine.dispose()


@pytest.mark.mariadb
def test_a_transaction_that_has_ended_with_a_savepoint_left_open_is_named(
    make_dual_write: Make, mariadb_url: str, kafka: FakeKafka
) -> None:
    engine = ready_engine(mariadb_url)
    dual_write = make_dual_write(engine)

    def commit_in_a_savepoint(tx: Transaction) -> None:
        tx.connection.begin_nested()
        tx.connection.connection.commit()

    with pytest.raises(TransactionEndedError):
        run_unit(dual_write, writing("one"), commit_in_a_savepoint)
    assert [outcome.outcome for outcome in dual_write.outcomes()] == [Outcome.HEURISTIC_HAZARD]
    engine.dispose()


def enter_pipeline(driver: Any) -> ExitStack:
    left_open = ExitStack()
    left_open.enter_context(driver.pipeline())
    return left_open


@pytest.mark.postgresql
@pytest.mark.parametrize("act", [writing("one"), lambda tx: tx.scalar(text("SELECT 1"))], ids=["records", "none"])
def test_a_pipeline_that_is_left_open_is_named(
    make_dual_write: Make, postgresql_url: str, kafka: FakeKafka, act: Callable[[Transaction], object]
) -> None:
    engine = ready_engine(postgresql_url)
    left_open: list[ExitStack] = []

    def leave_open(tx: Transaction) -> None:
        left_open.append(enter_pipeline(tx.connection.connection.driver_connection))

    def leave(tx: Transaction) -> None:
        leave_open(tx)
        left_open.pop().close()

    dual_write = make_dual_write(engine)
    with pytest.raises(InvalidTransactionStateError, match="a pipeline of psycopg's is open"):
        run_unit(dual_write, act, leave_open)
    left_open.pop().close()
    assert in_both(engine, kafka)
    run_unit(dual_write, leave, writing("two"))
    assert in_both(engine, kafka, "two")
    engine.dispose()


@pytest.mark.postgresql
def test_a_pooled_connection_with_an_open_pipeline_is_named(
    make_dual_write: Make, postgresql_url: str, kafka: FakeKafka
) -> None:
    engine = ready_engine(postgresql_url, pool_size=1)
    dual_write = make_dual_write(engine)
    write_unit(dual_write, "one")
    with engine.connect() as connection:
        left_open = enter_pipeline(connection.connection.driver_connection)
    with pytest.raises(ConfigurationError, match="a pipeline of psycopg's is open"):
        write_unit(dual_write, "two")
    left_open.close()
    write_unit(dual_write, "three")
    assert in_both(engine, kafka, "one", "three")
    engine.dispose()


SERIALIZABLE = {
    "postgresql": (
        "SET SESSION CHARACTERISTICS AS TRANSACTION ISOLATION LEVEL SERIALIZABLE",
        "SHOW transaction_isolation",
    ),
    "mysql": ("SET SESSION TRANSACTION ISOLATION LEVEL SERIALIZABLE", "SELECT @@SESSION.tx_isolation"),
}
"""How a listener chooses the level, and what shows it in a transaction."""


def test_the_isolation_level_that_a_listener_sets_holds_in_units(
    make_dual_write: Make, engine: Engine, kafka: FakeKafka
) -> None:
    """The library's own transactions, which have another level, use the same connections."""
    choose, show = SERIALIZABLE[engine.dialect.name]
    pool_of_two = create_engine(engine.url, pool_size=2, max_overflow=0)

    def connected(driver: Any, _: object) -> None:
        with driver.cursor() as cursor:
            cursor.execute(choose)
        driver.commit()

    event.listen(pool_of_two, "connect", connected)
    levels: set[str] = set()

    def note_level(tx: Transaction) -> None:
        levels.add(str(tx.scalar(text(show))).upper())

    dual_write = make_dual_write(pool_of_two)
    for number in range(4):
        run_unit(dual_write, note_level, writing(str(number)))
    assert levels == {"SERIALIZABLE"}
    dual_write.close()
    with pool_of_two.connect() as one, pool_of_two.connect() as another:
        assert {str(own.scalar(text(show))).upper() for own in (one, another)} == {"SERIALIZABLE"}
    pool_of_two.dispose()
