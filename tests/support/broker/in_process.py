"""A broker in the test's own process: real handlers and connections, over scripted transports, on a simulated disk."""

import asyncio
from pathlib import Path
from typing import Any

from dualwrite.broker.api.context import BrokerContext
from dualwrite.broker.config import BrokerOptions
from dualwrite.broker.connection import Connection
from dualwrite.broker.net.connection_memory import ConnectionMemory
from dualwrite.broker.net.frame_stream import FrameStream
from dualwrite.broker.runtime.access_control import AccessControl
from dualwrite.wire.apis import ListOffsetsRequest, Message
from dualwrite.wire.codec import read_response, write_request
from dualwrite.wire.frames import SIZE_PREFIX, with_size
from tests.support.broker.frames import feed
from tests.support.broker.simulated import TOPIC, Rooms
from tests.support.requests.raw_client import key_of

MOST_BYTES = 104_857_600


def list_request(index: int, timestamp: int) -> Message:
    """A ListOffsets request for one partition of the topic ``t``."""
    entry = ListOffsetsRequest.ListOffsetsTopic
    wanted = entry.ListOffsetsPartition(partition_index=index, timestamp=timestamp, current_leader_epoch=-1)
    return ListOffsetsRequest(replica_id=-1, isolation_level=0, topics=[entry(name=TOPIC, partitions=[wanted])])


class InProcessBroker:
    """The broker's own connections and handlers over ``rooms``."""

    def __init__(self, rooms: Rooms, memory: ConnectionMemory | None = None) -> None:
        self.rooms = rooms
        self.memory = memory or ConnectionMemory()
        options = BrokerOptions(Path("/data"))
        access = AccessControl(rooms.cluster, options.access, rooms.clock)
        self.context = BrokerContext(
            rooms.cluster, access, rooms.coordinator, rooms.groups, rooms.consumer_groups, rooms.offsets,
            rooms.flusher, rooms.clock, "127.0.0.1", 9092, True, options, self.memory,
        )  # fmt: skip
        self._clients: list[ScriptedClient] = []

    def connect(self, address: str) -> "ScriptedClient":
        """A client of ``address``, whose connection is served."""
        self._clients.append(ScriptedClient(self.context, address))
        return self._clients[-1]

    async def close(self) -> None:
        """Close every connection."""
        for client in self._clients:
            client.abort()
        await asyncio.gather(*(client.serving for client in self._clients), return_exceptions=True)


class ScriptedClient:
    """A client that sends any bytes, and reads every answer at once. It is the transport of its connection."""

    def __init__(self, context: BrokerContext, address: str) -> None:
        self.answers = bytearray()
        self.is_closed = False
        self._address = address
        self._is_read = True
        self._unsent = bytearray()
        self._arrived = asyncio.Event()
        self._correlation = 0
        self._stream = FrameStream(MOST_BYTES, lambda _: None, context.memory)
        self._stream.connection_made(self)  # type: ignore[arg-type]
        (listener,) = context.options.listeners
        self.connection = Connection(self._stream, context, listener)
        self.serving = asyncio.get_running_loop().create_task(self.connection.serve())

    async def ask(self, request: Message, version: int) -> Message:
        """The answer to ``request``."""
        self._correlation += 1
        key = key_of(request)
        self.send(with_size(write_request(key, version, self._correlation, "scripted", request)))
        return read_response(key, version, await self.next_frame())

    async def next_frame(self) -> bytes:
        """The next answer's frame.

        :raises ConnectionError: if the broker closes the connection first.
        """
        while True:
            if len(self.answers) >= SIZE_PREFIX:
                end = SIZE_PREFIX + int.from_bytes(self.answers[:SIZE_PREFIX], "big")
                if len(self.answers) >= end:
                    frame = bytes(self.answers[SIZE_PREFIX:end])
                    del self.answers[:end]
                    return frame
            if self.is_closed:
                raise ConnectionError("the broker closed the connection")
            self._arrived.clear()
            await self._arrived.wait()

    def send(self, data: bytes) -> None:
        """Send ``data``, as soon as the broker reads it."""
        self._unsent += data
        feed(self._stream, self._unsent, lambda: self._is_read and not self.is_closed)

    def send_end(self) -> None:
        """The client will send no more."""
        if not self.is_closed:
            self._stream.eof_received()

    # --- the transport

    def get_extra_info(self, name: str) -> Any:
        return (self._address, 1) if name == "peername" else None

    def is_closing(self) -> bool:
        return self.is_closed

    def pause_reading(self) -> None:
        self._is_read = False

    def resume_reading(self) -> None:
        self._is_read = True
        asyncio.get_running_loop().call_soon(self.send, b"")

    def write(self, data: bytes) -> None:
        self.answers += data
        self._arrived.set()

    def writelines(self, parts: Any) -> None:
        self.write(b"".join(parts))

    def close(self) -> None:
        self.abort()

    def abort(self) -> None:
        if not self.is_closed:
            self.is_closed = True
            self._arrived.set()
            self._stream.connection_lost(None)
