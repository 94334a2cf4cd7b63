"""An AsyncDualWrite over a database behind a proxy that can go silent."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Iterator
from contextlib import asynccontextmanager

import pytest
from sqlalchemy.ext.asyncio import create_async_engine

from dualwrite.coordinator.aio.dual_write import AsyncDualWrite
from tests.support.coordinator.aio.async_dual_writes import AsyncPlace, async_url
from tests.support.coordinator.event_table import CONFIG
from tests.support.servers.silent_proxy import SilentProxy

LIMIT = 2.0
"""``database_timeout``."""
SLACK = 10.0
NEVER = 3600.0
"""A lease_timeout that lets no heartbeat come in between."""


@pytest.fixture
def proxy(server_place: AsyncPlace) -> Iterator[SilentProxy]:
    made = SilentProxy(server_place.seen.url.render_as_string(hide_password=False))
    yield made
    made.close()


@asynccontextmanager
async def dual_write(place: AsyncPlace, proxy: SilentProxy) -> AsyncIterator[AsyncDualWrite]:
    """Behind the proxy, with two slots of which one is seen by the fake Kafka."""
    engine = create_async_engine(async_url(proxy.plain_url, place.driver))
    made = AsyncDualWrite(
        engine,
        CONFIG,
        application="orders",
        participant=place.kafka.participant,
        pool_size=1,
        lease_timeout=NEVER,
        database_timeout=LIMIT,
    )
    try:
        yield made
    finally:
        proxy.lets_nobody_in = False
        proxy.end_silent()
        await made.close(timeout=20)
        await engine.dispose()


async def outcome(unit: Awaitable[None], within: float) -> BaseException | None:
    """What ``unit`` raises; it fails the test if it takes longer than ``within`` seconds."""
    task = asyncio.ensure_future(unit)
    done, _ = await asyncio.wait([task], timeout=within + SLACK)
    assert done, f"it hangs for longer than {within + SLACK} s"
    return task.exception()
