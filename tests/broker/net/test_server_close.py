"""The end of a server, on real sockets: what its clients get, and what it leaves behind."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest

from dualwrite.broker.api.context import BrokerContext
from dualwrite.broker.clients.connection_limits import ConnectionLimits
from dualwrite.broker.listening import BoundListener, listen
from dualwrite.broker.server import Server
from dualwrite.ids import TopicPartition
from dualwrite.testing.files import MemoryFiles
from dualwrite.wire.apis import ConsumerGroupHeartbeatRequest, Message
from dualwrite.wire.codec import read_response, write_request
from dualwrite.wire.error_codes import ErrorCode
from dualwrite.wire.frames import SIZE_PREFIX, with_size
from tests.support.broker.in_process import MOST_BYTES, InProcessBroker
from tests.support.broker.simulated import TOPIC, Rooms, append
from tests.support.requests.calls import fetch_request, only_partition
from tests.support.requests.consumer_group_calls import HEARTBEAT
from tests.support.requests.group_calls import join_request
from tests.support.requests.raw_client import key_of

WEEKS_MS = 2**31 - 1
FETCH, JOIN = 12, 3  # later versions of JoinGroup answer first with a member id
MEBIBYTE = 1024 * 1024
STEPS = 200
LONG_SECONDS, AT_ONCE_SECONDS = 3600.0, 20.0
OFFSETS = TopicPartition("__consumer_offsets", 0)


class ServerSite:
    """A server over ``rooms``."""

    def __init__(self, rooms: Rooms, context: BrokerContext, server: Server, port: int) -> None:
        self.rooms = rooms
        self.memory = context.memory
        self.stopping = context.stopping
        self.server = server
        self.port = port
        self.clients: list[ServedClient] = []

    async def connect(self) -> "ServedClient":
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port, limit=MEBIBYTE)
        self.clients.append(ServedClient(reader, writer))
        return self.clients[-1]


class ServedClient:
    """A client that sends requests, and reads answers when it is told to."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    def send(self, request: Message, version: int) -> None:
        self._writer.write(with_size(write_request(key_of(request), version, 1, "client", request)))

    async def answer(self, request: Message, version: int) -> Message:
        """The answer to ``request``, which was sent before."""
        size = int.from_bytes(await self._reader.readexactly(SIZE_PREFIX), "big")
        return read_response(key_of(request), version, await self._reader.readexactly(size))

    async def ask(self, request: Message, version: int) -> Message:
        self.send(request, version)
        return await self.answer(request, version)

    async def rest(self) -> bytes:
        """Everything until the broker closes the connection."""
        return await self._reader.read()

    async def close(self) -> None:
        self._writer.close()
        with suppress(ConnectionError):
            await self._writer.wait_closed()


@asynccontextmanager
async def serving() -> AsyncIterator[ServerSite]:
    rooms = await Rooms(MemoryFiles()).with_topic()
    context = InProcessBroker(rooms).context
    sock = listen("127.0.0.1", 0)
    port = sock.getsockname()[1]
    (listener,) = context.options.listeners
    server = Server(context, MOST_BYTES, ConnectionLimits(100, 100, -1), {})
    await server.start([BoundListener(listener.on_port(port), sock, None)])
    site = ServerSite(rooms, context, server, port)
    try:
        yield site
    finally:
        await server.close(0)
        for client in site.clients:
            await client.close()


def run(scenario: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(scenario, 10 * AT_ONCE_SECONDS))


async def closed_at_once(site: ServerSite) -> None:
    """The server closes long before its grace is over."""
    await asyncio.wait_for(site.server.close(LONG_SECONDS), AT_ONCE_SECONDS)


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0)


def test_a_close_answers_what_waits_at_once_and_closes_every_connection() -> None:
    async def scenario() -> None:
        async with serving() as site:
            reader, member, idle = await site.connect(), await site.connect(), await site.connect()
            fetch, join = fetch_request(TOPIC, max_wait_ms=WEEKS_MS), join_request("group")
            reader.send(fetch, FETCH)
            member.send(join, JOIN)
            await until(lambda: site.rooms.partition(0).has_readers and site.rooms.groups.group("group") is not None)
            await closed_at_once(site)
            assert only_partition(await reader.answer(fetch, FETCH)).error_code == ErrorCode.NONE
            assert (await member.answer(join, JOIN)).error_code == ErrorCode.NOT_COORDINATOR
            assert [await client.rest() for client in (reader, member, idle)] == [b""] * 3

    run(scenario())


async def deaf(site: ServerSite) -> ServedClient:
    """A client that reads nothing of an answer that is too large for the buffers of the system."""
    for _ in range(20):
        append(site.rooms.partition(0), bytes(MEBIBYTE))
    await site.rooms.flusher.barrier()
    client = await site.connect()
    client.send(fetch_request(TOPIC, max_bytes=WEEKS_MS, partition_max_bytes=WEEKS_MS), FETCH)
    await until(lambda: site.memory.answer_bytes > 0)
    return client


def test_a_close_waits_for_a_client_that_reads_its_answer_late_and_accepts_no_new_one() -> None:
    async def scenario() -> None:
        async with serving() as site:
            client = await deaf(site)
            closing = asyncio.ensure_future(site.server.close(LONG_SECONDS))
            for _ in range(STEPS):
                await asyncio.sleep(0)
            assert not closing.done()
            with pytest.raises(ConnectionRefusedError):
                await site.connect()
            assert len(await client.rest()) > 5 * MEBIBYTE
            await asyncio.wait_for(closing, AT_ONCE_SECONDS)

    run(scenario())


def test_a_close_ends_the_connection_of_a_client_that_never_reads_and_leaves_no_task() -> None:
    async def scenario() -> None:
        before = asyncio.all_tasks()
        async with serving() as site:
            client = await deaf(site)
            await site.server.close(0)
            assert asyncio.all_tasks() == before
            await client.rest()

    run(scenario())


def test_a_connection_that_was_accepted_just_before_the_close_is_not_served() -> None:
    """Nothing would end it, and its requests would meet logs that are closed."""

    async def scenario() -> None:
        async with serving() as site:
            site.stopping.begin()
            client = await site.connect()
            assert await asyncio.wait_for(client.rest(), AT_ONCE_SECONDS) == b""

    run(scenario())


def test_no_session_ends_in_a_server_that_is_closed() -> None:
    """It would still write to the log of the groups, which is about to be closed."""

    async def scenario() -> None:
        async with serving() as site:
            rooms = site.rooms
            member, consumer = await site.connect(), await site.connect()
            member.send(join_request("classic"), JOIN)
            beat = ConsumerGroupHeartbeatRequest(
                group_id="consumers", member_id="m", member_epoch=0, rebalance_timeout_ms=60_000,
                subscribed_topic_names=[TOPIC], server_assignor=None, topic_partitions=[],
            )  # fmt: skip
            assert (await consumer.ask(beat, HEARTBEAT)).error_code == ErrorCode.NONE
            await until(lambda: rooms.groups.group("classic") is not None)
            await closed_at_once(site)
            offsets = rooms.cluster.partition(OFFSETS)
            assert offsets is not None
            end_offset = offsets.end_offset
            rooms.clock.pass_ms(WEEKS_MS)
            assert offsets.end_offset == end_offset
            assert list(rooms.group_log.table.consumers["consumers"].subscriptions) == ["m"]
            assert len(rooms.group_log.table.groups["classic"].members) == 1

    run(scenario())
