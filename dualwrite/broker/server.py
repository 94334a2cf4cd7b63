"""The listening socket, and the connections that are open."""

import asyncio
import logging
import socket

from dualwrite.broker.api.context import BrokerContext
from dualwrite.broker.connection import Connection
from dualwrite.broker.frame_buffers import FrameBuffers
from dualwrite.broker.frame_stream import FrameStream
from dualwrite.errors import ConfigurationError

logger = logging.getLogger(__name__)

_GRACE_SECONDS = 5.0
_BACKLOG = 1024


def listen(host: str, port: int) -> socket.socket:
    """A bound socket that does not accept connections yet. A name with several addresses is bound to the first,
    preferably IPv4, so that there is one port even if ``port`` is 0.

    :raises ConfigurationError: if the address cannot be used.
    """
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, kind, protocol, _, address = min(found, key=lambda info: info[0] != socket.AF_INET)
        listener = socket.socket(family, kind, protocol)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
    except OSError as error:
        raise ConfigurationError(f"cannot listen on {host}:{port}: {error.strerror}") from None
    return listener


class Server:
    """Accepts connections on a bound socket and serves each in a task of its own."""

    def __init__(self, broker: BrokerContext, max_request_bytes: int, max_connections: int) -> None:
        self._broker = broker
        self._max_request_bytes = max_request_bytes
        self._max_connections = max_connections
        self._connections: dict[asyncio.Task[None], Connection] = {}
        self._server: asyncio.Server | None = None

    async def start(self, listener: socket.socket) -> None:
        """Accept connections from now on."""
        loop, buffers = asyncio.get_running_loop(), FrameBuffers()
        self._server = await loop.create_server(
            lambda: FrameStream(self._max_request_bytes, self._accept, buffers), sock=listener, backlog=_BACKLOG
        )

    async def close(self) -> None:
        """Accept no more connections, let requests in progress be answered (waiting ones at once), and close every
        connection."""
        assert self._server is not None
        self._server.close()
        self._broker.stopping.begin()
        self._broker.groups.close()
        for connection in self._connections.values():
            connection.finish()
        if self._connections:
            await asyncio.wait(list(self._connections), timeout=_GRACE_SECONDS)
        late = list(self._connections)
        for task in late:
            task.cancel()
        await asyncio.gather(*late, return_exceptions=True)

    def _accept(self, stream: FrameStream) -> None:
        if len(self._connections) >= self._max_connections:
            logger.warning("refusing a connection: there are %d, the most that are taken", self._max_connections)
            stream.close()
            return
        sock: socket.socket = stream.transport.get_extra_info("socket")
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection = Connection(stream, self._broker)
        task = asyncio.get_running_loop().create_task(connection.serve())
        self._connections[task] = connection
        self._broker.meters.connections += 1
        task.add_done_callback(self._forget)

    def _forget(self, task: asyncio.Task[None]) -> None:
        """A connection handles every failure of a client, and a failure that must not stop half way ends the process.
        So an exception here is a bug that harms one client, whose connection is closed."""
        del self._connections[task]
        self._broker.meters.connections -= 1
        error = None if task.cancelled() else task.exception()
        if error is not None:
            logger.error("closing a connection: %s", error, exc_info=error)
