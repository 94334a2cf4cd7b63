"""The database transaction of a unit of work that is ended behind the unit's back, on every driver for asyncio; see
test_ended_transactions.py."""

from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import pytest
from sqlalchemy import Connection, event, insert, text
from sqlalchemy.exc import IntegrityError

from dualwrite.coordinator.aio.transaction import AsyncTransaction
from dualwrite.coordinator.rules.recovery_decision import Outcome
from dualwrite.coordinator.sql.outcome_store import HeuristicOutcome
from dualwrite.errors import InvalidTransactionStateError, KafkaUnavailableError
from tests.support.coordinator.aio.async_dual_writes import AsyncPlace, run, write, write_unit
from tests.support.coordinator.event_table import events, stored_values

pytestmark = pytest.mark.slow_cases("psycopg")

Act = Callable[[AsyncTransaction], Awaitable[object]]


async def run_past_sqlalchemy(tx: AsyncTransaction, statement: str) -> None:
    """On the driver's own connection."""
    driver: Any = (await tx.connection.get_raw_connection()).driver_connection
    if hasattr(driver, "cursor") and type(driver).__module__.startswith("aiomysql"):
        async with driver.cursor() as cursor:
            await cursor.execute(statement)
    else:
        await driver.execute(statement)


def by_driver(statement: str) -> Act:
    return lambda tx: run_past_sqlalchemy(tx, statement)


def by_method(method: str) -> Act:
    async def call(tx: AsyncTransaction) -> None:
        driver: Any = (await tx.connection.get_raw_connection()).driver_connection
        if not hasattr(driver, method):
            pytest.skip("asyncpg ends transactions by statements alone")
        await getattr(driver, method)()

    return call


async def insert_after(tx: AsyncTransaction) -> None:
    await tx.execute(insert(events).values(value="after"))


async def nothing(tx: AsyncTransaction) -> None:
    """The block ends there."""


WAYS = {
    "statement-commit": (by_driver("COMMIT"), True),
    "statement-rollback": (by_driver("ROLLBACK"), False),
    "driver-commit": (by_method("commit"), True),
    "driver-rollback": (by_method("rollback"), False),
    "commit-and-chain": (by_driver("COMMIT AND CHAIN"), True),
    "rollback-and-chain": (by_driver("ROLLBACK AND CHAIN"), False),
}
FOLLOWED = {"alone": nothing, "followed": insert_after}


def way_of(way: str, place: AsyncPlace) -> tuple[Act, bool]:
    if "chain" in way and place.driver == "aiosqlite":
        pytest.skip("SQLite has no AND CHAIN")
    return WAYS[way]


def stored(place: AsyncPlace, way: str, follow: str) -> list[str]:
    """What ``way`` has left in the database. SQLAlchemy begins asyncpg's transactions, and no other after a COMMIT that
    it has not seen: each statement that follows is committed by itself."""
    commits_each = place.driver == "asyncpg" and way in ("statement-commit", "statement-rollback")
    return ["one"] * WAYS[way][1] + ["after"] * (commits_each and follow == "followed")


def run_unit(place: AsyncPlace, *acts: Act, error: type[Exception], match: str) -> list[HeuristicOutcome]:
    """Run a unit of work that ends in ``error``; what is on record then."""

    async def main() -> list[HeuristicOutcome]:
        async with place.dual_write() as dual_write:

            async def unit() -> None:
                async with dual_write.transaction() as tx:
                    for act in acts:
                        await act(tx)

            with pytest.raises(error, match=match):
                await unit()
            return await dual_write.outcomes()

    return run(main())


def expected(place: AsyncPlace, was_committed: bool, state: str) -> list[tuple[str, Outcome, str]]:
    known = was_committed and place.driver in ("psycopg", "asyncpg")
    return [("orders-0", Outcome.HEURISTIC_ABORT if known else Outcome.HEURISTIC_HAZARD, state)]


def named(found: list[HeuristicOutcome]) -> list[tuple[str, Outcome, str]]:
    return [(outcome.transactional_id, outcome.outcome, outcome.state) for outcome in found]


@pytest.mark.slow_cases
@pytest.mark.parametrize("follow", FOLLOWED)
@pytest.mark.parametrize("way", WAYS)
def test_a_transaction_ended_past_sqlalchemy_is_noticed_and_on_record(place: AsyncPlace, way: str, follow: str) -> None:
    end, was_committed = way_of(way, place)
    acts = (lambda tx: write(tx, "one"), end, FOLLOWED[follow])
    found = run_unit(place, *acts, error=InvalidTransactionStateError, match="ended")
    assert stored_values(place.seen) == stored(place, way, follow)
    assert (place.kafka.committed, place.kafka.ongoing) == ([], None)
    assert named(found) == expected(place, was_committed, "4711:1:events:0:0")


@pytest.mark.slow_cases("psycopg", "asyncpg", "aiomysql")
@pytest.mark.parametrize("follow", FOLLOWED)
@pytest.mark.parametrize("way", WAYS)
def test_whatever_error_ends_the_block_a_commit_past_sqlalchemy_is_on_record(
    place: AsyncPlace, way: str, follow: str
) -> None:
    async def fail(tx: AsyncTransaction) -> None:
        raise ValueError("no")

    end, was_committed = way_of(way, place)
    acts = (lambda tx: write(tx, "one"), end, FOLLOWED[follow], fail)
    found = run_unit(place, *acts, error=ValueError, match="no")
    assert stored_values(place.seen) == stored(place, way, follow)
    assert (place.kafka.committed, place.kafka.ongoing) == ([], None)
    assert named(found) == expected(place, was_committed, "4711:1:events:0:0")


def test_a_unit_without_records_is_refused_and_on_record_too(place: AsyncPlace) -> None:
    async def insert_one(tx: AsyncTransaction) -> None:
        await tx.execute(insert(events).values(value="one"))

    found = run_unit(place, insert_one, by_driver("COMMIT"), error=InvalidTransactionStateError, match="ended")
    assert stored_values(place.seen) == ["one"]
    assert named(found) == expected(place, True, "")


def test_a_statement_that_fails_after_a_commit_past_sqlalchemy_hides_nothing(place: AsyncPlace) -> None:
    acts: list[Act] = [lambda tx: write(tx, "one"), by_driver("COMMIT"), lambda tx: write(tx, "one")]
    found = run_unit(place, *acts, error=IntegrityError, match="one|UNIQUE")
    assert stored_values(place.seen) == ["one"]
    assert place.kafka.committed == []
    assert named(found) == expected(place, True, "4711:1:events:0:0")


def test_nothing_is_on_record_of_a_unit_that_fails_by_itself(place: AsyncPlace) -> None:
    async def main() -> None:
        async with place.dual_write() as dual_write:

            async def unit(*values: str) -> None:
                async with dual_write.transaction() as tx:
                    for value in values:
                        await write(tx, value)

            await unit("one")
            with pytest.raises(IntegrityError):
                await unit("two", "one")
            await unit("three")
            assert await dual_write.outcomes() == []

    run(main())
    assert place.in_both("one", "three")


@pytest.mark.slow_cases
@pytest.mark.parametrize("statement", ["COMMIT", " rollback", "/* now */ BEGIN"])
def test_a_statement_that_would_end_the_transaction_is_refused_though_it_is_caught(
    place: AsyncPlace, statement: str
) -> None:
    async def execute(tx: AsyncTransaction) -> None:
        with pytest.raises(InvalidTransactionStateError, match="is refused inside a unit of work"):
            await tx.execute(text(statement))

    acts = (lambda tx: write(tx, "one"), execute, insert_after)
    assert run_unit(place, *acts, error=InvalidTransactionStateError, match="is refused inside a unit of work") == []
    assert place.in_both()


def test_the_isolation_level_can_be_chosen_by_the_first_statement(server_place: AsyncPlace) -> None:
    if server_place.driver == "aiomysql":
        pytest.skip("MariaDB takes no level inside a transaction")

    async def main() -> None:
        async with server_place.dual_write() as dual_write, dual_write.transaction() as tx:
            await tx.execute(text("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ"))
            await write(tx, "one")

    run(main())
    assert server_place.in_both("one")


def test_a_unit_whose_block_committed_past_the_library_is_not_run_again(place: AsyncPlace) -> None:
    runs = []

    async def main() -> None:
        async with place.dual_write() as dual_write:

            @dual_write.transactional(retries=3)
            async def unit(tx: AsyncTransaction) -> None:
                runs.append(1)
                await write(tx, f"row {len(runs)}")
                await run_past_sqlalchemy(tx, "COMMIT")
                raise KafkaUnavailableError("retriable")

            with pytest.raises(KafkaUnavailableError):
                await unit()

    run(main())
    assert len(runs) == 1
    assert stored_values(place.seen) == ["row 1"]


def test_a_statement_of_a_listener_that_fails_before_the_commit_leaves_the_unit_on_neither_side(
    server_place: AsyncPlace,
) -> None:
    """PostgreSQL then rolls back at the COMMIT without an error; MariaDB commits the rest. The state row says which."""

    def insert_again(connection: Connection) -> None:
        if connection.info.pop("is_in_unit", False):
            with suppress(IntegrityError):
                connection.execute(insert(events).values(value="one"))

    async def main() -> None:
        async with server_place.engine() as engine, server_place.dual_write(engine) as dual_write:
            event.listen(engine.sync_engine, "commit", insert_again)
            with suppress(InvalidTransactionStateError):
                async with dual_write.transaction() as tx:
                    await write(tx, "one")
                    tx.connection.info["is_in_unit"] = True

    run(main())
    kept = ["one"] if server_place.driver == "aiomysql" else []
    assert stored_values(server_place.seen) == server_place.kafka.committed == kept


@pytest.mark.parametrize("act", ["rollback", "failure"])
def test_a_transaction_that_a_listener_ends_past_sqlalchemy_leaves_the_unit_on_neither_side(
    place: AsyncPlace, act: str
) -> None:
    def end(connection: Connection) -> None:
        if not connection.info.pop("is_in_unit", False):
            return
        if act == "rollback":
            connection.connection.rollback()
        else:
            cursor = connection.connection.cursor()
            with suppress(Exception):
                cursor.execute("INSERT INTO events (value) VALUES ('one')")
            cursor.close()

    async def write_noted(tx: AsyncTransaction) -> None:
        await write(tx, "one")
        tx.connection.info["is_in_unit"] = True

    async def main() -> None:
        async with place.engine() as engine, place.dual_write(engine) as dual_write:
            event.listen(engine.sync_engine, "commit", end)
            if is_kept:
                await write_unit(dual_write, write_noted)
            else:
                with pytest.raises(InvalidTransactionStateError, match="a `commit` listener"):
                    await write_unit(dual_write, write_noted)
            await write_unit(dual_write, "two")

    is_kept = act == "failure" and place.driver in ("aiosqlite", "aiomysql")
    run(main())
    assert place.in_both(*["one"] * is_kept, "two")
