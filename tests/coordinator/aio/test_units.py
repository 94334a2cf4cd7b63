"""AsyncDualWrite as its user meets it, on each driver for asyncio: what is committed, rolled back, raised, refused."""

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from sqlalchemy import insert, select
from sqlalchemy.exc import IntegrityError

from dualwrite.coordinator.aio.dual_write import AsyncDualWrite
from dualwrite.coordinator.aio.transaction import AsyncTransaction
from dualwrite.errors import InvalidTransactionStateError
from tests.support.coordinator.aio.async_dual_writes import AsyncPlace, run, write, write_unit
from tests.support.coordinator.event_table import events, slot_rows, stored_values
from tests.support.coordinator.usual_unit import EventModel

pytestmark = pytest.mark.slow_cases("psycopg")

Act = Callable[[AsyncTransaction], Awaitable[object]]


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
