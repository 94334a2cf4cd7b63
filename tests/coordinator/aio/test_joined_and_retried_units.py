"""Nested units, decorated coroutines, and units that are run again, on each driver for asyncio."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from sqlalchemy import insert, select, update
from sqlalchemy.ext.asyncio import create_async_engine

from dualwrite.coordinator.aio.dual_write import AsyncDualWrite
from dualwrite.coordinator.aio.transaction import AsyncTransaction
from dualwrite.errors import ConfigurationError, InvalidTransactionStateError
from tests.support.coordinator.aio.async_dual_writes import AsyncPlace, raise_value_error, run, write, write_unit
from tests.support.coordinator.event_table import events
from tests.support.coordinator.usual_unit import fail_at

pytestmark = pytest.mark.slow_cases("psycopg")

Act = Callable[[AsyncTransaction], Awaitable[object]]


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
