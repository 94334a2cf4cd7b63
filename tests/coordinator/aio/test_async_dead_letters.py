"""AsyncDeadLetters: the same attempts in an event loop, with its cancellations."""

import asyncio
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException
from sqlalchemy import insert

from dualwrite import AsyncDeadLetters
from dualwrite.coordinator.aio.dual_write import AsyncDualWrite
from dualwrite.errors import ConfigurationError, KafkaRefusedError, KafkaUnavailableError, RebalancedError
from dualwrite.ids import TopicPartition
from tests.support.coordinator.aio.async_dual_writes import AsyncPlace, run
from tests.support.coordinator.dead_letters.fake_records import KeepingKafka, polled
from tests.support.coordinator.event_table import events, stored_values
from tests.support.coordinator.fake_consumer import FakeConsumer, FakeGroup, positions
from tests.support.coordinator.fake_kafka import Fault

P = TopicPartition("in", 0)
DLQ = "in.dlq"
PLACES = ["stored", "committed"]


@pytest.fixture
def kafka(sqlite_place: AsyncPlace) -> KeepingKafka:
    sqlite_place.kafka = kafka = KeepingKafka()
    return kafka


async def begun(dual_write: AsyncDualWrite, offsets: Any) -> tuple[FakeConsumer, AsyncDeadLetters]:
    """A consumer that has been positioned, and its dead letters."""
    consumer = FakeConsumer(FakeGroup())
    seek = dual_write.seek_to_stored if offsets == "stored" else dual_write.seek_to_committed
    await seek(consumer, positions(P))
    return consumer, AsyncDeadLetters(dual_write, consumer, DLQ, offsets=offsets, attempts=2)


async def use_strictly(tx: Any, message: Any) -> None:
    value = message.value().decode()
    await tx.execute(insert(events).values(value=value))
    await tx.produce("out", value)
    if value == "bad":
        raise ValueError(value)


@pytest.mark.parametrize("offsets", PLACES)
def test_a_unit_that_could_not_begin_is_begun_again_with_the_same_records(
    sqlite_place: AsyncPlace, kafka: KeepingKafka, offsets: str
) -> None:
    failing = [Fault.BEFORE]

    async def main() -> None:
        async with sqlite_place.dual_write() as dual_write:
            consumer, letters = await begun(dual_write, offsets)
            kafka.fault = lambda request: failing.pop() if failing else Fault.NONE
            assert await letters.use(polled(consumer, P, "a"), use_strictly) == 0

    run(main())
    assert not failing
    assert stored_values(sqlite_place.seen) == ["a"]


@pytest.mark.parametrize("offsets", PLACES)
def test_a_poison_record_is_put_aside(sqlite_place: AsyncPlace, kafka: KeepingKafka, offsets: str) -> None:
    async def main() -> None:
        async with sqlite_place.dual_write() as dual_write:
            consumer, letters = await begun(dual_write, offsets)
            assert await letters.use(polled(consumer, P, "a", "bad", "c"), use_strictly) == 1
            assert await letters.use(polled(consumer, P, "d"), use_strictly) == 0
            assert dual_write.counters.dead_letters == 1

    run(main())
    assert stored_values(sqlite_place.seen) == ["a", "c", "d"]
    assert [value for value in kafka.committed if isinstance(value, str)] == ["a", "bad", "c", "d"]
    assert [record.value for record in kafka.kept.of(DLQ)] == [b"bad"]


@pytest.mark.parametrize("offsets", PLACES)
def test_a_dead_letter_is_committed_with_the_offset_after_its_record(
    sqlite_place: AsyncPlace, kafka: KeepingKafka, offsets: str
) -> None:
    async def main() -> int:
        async with sqlite_place.dual_write() as dual_write:
            consumer, letters = await begun(dual_write, offsets)
            assert await letters.use(polled(consumer, P, "bad"), use_strictly) == 1
            heir = FakeConsumer(FakeGroup(), "heir")
            await dual_write.seek_to_stored(heir, positions(P))
            return heir.next[P]

    offset_in_the_database = run(main())
    in_kafka = [value[1] for value in kafka.committed if not isinstance(value, str)]
    assert (offset_in_the_database, in_kafka) == ((1, []) if offsets == "stored" else (0, [{P: 1}]))


@pytest.mark.parametrize("error", [ValueError("no"), KafkaUnavailableError("retriable")], ids=repr)
def test_a_record_whose_unit_has_committed_past_the_library_is_neither_tried_again_nor_put_aside(
    sqlite_place: AsyncPlace, kafka: KeepingKafka, error: Exception
) -> None:
    async def function(tx: Any, message: Any) -> None:
        await tx.execute(insert(events).values(value="a"))
        await tx.produce("out", "a")
        driver: Any = (await tx.connection.get_raw_connection()).driver_connection
        await driver.commit()
        raise error

    async def main() -> None:
        async with sqlite_place.dual_write() as dual_write:
            consumer, letters = await begun(dual_write, "stored")
            with pytest.raises(type(error)):
                await letters.use(polled(consumer, P, "a"), function)

    run(main())
    assert stored_values(sqlite_place.seen) == ["a"]
    assert kafka.kept.of(DLQ) == []


@pytest.mark.parametrize(
    "error", [RebalancedError("moved"), asyncio.CancelledError(), KafkaRefusedError("x", 29, "X")], ids=repr
)
def test_what_may_pass_is_raised(sqlite_place: AsyncPlace, kafka: KeepingKafka, error: BaseException) -> None:
    async def function(tx: Any, message: Any) -> None:
        raise error

    async def main() -> None:
        async with sqlite_place.dual_write() as dual_write:
            consumer, letters = await begun(dual_write, "stored")
            await letters.use(polled(consumer, P, "a"), function)

    with pytest.raises(type(error)):
        run(main())
    assert (kafka.kept.records, kafka.committed) == ([], [])


@pytest.mark.parametrize("offsets", PLACES)
def test_an_error_of_the_consumer_is_no_records_fault(
    sqlite_place: AsyncPlace, kafka: KeepingKafka, offsets: str
) -> None:
    async def main() -> None:
        async with sqlite_place.dual_write() as dual_write:
            consumer, letters = await begun(dual_write, offsets)

            def refuse_once() -> None:
                vars(consumer).pop("consumer_group_metadata")
                raise KafkaException(KafkaError(KafkaError._STATE))

            consumer.consumer_group_metadata = refuse_once  # type: ignore[assignment,method-assign]
            with pytest.raises(KafkaException):
                await letters.use(polled(consumer, P, "a"), use_strictly)

    run(main())
    assert (kafka.kept.of(DLQ), stored_values(sqlite_place.seen)) == ([], [])


def test_a_task_that_is_cancelled_puts_nothing_aside(sqlite_place: AsyncPlace, kafka: KeepingKafka) -> None:
    async def function(tx: Any, message: Any) -> None:
        await asyncio.sleep(60)

    async def main() -> None:
        async with sqlite_place.dual_write() as dual_write:
            consumer, letters = await begun(dual_write, "stored")
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(letters.use(polled(consumer, P, "a"), function), 0.2)
            await dual_write.seek_to_stored(consumer)
            assert await letters.use(polled(consumer, P, "a"), use_strictly) == 0

    run(main())
    assert kafka.kept.of(DLQ) == []


def test_a_plain_function_is_refused(sqlite_place: AsyncPlace, kafka: KeepingKafka) -> None:
    async def main() -> None:
        async with sqlite_place.dual_write() as dual_write:
            consumer, letters = await begun(dual_write, "stored")
            plain: Any = lambda tx, message: None  # noqa: E731 - it stands for a function that is not async
            with pytest.raises(ConfigurationError, match="define it by async def"):
                await letters.use(polled(consumer, P, "a"), plain)

    run(main())
    assert kafka.committed == []
