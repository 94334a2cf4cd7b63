"""The port of a broker that starts beside another one: two may bind it, and only one can listen on it."""

import asyncio
import socket
from collections.abc import Callable

import pytest
import uvloop

from dualwrite.broker.clients.connection_limits import ConnectionLimits
from dualwrite.broker.listening import BoundListener, listen
from dualwrite.broker.server import Server
from dualwrite.errors import ConfigurationError
from dualwrite.testing.files import MemoryFiles
from tests.support.broker.in_process import MOST_BYTES, InProcessBroker
from tests.support.broker.simulated import Rooms

HOST = "127.0.0.1"


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def test_a_broker_does_not_claim_a_port_on_which_another_one_listens_by_now(
    new_loop: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    async def scenario() -> None:
        context = InProcessBroker(await Rooms(MemoryFiles()).with_topic()).context
        (listener,) = context.options.listeners
        server = Server(context, MOST_BYTES, ConnectionLimits(100, 100, -1), {})
        with listen(HOST, 0) as other:
            port = other.getsockname()[1]
            with listen(HOST, port) as own:
                other.listen()
                with pytest.raises(ConfigurationError, match=f"cannot listen on {HOST}:{port}: Address already in use"):
                    await server.start([BoundListener(listener.on_port(port), own, None)])
            with socket.create_connection((HOST, port)):
                pass  # the other one is not disturbed
        await server.close(0)

    loop = new_loop()
    try:
        loop.run_until_complete(scenario())
    finally:
        loop.close()
