"""Fuzzes the request path: strangers send anything over the broker's real connections and handlers, and a client's data
stays what it was."""

import asyncio
import random
import resource
import time
from typing import NoReturn

from dualwrite.broker.core.commands import AddPartitions, InitProducerId
from dualwrite.broker.facts.transactions import TransactionStatus
from dualwrite.broker.net.connection_memory import ConnectionMemory
from dualwrite.broker.runtime.flusher import Flusher
from dualwrite.ids import ProducerIdentity, TopicPartition
from dualwrite.testing.files import MemoryFiles
from dualwrite.wire.apis import CreateTopicsRequest
from dualwrite.wire.error_codes import ErrorCode
from tests.fuzz.messages import half_large_frame, long_poll, random_frame
from tests.support.broker.admin_oracle import memory as replayed_state
from tests.support.broker.in_process import MOST_BYTES, InProcessBroker
from tests.support.broker.simulated import Rooms, read_log, run
from tests.support.requests.calls import batch, fetch_request, only_partition, produce_request, wanted_topic

VICTIM = "victim-of-the-fuzzer"
FRAMES = 40
STRANGERS = 4
STEPS = 30
STEPS_TO_END = 5_000
"""So many turns of the event loop are enough for every handler."""
SLOWEST_SECONDS = 30.0
GROWTH_BYTES = 600 * 1024 * 1024


class DeadBrokerError(AssertionError):
    """The broker would have ended its process."""


def die(error: BaseException) -> NoReturn:
    raise DeadBrokerError(f"the broker stops: {error!r}") from error


def fuzz_requests(seed: int) -> None:
    """One broker among strangers. An AssertionError begins with the seed that repeats it."""
    began, before = time.monotonic(), _peak()
    try:
        run(_episode(random.Random(seed)), seed)
        assert time.monotonic() - began < SLOWEST_SECONDS, "too slow"
        assert _peak() - before < GROWTH_BYTES, "too much memory"
    except Exception as error:
        raise AssertionError(f"fuzz_requests({seed}): {error!r}") from error


def _peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


async def _episode(rng: random.Random) -> None:
    files = MemoryFiles()
    rooms = await Rooms(files, Flusher(durable=True, on_failure=die), rng=rng).with_topic()
    broker = InProcessBroker(rooms, ConnectionMemory(MOST_BYTES))
    producer = await _victims_data(broker)
    for _ in range(FRAMES // STRANGERS):
        strangers = [broker.connect(f"10.0.0.{number % 2}") for number in range(STRANGERS)]
        for stranger in strangers:
            data = rng.choices((random_frame, half_large_frame, long_poll), (8, 1, 1))[0](rng)
            stranger.send(data[: rng.randint(0, len(data))] if rng.random() < 0.1 else data)
            if rng.random() < 0.3:
                stranger.send_end()
        for _ in range(STEPS):
            await asyncio.sleep(0)
        assert broker.memory.request_bytes <= MOST_BYTES
        for stranger in strangers:
            stranger.abort()
        await _settled([stranger.serving for stranger in strangers])
        assert broker.memory.request_bytes == 0, "memory was not given back"
        await _is_intact(broker, producer)
    await broker.close()
    rooms.groups.close()
    await rooms.flusher.barrier()
    await _restart_finds_the_same(files, rooms)


async def _settled(serving: list["asyncio.Task[None]"]) -> None:
    """Wait for the handlers, which end by themselves: a client that has gone leaves no task behind."""
    for _ in range(STEPS_TO_END):
        if all(task.done() for task in serving):
            break
        await asyncio.sleep(0)
    unfinished = [task for task in serving if not task.done()]
    assert not unfinished, f"{len(unfinished)} connections of clients that have gone are still served"
    await asyncio.gather(*serving)


async def _victims_data(broker: InProcessBroker) -> ProducerIdentity:
    """A topic with three records, and a prepared transaction with one."""
    client = broker.connect("127.0.0.1")
    wanted = CreateTopicsRequest(topics=[wanted_topic(VICTIM, 2)], timeout_ms=1000, validate_only=False)
    created = await client.ask(wanted, 5)
    assert created.topics[0].error_code == ErrorCode.NONE
    answer = await client.ask(produce_request({(VICTIM, 0): batch([b"1", b"2", b"3"])}), 9)
    assert answer.responses[0].partition_responses[0].error_code == ErrorCode.NONE
    reply = await broker.rooms.coordinator.execute(InitProducerId(VICTIM, 60_000, True))
    names = frozenset({TopicPartition(VICTIM, 1)})
    await broker.rooms.coordinator.execute(AddPartitions(VICTIM, reply.producer, names))
    client.abort()
    return reply.producer


async def _is_intact(broker: InProcessBroker, producer: ProducerIdentity) -> None:
    client = broker.connect("127.0.0.1")
    answer = only_partition(await client.ask(fetch_request(VICTIM, committed=True), 12))
    assert answer.error_code == ErrorCode.NONE
    partition = broker.rooms.cluster.partition(TopicPartition(VICTIM, 0))
    assert partition is not None
    assert [entry.value for entry in read_log(partition)] == [b"1", b"2", b"3"]
    entry = broker.rooms.coordinator.table.entries[VICTIM]
    assert (entry.status, entry.producer) == (TransactionStatus.ONGOING, producer)
    client.abort()


async def _restart_finds_the_same(files: MemoryFiles, rooms: Rooms) -> None:
    again = Rooms(files, Flusher(durable=True, on_failure=die))
    await again.flusher.barrier()
    assert replayed_state(again) == replayed_state(rooms), "a restart finds another state"
