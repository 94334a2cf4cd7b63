"""Tasks and their units of work: many at once, two at one, delivery callbacks, and loops that end too early."""

import asyncio
import contextlib
import gc
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from sqlalchemy import insert, select, text

from dualwrite.coordinator.aio.dual_write import AsyncDualWrite
from dualwrite.coordinator.aio.transaction import AsyncTransaction
from dualwrite.coordinator.manager.unit_manager import manager_of
from dualwrite.errors import InvalidTransactionStateError
from dualwrite.ids import TopicPartition
from tests.support.breaking.interrupted_blocks import interrupted_once
from tests.support.coordinator.aio.async_dual_writes import AsyncPlace, raise_value_error, run, write, write_unit
from tests.support.coordinator.event_table import CONFIG, events, stored_values
from tests.support.coordinator.fake_consumer import FakeConsumer, FakeGroup, positions
from tests.support.coordinator.fake_kafka import FakeCluster
from tests.support.user_errors import HandlerInterrupt


@pytest.mark.slow_cases("psycopg", "asyncpg", "aiomysql")
def test_a_hundred_units_run_in_one_loop_at_the_same_time(place: AsyncPlace) -> None:
    cluster = FakeCluster()
    values = [f"{number:03}" for number in range(100)]

    async def main() -> None:
        options: dict[str, Any] = {"participant": cluster.participant, "pool_size": 8}
        async with place.dual_write(**options) as dual_write:
            await asyncio.gather(*(write_unit(dual_write, value) for value in values))
            assert dual_write.counters.committed == 100

    run(main())
    assert sorted(stored_values(place.seen)) == cluster.committed == values
    assert cluster.ongoing == []


def test_nothing_of_a_unit_blocks_the_loop(sqlite_place: AsyncPlace) -> None:
    """Each request to Kafka waits until the loop has run a task of another."""
    kafka = sqlite_place.kafka

    async def main() -> None:
        loop = asyncio.get_running_loop()
        loops_thread = threading.get_ident()

        async def turn() -> int:
            return threading.get_ident()

        def wait_for_the_loop(request: str) -> None:
            if request != "begin":  # which is local: no request is sent
                assert asyncio.run_coroutine_threadsafe(turn(), loop).result(20) == loops_thread

        kafka.before_effect = wait_for_the_loop
        async with sqlite_place.dual_write() as dual_write:
            await write_unit(dual_write, "one")
            with pytest.raises(ValueError, match="no"):
                await write_unit(dual_write, "two", raise_value_error)
            await dual_write.recover()
        kafka.before_effect = lambda request: None

    run(main())
    assert {"init-keep", "complete", "init", "produce", "prepare", "commit", "abort"} <= set(kafka.requests)
    assert sqlite_place.in_both("one")


def test_tasks_that_are_begun_inside_a_unit_have_units_of_their_own(sqlite_place: AsyncPlace) -> None:
    cluster = FakeCluster()

    async def main() -> None:
        async with sqlite_place.dual_write(participant=cluster.participant, pool_size=2) as dual_write:
            async with dual_write.transaction() as tx:
                await write(tx, "one")
                other = asyncio.create_task(write_unit(dual_write, "two"))
                while not manager_of(dual_write).waiting:  # SQLite has one slot for a process
                    await asyncio.sleep(0)
            await other
            assert dual_write.counters.units == 2

    run(main())
    assert cluster.committed == ["one", "two"]


def test_another_tasks_call_is_refused_while_one_is_under_way(sqlite_place: AsyncPlace) -> None:
    async def main() -> None:
        async with sqlite_place.dual_write() as dual_write:
            async with dual_write.transaction() as tx:
                await write(tx, "one")
                calls = [tx.execute(select(events)), tx.scalar(select(events)), tx.produce("events", "lost")]
                first, *others = await asyncio.gather(*calls, return_exceptions=True)
                assert not isinstance(first, BaseException)
                for other in others:
                    assert isinstance(other, InvalidTransactionStateError)
                    assert "another task is using" in str(other)
                await asyncio.wait_for(tx.execute(select(events)), 20)  # a task of its own on Python 3.11 and before
            await write_unit(dual_write, "two")

    run(main())
    assert sqlite_place.in_both("one", "two")


@pytest.mark.postgresql
@pytest.mark.parametrize("acts", [(), ("one",)], ids=["without records", "with records"])
def test_another_tasks_cursor_at_the_end_of_the_block_fails_the_unit_and_no_later_one(
    request: pytest.FixtureRequest, acts: tuple[str, ...]
) -> None:
    """asyncpg refuses each statement meanwhile, ROLLBACK, too. SQLAlchemy then takes the transaction for ended."""
    from tests.coordinator.conftest import place_of

    in_progress = text(
        "SELECT count(*) FROM pg_stat_activity "
        "WHERE datname = current_database() AND state = 'active' AND query LIKE '%sleep(600%'"
    )
    for place in place_of(request, "asyncpg"):
        tasks: list[asyncio.Task[Any]] = []

        async def stream(tx: AsyncTransaction) -> None:
            async for _ in await tx.session.stream(text("SELECT pg_sleep(600)")):
                pytest.fail("the sleep has ended")

        async def reads(tx: AsyncTransaction, place: AsyncPlace = place, tasks: list[Any] = tasks) -> None:
            tasks.append(asyncio.create_task(stream(tx)))
            with place.seen.connect() as connection:
                while connection.scalar(in_progress) < 2:  # the question itself is one
                    connection.rollback()
                    await asyncio.sleep(0)

        async def main(place: AsyncPlace = place, tasks: list[Any] = tasks) -> None:
            async with place.dual_write() as dual_write:
                with pytest.raises(InvalidTransactionStateError, match="another task uses the connection of this unit"):
                    await write_unit(dual_write, *acts, reads)
                await write_unit(dual_write, "two")
                await asyncio.gather(*tasks, return_exceptions=True)

        run(main())
        assert place.in_both("two")


def test_a_call_still_under_way_at_the_end_of_the_block_fails_the_unit(sqlite_place: AsyncPlace) -> None:
    tasks = []
    is_leaving = threading.Event()

    async def forgets(tx: AsyncTransaction) -> None:
        sqlite_place.kafka.before_effect = lambda request: (
            assert_true(is_leaving.wait(20)) if request == "produce" else None
        )
        tasks.append(asyncio.create_task(tx.produce("events", "late")))
        await asyncio.sleep(0)
        asyncio.get_running_loop().call_soon(is_leaving.set)  # runs as soon as the end of the block waits for the call

    async def main() -> None:
        async with sqlite_place.dual_write() as dual_write:
            with pytest.raises(InvalidTransactionStateError, match="await all calls"):
                await write_unit(dual_write, "one", forgets)
            await tasks[0]
            await write_unit(dual_write, "two")

    run(main())
    assert sqlite_place.in_both("two")


@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning")
@pytest.mark.parametrize("verb", ["execute", "scalar", "scalars", "produce"])
def test_a_forgotten_await_fails_the_unit(sqlite_place: AsyncPlace, verb: str) -> None:
    """Else one side would go without what was not awaited, and nobody would notice."""
    argument: Any = "events" if verb == "produce" else select(events)

    async def forgets(tx: AsyncTransaction) -> None:
        getattr(tx, verb)(argument)
        await tx.produce("events", value="more")

    async def main() -> None:
        async with sqlite_place.dual_write() as dual_write:
            with pytest.raises(
                InvalidTransactionStateError, match=rf"{verb}\(\) was called and not awaited .* await tx"
            ):
                await write_unit(dual_write, "one", forgets)
            await write_unit(dual_write, "two")

    run(main())
    assert sqlite_place.in_both("two")


@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning")
def test_an_error_of_the_block_goes_before_a_forgotten_await(sqlite_place: AsyncPlace) -> None:
    async def fails(tx: AsyncTransaction) -> None:
        tx.produce("events", value="lost")
        await raise_value_error(tx)

    async def main() -> None:
        async with sqlite_place.dual_write() as dual_write:
            with pytest.raises(ValueError, match="no"):
                await write_unit(dual_write, "one", fails)

    run(main())
    assert sqlite_place.in_both()


def test_a_call_may_be_awaited_later_in_the_block(sqlite_place: AsyncPlace) -> None:
    async def later(tx: AsyncTransaction) -> None:
        call = tx.execute(insert(events).values(value="two"))
        await tx.produce("events", value="two")
        await call
        await asyncio.create_task(tx.execute(select(events)))

    async def main() -> None:
        async with sqlite_place.dual_write() as dual_write:
            await write_unit(dual_write, "one", later)

    run(main())
    assert sqlite_place.in_both("one", "two")


def assert_true(value: bool) -> None:
    assert value


# Delivery callbacks.


@pytest.mark.slow_cases
def test_another_event_loop_cannot_use_a_unit(place: AsyncPlace) -> None:
    """If only the driver noticed, the statement could have its effect, and the record after it would be missing."""

    async def write_elsewhere(tx: AsyncTransaction) -> None:
        await tx.execute(insert(events).values(value="two"))
        await tx.produce("t", "two")

    async def main() -> None:
        async with place.dual_write() as dual_write, dual_write.transaction() as tx:
            await write(tx, "one")
            for use in (write_elsewhere, lambda tx: tx.produce("t", "two")):
                with pytest.raises(InvalidTransactionStateError, match="another one: make one in each event loop"):
                    await asyncio.to_thread(asyncio.run, use(tx))

    run(main())
    assert place.in_both("one")


def test_delivery_callbacks_are_called_in_the_loops_thread(sqlite_place: AsyncPlace) -> None:
    seen: list[Any] = []

    async def main() -> None:
        here = threading.get_ident()

        def told(error: Any, message: Any) -> None:
            seen.append((threading.get_ident() == here, error, message))

        async with sqlite_place.dual_write() as dual_write:
            await write_unit(dual_write, lambda tx: tx.produce("t", b"v", b"k", 3, 99, {"h": b"1"}, told))

    run(main())
    assert seen == [(True, None, ("t", 3, 99, b"k", (("h", b"1"),)))]
    assert sqlite_place.kafka.committed == ["v"]


def test_a_delivery_callback_that_raises_fails_the_unit_even_if_the_error_was_caught(sqlite_place: AsyncPlace) -> None:
    def raises(error: Any, message: Any) -> None:
        raise ValueError("of the callback")

    async def catches(tx: AsyncTransaction) -> None:
        with pytest.raises(ValueError, match="of the callback"):
            await tx.produce("events", "one", on_delivery=raises)

    async def main() -> None:
        async with sqlite_place.dual_write() as dual_write:
            with pytest.raises(InvalidTransactionStateError, match="or by a delivery callback"):
                await write_unit(dual_write, "before", catches)
            wrong: Any = 3
            with pytest.raises(TypeError, match="on_delivery"):
                await write_unit(dual_write, lambda tx: tx.produce("events", "two", on_delivery=wrong))
            await write_unit(dual_write, "three")

    run(main())
    assert sqlite_place.in_both("three")


# Loops that end too early.


def abandoned(place: AsyncPlace, begin: Callable[[AsyncDualWrite], Any]) -> AsyncDualWrite:
    """A DualWrite whose loop was closed under a unit of work."""
    loop = asyncio.new_event_loop()

    async def make() -> AsyncDualWrite:
        from sqlalchemy.ext.asyncio import create_async_engine

        engine = create_async_engine(place.url)
        options: Any = {"participant": place.kafka.participant, "pool_size": 1, "lease_timeout": 3000}
        return AsyncDualWrite(engine, CONFIG, application="orders", **options)

    dual_write = loop.run_until_complete(make())
    loop.run_until_complete(write_unit(dual_write, "one"))
    task = loop.create_task(begin(dual_write))
    loop.run_until_complete(asyncio.wait_for(reached(task), 20))
    loop.run_until_complete(loop.shutdown_default_executor())
    loop.close()
    return dual_write


async def reached(task: "asyncio.Task[None]") -> None:
    """Until ``task`` sleeps in its block."""
    while "sleeps" not in task.get_name():
        await asyncio.sleep(0)


async def sleep_in_a_unit(dual_write: AsyncDualWrite) -> None:
    async with dual_write.transaction() as tx:
        await write(tx, "dead")
        task = asyncio.current_task()
        assert task is not None
        task.set_name("sleeps")
        await asyncio.sleep(1000)


@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_loop_closed_under_a_unit_leaves_both_sides_equal_once_it_is_closed(sqlite_place: AsyncPlace) -> None:
    place = sqlite_place
    dual_write = abandoned(place, sleep_in_a_unit)
    gc.collect()
    run(dual_write.close())
    assert place.in_both("one")
    assert place.kafka.aborted == ["dead"]

    async def main() -> None:
        async with place.dual_write() as another:
            await write_unit(another, "two")

    run(main())
    assert place.in_both("one", "two")


def test_a_block_that_is_collected_is_ended_in_the_loop(sqlite_place: AsyncPlace) -> None:
    async def main() -> None:
        async with sqlite_place.dual_write() as dual_write:
            block: Any = dual_write.transaction()
            await write(await block.__aenter__(), "dead")
            del block
            gc.collect()
            await write_unit(dual_write, "two")

    run(main())
    assert sqlite_place.in_both("two")
    assert sqlite_place.kafka.aborted == ["dead"]


# Units that nobody else ends.


@pytest.mark.parametrize("in_the_main_task", [True, False])
def test_an_application_can_close_after_an_interrupt_left_a_unit_open(
    sqlite_place: AsyncPlace, monkeypatch: pytest.MonkeyPatch, in_the_main_task: bool
) -> None:
    async def application() -> None:
        async with sqlite_place.dual_write() as dual_write:
            await write_unit(dual_write, "one")
            interrupted_once(monkeypatch)
            unit = write_unit(dual_write, "dead")
            await (unit if in_the_main_task else asyncio.create_task(unit))

    async def main() -> None:
        with pytest.raises(HandlerInterrupt):  # which holds its traceback, and so the block
            await application()
        async with sqlite_place.dual_write() as dual_write:
            await write_unit(dual_write, "two")

    loop = asyncio.new_event_loop()
    task = loop.create_task(asyncio.wait_for(main(), 60))
    while not task.done():
        with contextlib.suppress(HandlerInterrupt):  # out of the task in which it struck, as KeyboardInterrupt
            loop.run_until_complete(task)
    loop.run_until_complete(loop.shutdown_default_executor())
    loop.close()
    assert sqlite_place.in_both("one", "two")
    assert sqlite_place.kafka.aborted == ["dead"]


@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_unit_of_a_closed_loop_that_is_not_collected_does_not_keep_another_from_closing(
    sqlite_place: AsyncPlace,
) -> None:
    tasks: list[Any] = []

    def begin(dual_write: AsyncDualWrite) -> Any:
        async def holds_itself() -> None:
            tasks.append(asyncio.current_task())
            await sleep_in_a_unit(dual_write)

        return holds_itself()

    dual_write = abandoned(sqlite_place, begin)
    run(dual_write.close())
    assert sqlite_place.in_both("one")
    tasks.clear()
    gc.collect()


def test_nothing_waits_for_the_loops_own_threads_which_may_all_be_busy(sqlite_place: AsyncPlace) -> None:
    """With consumers that are polled there, say, until the application ends."""
    ends = threading.Event()

    async def main() -> None:
        loop = asyncio.get_running_loop()
        loop.set_default_executor(ThreadPoolExecutor(1))
        busy = loop.run_in_executor(None, ends.wait)
        consumer = FakeConsumer(FakeGroup())
        async with sqlite_place.dual_write() as dual_write:
            await dual_write.recover()
            await write_unit(dual_write, "one")
            await dual_write.seek_to_stored(consumer, positions(TopicPartition("in", 0)))
        ends.set()
        await busy

    try:
        run(main())
    finally:
        ends.set()
    assert sqlite_place.in_both("one")


def test_a_delivery_callback_has_the_two_names_of_confluent_kafka(sqlite_place: AsyncPlace) -> None:
    told: list[object] = []

    async def main() -> None:
        async with sqlite_place.dual_write() as dual_write:
            async with dual_write.transaction() as tx:
                await tx.produce("events", "one", callback=lambda error, _: told.append(error))
            with pytest.raises(InvalidTransactionStateError, match="there is no record to commit"):
                await two_callbacks(dual_write)

    async def two_callbacks(dual_write: AsyncDualWrite) -> None:
        async with dual_write.transaction() as tx:
            with pytest.raises(TypeError, match="two names of one argument"):
                await tx.produce("events", "two", on_delivery=print, callback=print)

    run(main())
    assert (told, sqlite_place.kafka.committed) == ([None], ["one"])
