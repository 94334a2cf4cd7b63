"""The application that gets killed, on asyncio: as application.py, by AsyncDualWrite, with tasks for threads."""

import asyncio
import random
from typing import Any

from sqlalchemy import insert, make_url
from sqlalchemy.ext.asyncio import create_async_engine

from dualwrite import AsyncDualWrite, DualWriteError, InDoubtError
from dualwrite.client.librdkafka.connecting import CONNECT_AT_ONCE
from tests.support.crash.application import (
    LEFT_PARTITIONS,
    SABOTAGE,
    OnPurposeError,
    Task,
    items,
    new_unit,
    pauses,
    say,
)

DRIVERS = {"sqlite": "sqlite+aiosqlite", "postgresql": "postgresql+asyncpg", "mysql": "mysql+aiomysql"}


async def write_unit(task: Task, dual_write: AsyncDualWrite, unit: str, count: int, fails: bool) -> None:
    left, right = task.topics
    async with dual_write.transaction() as tx:
        for item in range(count):
            await tx.execute(insert(items), {"unit": unit, "item": item})
            await tx.produce(left, key=f"{unit}:{item}".encode(), partition=item % LEFT_PARTITIONS)
            await tx.produce(right, key=f"{unit}:{item}".encode())
        if fails:
            raise OnPurposeError


async def run_units(task: Task, dual_write: AsyncDualWrite, seed: int) -> None:
    chance = random.Random(seed)
    for _ in range(task.units):
        unit = new_unit(task)
        try:
            await write_unit(task, dual_write, unit, chance.randint(1, 30), chance.random() < 0.1)
            say(f"ok {unit}")
        except InDoubtError:
            say(f"doubt {unit}")
        except (OnPurposeError, DualWriteError) as error:
            say(f"no {unit} {error}")
            if not isinstance(error, OnPurposeError):
                await asyncio.sleep(0.05)  # the broker is down: no need to ask it a thousand times a second


async def run(task: Task) -> None:
    url = make_url(task.url)
    engine = create_async_engine(url.set(drivername=DRIVERS[url.get_backend_name()]))
    say("started")
    config = {**CONNECT_AT_ONCE, "bootstrap.servers": task.bootstrap_servers, "delivery.timeout.ms": 5000}
    options: Any = {"producer": task.producer, "on_step": pauses(task), "lease_timeout": task.lease_timeout}
    async with AsyncDualWrite(engine, config, application=task.application, **options) as dual_write:
        await asyncio.gather(*(run_units(task, dual_write, task.seed + number) for number in range(task.threads)))
        await dual_write.recover()
    await engine.dispose()


def main(task: Task) -> None:
    """What its process does."""
    if task.sabotage:
        SABOTAGE[task.sabotage]()
    asyncio.run(run(task))
