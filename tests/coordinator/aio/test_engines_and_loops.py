"""What an AsyncDualWrite accepts: engines with options and listeners, and one event loop."""

import asyncio
import sqlite3
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from sqlalchemy import create_engine, event, text
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from dualwrite.coordinator.aio.dual_write import AsyncDualWrite
from dualwrite.coordinator.dual_write import DualWrite
from dualwrite.coordinator.manager.unit_manager import manager_of
from dualwrite.coordinator.process.greenlets import greenlet_spawn
from dualwrite.errors import ConfigurationError, DatabaseNotReadyError, InvalidTransactionStateError
from dualwrite.ids import TopicPartition
from tests.support.coordinator.aio.async_dual_writes import AsyncPlace, run, write, write_unit
from tests.support.coordinator.event_table import CONFIG, slot_rows
from tests.support.coordinator.fake_consumer import FakeConsumer, FakeGroup, positions

pytestmark = pytest.mark.slow_cases("psycopg")


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


def is_closed(driver: Any) -> bool:
    return bool(driver.is_closed() if hasattr(driver, "is_closed") else driver.closed)  # asyncpg has the method


def test_a_connection_of_a_unit_in_which_the_engine_is_disposed_of_is_closed_in_the_end(
    server_place: AsyncPlace,
) -> None:
    async def main() -> None:
        async with server_place.engine() as engine, server_place.dual_write(engine) as dual_write:
            async with dual_write.transaction() as tx:
                await write(tx, "one")
                driver = (await tx.connection.get_raw_connection()).driver_connection
                await engine.dispose()
            assert is_closed(driver)

    run(main())
    assert server_place.in_both("one")


def test_a_store_that_was_closed_leaves_no_connection_open(server_place: AsyncPlace) -> None:
    """A thread that goes on after a close() in time may connect afterwards."""

    async def main() -> None:
        async with server_place.dual_write() as dual_write:
            store = manager_of(dual_write).store
            store.close()

            def read() -> Any:
                with store.connection() as connection:
                    return connection.connection.driver_connection

            assert is_closed(await greenlet_spawn(read))

    run(main())


class AutocommittingConnection(sqlite3.Connection):
    """As Python 3.12's sqlite3 is with autocommit=True: its commit() does nothing."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **{**options, "isolation_level": None})
        self._thread = threading.get_ident()

    @property
    def autocommit(self) -> bool:
        assert threading.get_ident() == self._thread, "as sqlite3 checks"
        return True

    def commit(self) -> None:
        """Do nothing."""


class Pep249Connection(AutocommittingConnection):
    """As Python 3.12's sqlite3 is with autocommit=False, which SQLAlchemy advises: a transaction is always open."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.execute("BEGIN")

    @property
    def autocommit(self) -> bool:
        return not super().autocommit

    def commit(self) -> None:
        self.execute("COMMIT")
        self.execute("BEGIN")

    def rollback(self) -> None:
        self.execute("ROLLBACK")
        self.execute("BEGIN")


def test_aiosqlite_whose_commit_does_nothing_is_refused(sqlite_place: AsyncPlace) -> None:
    async def main() -> None:
        async with (
            sqlite_place.engine(connect_args={"factory": AutocommittingConnection}) as engine,
            sqlite_place.dual_write(engine) as dual_write,
        ):
            with pytest.raises(ConfigurationError, match="AUTOCOMMIT"):
                await write_unit(dual_write, "one")

    run(main())
    assert sqlite_place.in_both()


def test_aiosqlite_that_is_always_in_a_transaction_works(sqlite_place: AsyncPlace) -> None:
    async def main() -> None:
        async with (
            sqlite_place.engine(connect_args={"factory": Pep249Connection}) as engine,
            sqlite_place.dual_write(engine) as dual_write,
        ):
            await write_unit(dual_write, "one")
            await write_unit(dual_write, "two")

    run(main())
    assert sqlite_place.in_both("one", "two")


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


async def write_one(dual_write: AsyncDualWrite) -> None:
    await write_unit(dual_write, "one")


async def recover(dual_write: AsyncDualWrite) -> None:
    await dual_write.recover()


async def seek_in_a_thread(dual_write: AsyncDualWrite) -> None:
    consumer = FakeConsumer(FakeGroup())
    await asyncio.to_thread(dual_write.on_assign(), consumer, positions(TopicPartition("in", 0)))


@pytest.mark.parametrize("use", [write_one, recover, seek_in_a_thread])
def test_the_first_connection_is_made_in_the_loop(
    sqlite_place: AsyncPlace, use: Callable[[AsyncDualWrite], Awaitable[None]]
) -> None:
    """SQLAlchemy examines the server by it, under a lock that belongs to one loop; the library's threads have others of
    their own."""
    made: list[bool] = []

    async def main() -> None:
        here = threading.get_ident()
        async with sqlite_place.engine() as engine:

            @event.listens_for(engine.sync_engine, "connect")
            def connected(*_: object) -> None:
                made.append(threading.get_ident() == here)

            async with sqlite_place.dual_write(engine) as dual_write:
                await use(dual_write)

    run(main())
    assert made[0]


class NoticingLoop(asyncio.SelectorEventLoop):
    """An event loop that notes that another thread has called it."""

    def __init__(self) -> None:
        super().__init__()
        self.is_called = threading.Event()

    def call_soon_threadsafe(self, *args: Any, **options: Any) -> asyncio.Handle:
        handle = super().call_soon_threadsafe(*args, **options)
        self.is_called.set()
        return handle


@pytest.mark.parametrize("is_closed_before", [True, False])
def test_a_consumers_callback_after_its_loop_has_ended_raises_and_waits_for_nothing(
    sqlite_place: AsyncPlace, is_closed_before: bool
) -> None:
    """As that of a thread that polls while the program ends, and would never end."""
    loop, consumer, errors = NoticingLoop(), FakeConsumer(FakeGroup()), list[BaseException]()

    async def begin() -> tuple[AsyncDualWrite, Callable[..., None]]:
        dual_write = AsyncDualWrite(create_async_engine(sqlite_place.url), CONFIG, application="orders")
        return dual_write, dual_write.on_assign()

    dual_write, on_assign = loop.run_until_complete(begin())

    def poll() -> None:
        try:
            on_assign(consumer, positions(TopicPartition("in", 0)))
        except InvalidTransactionStateError as error:
            errors.append(error)

    polling = threading.Thread(target=poll, daemon=True)
    if is_closed_before:
        loop.close()
    loop.is_called.clear()
    polling.start()
    if not is_closed_before:
        assert loop.is_called.wait(20)
        loop.close()
    polling.join(20)
    assert [str(error).partition(":")[0] for error in errors] == [
        "the event loop in which on_assign() was called is closed"
    ]
    run(dual_write.close())


def test_no_callback_is_made_outside_of_an_event_loop(sqlite_place: AsyncPlace) -> None:
    dual_write = AsyncDualWrite(create_async_engine(sqlite_place.url), CONFIG, application="orders")
    with pytest.raises(InvalidTransactionStateError, match="no event loop of asyncio runs here"):
        dual_write.on_assign()
