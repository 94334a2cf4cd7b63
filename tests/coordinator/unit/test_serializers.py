"""key.serializer and value.serializer: as confluent-kafka's SerializingProducer takes them."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from confluent_kafka.serialization import MessageField, SerializationContext, StringSerializer
from sqlalchemy import insert

from dualwrite.coordinator.aio.dual_write import AsyncDualWrite
from dualwrite.coordinator.aio.transaction import AsyncTransaction
from dualwrite.coordinator.dual_write import DualWrite
from dualwrite.coordinator.unit.transaction import Transaction
from dualwrite.errors import ConfigurationError, InvalidTransactionStateError
from tests.support.coordinator.aio.async_dual_writes import AsyncPlace, run
from tests.support.coordinator.event_table import CONFIG, events
from tests.support.coordinator.fake_kafka import FakeKafka, FakeParticipant
from tests.support.coordinator.usual_unit import run_unit

Make = Callable[..., DualWrite]


class KeepingParticipant(FakeParticipant):
    """Keeps whole records."""

    def __init__(self, kafka: FakeKafka, records: list[Any]) -> None:
        super().__init__(kafka)
        self.records = records

    def produce(self, record: Any) -> None:
        super().produce(record)
        self.records.append(record)


def as_json(content: Any, context: SerializationContext) -> bytes:
    """It notes its schema in the headers, as those of a Schema Registry may."""
    assert context.headers is not None
    context.headers.append((f"{context.topic} {context.field.name.lower()} schema", b"1"))
    return json.dumps(content).encode()


async def as_json_later(content: Any, context: SerializationContext) -> bytes:
    return as_json(content, context)


def made(sqlite_engine: Any, kafka: FakeKafka, records: list[Any], **serializers: Any) -> DualWrite:
    config = {**CONFIG, **{name.replace("_", "."): serializer for name, serializer in serializers.items()}}
    return DualWrite(
        sqlite_engine, config, application="a", pool_size=1, participant=lambda _: KeepingParticipant(kafka, records)
    )


def test_keys_and_values_are_what_their_serializers_make_of_them(sqlite_engine: Any, kafka: FakeKafka) -> None:
    records: list[Any] = []
    serializers = {"key_serializer": StringSerializer("utf_16_le"), "value_serializer": as_json}
    with made(sqlite_engine, kafka, records, **serializers) as dual_write, dual_write.transaction() as tx:
        tx.produce("events", {"item": "tea"}, key="k", headers={"h": "x"}, partition=2)
        tx.produce("events", [1, 2])
    first, second = records
    assert (first.value, first.key, first.partition) == (b'{"item": "tea"}', "k".encode("utf_16_le"), 2)
    assert first.headers == (("h", b"x"), ("events value schema", b"1"))
    assert (second.value, second.key) == (b"[1, 2]", None)


def test_a_serializer_gets_the_topic_and_the_field(sqlite_engine: Any, kafka: FakeKafka) -> None:
    seen: list[Any] = []

    def note(content: Any, context: SerializationContext) -> bytes | None:
        seen.append((content, context.topic, context.field))
        return None

    with made(sqlite_engine, kafka, [], key_serializer=note, value_serializer=note) as dual_write:
        run_unit(dual_write, lambda tx: tx.produce("events", 1, key=2))
    assert seen == [(2, "events", MessageField.KEY), (1, "events", MessageField.VALUE)]


def test_without_serializers_only_bytes_and_text_are_taken(make_dual_write: Make, kafka: FakeKafka) -> None:
    with pytest.raises(TypeError, match="a key or value of type dict"):
        run_unit(make_dual_write(), lambda tx: tx.produce("events", {"item": "tea"}))
    assert kafka.committed == []


def test_a_serializer_that_raises_leaves_the_record_out(sqlite_engine: Any, kafka: FakeKafka) -> None:
    records: list[Any] = []

    def produce_or_pass(tx: Transaction) -> None:
        with pytest.raises(TypeError, match="not JSON serializable"):
            tx.produce("events", object())

    with made(sqlite_engine, kafka, records, value_serializer=as_json) as dual_write:
        with pytest.raises(InvalidTransactionStateError, match="there is no record to commit"):
            run_unit(dual_write, produce_or_pass)
        run_unit(dual_write, produce_or_pass, lambda tx: tx.produce("events", 1))
    assert [record.value for record in records] == [b"1"]


def test_a_serializer_for_asyncio_is_refused_by_a_blocking_unit(sqlite_engine: Any, kafka: FakeKafka) -> None:
    dual_write = made(sqlite_engine, kafka, [], value_serializer=as_json_later)
    with pytest.raises(TypeError, match="use it with an AsyncDualWrite"):
        run_unit(dual_write, lambda tx: tx.produce("events", 1))
    dual_write.close()


@pytest.mark.parametrize("name", ["key.serializer", "value.serializer"])
def test_what_cannot_be_called_is_no_serializer(sqlite_engine: Any, name: str) -> None:
    with pytest.raises(ConfigurationError, match=f"{name} 'json': give a callable"):
        DualWrite(sqlite_engine, {**CONFIG, name: "json"}, application="a")


def run_async_unit(place: AsyncPlace, serializer: Any, act: Callable[[AsyncTransaction], Awaitable[None]]) -> None:
    """A unit of work that does ``act``, of an AsyncDualWrite with ``serializer`` for its values."""

    async def main() -> None:
        config = {**CONFIG, "value.serializer": serializer}
        options: Any = {"application": "a", "pool_size": 1, "participant": place.kafka.participant}
        async with (
            place.engine() as engine,
            AsyncDualWrite(engine, config, **options) as dual_write,
            dual_write.transaction() as tx,
        ):
            await act(tx)

    run(main())


@pytest.mark.parametrize("serializer", [as_json, as_json_later])
def test_an_async_unit_takes_both_kinds(sqlite_place: AsyncPlace, serializer: Any) -> None:
    async def produce(tx: AsyncTransaction) -> None:
        await tx.produce("events", {"item": "tea"})

    run_async_unit(sqlite_place, serializer, produce)
    assert sqlite_place.kafka.committed == ['{"item": "tea"}']


@pytest.mark.parametrize("serializer", [as_json, as_json_later])
def test_an_async_unit_whose_only_record_has_no_bytes_is_not_committed(
    sqlite_place: AsyncPlace, serializer: Any
) -> None:
    """Its rows would be in the database alone."""

    async def write_and_pass(tx: AsyncTransaction) -> None:
        await tx.execute(insert(events).values(value="one"))
        with pytest.raises(TypeError, match="not JSON serializable"):
            await tx.produce("events", object())

    with pytest.raises(InvalidTransactionStateError, match="there is no record to commit"):
        run_async_unit(sqlite_place, serializer, write_and_pass)
    assert sqlite_place.in_both()


def with_slow_serializer(sqlite_place: AsyncPlace, act: Callable[[AsyncTransaction], Awaitable[None]]) -> None:
    """A unit of work that does ``act``; the serializer of its records never ends."""

    async def never(content: Any, context: SerializationContext) -> bytes:
        if content == "slow":
            await asyncio.Event().wait()
        return str(content).encode()

    async def produce_and_act(tx: AsyncTransaction) -> None:
        await tx.produce("events", "one")
        await act(tx)

    with pytest.raises(InvalidTransactionStateError, match=r"in progress when the block|was caught"):
        run_async_unit(sqlite_place, never, produce_and_act)
    assert sqlite_place.kafka.committed == []


def test_a_unit_whose_serializer_is_cancelled_fails(sqlite_place: AsyncPlace) -> None:
    async def cancelled(tx: AsyncTransaction) -> None:
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(tx.produce("events", "slow"), 0.01)

    with_slow_serializer(sqlite_place, cancelled)


def test_a_unit_that_ends_while_another_task_serializes_fails(sqlite_place: AsyncPlace) -> None:
    tasks: list[asyncio.Task[None]] = []

    async def left_alone(tx: AsyncTransaction) -> None:
        tasks.append(asyncio.ensure_future(tx.produce("events", "slow")))
        await asyncio.sleep(0)
        asyncio.get_running_loop().call_soon(tasks[0].cancel)

    with_slow_serializer(sqlite_place, left_alone)


def test_headers_are_checked_before_a_serializer_is_called(sqlite_engine: Any, kafka: FakeKafka) -> None:
    wrong: Any = 5
    dual_write = made(sqlite_engine, kafka, [], value_serializer=as_json)
    with pytest.raises(TypeError, match="headers of type int"):
        run_unit(dual_write, lambda tx: tx.produce("events", 1, headers=wrong))
    dual_write.close()
