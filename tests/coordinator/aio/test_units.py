"""AsyncDualWrite as its user meets it, on each driver for asyncio: what is committed, rolled back, raised, refused."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from sqlalchemy import create_engine, event, insert, select, text, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from dualwrite.coordinator.aio.dual_write import AsyncDualWrite
from dualwrite.coordinator.aio.transaction import AsyncTransaction
from dualwrite.coordinator.dual_write import DualWrite
from dualwrite.coordinator.manager.unit_manager import manager_of
from dualwrite.coordinator.rules.recovery_decision import Outcome
from dualwrite.errors import (
    ConfigurationError,
    DatabaseNotReadyError,
    DatabaseUnavailableError,
    FencedError,
    InDoubtError,
    InvalidTransactionStateError,
    KafkaUnavailableError,
)
from tests.support.coordinator.aio.async_dual_writes import AsyncPlace, run, write, write_unit
from tests.support.coordinator.event_table import CONFIG, TakingStore, events, expire_leases, slot_rows, stored_values
from tests.support.coordinator.fake_kafka import Fault
from tests.support.coordinator.usual_unit import EventModel, fail_at
from tests.support.servers.sessions import kill_session, session_of

pytestmark = pytest.mark.slow_cases("psycopg")

Act = Callable[[AsyncTransaction], Awaitable[object]]


async def background_is_done(dual_write: AsyncDualWrite) -> bool:
    return await dual_write.wait_idle(20)


# The plain way.


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"value": 1}, TypeError),
        ({"timestamp": -1}, ValueError),
        ({"headers": (1 // number for number in [0])}, ZeroDivisionError),
    ],
)
def test_a_unit_whose_only_record_is_invalid_is_not_committed(
    sqlite_place: AsyncPlace, arguments: dict[str, Any], error: type[Exception]
) -> None:
    async def unit(dual_write: AsyncDualWrite) -> None:
        async with dual_write.transaction() as tx:
            await tx.execute(insert(events).values(value="one"))
            with pytest.raises(error):
                await tx.produce("events", **arguments)

    async def main() -> None:
        async with sqlite_place.dual_write() as dual_write:
            with pytest.raises(InvalidTransactionStateError, match="no record to commit"):
                await unit(dual_write)

    run(main())
    assert sqlite_place.in_both()


def test_a_unit_of_work_is_in_both(place: AsyncPlace) -> None:
    async def main() -> None:
        async with place.dual_write() as dual_write:
            await write_unit(dual_write, "one")
            await write_unit(dual_write, "two", "three")
            counters = dual_write.counters
            assert (counters.units, counters.committed, counters.recoveries) == (2, 2, 1)
            assert dual_write.pending() == 0

    run(main())
    assert place.in_both("one", "two", "three")
    assert slot_rows(place.seen)["orders-0"].owner == "", "the lease was given back"


def test_queries_see_the_units_own_writes(place: AsyncPlace) -> None:
    async def main() -> None:
        async with place.dual_write() as dual_write, dual_write.transaction() as tx:
            await write(tx, "one")
            assert await tx.scalar(select(events.c.value)) == "one"
            assert (await tx.scalars(select(events.c.value))).all() == ["one"]
            await tx.execute(insert(events), [{"value": "two"}, {"value": "three"}])
            assert len((await tx.execute(select(events))).all()) == 3
            assert len((await tx.connection.execute(select(events))).all()) == 3

    run(main())


def test_an_orm_session_is_in_the_same_transaction_and_flushed_at_its_end(place: AsyncPlace) -> None:
    async def adds(tx: AsyncTransaction) -> None:
        tx.session.add(EventModel(value="one"))
        await tx.produce("events", "one")

    async def main() -> None:
        async with place.dual_write() as dual_write:
            await write_unit(dual_write, adds)
            with pytest.raises(IntegrityError):
                await write_unit(dual_write, adds)

    run(main())
    assert place.in_both("one")
    assert place.kafka.aborted == ["one"]


def test_an_error_that_leaves_the_block_rolls_both_back(place: AsyncPlace) -> None:
    async def main() -> None:
        async with place.dual_write() as dual_write:
            await write_unit(dual_write, "one")
            with pytest.raises(IntegrityError):
                await write_unit(dual_write, "one")
            await write_unit(dual_write, "two")

    run(main())
    assert place.in_both("one", "two")


def test_savepoints_work_inside_a_unit(place: AsyncPlace) -> None:
    async def main() -> None:
        async with place.dual_write() as dual_write, dual_write.transaction() as tx:
            await write(tx, "one")
            with pytest.raises(IntegrityError):
                async with tx.connection.begin_nested():
                    await tx.execute(insert(events).values(value="one"))
            async with tx.connection.begin_nested():
                await write(tx, "two")
            async with tx.session.begin_nested():
                await write(tx, "three")

    run(main())
    assert place.in_both("one", "two", "three")


@pytest.mark.slow_cases("asyncpg", "aiomysql")
@pytest.mark.parametrize("produces", [False, True])
def test_a_caught_statement_error_fails_the_unit_where_it_fails_the_transaction(
    place: AsyncPlace, produces: bool
) -> None:
    async def main() -> None:
        async with place.dual_write() as dual_write:
            await write_unit(dual_write, "one")
            async with dual_write.transaction() as tx:
                if produces:
                    await tx.produce("events", "two")
                await tx.execute(insert(events).values(value="two"))
                with pytest.raises(IntegrityError):
                    await tx.execute(insert(events).values(value="one"))

    if place.seen.dialect.name == "postgresql":
        with pytest.raises(InvalidTransactionStateError, match="use a savepoint"):
            run(main())
        assert place.in_both("one")
    else:
        run(main())
        assert stored_values(place.seen) == ["one", "two"]


async def commit_connection(tx: AsyncTransaction) -> None:
    await tx.connection.commit()


async def commit_session(tx: AsyncTransaction) -> None:
    await tx.session.commit()


async def roll_connection_back(tx: AsyncTransaction) -> None:
    await tx.connection.rollback()


async def roll_session_back(tx: AsyncTransaction) -> None:
    await tx.session.rollback()


@pytest.mark.slow_cases("asyncpg", "aiomysql")
@pytest.mark.parametrize("act", [commit_connection, commit_session, roll_connection_back, roll_session_back])
def test_commit_is_refused_and_rollback_dooms_the_unit(place: AsyncPlace, act: Act) -> None:
    async def main() -> None:
        async with place.dual_write() as dual_write:
            with pytest.raises(InvalidTransactionStateError, match="leave commit and rollback"):
                await write_unit(dual_write, "one", act)
            await write_unit(dual_write, "two")

    run(main())
    assert place.in_both("two")


def test_tx_is_of_no_use_outside_its_block(sqlite_place: AsyncPlace) -> None:
    async def main() -> None:
        async with sqlite_place.dual_write() as dual_write:
            block = dual_write.transaction()
            async with block as tx:
                pass
            for call in (tx.produce("events", "one"), tx.execute(select(events))):
                with pytest.raises(InvalidTransactionStateError, match="only inside its own block"):
                    await call
            with pytest.raises(InvalidTransactionStateError, match="has been used"):
                await block.__aenter__()
            with pytest.raises(InvalidTransactionStateError, match="cannot be left twice"):
                await block.__aexit__(None, None, None)

    run(main())


# Nested units, the decorator, retries.


def catching(dual_write: AsyncDualWrite) -> Act:
    """An inner unit that fails, and nobody seems to mind."""

    async def act(tx: AsyncTransaction) -> None:
        with pytest.raises(ValueError, match="no"):
            await write_unit(dual_write, "three", raise_value_error)

    return act


def test_a_nested_unit_joins_the_outer_one_and_an_error_out_of_it_dooms_both(sqlite_place: AsyncPlace) -> None:
    async def main() -> None:
        async with sqlite_place.dual_write() as dual_write:
            async with dual_write.transaction() as outer:
                await write(outer, "one")
                async with dual_write.transaction() as inner:
                    assert inner is outer
                    await write(inner, "two")
            with pytest.raises(InvalidTransactionStateError, match="an inner block"):
                await write_unit(dual_write, catching(dual_write))

    run(main())
    assert sqlite_place.in_both("one", "two")


def test_a_decorated_function_is_a_unit_and_joins_an_outer_one(sqlite_place: AsyncPlace) -> None:
    async def main() -> None:
        async with sqlite_place.dual_write() as dual_write:

            @dual_write.transactional
            async def put(tx: AsyncTransaction, value: str) -> str:
                await write(tx, value)
                return value

            assert await put("one") == "one"
            with pytest.raises(ValueError, match="no"):
                await write_unit(dual_write, lambda tx: put("two"), raise_value_error)
            assert dual_write.counters.units == 2

    run(main())
    assert sqlite_place.in_both("one")


def test_only_coroutine_functions_are_decorated(sqlite_place: AsyncPlace) -> None:
    async def main() -> None:
        async with sqlite_place.dual_write() as dual_write:
            plain: Any = lambda tx: None  # noqa: E731
            with pytest.raises(ConfigurationError, match="async def"):
                dual_write.transactional(plain)

    run(main())


def test_a_method_is_a_unit_of_work_too(sqlite_place: AsyncPlace) -> None:
    async def main() -> None:
        async with sqlite_place.dual_write() as dual_write:

            class Shop:
                @dual_write.transactional(retries=1)
                async def place(self, tx: AsyncTransaction, value: str) -> "Shop":
                    await write(tx, value)
                    return self

            shop = Shop()
            assert await shop.place("one") is shop

    run(main())
    assert sqlite_place.in_both("one")


def test_a_unit_is_run_again_until_kafka_takes_it(sqlite_place: AsyncPlace) -> None:
    fail_at(sqlite_place.kafka, "prepare", times=2)
    runs = []

    async def main() -> None:
        async with sqlite_place.dual_write() as dual_write:

            @dual_write.transactional(retries=3)
            async def put(tx: AsyncTransaction) -> None:
                runs.append(asyncio.current_task())
                await write(tx, "one")

            await put()
            assert (dual_write.counters.rolled_back, dual_write.counters.committed) == (2, 1)
            assert set(runs) == {asyncio.current_task()}

    run(main())
    assert len(runs) == 3
    assert sqlite_place.in_both("one")


@pytest.mark.parametrize("driver", ["asyncpg", "psycopg"])
@pytest.mark.postgresql
def test_a_serialization_failure_is_run_again(request: pytest.FixtureRequest, driver: str) -> None:
    from tests.coordinator.conftest import place_of

    for place in place_of(request, driver):
        with place.seen.begin() as connection:
            connection.execute(insert(events).values(id=1, value="start"))
        runs = []

        async def main(place: AsyncPlace = place, runs: list[int] = runs) -> None:
            engine = create_async_engine(place.url, isolation_level="SERIALIZABLE")
            async with place.dual_write(engine) as dual_write:

                @dual_write.transactional(retries=1)
                async def put(tx: AsyncTransaction) -> None:
                    runs.append(1)
                    await tx.scalar(select(events.c.value))
                    if len(runs) == 1:
                        with place.seen.begin() as rival:
                            rival.execute(update(events).values(value="theirs"))
                    await tx.execute(update(events).values(value="mine"))
                    await tx.produce("events", "mine")

                await put()
            await engine.dispose()

        run(main())
        assert len(runs) == 2
        assert place.in_both("mine")


# Failures of either side.


def test_a_commit_that_kafka_does_not_answer_is_finished_in_the_background(place: AsyncPlace) -> None:
    async def main() -> None:
        async with place.dual_write() as dual_write:
            await write_unit(dual_write, "one")
            fail_at(place.kafka, "commit", times=1)
            await write_unit(dual_write, "two")
            await write_unit(dual_write, "three")
            assert await background_is_done(dual_write)
            assert dual_write.counters.finished_later == 1

    run(main())
    assert place.in_both("one", "two", "three")


@pytest.mark.parametrize("request_", ["begin", "produce", "prepare", "abort"])
@pytest.mark.parametrize("fault", [Fault.BEFORE, Fault.AFTER])
def test_a_unit_that_kafka_fails_is_in_neither(sqlite_place: AsyncPlace, request_: str, fault: Fault) -> None:
    async def main() -> None:
        async with sqlite_place.dual_write() as dual_write:
            await write_unit(dual_write, "one")
            fail_at(sqlite_place.kafka, request_, fault)
            with pytest.raises(ValueError if request_ == "abort" else KafkaUnavailableError):
                await write_unit(dual_write, "two", *([raise_value_error] if request_ == "abort" else []))
            await write_unit(dual_write, "three")
            assert await background_is_done(dual_write)

    run(main())
    assert sqlite_place.in_both("one", "three")


async def raise_value_error(tx: AsyncTransaction) -> None:
    raise ValueError("no")


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_connection_that_dies_around_commit_settles_the_unit_by_the_row(
    server_place: AsyncPlace, when: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        async with server_place.engine() as engine, server_place.dual_write(engine) as dual_write:
            await dual_write.recover()
            dialect = engine.dialect
            plain = dialect.do_commit

            def kill_and_commit(connection: Any) -> None:
                monkeypatch.setattr(dialect, "do_commit", plain)
                if when == "after":
                    plain(connection)
                kill_session(server_place.seen, session_of(connection.driver_connection))
                plain(connection)  # asyncpg has nothing to commit any more after the first
                cursor = connection.cursor()
                cursor.execute("SELECT 1")

            monkeypatch.setattr(dialect, "do_commit", kill_and_commit)
            if when == "after":
                await write_unit(dual_write, "one")
            else:
                with pytest.raises(DatabaseUnavailableError):
                    await write_unit(dual_write, "one")
            await write_unit(dual_write, "two")

    run(main())
    assert server_place.in_both(*["one"] * (when == "after"), "two")


def test_a_commit_with_an_unknown_outcome_raises_in_doubt_error(
    sqlite_place: AsyncPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """COMMIT fails, and so does every connection after it."""

    async def main() -> None:
        async with sqlite_place.engine() as engine, sqlite_place.dual_write(engine) as dual_write:
            await dual_write.recover()

            def fail(*_: Any) -> None:
                raise OSError("gone")

            def fail_with_all_that_follow(*_: Any) -> None:
                event.listen(engine.sync_engine, "checkout", fail)
                fail()

            with monkeypatch.context() as patch:
                patch.setattr(engine.dialect, "do_commit", fail_with_all_that_follow)
                with pytest.raises(InDoubtError):
                    await write_unit(dual_write, "one")
            event.remove(engine.sync_engine, "checkout", fail)
            await write_unit(dual_write, "two")
            assert dual_write.counters.in_doubt == 1

    run(main())
    assert sqlite_place.in_both("two")


def test_an_outcome_found_by_recovery_is_on_record_until_acknowledged(place: AsyncPlace) -> None:
    async def main() -> None:
        async with place.dual_write() as dual_write:
            await write_unit(dual_write, "one")
        place.kafka.next_offset = 0  # the cluster was set back
        async with place.engine() as engine, place.dual_write(engine) as dual_write:
            assert await dual_write.recover() == {"orders-0": Outcome.HEURISTIC_HAZARD}
            (found,) = await dual_write.outcomes()
            done = await dual_write.acknowledge(found, by="Ada")
            assert await dual_write.outcomes() == []
            assert await dual_write.outcomes(acknowledged=True) == [done]

    run(main())


def test_a_unit_whose_slot_was_taken_over_commits_on_neither_side(place: AsyncPlace) -> None:
    async def main() -> None:
        async with place.dual_write(lease_timeout=3000) as dual_write:
            await dual_write.recover()

            async def take_over(tx: AsyncTransaction) -> None:
                TakingStore(place.seen).take_over("orders-0", "another")

            if place.driver == "aiosqlite":  # the unit holds the one write lock: taken over before it begins
                TakingStore(place.seen).take_over("orders-0", "another")
                acts: list[Any] = ["one"]
            else:
                acts = ["one", take_over]
            with pytest.raises(FencedError, match="taken over"):
                await write_unit(dual_write, *acts)
            expire_leases(place.seen)
            await write_unit(dual_write, "two")

    run(main())
    assert place.in_both("two")


def test_a_dead_processs_unit_is_recovered_by_the_first_unit_of_another_process(place: AsyncPlace) -> None:
    """The dead one was blocking, the next is not: one application."""
    kafka = place.kafka
    dead = DualWrite(place.seen, CONFIG, application="orders", participant=kafka.participant, pool_size=1)
    fail_at(kafka, "commit", times=1)
    monkey = pytest.MonkeyPatch()
    with monkey.context() as patch:
        patch.setattr(type(manager_of(dead).process.pool), "abandoned", None, raising=False)
        patch.setattr("dualwrite.coordinator.concurrency.background.Background.start", lambda self: None)
        with dead.transaction() as tx:
            tx.execute(insert(events).values(value="one"))
            tx.produce("events", value="one")
    manager_of(dead).process.pool.heartbeat.stop(10)
    assert kafka.ongoing is not None
    expire_leases(place.seen)

    async def main() -> None:
        async with place.dual_write() as dual_write:
            await write_unit(dual_write, "two")

    run(main())
    assert place.in_both("one", "two")


# Settings, loops.


def test_the_librarys_own_connections_have_the_users_settings_and_listeners(sqlite_place: AsyncPlace) -> None:
    made = []

    async def main() -> None:
        async with sqlite_place.engine(connect_args={"timeout": 3}) as engine:

            @event.listens_for(engine.sync_engine, "connect")
            def connected(connection: Any, record: Any) -> None:
                cursor = connection.cursor()
                cursor.execute("PRAGMA busy_timeout")
                made.append(cursor.fetchone())
                cursor.close()

            async with sqlite_place.dual_write(engine) as dual_write:
                await write_unit(dual_write, "one")

    run(main())
    assert len(made) > 2, "the pool's one, and one for each of the library's transactions"
    assert set(made) == {(3000,)}


def test_an_engine_with_options_keeps_its_pool(sqlite_place: AsyncPlace) -> None:
    async def main() -> None:
        async with sqlite_place.engine() as engine:
            pool = engine.pool
            optional = engine.execution_options(logging_token="orders")
            async with sqlite_place.dual_write(optional) as dual_write:
                await write_unit(dual_write, "one")
            assert engine.pool is pool

    run(main())
    assert sqlite_place.in_both("one")


def test_autocommit_is_refused(server_place: AsyncPlace) -> None:
    async def main() -> None:
        async with (
            server_place.engine(isolation_level="AUTOCOMMIT") as engine,
            server_place.dual_write(engine) as dual_write,
        ):
            with pytest.raises(ConfigurationError, match="AUTOCOMMIT"):
                await write_unit(dual_write, "one")

    run(main())


def test_a_database_without_the_tables_is_refused_with_the_upgrade_command(sqlite_place: AsyncPlace) -> None:
    with sqlite_place.seen.begin() as connection:
        connection.execute(text("DROP TABLE kafka_transaction_state"))

    async def main() -> None:
        async with sqlite_place.dual_write() as dual_write:
            with pytest.raises(DatabaseNotReadyError, match="dualwrite db upgrade"):
                await write_unit(dual_write, "one")

    run(main())


def test_each_kind_of_engine_has_its_own_class() -> None:
    blocking = create_engine("sqlite:///nowhere.db")
    asynchronous = create_async_engine("sqlite+aiosqlite:///nowhere.db")
    wrong: list[tuple[Any, Any, str]] = [
        (AsyncDualWrite, blocking, "use DualWrite"),
        (AsyncDualWrite, "sqlite://", "create_async_engine"),
        (DualWrite, asynchronous, "use AsyncDualWrite"),
        (DualWrite, asynchronous.sync_engine, "use AsyncDualWrite"),
    ]
    for kind, engine, hint in wrong:
        with pytest.raises(ConfigurationError, match=hint):
            kind(engine, CONFIG, application="orders")


def test_a_database_in_memory_is_refused() -> None:
    engine = create_async_engine("sqlite+aiosqlite://")
    with pytest.raises(ConfigurationError, match="use a file"):
        AsyncDualWrite(engine, CONFIG, application="orders")


def test_another_event_loop_is_refused_and_may_close(sqlite_place: AsyncPlace) -> None:
    engine = create_async_engine(sqlite_place.url)
    dual_write = AsyncDualWrite(
        engine, CONFIG, application="orders", participant=sqlite_place.kafka.participant, pool_size=1
    )

    async def first(engine: AsyncEngine) -> None:
        await write_unit(dual_write, "one")
        await engine.dispose()

    async def second() -> None:
        for act in (lambda: write_unit(dual_write, "two"), dual_write.recover):
            with pytest.raises(InvalidTransactionStateError, match="one that is closed: make one in each event loop"):
                await act()
        await dual_write.close()
        await dual_write.close()

    run(first(engine))
    run(second())
    assert sqlite_place.in_both("one")
    assert slot_rows(sqlite_place.seen)["orders-0"].owner == ""
