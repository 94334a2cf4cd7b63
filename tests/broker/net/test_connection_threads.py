"""What a connection does in threads, and what it must not: only the event loop's thread compiles kafka-python's codecs,
as compiling changes kafka-python for a moment."""

import asyncio
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from dualwrite.broker import connection
from dualwrite.broker.api.context import NO_CLIENT, Client
from dualwrite.broker.api.routes import Route
from dualwrite.broker.clients.listeners import PLAINTEXT_LISTENER
from dualwrite.broker.connection import Connection
from dualwrite.broker.net.frame_stream import StreamEndedError
from dualwrite.broker.runtime.flusher import Flusher
from dualwrite.broker.runtime.meters import Meters
from dualwrite.broker.runtime.stopping import Stopping
from dualwrite.wire.apis import ApiKey, DeleteGroupsRequest, DeleteGroupsResponse, Message
from dualwrite.wire.codec import write_request
from tests.support.broker.simulated import never
from tests.support.wire_schemas import compile_again

VERSION = 2


@dataclass
class Metered:
    """What a connection itself uses of a BrokerContext."""

    meters: Meters = field(default_factory=Meters)
    flusher: Flusher = field(default_factory=lambda: Flusher(False, on_failure=never))
    client: Client = NO_CLIENT
    stopping: Stopping = field(default_factory=Stopping)
    polls: Any = None


class OneRequest:
    """A FrameStream that gives one frame and then ends."""

    is_deaf = is_blocked = False
    active_at = arrived_at = 0.0

    def __init__(self, frame: bytes) -> None:
        self.transport = SimpleNamespace(get_extra_info=lambda _: ("127.0.0.1", 1))
        self.written: list[list[bytes]] = []
        self._frames = [bytearray(frame)]

    def take(self) -> bytearray:
        if not self._frames:
            raise StreamEndedError("done")
        return self._frames.pop()

    def send(self, parts: list[bytes]) -> int:
        self.written.append(parts)
        return sum(map(len, parts))

    def release(self, frame: bytearray) -> None:
        pass

    def when_deaf(self, wake: Callable[[], None]) -> None:
        pass

    def when_ready(self, call: Callable[[], None]) -> None:
        pass

    def close(self) -> None:
        pass

    async def wait_closed(self) -> None:
        pass


@pytest.mark.parametrize("names", [1, 5_000])
def test_decoders_are_compiled_in_the_loops_thread_and_long_requests_decoded_in_another(
    names: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled_in: list[threading.Thread] = []
    read_in: list[threading.Thread] = []
    read = connection.read_body

    def reading(*arguments: Any) -> Any:
        read_in.append(threading.current_thread())
        return read(*arguments)

    async def handle(request: Message, _version: int, _broker: Any) -> Message:
        assert len(request.groups_names) == names
        return DeleteGroupsResponse(throttle_time_ms=0, results=[])

    compile_again(monkeypatch, lambda: compiled_in.append(threading.current_thread()))
    monkeypatch.setattr(connection, "read_body", reading)
    monkeypatch.setitem(connection.ROUTES, ApiKey.DELETE_GROUPS, Route(range(VERSION + 1), handle))
    request = DeleteGroupsRequest(groups_names=[f"group-{number}" for number in range(names)])
    stream = OneRequest(write_request(ApiKey.DELETE_GROUPS, VERSION, 1, "c", request))
    asyncio.run(Connection(stream, Metered(), PLAINTEXT_LISTENER).serve())  # type: ignore[arg-type]

    assert len(stream.written) == 1
    assert set(compiled_in) == {threading.main_thread()}
    assert [thread is threading.main_thread() for thread in read_in] == [names == 1]
