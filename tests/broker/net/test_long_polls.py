"""Requests that wait: what wakes them, what bounds their answers, and what they leave behind. No thread, no socket."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from dualwrite.broker.api.context import BrokerContext
from dualwrite.broker.api.groups import join_group
from dualwrite.broker.api.records import fetch
from dualwrite.broker.core.group_rules import GroupSettings
from dualwrite.broker.net.connection_memory import ConnectionMemory
from dualwrite.broker.runtime.long_polls import LongPolls
from dualwrite.broker.runtime.stopping import Stopping
from dualwrite.testing.files import MemoryFiles
from dualwrite.wire.apis import ApiKey, Message
from dualwrite.wire.codec import read_response, write_request
from dualwrite.wire.error_codes import ErrorCode
from dualwrite.wire.frames import with_size
from tests.support.broker.frames import DeafClient
from tests.support.broker.in_process import InProcessBroker, ScriptedClient
from tests.support.broker.simulated import TOPIC, Rooms, append, run
from tests.support.requests.calls import fetch_request, only_partition
from tests.support.requests.group_calls import join_request

FETCH_VERSION, JOIN_VERSION = 12, 3  # later versions of JoinGroup answer first with a member id
WEEKS_MS = 2**31 - 1
MEBIBYTE = 1024 * 1024
STEPS = 200
AT_ONCE_SECONDS = 20.0


class CountedStopping(Stopping):
    """Counts those that wait for the end of the broker."""

    def __init__(self) -> None:
        super().__init__()
        self.waiters = 0

    def add_waiter(self, wake: Callable[[], None]) -> None:
        super().add_waiter(wake)
        self.waiters += 1

    def remove_waiter(self, wake: Callable[[], None]) -> None:
        super().remove_waiter(wake)
        self.waiters -= 1


class CountedMemory(ConnectionMemory):
    """Counts the answers that are about to be built."""

    def __init__(self) -> None:
        super().__init__()
        self.built = 0

    async def room_for_answers(self) -> None:
        self.built += 1
        await super().room_for_answers()


def polling(broker: InProcessBroker, stopping: Stopping | None = None) -> tuple[BrokerContext, LongPolls]:
    """The context of a connection, and its long polls."""
    polls = LongPolls(stopping or Stopping())
    return replace(broker.context, polls=polls), polls


def waiting_fetch(**more: int) -> Message:
    return fetch_request(TOPIC, **{"max_wait_ms": WEEKS_MS, **more})


async def steps() -> None:
    for _ in range(STEPS):
        await asyncio.sleep(0)


async def send_waiting_fetch(client: ScriptedClient) -> bytes:
    """Send a Fetch that is not answered yet; its frame."""
    frame = with_size(write_request(ApiKey.FETCH, FETCH_VERSION, 1, "x", waiting_fetch()))
    client.send(frame)
    await steps()
    assert not client.answers
    return frame


async def at_once(answer: "asyncio.Future[Any]") -> Any:
    return await asyncio.wait_for(answer, AT_ONCE_SECONDS)


def test_a_fetch_that_waits_is_answered_at_once_when_its_topic_is_deleted() -> None:
    async def scenario() -> None:
        broker = InProcessBroker(await Rooms(MemoryFiles()).with_topic())
        reader = asyncio.ensure_future(broker.connect("10.0.0.1").ask(waiting_fetch(), FETCH_VERSION))
        await steps()
        assert not reader.done()
        await broker.rooms.cluster.delete_topic(TOPIC)
        answer = only_partition(await at_once(reader))
        assert answer.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        await broker.close()

    run(scenario())


def test_a_fetch_that_waits_is_answered_and_its_connection_closed_when_garbage_follows_it() -> None:
    async def scenario() -> None:
        broker = InProcessBroker(await Rooms(MemoryFiles()).with_topic())
        client = broker.connect("10.0.0.1")
        await send_waiting_fetch(client)
        client.send(b"\xff" * 100)
        answer = read_response(
            ApiKey.FETCH, FETCH_VERSION, await asyncio.wait_for(client.next_frame(), AT_ONCE_SECONDS)
        )
        assert answer.error_code == ErrorCode.NONE
        await at_once(client.serving)
        assert client.is_closed
        await broker.close()

    run(scenario())


def test_a_fetch_that_waits_is_answered_when_too_many_requests_follow_it() -> None:
    """The connection is then no longer read, so its end would not be noticed."""

    async def scenario() -> None:
        broker = InProcessBroker(await Rooms(MemoryFiles()).with_topic())
        client = broker.connect("10.0.0.1")
        frame = await send_waiting_fetch(client)
        client.send(frame * (300_000 // len(frame)))
        assert await asyncio.wait_for(client.next_frame(), AT_ONCE_SECONDS)
        await broker.close()

    run(scenario())


def test_a_fetch_of_no_bytes_at_least_does_not_wait() -> None:
    async def scenario() -> None:
        broker = InProcessBroker(await Rooms(MemoryFiles()).with_topic())
        reader = asyncio.ensure_future(broker.connect("10.0.0.1").ask(waiting_fetch(min_bytes=0), FETCH_VERSION))
        assert only_partition(await at_once(reader)).records == b""
        await broker.close()

    run(scenario())


async def fetches(context: BrokerContext) -> ErrorCode:
    answer = await fetch.handle(fetch_request(TOPIC), FETCH_VERSION, context)
    return ErrorCode(only_partition(answer).error_code)


async def joins(context: BrokerContext) -> ErrorCode:
    answer = await join_group.handle(join_request("g"), JOIN_VERSION, context)
    return ErrorCode(answer.error_code)


@pytest.mark.parametrize("ask", [fetches, joins])
def test_an_answered_request_no_longer_counts_as_waiting(
    ask: "Callable[[BrokerContext], asyncio.Future[ErrorCode]]",
) -> None:
    """Its connection would never be closed as idle, and the broker would have one more waiter after each request."""

    async def scenario() -> None:
        rooms = await Rooms(MemoryFiles(), group_settings=GroupSettings(initial_rebalance_delay_ms=0)).with_topic()
        stopping = CountedStopping()
        context, polls = polling(InProcessBroker(rooms), stopping)
        answered = asyncio.ensure_future(ask(context))
        await steps()
        rooms.clock.pass_ms(1)
        assert await at_once(answered) is ErrorCode.NONE
        assert not polls.are_waiting
        assert stopping.waiters == 0
        assert not rooms.partition(0).has_readers

    run(scenario())


def test_a_fetch_that_waits_for_more_bytes_reads_once_for_each_append() -> None:
    """It would otherwise read the same records again and again until its time is over."""

    async def scenario() -> None:
        memory, stopping = CountedMemory(), Stopping()
        broker = InProcessBroker(await Rooms(MemoryFiles()).with_topic(), memory)
        context, _ = polling(broker, stopping)
        reader = asyncio.ensure_future(fetch.handle(waiting_fetch(min_bytes=MEBIBYTE), FETCH_VERSION, context))
        await steps()
        for number in range(3):
            append(broker.rooms.partition(0), b"%d" % number)
            await broker.rooms.flusher.barrier()
            await steps()
        waits, looks = not reader.done(), memory.built
        stopping.begin()
        await reader
        assert waits
        assert 4 <= looks <= 8, "one at first, and one or two for each append"

    run(scenario())


def test_a_fetch_waits_while_the_answers_that_no_client_reads_fill_the_memory() -> None:
    async def scenario() -> None:
        memory, deaf = ConnectionMemory(MEBIBYTE), DeafClient()
        broker = InProcessBroker(await Rooms(MemoryFiles()).with_topic(), memory)
        append(broker.rooms.partition(0), b"v")
        await broker.rooms.flusher.barrier()
        memory.hold_answer(deaf, 2 * MEBIBYTE)
        reader = asyncio.ensure_future(broker.connect("10.0.0.1").ask(fetch_request(TOPIC), FETCH_VERSION))
        await steps()
        assert not reader.done()
        memory.release_answer(deaf)
        assert only_partition(await at_once(reader)).records
        await broker.close()

    run(scenario())


def test_an_answer_takes_a_part_of_the_free_memory_and_leaves_some_to_others() -> None:
    async def scenario() -> None:
        broker = InProcessBroker(await Rooms(MemoryFiles()).with_topic(), ConnectionMemory(MEBIBYTE))
        for _ in range(10):
            append(broker.rooms.partition(0), b"v" * 100_000)
        await broker.rooms.flusher.barrier()
        request = fetch_request(TOPIC, max_bytes=WEEKS_MS, partition_max_bytes=WEEKS_MS)
        answer = only_partition(await broker.connect("10.0.0.1").ask(request, FETCH_VERSION))
        assert 200_000 < len(answer.records) <= MEBIBYTE // 4
        await broker.close()

    run(scenario())


def test_an_answer_has_55_mebibytes_at_most_however_many_the_client_takes() -> None:
    async def scenario() -> None:
        broker = InProcessBroker(await Rooms(MemoryFiles()).with_topic())
        for _ in range(57):
            append(broker.rooms.partition(0), bytes(MEBIBYTE))
        await broker.rooms.flusher.barrier()
        context, _ = polling(broker)
        request = fetch_request(TOPIC, max_bytes=WEEKS_MS, partition_max_bytes=WEEKS_MS)
        answer = only_partition(await fetch.handle(request, FETCH_VERSION, context))
        assert 53 * MEBIBYTE < len(answer.records) <= 55 * MEBIBYTE

    run(scenario())
