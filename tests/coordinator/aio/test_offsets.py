"""Consumers under asyncio: the offsets are in the unit of work, however the consumer's calls are awaited."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import pytest
from sqlalchemy import insert, select

from dualwrite.coordinator.aio.dual_write import AsyncDualWrite
from dualwrite.coordinator.aio.manager import AsyncUnitManager
from dualwrite.coordinator.aio.transaction import AsyncTransaction
from dualwrite.coordinator.dual_write import DualWrite
from dualwrite.coordinator.offsets.consumers import KafkaConsumer
from dualwrite.coordinator.sql.tables import kafka_consumer_offset as table
from dualwrite.errors import (
    ConfigurationError,
    InvalidTransactionStateError,
    KafkaUnavailableError,
    RebalancedError,
)
from dualwrite.ids import TopicPartition
from tests.support.coordinator.aio.async_dual_writes import AsyncPlace, run, write_unit
from tests.support.coordinator.event_table import events, stored_values
from tests.support.coordinator.fake_consumer import FakeConsumer, FakeGroup, positions
from tests.support.coordinator.fake_kafka import FakeCluster, Fault

P, Q = TopicPartition("in", 0), TopicPartition("in", 1)


class AwaitedFake:
    """A consumer of which every call is a coroutine, as of confluent_kafka.aio.AIOConsumer."""

    def __init__(self, inner: FakeConsumer) -> None:
        self.inner = inner


def awaited(name: str) -> Any:
    async def call(self: Any, *arguments: Any, **options: Any) -> Any:
        await asyncio.sleep(0)
        return getattr(self.inner, name)(*arguments, **options)

    return call


for each in (name for name in vars(KafkaConsumer) if not name.startswith("_")):
    setattr(AwaitedFake, each, awaited(each))


Wrap = Callable[[FakeConsumer], Any]


def as_it_is(consumer: FakeConsumer) -> FakeConsumer:
    return consumer


@pytest.fixture
def lite(make_dual_write: Callable[..., DualWrite]) -> DualWrite:
    return make_dual_write()


kinds = pytest.mark.parametrize("wrap", [as_it_is, AwaitedFake])


async def use(
    dual_write: AsyncDualWrite, consumer: Any, records: list[int], method: str = "store_offsets", fail: str = ""
) -> None:
    """A unit of work with ``records`` of P; it may fail before, or after it says so."""
    async with dual_write.transaction() as tx:
        if fail == "before":
            raise KeyError
        await getattr(tx, method)(consumer)
        for record in records:
            await tx.execute(insert(events).values(value=f"{record}"))
        if fail:
            raise KeyError


def stored_offsets(place: AsyncPlace) -> dict[TopicPartition, int]:
    with place.seen.connect() as connection:
        return {TopicPartition(row.topic, row.partition): row.next_offset for row in connection.execute(select(table))}


@pytest.mark.slow_cases("psycopg", "aiomysql")
@kinds
def test_offsets_are_stored_with_what_the_records_were_used_for(place: AsyncPlace, wrap: Wrap) -> None:
    inner = FakeConsumer(FakeGroup())
    consumer = wrap(inner)

    async def main() -> None:
        async with place.dual_write() as dual_write:
            await dual_write.seek_to_stored(consumer, positions(P, Q))
            assert stored_offsets(place) == {P: 0, Q: 0}
            await use(dual_write, consumer, inner.poll(P, 2))
            with pytest.raises(KeyError):
                await use(dual_write, consumer, inner.poll(P, 2), fail="after")
            with pytest.raises(InvalidTransactionStateError, match="has failed since"):
                await use(dual_write, consumer, inner.poll(P, 1))
            await dual_write.seek_to_stored(consumer)
            assert inner.next == {P: 2, Q: 0}
            await use(dual_write, consumer, inner.poll(P, 3))

    run(main())
    assert stored_offsets(place) == {P: 5, Q: 0}
    assert stored_values(place.seen) == ["0", "1", "2", "3", "4"]


@kinds
def test_offsets_are_sent_with_the_records(sqlite_place: AsyncPlace, wrap: Wrap) -> None:
    inner = FakeConsumer(FakeGroup())
    inner.next = {P: 0}
    consumer = wrap(inner)

    async def main() -> None:
        async with sqlite_place.dual_write() as dual_write:
            await use(dual_write, consumer, inner.poll(P, 2), "send_offsets")
            sqlite_place.kafka.fault = lambda request: Fault.BEFORE if request == "prepare" else Fault.NONE
            with pytest.raises(KafkaUnavailableError):
                await use(dual_write, consumer, inner.poll(P, 2), "send_offsets")
            sqlite_place.kafka.fault = lambda request: Fault.NONE
            with pytest.raises(InvalidTransactionStateError, match=r"seek_to_committed\(consumer\)"):
                await use(dual_write, consumer, inner.poll(P, 1), "send_offsets")
            inner.group.committed[P] = 2
            await dual_write.seek_to_committed(consumer)
            await use(dual_write, consumer, inner.poll(P, 1), "send_offsets")
            inner.member = inner.member._replace(member_id="")
            inner.poll(P, 1)
            with pytest.raises(RebalancedError, match="a member of group"):
                await use(dual_write, consumer, [3], "send_offsets")

    run(main())
    member = inner.member._replace(member_id="member")
    assert sqlite_place.kafka.committed == [(member, {P: 2}), (member, {P: 3})]
    assert stored_values(sqlite_place.seen) == ["0", "1", "2"]


@pytest.mark.slow_cases("psycopg", "aiomysql")
def test_only_one_of_two_consumers_with_the_same_records_commits_them(place: AsyncPlace) -> None:
    group, cluster = FakeGroup(), FakeCluster()
    consumers = [FakeConsumer(group, "zombie"), FakeConsumer(group, "owner")]

    async def main() -> None:
        async with (
            place.dual_write(participant=cluster.participant, pool_size=2) as zombie,
            place.dual_write(participant=cluster.participant, pool_size=2) as owner,
        ):
            for each, consumer in zip((zombie, owner), consumers, strict=True):
                await each.seek_to_stored(consumer, positions(P))
                consumer.poll(P, 2)
            await use(owner, consumers[1], [0, 1])
            with pytest.raises(RebalancedError, match="moved on"):
                await use(zombie, consumers[0], [0, 1])
            await zombie.seek_to_stored(consumers[0])
            assert consumers[0].next == {P: 2}

    run(main())
    assert stored_values(place.seen) == ["0", "1"]


# A consumer that blocks.


def test_a_consumers_calls_do_not_block_the_loop(sqlite_place: AsyncPlace) -> None:
    class Slow(FakeConsumer):
        def position(self, partitions: list[Any]) -> Any:
            turn()
            return super().position(partitions)

        def assignment(self) -> Any:
            turn()
            return super().assignment()

        def consumer_group_metadata(self) -> Any:
            turn()
            return super().consumer_group_metadata()

        def seek(self, partition: Any) -> None:
            turn()
            super().seek(partition)

    def turn() -> None:
        assert asyncio.run_coroutine_threadsafe(asyncio.sleep(0, "a turn"), loops[0]).result(20) == "a turn"

    loops: list[asyncio.AbstractEventLoop] = []
    consumer = Slow(FakeGroup())

    async def main() -> None:
        loops.append(asyncio.get_running_loop())
        async with sqlite_place.dual_write() as dual_write:
            await dual_write.seek_to_stored(consumer, positions(P))
            await use(dual_write, consumer, consumer.poll(P, 2))
            await dual_write.seek_to_stored(consumer)

    run(main())
    assert stored_offsets(sqlite_place) == {P: 2}


@pytest.mark.slow_cases("psycopg", "aiomysql")
def test_the_callback_for_a_consumer_that_is_polled_in_a_thread(place: AsyncPlace) -> None:
    consumer = FakeConsumer(FakeGroup())

    async def main() -> None:
        async with place.dual_write() as dual_write:
            on_assign = dual_write.on_assign(auto_offset_reset="latest")
            with pytest.raises(InvalidTransactionStateError, match="polled in the event loop's thread"):
                on_assign(consumer, positions(P))
            await asyncio.to_thread(on_assign, consumer, positions(P))
            assert consumer.next == {P: 1000}
            await use(dual_write, consumer, consumer.poll(P, 2))
            await asyncio.to_thread(on_assign, consumer, positions(P, Q))

    run(main())
    assert stored_offsets(place) == consumer.next == {P: 1002, Q: 1000}


def test_a_callback_that_puts_it_where_its_group_is_in_kafka(sqlite_place: AsyncPlace) -> None:
    consumer = FakeConsumer(FakeGroup())
    consumer.group.committed[P] = 4

    async def main() -> None:
        async with sqlite_place.dual_write() as dual_write:
            await asyncio.to_thread(dual_write.on_assign("committed"), consumer, positions(P))
            assert consumer.next == {P: 4}
            consumer.group.committed[Q] = 6
            await dual_write.seek_to_committed(consumer, positions(P, Q))
            assert consumer.next == {P: 4, Q: 6}
            with pytest.raises(ConfigurationError, match=r"on_assign\('end'\): use 'stored' or 'committed'"):
                dual_write.on_assign("end")  # type: ignore[arg-type]

    run(main())
    assert stored_offsets(sqlite_place) == {}


@pytest.mark.parametrize("method", ["seek_to_stored", "seek_to_committed"])
def test_a_group_without_an_offset_begins_where_the_application_says(sqlite_place: AsyncPlace, method: str) -> None:
    consumer = FakeConsumer(FakeGroup())

    async def main() -> None:
        async with sqlite_place.dual_write() as dual_write:
            await getattr(dual_write, method)(consumer, positions(P), auto_offset_reset="latest")

    run(main())
    assert consumer.next == {P: 1000}


@kinds
def test_a_consumer_can_be_positioned_after_a_close(sqlite_place: AsyncPlace, wrap: Wrap) -> None:
    inner = FakeConsumer(FakeGroup())
    inner.next, inner.group.committed[P] = {P: 0}, 2

    async def main() -> None:
        async with sqlite_place.dual_write() as dual_write:
            await write_unit(dual_write, "one")
        await dual_write.seek_to_committed(wrap(inner))

    run(main())
    assert inner.next == {P: 2}


def test_an_invalid_consumer_is_refused_by_its_type(sqlite_place: AsyncPlace, lite: DualWrite) -> None:
    async def main() -> None:
        async with sqlite_place.dual_write() as dual_write:
            with pytest.raises(TypeError, match="a consumer of type str: give"):
                await dual_write.seek_to_stored("in")
            with pytest.raises(TypeError, match="a consumer of type str: give"):
                await use(dual_write, "in", [])

    run(main())
    awaited_one: Any = AwaitedFake(FakeConsumer(FakeGroup()))
    with pytest.raises(TypeError, match="a consumer of type AwaitedFake: use AsyncDualWrite"):
        lite.seek_to_stored(awaited_one)


def test_store_offsets_without_await_fails_the_unit(sqlite_place: AsyncPlace) -> None:
    consumer = FakeConsumer(FakeGroup())

    async def forgets(tx: AsyncTransaction) -> None:
        await tx.execute(insert(events).values(value="lost"))
        calls.append(tx.store_offsets(consumer))

    calls: list[Any] = []

    async def main() -> None:
        async with sqlite_place.dual_write() as dual_write:
            await dual_write.seek_to_stored(consumer, positions(P))
            consumer.poll(P, 2)
            with pytest.raises(InvalidTransactionStateError, match=r"await tx\.store_offsets"):
                await write_unit(dual_write, forgets)
            calls.pop().close()

    run(main())
    assert stored_values(sqlite_place.seen) == []


# Whose failures they are.


async def in_a_task(act: Awaitable[None]) -> None:
    with suppress(KeyError):
        await asyncio.ensure_future(act)


@pytest.mark.parametrize("by_callback", [True, False])
def test_a_failure_before_anything_was_claimed_leaves_nothing_to_claim(
    sqlite_place: AsyncPlace, by_callback: bool
) -> None:
    """Whoever has put the consumer there, a callback in a thread or in a task of its own, runs no units."""
    consumer = FakeConsumer(FakeGroup())

    async def main() -> None:
        async with sqlite_place.dual_write() as dual_write:
            if by_callback:
                await asyncio.to_thread(dual_write.on_assign(), consumer, positions(P))
            else:
                await in_a_task(dual_write.seek_to_stored(consumer, positions(P)))
            with pytest.raises(KeyError):
                await use(dual_write, consumer, consumer.poll(P, 2), fail="before")
            consumer.poll(P, 1)
            with pytest.raises(InvalidTransactionStateError, match="has failed since"):
                await use(dual_write, consumer, [2])

    run(main())
    assert stored_offsets(sqlite_place) == {P: 0}


def test_another_tasks_failure_does_not_mark_the_consumer(sqlite_place: AsyncPlace) -> None:
    consumer = FakeConsumer(FakeGroup())

    async def main() -> None:
        async with sqlite_place.dual_write() as dual_write:
            await dual_write.seek_to_stored(consumer, positions(P))
            await in_a_task(use(dual_write, consumer, [], fail="before"))
            await use(dual_write, consumer, consumer.poll(P, 2))

    run(main())
    assert stored_offsets(sqlite_place) == {P: 2}


def test_a_unit_that_is_run_again_has_the_same_records(
    sqlite_place: AsyncPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first time it does not even begin, and the second time Kafka fails."""
    consumer = FakeConsumer(FakeGroup())
    acquire, kafka = AsyncUnitManager.acquire, sqlite_place.kafka
    failures = ["acquire"]

    def fails_once(manager: AsyncUnitManager, unit: Any) -> Any:
        if failures:
            raise KafkaUnavailableError(failures.pop())
        return acquire(manager, unit)

    def fault(request: str) -> Fault:
        return Fault.BEFORE if request == "prepare" and kafka.requests.count("prepare") == 1 else Fault.NONE

    monkeypatch.setattr(AsyncUnitManager, "acquire", fails_once)
    kafka.fault = fault

    async def main() -> None:
        async with sqlite_place.dual_write() as dual_write:

            @dual_write.transactional(retries=5)
            async def handle(tx: AsyncTransaction, records: list[int]) -> None:
                await tx.store_offsets(consumer)
                for record in records:
                    await tx.execute(insert(events).values(value=f"{record}"))
                    await tx.produce("events", f"{record}")

            await dual_write.seek_to_stored(consumer, positions(P))
            await handle(consumer.poll(P, 2))
            await handle(consumer.poll(P, 1))

    run(main())
    assert sqlite_place.in_both("0", "1", "2")
    assert stored_offsets(sqlite_place) == {P: 3}


def test_a_unit_that_failed_for_good_before_it_began_counts(
    sqlite_place: AsyncPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    consumer = FakeConsumer(FakeGroup())
    acquire = AsyncUnitManager.acquire

    def never(manager: AsyncUnitManager, unit: Any) -> Any:
        raise KafkaUnavailableError("no")

    async def main() -> None:
        async with sqlite_place.dual_write() as dual_write:
            handle = dual_write.transactional(retries=1)(lambda_of_store(consumer))
            await dual_write.seek_to_stored(consumer, positions(P))
            consumer.poll(P, 2)
            monkeypatch.setattr(AsyncUnitManager, "acquire", never)
            with pytest.raises(KafkaUnavailableError):
                await handle()
            monkeypatch.setattr(AsyncUnitManager, "acquire", acquire)
            consumer.poll(P, 1)
            with pytest.raises(InvalidTransactionStateError, match="has failed since"):
                await handle()

    run(main())
    assert stored_offsets(sqlite_place) == {P: 0}


def lambda_of_store(consumer: FakeConsumer) -> Callable[[AsyncTransaction], Awaitable[None]]:
    async def store(tx: AsyncTransaction) -> None:
        await tx.store_offsets(consumer)

    return store


def test_offsets_whose_call_was_cancelled_are_not_committed(sqlite_place: AsyncPlace) -> None:
    asked, go_on = asyncio.Event(), asyncio.Event()

    class Hesitant(AwaitedFake):
        async def position(self, partitions: list[Any]) -> Any:
            asked.set()
            await go_on.wait()

    inner = FakeConsumer(FakeGroup())
    consumer = Hesitant(inner)

    async def forgetful(dual_write: AsyncDualWrite) -> None:
        async with dual_write.transaction() as tx:
            await tx.execute(insert(events).values(value="lost"))
            with suppress(asyncio.CancelledError):
                await tx.store_offsets(consumer)

    async def main() -> None:
        async with sqlite_place.dual_write() as dual_write:
            await dual_write.seek_to_stored(consumer, positions(P))
            inner.poll(P, 2)
            task = asyncio.ensure_future(forgetful(dual_write))
            await asked.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

    run(main())
    assert stored_values(sqlite_place.seen) == []
    assert stored_offsets(sqlite_place) == {P: 0}
