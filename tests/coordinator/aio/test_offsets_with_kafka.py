"""Consumers under asyncio with the real clients and broker: confluent-kafka's of both kinds, and units that fail."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.aio import AIOConsumer
from sqlalchemy import insert

from dualwrite import AsyncDeadLetters
from dualwrite.coordinator.aio.dual_write import AsyncDualWrite
from dualwrite.testing.kafka import KafkaBroker
from tests.support.coordinator.aio.async_dual_writes import AsyncPlace, run
from tests.support.coordinator.consumed_topics import BROKER, fill, reading, values_of
from tests.support.coordinator.event_table import events, stored_values
from tests.support.forked import ForkedKafkaBroker

RECORDS = 12
Poll = Callable[[int], Awaitable[list[Any]]]


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[KafkaBroker]:
    with ForkedKafkaBroker(tmp_path / "broker", config=BROKER) as broker:
        broker.create_topic("in")
        fill(broker.bootstrap_servers, 0, RECORDS)
        yield broker


def settings(broker: KafkaBroker, **more: Any) -> dict[str, Any]:
    return {
        "bootstrap.servers": broker.bootstrap_servers,
        "group.id": "group",
        "enable.auto.commit": False,
        "isolation.level": "read_committed",
        "auto.offset.reset": "earliest",
        "fetch.wait.max.ms": 50,
        **more,
    }


@asynccontextmanager
async def polled_in_a_thread(
    broker: KafkaBroker, dual_write: AsyncDualWrite, stores: bool, **more: Any
) -> AsyncIterator[tuple[Any, Poll]]:
    consumer = Consumer(settings(broker, **more))
    consumer.subscribe(["in"], on_assign=dual_write.on_assign("stored" if stores else "committed"))

    async def poll(count: int) -> list[Any]:
        return await asyncio.to_thread(consumer.consume, count, 0.2)

    try:
        yield consumer, poll
    finally:
        await asyncio.to_thread(consumer.close)


@asynccontextmanager
async def awaited(
    broker: KafkaBroker, dual_write: AsyncDualWrite, stores: bool, **more: Any
) -> AsyncIterator[tuple[Any, Poll]]:
    consumer = AIOConsumer(settings(broker, **more), max_workers=2)
    await consumer.subscribe(["in"], on_assign=dual_write.seek_to_stored if stores else dual_write.seek_to_committed)

    async def poll(count: int) -> list[Any]:
        found: list[Any] = await consumer.consume(count, 0.2)
        return found

    try:
        yield consumer, poll
    finally:
        await consumer.close()


@pytest.mark.slow_cases
@pytest.mark.parametrize("strategy", ["range", "cooperative-sticky"])
@pytest.mark.parametrize("method", ["store_offsets", "send_offsets"])
@pytest.mark.parametrize("kind", [polled_in_a_thread, awaited])
def test_each_record_is_used_once_though_units_fail(
    broker: KafkaBroker, sqlite_place: AsyncPlace, kind: Any, method: str, strategy: str
) -> None:
    async def use(dual_write: AsyncDualWrite, consumer: Any, values: list[str], fail: bool) -> None:
        async with dual_write.transaction() as tx:
            if not fail:
                await getattr(tx, method)(consumer)
            for value in values:
                await tx.execute(insert(events).values(value=value))
                await tx.produce("out", value)
            if fail:
                raise KeyError

    async def main() -> None:
        async with sqlite_place.engine() as engine:
            options: dict[str, Any] = {"application": "worker", "producer": "native"}
            stores = method == "store_offsets"
            async with (
                AsyncDualWrite(engine, broker.client_config, **options) as dual_write,
                kind(broker, dual_write, stores, **{"partition.assignment.strategy": strategy}) as (consumer, poll),
            ):
                units = 0
                while len(stored_values(sqlite_place.seen)) < RECORDS:
                    values = [message.value().decode() for message in await poll(3) if message.error() is None]
                    if not values:
                        continue
                    units += 1
                    try:
                        await use(dual_write, consumer, values, fail=units % 2 == 0)
                    except KeyError:
                        await (dual_write.seek_to_stored if stores else dual_write.seek_to_committed)(consumer)

    run(main())
    wanted = [str(number) for number in range(RECORDS)]
    assert values_of(broker, RECORDS) == stored_values(sqlite_place.seen) == wanted
    if method == "send_offsets":
        with reading(broker.bootstrap_servers) as consumer:
            assert consumer.committed([TopicPartition("in", 0)], timeout=30)[0].offset == RECORDS


@pytest.mark.slow_cases
@pytest.mark.parametrize("place", ["stored", "committed"])
@pytest.mark.parametrize("kind", [polled_in_a_thread, awaited])
def test_a_poison_record_goes_to_the_dead_letter_topic(
    broker: KafkaBroker, sqlite_place: AsyncPlace, kind: Any, place: Any
) -> None:
    broker.create_topic("in.dlq")

    async def function(tx: Any, message: Any) -> None:
        value = message.value().decode()
        await tx.execute(insert(events).values(value=value))
        await tx.produce("out", value)
        if value == "5":
            raise ValueError

    async def main() -> None:
        async with (
            sqlite_place.engine() as engine,
            AsyncDualWrite(engine, broker.client_config, application="worker") as dual_write,
            kind(broker, dual_write, place == "stored") as (consumer, poll),
        ):
            letters = AsyncDeadLetters(dual_write, consumer, "in.dlq", offsets=place, attempts=2)
            put_aside = 0
            while len(stored_values(sqlite_place.seen)) < RECORDS - 1:
                batch = [message for message in await poll(4) if message.error() is None]
                put_aside += await letters.use(batch, function)
            assert put_aside == 1

    run(main())
    wanted = [str(number) for number in range(RECORDS) if number != 5]
    assert values_of(broker, RECORDS - 1) == stored_values(sqlite_place.seen) == wanted
    assert [record.value for record in broker.read("in.dlq", minimum=1)] == [b"5"]
