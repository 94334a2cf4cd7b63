"""No hanging transaction can begin (KIP-890 part 1): whatever a client and those who fence it send at once, an open
transaction in a partition is one that the coordinator knows, and will end.

The handlers of the requests run on a seeded event loop, so that many orders of their steps are tried; and a broker that
is broken on purpose shows that the search would notice.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from dualwrite.broker.api.records import produce
from dualwrite.broker.api.transactions import add_partitions_to_txn, end_txn, init_producer_id
from dualwrite.broker.facts.transactions import TransactionStatus
from dualwrite.ids import NO_PRODUCER, ProducerIdentity
from dualwrite.testing.files import MemoryFiles
from dualwrite.wire.apis import AddPartitionsToTxnRequest, EndTxnRequest, InitProducerIdRequest, Message
from tests.support.broker.simulated import TOPIC, Rooms, everybody_may, run
from tests.support.requests.calls import added_topics, produce_request, tx_batch

TX = "tx"
PARTITIONS = 3
SEEDS = 60

Handler = Callable[[Message, int, Any], Awaitable[Message | None]]


def init_request(expected: ProducerIdentity = NO_PRODUCER) -> Message:
    return InitProducerIdRequest(
        transactional_id=TX,
        transaction_timeout_ms=60_000,
        producer_id=expected.producer_id,
        producer_epoch=expected.epoch,
    )


def add_request(producer: ProducerIdentity) -> Message:
    return AddPartitionsToTxnRequest(
        v3_and_below_transactional_id=TX,
        v3_and_below_producer_id=producer.producer_id,
        v3_and_below_producer_epoch=producer.epoch,
        v3_and_below_topics=added_topics([(TOPIC, index) for index in range(PARTITIONS)]),
    )


def end_request(producer: ProducerIdentity, commit: bool) -> Message:
    return EndTxnRequest(
        transactional_id=TX, producer_id=producer.producer_id, producer_epoch=producer.epoch, committed=commit
    )


def write_request(producer: ProducerIdentity, sequence: int, indexes: list[int]) -> Message:
    content: dict[tuple[str, int], bytes | None] = {
        (TOPIC, index): tx_batch([b"v"], producer, sequence) for index in indexes
    }
    return produce_request(content, TX)


def hanging(rooms: Rooms) -> list[str]:
    """Open transactions that no client will ever end."""
    entry = rooms.coordinator.table.entries[TX]
    return [
        f"{partition.name} has a transaction of {producer_id} open; the coordinator says {entry}"
        for partition in rooms.partitions()
        for producer_id in partition.state.open_transactions
        if entry.status is not TransactionStatus.ONGOING
        or entry.producer.producer_id != producer_id
        or partition.name not in entry.partitions
    ]


async def play(seed: int, write: Handler) -> list[str]:
    """A client of either protocol writes and ends its transaction, while others fence it; what hangs in the end."""
    rng = random.Random(seed)
    rooms = await Rooms(MemoryFiles(), rng=rng).with_topic(PARTITIONS)
    broker: Any = everybody_may(rooms)
    version = rng.choice([9, 11, 12])
    answer = await init_producer_id.handle(init_request(), 4, broker)
    producer = ProducerIdentity(answer.producer_id, answer.producer_epoch)
    if version < 12:
        await add_partitions_to_txn.handle(add_request(producer), 3, broker)

    async def after(steps: int, request: Awaitable[Message | None]) -> None:
        for _ in range(steps):
            await asyncio.sleep(0)
        await request

    indexes = rng.sample(range(PARTITIONS), 2)
    ending = end_request(producer, rng.random() < 0.5)
    requests = [
        write(write_request(producer, 0, indexes), version, broker),
        write(write_request(producer, 1, indexes), version, broker),
        end_txn.handle(ending, 5 if version == 12 else 3, broker),
        init_producer_id.handle(init_request(), 4, broker),
    ]
    await asyncio.gather(*(after(rng.randrange(25), request) for request in requests))
    await rooms.flusher.close()
    return hanging(rooms)


@pytest.mark.parametrize("seed", range(SEEDS))
def test_an_open_transaction_is_known_to_its_coordinator(seed: int) -> None:
    assert run(play(seed, produce.handle), seed) == []


def test_the_search_finds_a_broker_that_waits_between_its_last_look_and_the_append(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    joined = produce.join_transaction

    async def join_and_wait(*arguments: Any) -> object:
        error = await joined(*arguments)
        for _ in range(30):
            await asyncio.sleep(0)
        return error

    monkeypatch.setattr(produce, "join_transaction", join_and_wait)
    assert any(run(play(seed, produce.handle), seed) for seed in range(SEEDS))
