"""The listeners, and the connections that are open."""

import asyncio
import logging
import socket
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

from dualwrite.broker.api.context import BrokerContext
from dualwrite.broker.authentication import Authentication
from dualwrite.broker.clients.connection_limits import ConnectionLimits, expired, to_make_room
from dualwrite.broker.connection import KINDS_OF_PRINCIPAL, Connection
from dualwrite.broker.listening import BoundListener, take_connections
from dualwrite.broker.net.frame_stream import FrameStream
from dualwrite.broker.runtime.limited_log import LimitedLog
from dualwrite.broker.settings.cluster_settings import BACKLOG
from dualwrite.broker.tls.transport import TlsHandshakeError, TlsTransport

logger = logging.getLogger(__name__)

_KEEPALIVE = {"TCP_KEEPIDLE": 60, "TCP_KEEPINTVL": 15, "TCP_KEEPCNT": 4}
"""The first question after a minute of silence, and the end of the connection another minute later."""
_MOST_FAILURES = 10
"""The most failed handshakes, of different clients or for different reasons, that are logged in a second."""


class Server:
    """Accepts connections on bound sockets, and serves each in its own task.

    :param max_request_bytes: socket.request.max.bytes.
    :param authentications: the authentication of each listener with SASL, by the listener's name.
    """

    def __init__(
        self,
        broker: BrokerContext,
        max_request_bytes: int,
        limits: ConnectionLimits,
        authentications: Mapping[str, Authentication],
    ) -> None:
        self._broker = broker
        self._authentications = authentications
        self._max_request_bytes = max_request_bytes
        self.limits = limits
        self._by_address: Counter[str] = Counter()
        self._limits_log = LimitedLog(logger, 1, broker.clock.monotonic)
        self._failures = LimitedLog(logger, _MOST_FAILURES, broker.clock.monotonic)
        self._connections: dict[asyncio.Task[None], Connection] = {}
        self._aborted: set[Connection] = set()
        """Those that the broker has closed, and whose tasks end soon."""
        self._servers: list[asyncio.Server] = []
        self._names: list[str] = []
        """Those of the listeners."""
        broker.meters.connections = self._count_connections

    async def start(self, bound: Sequence[BoundListener]) -> None:
        """Accept connections from now on.

        :raises ConfigurationError: if another process listens on one of the addresses by now.
        """
        for one in bound:
            self._servers.append(await self._start_one(one))

    async def _start_one(self, bound: BoundListener) -> asyncio.Server:
        """Accept connections of one listener. Its clients get the address that it advertises."""
        listener, sock, tls = bound
        self._names.append(listener.name)
        broker = replace(self._broker, host=listener.advertised_host, port=listener.advertised_port)
        memory, authentication = self._broker.memory, self._authentications.get(listener.name)
        most_bytes = self._max_request_bytes
        if authentication is not None:
            most_bytes = min(most_bytes, authentication.terms.most_token_bytes)

        def accept(stream: FrameStream) -> None:
            transport = stream.transport
            handshake = partial(tls.handshake, transport) if tls and isinstance(transport, TlsTransport) else None
            self._accept(Connection(stream, broker, listener, handshake, authentication), stream)

        def protocol() -> asyncio.BufferedProtocol:
            stream = FrameStream(most_bytes, accept, memory)
            return stream if tls is None else tls.transport(stream)

        backlog = broker.options.number(BACKLOG)
        take_connections(sock, backlog)
        return await asyncio.get_running_loop().create_server(protocol, sock=sock, backlog=backlog)

    async def close(self, grace_seconds: float) -> None:
        """Accept no more connections, answer the requests in progress (waiting ones at once), and close every
        connection. Clients get ``grace_seconds`` to read their answers."""
        for server in self._servers:
            server.close()
        self._broker.stopping.begin()
        self._broker.groups.close()
        self._broker.consumer_groups.close()
        for connection in self._connections.values():
            connection.finish()
        if self._connections:
            await asyncio.wait(list(self._connections), timeout=grace_seconds)
        unfinished = list(self._connections)
        for task in unfinished:
            task.cancel()
        await asyncio.gather(*unfinished, return_exceptions=True)

    async def close_idle(self) -> None:
        """Close the connections that have been idle for longer than connections.max.idle.ms."""
        not_waiting = [connection for connection in self._open() if not connection.is_waiting]
        for connection in expired(not_waiting, self.limits, time.monotonic()):
            self._abort(connection)

    async def close_stalled(self) -> None:
        """Close connections that hold memory which other requests wait for, and make no progress."""
        self._broker.memory.close_stalled()

    def _accept(self, connection: Connection, stream: FrameStream) -> None:
        reason = self._refusal(connection.address)
        if reason is not None:
            self._limits_log.warn(f"refusing a connection of {connection.address}: {reason}")
            stream.close()
            return
        sock: socket.socket = stream.transport.get_extra_info("socket")
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        _notice_a_lost_network(sock)
        task = asyncio.get_running_loop().create_task(self._serve(connection))
        self._connections[task] = connection
        self._by_address[connection.address] += 1
        task.add_done_callback(self._forget)

    async def _serve(self, connection: Connection) -> None:
        try:
            await connection.serve()
        except TlsHandshakeError as error:
            listener = connection.listener
            self._broker.meters.handshake_failures[listener.name] += 1
            self._failures.warn(f"closing a connection of {connection.address} to listener {listener.name}: {error}")

    def _refusal(self, address: str) -> str | None:
        """Why one more connection of ``address`` cannot be taken; None if it can. Makes room if there are too many."""
        if self._broker.stopping.has_begun:  # it was accepted just before, and nothing would end it
            return "the broker stops"
        limits = self.limits
        if self._by_address[address] >= limits.most_per_address:
            return f"it has {limits.most_per_address}, which is max.connections.per.ip"
        if len(self._connections) - len(self._aborted) < limits.most:
            return None
        idle = to_make_room(self._open())
        if not idle:
            return f"{limits.most} are open, which is the limit, and none is idle"
        self._limits_log.warn(
            f"{limits.most} connections are open, which is the limit: closing those that are idle for longest"
        )
        for connection in idle:
            self._abort(connection)
        return None

    def _abort(self, connection: Connection) -> None:
        self._aborted.add(connection)
        connection.abort()

    def _open(self) -> list[Connection]:
        """The connections that the broker has not closed."""
        return [connection for connection in self._connections.values() if connection not in self._aborted]

    def _count_connections(self) -> Counter[tuple[str, str]]:
        """The open connections by listener and kind of principal; 0 where there are none."""
        counts = Counter({(name, kind): 0 for name in self._names for kind in KINDS_OF_PRINCIPAL})
        counts.update(
            (connection.listener.name, connection.kind_of_principal) for connection in self._connections.values()
        )
        return counts

    def _forget(self, task: asyncio.Task[None]) -> None:
        """Forget the task of a closed connection, and log its exception.

        A connection handles every failure of its client, and a failure in a critical section ends the process. So an
        exception here is a bug that harms one client only.
        """
        connection = self._connections.pop(task)
        self._aborted.discard(connection)
        address = connection.address
        self._by_address[address] -= 1
        if not self._by_address[address]:
            del self._by_address[address]
        error = None if task.cancelled() else task.exception()
        if error is not None:
            logger.error("closing a connection: %s", error, exc_info=error)


def _notice_a_lost_network(sock: socket.socket) -> None:
    """Let the system ask whether a silent client is still there (Kafka sets SO_KEEPALIVE, too). A client whose machine
    or network has gone sends no end of the connection."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _KEEPALIVE.items():
        if hasattr(socket, name):  # not every system has them all
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
