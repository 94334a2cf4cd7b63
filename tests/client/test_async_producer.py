"""AsyncTwoPhaseProducer against a real broker: the same protocol, and what a cancelled call leaves."""

import asyncio
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest

from dualwrite import AsyncTwoPhaseProducer, EmbeddedBroker
from dualwrite.client.drivers.aio import AsyncDriver
from dualwrite.client.engine.contract import Request
from dualwrite.client.engine.transaction_state import TransactionResult
from dualwrite.client.net.asyncio_connection import AsyncioConnection
from dualwrite.client.terms.verbs import ProducerState
from dualwrite.coordinator.kafka.librdkafka import LibrdkafkaProducer
from dualwrite.errors import FencedError, InvalidTransactionStateError
from dualwrite.ids import PreparedTxnState
from dualwrite.records.outgoing import OutgoingRecord
from dualwrite.wire.apis import ApiKey
from tests.support.forked import ForkedBroker
from tests.support.peer_clients.consumers import consume
from tests.support.peer_clients.kafka_helpers import create_topic, fresh_name

Test = Callable[[AsyncTwoPhaseProducer], Awaitable[Any]]


@pytest.fixture
def topic(broker: EmbeddedBroker) -> str:
    name = fresh_name()
    create_topic(broker.bootstrap_servers, name)
    return name


@pytest.fixture
def config(broker: EmbeddedBroker) -> dict[str, Any]:
    """Of one transactional id."""
    return {"bootstrap.servers": broker.bootstrap_servers, "transactional.id": fresh_name()}


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[ApiKey]:
    """Every request that is sent once a connection is open."""
    keys: list[ApiKey] = []
    send = AsyncioConnection.send

    def noting(self: AsyncioConnection, request: Request) -> None:
        keys.append(request.api_key)
        send(self, request)

    monkeypatch.setattr(AsyncioConnection, "send", noting)
    return keys


def run(config: dict[str, Any], test: Test, *, keep: bool | None = False) -> Any:
    """``test`` with a producer in an event loop of its own, initialised unless ``keep`` is None."""

    async def main() -> Any:
        async with AsyncTwoPhaseProducer(config) as producer:
            if keep is not None:
                await producer.init_transactions(keep_prepared_txn=keep)
            return await test(producer)

    return asyncio.run(main())


async def unit(producer: AsyncTwoPhaseProducer, topic: str, *values: str) -> PreparedTxnState:
    """A unit of work, prepared and committed."""
    await producer.begin_transaction()
    for value in values:
        await producer.produce(topic, value)
    state = await producer.prepare_transaction()
    assert await producer.complete_transaction(state) is TransactionResult.COMMITTED
    return state


async def cancelled(call: Awaitable[Any]) -> None:
    """Begin ``call``, and cancel it once it waits for its answer."""
    task = asyncio.ensure_future(call)
    await asyncio.sleep(0)
    assert not task.done()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


def seen(broker: EmbeddedBroker, topic: str) -> list[bytes]:
    """What a read_committed consumer of librdkafka's sees."""
    return list(consume(broker.bootstrap_servers, topic, 1)[0])


def test_a_unit_of_one_record_takes_two_round_trips(
    broker: EmbeddedBroker, config: dict[str, Any], topic: str, asked: list[ApiKey]
) -> None:
    async def test(producer: AsyncTwoPhaseProducer) -> None:
        await unit(producer, topic, "first")
        asked.clear()
        names = {str(await unit(producer, topic, f"{number}")) for number in range(10)}
        assert asked == [ApiKey.PRODUCE, ApiKey.END_TXN] * 10
        assert len(names) == 10

    run(config, test)
    assert seen(broker, topic) == [b"first", *(b"%d" % number for number in range(10))]


def test_aborted_records_are_never_seen(broker: EmbeddedBroker, config: dict[str, Any], topic: str) -> None:
    async def test(producer: AsyncTwoPhaseProducer) -> None:
        await producer.begin_transaction()
        await producer.produce(topic, "aborted")
        assert await producer.flush() == 0
        assert await producer.abort_transaction() is TransactionResult.ABORTED
        await producer.begin_transaction()
        await producer.produce(topic, "committed")
        assert await producer.commit_transaction() is TransactionResult.COMMITTED

    run(config, test)
    assert seen(broker, topic) == [b"committed"]


@pytest.mark.parametrize("decided", [True, False])
def test_a_successor_ends_the_prepared_transaction_as_decided(
    broker: EmbeddedBroker, config: dict[str, Any], topic: str, decided: bool
) -> None:
    async def dies(dead: AsyncTwoPhaseProducer) -> None:
        await dead.begin_transaction()
        await dead.produce(topic, "prepared")
        state = await dead.prepare_transaction()

        async with AsyncTwoPhaseProducer(config) as successor:
            await successor.init_transactions(keep_prepared_txn=True)
            written = PreparedTxnState.parse(str(state)) if decided else PreparedTxnState()
            assert await successor.complete_transaction(written) is (
                TransactionResult.COMMITTED if decided else TransactionResult.ABORTED
            )
        with pytest.raises(FencedError):
            await dead.commit_transaction()

    run(config, dies)
    assert seen(broker, topic) == ([b"prepared"] if decided else [])


def test_a_transaction_that_librdkafka_prepared_is_completed_by_its_anchor(
    broker: EmbeddedBroker, config: dict[str, Any], topic: str
) -> None:
    other = LibrdkafkaProducer(config)
    other.init_transactions()
    other.begin_transaction()
    other.produce(OutgoingRecord(topic, "first"))
    state = other.prepare_transaction()
    other.close()

    async def test(producer: AsyncTwoPhaseProducer) -> None:
        assert await producer.complete_transaction(state) is TransactionResult.COMMITTED

    run(config, test, keep=True)
    assert seen(broker, topic) == [b"first"]


def test_an_older_state_of_librdkafka_does_not_commit_a_later_transaction(
    broker: EmbeddedBroker, config: dict[str, Any], topic: str
) -> None:
    other = LibrdkafkaProducer(config)
    other.init_transactions()
    states = []
    for value in ("first", "second"):
        other.begin_transaction()
        other.produce(OutgoingRecord(topic, value))
        states.append(other.prepare_transaction())
        if value == "first":
            other.commit_transaction()
    other.close()

    async def test(producer: AsyncTwoPhaseProducer) -> None:
        assert await producer.complete_transaction(states[0]) is TransactionResult.ABORTED

    run(config, test, keep=True)
    assert seen(broker, topic) == [b"first"]


def test_a_full_buffer_makes_produce_wait_and_loses_nothing(
    broker: EmbeddedBroker, config: dict[str, Any], topic: str
) -> None:
    values = [f"{number:03}" for number in range(95)]
    run(config | {"queue.buffering.max.messages": 10}, lambda producer: unit(producer, topic, *values))
    assert seen(broker, topic) == [value.encode() for value in values]


def test_a_lingering_batch_is_sent_while_the_loop_runs_other_tasks(
    config: dict[str, Any], topic: str, asked: list[ApiKey]
) -> None:
    async def test(producer: AsyncTwoPhaseProducer) -> None:
        await unit(producer, topic, "first")
        asked.clear()
        delivered = asyncio.Event()
        await producer.begin_transaction()
        await producer.produce(topic, "a", on_delivery=lambda *_: delivered.set())
        while not asked:  # nothing but the loop runs: the driver's timer sends
            await asyncio.sleep(0.005)
        while not delivered.is_set():
            await producer.poll(20)
        assert asked == [ApiKey.PRODUCE]

    run(config | {"linger.ms": 5}, test)


def test_delivery_callbacks_come_with_the_next_call(config: dict[str, Any], topic: str) -> None:
    told: list[tuple[Any, ...]] = []

    async def test(producer: AsyncTwoPhaseProducer) -> None:
        await producer.begin_transaction()
        await producer.produce(topic, "a", key="k", headers={"h": "v"})
        assert len(producer) == 1
        assert told == []
        await producer.prepare_transaction()
        assert told == [(None, topic, 0, b"k", b"a")]
        assert await producer.poll() == 0

    def on_delivery(error: Any, record: Any) -> None:
        told.append((error, record.topic(), record.offset(), record.key(), record.value()))

    run(config | {"on_delivery": on_delivery}, test)


def test_a_consumers_offsets_are_committed_with_the_transaction(
    broker: EmbeddedBroker, config: dict[str, Any], topic: str
) -> None:
    group = fresh_name()

    async def test(producer: AsyncTwoPhaseProducer) -> None:
        await producer.begin_transaction()
        await producer.send_offsets_to_transaction([confluent_kafka.TopicPartition(topic, 0, 7)], group)
        await producer.commit_transaction()

    run(config, test)
    consumer = confluent_kafka.Consumer({"bootstrap.servers": broker.bootstrap_servers, "group.id": group})
    (found,) = consumer.committed([confluent_kafka.TopicPartition(topic, 0)], 10)
    consumer.close()
    assert found.offset == 7


def test_many_producers_share_a_loop(broker: EmbeddedBroker, topic: str) -> None:
    async def one(number: int) -> None:
        config = {"bootstrap.servers": broker.bootstrap_servers, "transactional.id": f"{topic}-{number}"}
        async with AsyncTwoPhaseProducer(config) as producer:
            await producer.init_transactions()
            for turn in range(5):
                await unit(producer, topic, f"{number}-{turn}")

    async def main() -> None:
        await asyncio.gather(*(one(number) for number in range(8)))

    asyncio.run(main())
    assert sorted(seen(broker, topic)) == sorted(f"{n}-{turn}".encode() for n in range(8) for turn in range(5))


def test_a_broker_that_restarts_in_the_middle_loses_nothing(tmp_path: Path) -> None:
    topic = fresh_name()
    with ForkedBroker(tmp_path / "broker") as first:
        address = first.bootstrap_servers

        async def test(producer: AsyncTwoPhaseProducer) -> None:
            await producer.begin_transaction()
            await producer.produce(topic, "a")
            await producer.flush()
            await producer.produce(topic, "b")
            await asyncio.to_thread(first.stop)
            with await asyncio.to_thread(ForkedBroker(tmp_path / "broker", listen=address).start) as second:
                assert await producer.commit_transaction() is TransactionResult.COMMITTED
                assert await asyncio.to_thread(seen, second, topic) == [b"a", b"b"]

        run({"bootstrap.servers": address, "transactional.id": "app-0"}, test)


# --- calls that are cancelled, at the same time, in another loop or process


def test_a_cancelled_prepare_can_only_be_aborted(broker: EmbeddedBroker, config: dict[str, Any], topic: str) -> None:
    async def test(producer: AsyncTwoPhaseProducer) -> None:
        await unit(producer, topic, "first")  # so that the record is sent at once
        await producer.begin_transaction()
        await producer.produce(topic, "cancelled")
        await cancelled(producer.prepare_transaction())
        assert producer.state is ProducerState.ABORTABLE
        with pytest.raises(InvalidTransactionStateError):
            await producer.commit_transaction()
        assert await producer.abort_transaction() is TransactionResult.ABORTED
        await unit(producer, topic, "next")

    run(config, test)
    assert seen(broker, topic) == [b"first", b"next"]


@pytest.mark.parametrize("verb", ["flush", "produce"])
def test_after_a_cancelled_flush_or_produce_the_transaction_continues(
    broker: EmbeddedBroker, config: dict[str, Any], topic: str, verb: str
) -> None:
    async def test(producer: AsyncTwoPhaseProducer) -> None:
        await producer.begin_transaction()
        await producer.produce(topic, "a")
        await cancelled(producer.flush() if verb == "flush" else producer.produce(topic, "never"))
        assert producer.state is ProducerState.IN_TRANSACTION
        await producer.produce(topic, "b")
        assert await producer.commit_transaction() is TransactionResult.COMMITTED

    run(config | {"queue.buffering.max.messages": 1 if verb == "produce" else 10}, test)
    assert seen(broker, topic) == [b"a", b"b"]


@pytest.mark.parametrize("verb", ["commit_transaction", "complete_transaction", "abort_transaction"])
def test_a_cancelled_end_fails_the_producer_and_a_successor_completes_the_unit(
    broker: EmbeddedBroker, config: dict[str, Any], topic: str, verb: str
) -> None:
    async def test(producer: AsyncTwoPhaseProducer) -> None:
        await producer.begin_transaction()
        await producer.produce(topic, "a")
        state = await producer.prepare_transaction()
        arguments = [state] if verb == "complete_transaction" else []
        await cancelled(getattr(producer, verb)(*arguments))
        assert producer.state is ProducerState.FAILED
        for forbidden in (producer.begin_transaction, producer.init_transactions, producer.commit_transaction):
            with pytest.raises(InvalidTransactionStateError):
                await forbidden()
        await producer.close()
        async with AsyncTwoPhaseProducer(config) as successor:
            await successor.init_transactions(keep_prepared_txn=True)
            await successor.complete_transaction(PreparedTxnState() if verb == "abort_transaction" else state)
            await successor.init_transactions()
            await unit(successor, topic, "b")

    run(config, test)
    assert seen(broker, topic) == ([b"b"] if verb == "abort_transaction" else [b"a", b"b"])


def test_a_commit_that_is_cancelled_while_it_sends_records_has_not_decided(
    broker: EmbeddedBroker, config: dict[str, Any], topic: str
) -> None:
    async def test(producer: AsyncTwoPhaseProducer) -> None:
        await producer.begin_transaction()
        await producer.produce(topic, "a")
        await cancelled(producer.commit_transaction())
        assert producer.state is ProducerState.IN_TRANSACTION
        await producer.abort_transaction()

    run(config, test)
    assert seen(broker, topic) == []


def test_a_cancelled_prepare_with_delivery_callbacks_can_only_be_aborted(
    broker: EmbeddedBroker, config: dict[str, Any], topic: str
) -> None:
    async def test(producer: AsyncTwoPhaseProducer) -> None:
        await producer.begin_transaction()
        await producer.produce(topic, "a", on_delivery=lambda error, record: None)
        await cancelled(producer.prepare_transaction())
        assert producer.state is ProducerState.ABORTABLE
        await producer.abort_transaction()

    run(config, test)
    assert seen(broker, topic) == []


def test_a_cancelled_init_fails_the_producer(config: dict[str, Any]) -> None:
    async def test(producer: AsyncTwoPhaseProducer) -> None:
        await cancelled(producer.init_transactions())
        assert producer.state is ProducerState.FAILED

    run(config, test, keep=None)


def test_a_second_call_while_one_is_under_way_is_refused_and_harms_nothing(
    broker: EmbeddedBroker, config: dict[str, Any], topic: str
) -> None:
    async def test(producer: AsyncTwoPhaseProducer) -> None:
        await producer.begin_transaction()
        await producer.produce(topic, "a")
        first = asyncio.create_task(producer.commit_transaction())
        await asyncio.sleep(0)
        for second in (producer.flush, producer.abort_transaction, producer.prepare_transaction):
            with pytest.raises(InvalidTransactionStateError, match="in progress"):
                await second()
        assert await first is TransactionResult.COMMITTED

    run(config, test)
    assert seen(broker, topic) == [b"a"]


def test_a_producer_belongs_to_its_loop(config: dict[str, Any], topic: str) -> None:
    producers: list[AsyncTwoPhaseProducer] = []

    async def test(producer: AsyncTwoPhaseProducer) -> None:
        producers.append(producer)
        await unit(producer, topic, "a")

    run(config, test)

    async def elsewhere() -> None:
        drivers: list[AsyncDriver] = []

        def make_driver(*given: Any) -> AsyncDriver:
            drivers.append(AsyncDriver(*given))
            return drivers[-1]

        other = AsyncTwoPhaseProducer(config, make_driver=make_driver)
        await other.init_transactions()
        producers.append(other)
        await drivers[0].close()

    asyncio.run(elsewhere())
    with pytest.raises(InvalidTransactionStateError, match="another event loop"):
        asyncio.run(unit(producers[1], topic, "b"))
    with pytest.raises(InvalidTransactionStateError, match="closed"):
        asyncio.run(unit(producers[0], topic, "b"))


def test_close_calls_the_callbacks_of_unsent_records(config: dict[str, Any], topic: str) -> None:
    told: list[Any] = []

    async def test(producer: AsyncTwoPhaseProducer) -> None:
        await producer.begin_transaction()
        await producer.produce(topic, "a", on_delivery=lambda error, _record: told.append(error))
        await producer.close()
        await producer.close()

    run(config, test)
    (error,) = told
    assert "closed" in str(error)


@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")
def test_a_forked_process_must_make_a_producer_of_its_own(config: dict[str, Any], topic: str) -> None:
    async def test(producer: AsyncTwoPhaseProducer) -> None:
        await producer.begin_transaction()
        await producer.produce(topic, "a")
        child = os.fork()
        if not child:
            code = 2
            try:
                producer.prepare_transaction().send(None)
            except InvalidTransactionStateError as error:
                closing = producer.close()
                with pytest.raises(StopIteration):  # it awaits nothing: the loop is the parent's
                    closing.send(None)
                code = 0 if "after a fork" in str(error) else 1
            finally:
                os._exit(code)
        assert os.waitpid(child, 0)[1] == 0
        state = await producer.prepare_transaction()
        assert await producer.complete_transaction(state) is TransactionResult.COMMITTED

    run(config, test)
