"""A database server that goes silent under asyncio: the event loop goes on, and the unit ends within its limit."""

import asyncio

import pytest

from dualwrite.coordinator.aio.dual_write import AsyncDualWrite
from dualwrite.errors import DatabaseUnavailableError, InDoubtError
from tests.support.coordinator.aio.async_dual_writes import AsyncPlace, run, write_unit
from tests.support.coordinator.aio.async_silent_database import LIMIT, dual_write, outcome, proxy
from tests.support.servers.silent_proxy import COMMIT, SilentProxy
from tests.support.waiting import eventually

__all__ = ["proxy"]


async def count_turns(turns: list[None]) -> None:
    while True:
        turns.append(None)
        await asyncio.sleep(0.01)


async def settled(made: AsyncDualWrite) -> None:
    """Wait for the background."""
    assert await asyncio.to_thread(eventually, lambda: made.pending() == 0)


@pytest.mark.slow
def test_a_commit_that_never_arrives_ends_in_doubt_while_the_loop_goes_on(
    server_place: AsyncPlace, proxy: SilentProxy
) -> None:
    async def main() -> None:
        async with dual_write(server_place, proxy) as made:
            await write_unit(made, "before")
            turns: list[None] = []
            counting = asyncio.ensure_future(count_turns(turns))
            proxy.silence_at(COMMIT, delivers=False)
            error = await outcome(write_unit(made, "lost"), 2 * LIMIT)
            assert isinstance(error, InDoubtError)
            assert "(database_timeout)" in str(error)
            assert len(turns) > 20  # the loop was not held up
            counting.cancel()
            proxy.end_silent()
            await settled(made)
        assert server_place.in_both("before")

    run(main())


@pytest.mark.slow
def test_a_commit_whose_answer_is_lost_is_found_and_the_unit_succeeds(
    server_place: AsyncPlace, proxy: SilentProxy
) -> None:
    async def main() -> None:
        async with dual_write(server_place, proxy) as made:
            await write_unit(made, "before")
            proxy.silence_at(COMMIT, delivers=True)
            assert await outcome(write_unit(made, "committed"), 2 * LIMIT) is None
        assert server_place.in_both("before", "committed")

    run(main())


@pytest.mark.slow
@pytest.mark.parametrize("delivers", [True, False])
def test_a_database_that_vanishes_at_commit_is_settled_when_it_is_back(
    server_place: AsyncPlace, proxy: SilentProxy, delivers: bool
) -> None:
    async def main() -> None:
        async with dual_write(server_place, proxy) as made:
            await write_unit(made, "before")
            proxy.silence_at(COMMIT, delivers=delivers)
            proxy.lets_nobody_in = True
            assert isinstance(await outcome(write_unit(made, "in doubt"), 2 * LIMIT), InDoubtError)
            proxy.lets_nobody_in = False
            proxy.end_silent()
            await settled(made)
        assert server_place.in_both("before", *(["in doubt"] if delivers else []))

    run(main())


@pytest.mark.slow
def test_an_unanswered_first_connection_fails_within_the_limit(server_place: AsyncPlace, proxy: SilentProxy) -> None:
    async def main() -> None:
        async with dual_write(server_place, proxy) as made:
            proxy.lets_nobody_in = True
            error = await outcome(write_unit(made, "lost"), 2 * LIMIT)
            assert isinstance(error, DatabaseUnavailableError), repr(error)
            proxy.lets_nobody_in = False
            await write_unit(made, "after")
        assert server_place.in_both("after")

    run(main())
