"""AsyncDualWrites for tests: each test is a coroutine in a loop of its own, over the fake Kafka."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

from sqlalchemy import Engine, insert, make_url
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from dualwrite.coordinator.aio.dual_write import AsyncDualWrite
from dualwrite.coordinator.aio.transaction import AsyncTransaction
from tests.support.coordinator.event_table import CONFIG, events, stored_values
from tests.support.coordinator.fake_kafka import FakeKafka

T = TypeVar("T")
LONG = 60.0
DRIVERS = {
    "aiosqlite": "sqlite+aiosqlite",
    "asyncpg": "postgresql+asyncpg",
    "psycopg": "postgresql+psycopg",
    "aiomysql": "mysql+aiomysql",
}


def run(main: Awaitable[T]) -> T:
    """Run a test's coroutine; one that hangs fails."""

    async def bounded() -> T:
        return await asyncio.wait_for(main, LONG)

    return asyncio.run(bounded())


def async_url(url: str, driver: str) -> str:
    return make_url(url).set(drivername=DRIVERS[driver]).render_as_string(hide_password=False)


@dataclass
class AsyncPlace:
    """A database with the tables, as a blocking engine sees it, and the URL for a driver for asyncio."""

    driver: str
    url: str
    seen: Engine
    kafka: FakeKafka = field(default_factory=FakeKafka)

    @asynccontextmanager
    async def engine(self, **options: Any) -> AsyncIterator[AsyncEngine]:
        engine = create_async_engine(self.url, **options)
        try:
            yield engine
        finally:
            await engine.dispose()

    @asynccontextmanager
    async def dual_write(self, engine: AsyncEngine | None = None, **options: Any) -> AsyncIterator[AsyncDualWrite]:
        options = {"application": "orders", "participant": self.kafka.participant, "pool_size": 1, **options}
        if engine is not None:
            async with AsyncDualWrite(engine, CONFIG, **options) as dual_write:
                yield dual_write
            return
        async with self.engine() as made, AsyncDualWrite(made, CONFIG, **options) as dual_write:
            yield dual_write

    def in_both(self, *values: str) -> bool:
        return stored_values(self.seen) == self.kafka.committed == list(values) and self.kafka.ongoing is None


async def write(tx: AsyncTransaction, value: str) -> None:
    await tx.execute(insert(events).values(value=value))
    await tx.produce("events", value=value)


async def write_unit(dual_write: AsyncDualWrite, *acts: str | Callable[[AsyncTransaction], Awaitable[object]]) -> None:
    """A unit of work that writes values on both sides, or does other things, one after the other."""
    async with dual_write.transaction() as tx:
        for act in acts:
            await (write(tx, act) if isinstance(act, str) else act(tx))


async def raise_value_error(tx: AsyncTransaction) -> None:
    raise ValueError("no")
