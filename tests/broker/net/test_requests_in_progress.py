"""A request in progress: its memory comes back, its answer is sent though the broker stops, and a retry waits as it."""

import asyncio
import re

import pytest

from dualwrite.broker.net.connection_memory import ConnectionMemory
from dualwrite.ids import ProducerIdentity
from dualwrite.testing.files import MemoryFiles
from dualwrite.wire.apis import ApiKey, Message, UnregisterBrokerRequest
from dualwrite.wire.codec import read_response, write_request
from dualwrite.wire.error_codes import ErrorCode
from dualwrite.wire.frames import with_size
from tests.support.broker.in_process import InProcessBroker, ScriptedClient
from tests.support.broker.simulated import TOPIC, Rooms, run
from tests.support.requests.calls import batch, produce_request

PRODUCE_VERSION = 9
MEBIBYTE = 1024 * 1024
AT_ONCE_SECONDS = 20.0


def sent(client: ScriptedClient, *batches: bytes) -> None:
    """Send one Produce request for each of ``batches``."""
    for number, content in enumerate(batches):
        request = produce_request({(TOPIC, 0): content})
        client.send(with_size(write_request(ApiKey.PRODUCE, PRODUCE_VERSION, number, "x", request)))


async def answer(client: ScriptedClient) -> Message:
    """The next answer about the only partition."""
    frame = await asyncio.wait_for(client.next_frame(), AT_ONCE_SECONDS)
    (topic,) = read_response(ApiKey.PRODUCE, PRODUCE_VERSION, frame).responses
    (partition,) = topic.partition_responses
    return partition


class LingeringClient(ScriptedClient):
    """Does not read its last answer: its connection stays after the broker has closed its own end."""

    def close(self) -> None:
        """Wait for the client."""


async def steps() -> None:
    for _ in range(100):
        await asyncio.sleep(0)


@pytest.mark.parametrize("last", [b"", with_size(b"no request")], ids=["an end", "no request"])
def test_a_connection_that_waits_for_its_client_to_read_is_counted_and_makes_room(last: bytes) -> None:
    """Not counted, such connections could take every file of the broker."""

    async def scenario() -> None:
        broker = InProcessBroker(await Rooms(MemoryFiles()).with_topic())
        client = LingeringClient(broker.context, "10.0.0.1")
        await asyncio.sleep(0)
        client.send(last)
        client.send_end()
        await steps()
        assert not client.serving.done(), "the server counts the connections that are served"
        assert client.connection.idle_since is not None, "no idle connection is closed to make room"
        client.abort()
        await asyncio.wait_for(client.serving, AT_ONCE_SECONDS)

    run(scenario())


def test_a_large_request_gives_its_memory_back_before_its_client_goes() -> None:
    """Otherwise clients that stay would at last hold all of the memory, and every large request would wait."""

    async def scenario() -> None:
        memory = ConnectionMemory(MEBIBYTE)
        client = InProcessBroker(await Rooms(MemoryFiles()).with_topic(), memory).connect("10.0.0.1")
        for number in range(5):
            sent(client, batch([b"v" * 900_000]))
            assert (await answer(client)).base_offset == number
        assert memory.request_bytes == 0
        client.abort()
        await client.serving

    run(scenario())


def test_a_request_in_progress_is_answered_when_the_broker_stops_and_no_later_one_begins() -> None:
    async def scenario() -> None:
        rooms = await Rooms(MemoryFiles()).with_topic()
        client = InProcessBroker(rooms).connect("10.0.0.1")
        await asyncio.sleep(0)
        sent(client, batch([b"in progress"]), batch([b"later"]))
        assert rooms.partition(0).end_offset == 1
        client.connection.finish()
        assert (await answer(client)).error_code == ErrorCode.NONE
        await asyncio.wait_for(client.serving, AT_ONCE_SECONDS)
        assert client.is_closed
        assert rooms.partition(0).end_offset == 1

    run(scenario())


def test_a_connection_that_was_cancelled_carries_out_no_request() -> None:
    """A stop cancels it, and bytes may arrive before its task has noticed."""

    async def scenario() -> None:
        broker = InProcessBroker(await Rooms(MemoryFiles()).with_topic())
        client = broker.connect("10.0.0.1")
        await steps()
        client.serving.cancel()
        sent(client, batch([b"late"]))
        await steps()
        assert broker.rooms.partition(0).log.end_offset == 0
        assert client.is_closed
        await broker.close()

    run(scenario())


def test_each_request_of_a_connection_has_its_own_client_id(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        broker = InProcessBroker(await Rooms(MemoryFiles()).with_topic())
        client = broker.connect("10.0.0.1")
        for client_id in ("first", "second"):
            request = UnregisterBrokerRequest(broker_id=0)
            client.send(with_size(write_request(ApiKey.UNREGISTER_BROKER, 0, 1, client_id, request)))
            await client.next_frame()
        await broker.close()

    run(scenario())
    assert re.findall(r"client_id='(\w+)'", caplog.text) == ["first", "second"]


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("delay", range(12))
def test_a_duplicate_is_acknowledged_no_earlier_than_the_batch_itself(seed: int, delay: int) -> None:
    """A producer that connects again repeats a batch whose fsync may still be in progress."""

    async def scenario() -> None:
        rooms = await Rooms(MemoryFiles()).with_topic()
        broker = InProcessBroker(rooms)
        first, again = broker.connect("10.0.0.1"), broker.connect("10.0.0.1")
        await asyncio.sleep(0)
        content = batch([b"once"], ProducerIdentity(1, 0), 0)
        sent(first, content)
        for _ in range(delay):
            await asyncio.sleep(0)
        sent(again, content)
        acknowledged = await answer(again)
        assert (acknowledged.error_code, acknowledged.base_offset) == (ErrorCode.NONE, 0)
        assert rooms.partition(0).log.synced_offset == rooms.partition(0).end_offset == 1
        await broker.close()

    run(scenario(), seed)
