"""``close(timeout)`` limits the whole call, even if another thread's unit of work or the database hangs."""

import asyncio
import threading
from typing import Any

import pytest

from dualwrite.coordinator.aio.dual_write import AsyncDualWrite
from dualwrite.coordinator.manager.unit_manager import manager_of
from tests.support.coordinator.aio.async_dual_writes import AsyncPlace, run
from tests.support.coordinator.aio.async_dual_writes import write as write_async
from tests.support.coordinator.aio.async_silent_database import dual_write as async_dual_write
from tests.support.coordinator.aio.async_silent_database import proxy
from tests.support.coordinator.event_table import slot_rows
from tests.support.coordinator.silent_database import LIMIT, SLACK, SilentDatabaseWorld, error_of, world
from tests.support.coordinator.usual_unit import write, write_unit
from tests.support.servers.silent_proxy import COMMIT
from tests.support.waiting import eventually

__all__ = ["proxy", "world"]

TIMEOUT = 1.0
"""Of close()."""
LAST_WORD = 2.0
"""That it gives a silent database beyond that."""


def left_behind(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [message for message in caplog.messages if "closed while units of work still run" in message]


@pytest.mark.slow
def test_a_close_does_not_wait_longer_for_a_unit_than_its_timeout_and_names_the_slot(
    world: SilentDatabaseWorld, caplog: pytest.LogCaptureFixture
) -> None:
    dual_write = world.dual_write()
    in_block, go_on = threading.Event(), threading.Event()
    errors: list[BaseException] = []

    def unit() -> None:
        try:
            with dual_write.transaction() as tx:
                write(tx, "slow")
                in_block.set()
                assert go_on.wait(60)
        except BaseException as error:  # noqa: BLE001 - the test looks at it
            errors.append(error)

    thread = threading.Thread(target=unit)
    thread.start()
    assert in_block.wait(30)
    assert error_of(lambda: dual_write.close(TIMEOUT), TIMEOUT) is None
    assert left_behind(caplog) == [
        "a: closed while units of work still run in a-0: recovery will end their transactions"
    ]
    go_on.set()
    thread.join(30)
    recovering = world.dual_write()
    recovering.recover()
    assert world.is_alike(*([] if errors else ["slow"]))


@pytest.mark.slow
def test_a_close_in_a_database_that_has_gone_silent_ends_in_time(
    world: SilentDatabaseWorld, caplog: pytest.LogCaptureFixture
) -> None:
    """The leases are not given back: they run out."""
    dual_write = world.dual_write(database_timeout=600.0)
    write_unit(dual_write, "before")
    world.proxy.silence_all()
    world.proxy.lets_nobody_in = True
    assert error_of(lambda: dual_write.close(TIMEOUT), TIMEOUT + LAST_WORD) is None
    assert any("the leases were not given back" in message for message in caplog.messages)
    assert slot_rows(world.seen)["a-0"].owner
    assert world.is_alike("before")


@pytest.mark.slow
def test_a_close_while_a_unit_hangs_in_its_commit_ends_in_time_and_recovery_finishes_it(
    world: SilentDatabaseWorld,
) -> None:
    """The row is locked, so its lease cannot be given back, and runs out."""
    dual_write = world.dual_write(database_timeout=8.0, lease_timeout=6.0)
    write_unit(dual_write, "before")
    world.proxy.silence_at(COMMIT, delivers=False)
    outcome: list[BaseException | None] = []
    thread = threading.Thread(target=lambda: outcome.append(error_of(lambda: write_unit(dual_write, "lost"), 16.0)))
    thread.start()
    assert world.proxy.silenced.wait(30)
    assert error_of(lambda: dual_write.close(TIMEOUT), TIMEOUT + LAST_WORD) is None
    thread.join(60)
    assert outcome != [None]
    world.proxy.end_silent()
    recovering = world.dual_write()

    def is_finished() -> bool:
        recovering.recover()
        return world.is_alike("before")

    assert eventually(is_finished)


@pytest.mark.slow
def test_an_async_close_does_not_wait_longer_for_a_task_than_its_timeout(
    server_place: AsyncPlace, proxy: Any, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        async with async_dual_write(server_place, proxy) as made:
            in_block, go_on = asyncio.Event(), asyncio.Event()

            async def unit() -> None:
                async with made.transaction() as tx:
                    await write_async(tx, "slow")
                    in_block.set()
                    await go_on.wait()

            task = asyncio.ensure_future(unit())
            await asyncio.wait_for(in_block.wait(), 30)
            await asyncio.wait_for(made.close(TIMEOUT), TIMEOUT + LAST_WORD + SLACK)
            assert left_behind(caplog)
            go_on.set()
            await asyncio.wait([task])
        again = AsyncDualWrite(
            manager_of(made).async_engine,
            {"bootstrap.servers": "nowhere:9092"},
            application="orders",
            participant=server_place.kafka.participant,
            pool_size=1,
            database_timeout=LIMIT,
        )
        await again.recover()
        await again.close()
        await manager_of(made).async_engine.dispose()
        assert server_place.in_both(*([] if task.exception() else ["slow"]))

    run(main())
