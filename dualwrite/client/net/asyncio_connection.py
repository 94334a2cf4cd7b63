"""A connection to one broker under asyncio: the counterpart of ``socket_connection.py``.

Each address has its own time limit, and a TLS failure is no reason to try the next address: so ``create_connection``
alone is not enough.
"""

import asyncio
import math
import socket
import ssl
import time
from collections.abc import Awaitable, Callable
from typing import Any, Protocol, TypeVar, cast

from dualwrite.client.config.settings import ClientSettings
from dualwrite.client.engine.contract import Request
from dualwrite.client.net.addresses import in_order, led_nowhere
from dualwrite.client.net.connection_errors import of_handshake, of_opening, reason_of
from dualwrite.client.net.socket_connection import SESSION_OVER, node_of, session_end
from dualwrite.client.net.socket_options import tune
from dualwrite.client.protocol.broker_protocol import Response
from dualwrite.client.terms.endpoint import Endpoint
from dualwrite.errors import ConfigurationError, KafkaUnavailableError

Loss = KafkaUnavailableError | ConfigurationError
"""Why a connection cannot be used."""

T = TypeVar("T")
_Broken = (KafkaUnavailableError, ConfigurationError)
_TIMEOUTS = (asyncio.TimeoutError, TimeoutError)  # the same class from Python 3.11 on


class ConnectionListener(Protocol):
    """Receives a connection's events. No event comes after ``lost``, nor after the connection was closed."""

    def opened(self, connection: "AsyncioConnection") -> None:
        """Requests may be sent."""

    def answered(self, connection: "AsyncioConnection", answers: list[Response]) -> None:
        """Some requests were answered."""

    def lost(self, connection: "AsyncioConnection", error: Loss) -> None:
        """The connection could not be opened, or broke."""

    def interrupted(self) -> None:
        """An exception from outside struck while an event was being handled: part of the event may be lost."""


class AsyncioConnection(asyncio.Protocol):
    """One connection to one broker. A task of its own opens it, trying the addresses in turn."""

    def __init__(
        self,
        endpoint: Endpoint,
        settings: ClientSettings,
        context: ssl.SSLContext | None,
        listener: ConnectionListener,
        clock: Callable[[], float],
    ) -> None:
        self.endpoint = endpoint
        self.node = node_of(endpoint, settings)
        self._connect_timeout = settings.connect_timeout
        self._options = settings.socket
        self._tokens = None if settings.sasl is None else settings.sasl.tokens
        self._context = context
        self._listener = listener
        self._clock = clock
        self._until = math.inf
        self._is_closed = False
        self._address: Any = None
        """The address that has accepted the connection; None before that."""
        self._transport: asyncio.Transport | None = None
        self._loop = asyncio.get_running_loop()
        self._opened: asyncio.Future[None] = self._loop.create_future()
        self._gone: asyncio.Future[None] = self._loop.create_future()
        self._task = self._loop.create_task(self._open())

    @property
    def due(self) -> float | None:
        """When to call :meth:`expire`, as the authentication ends then. The opening task has a time limit of its
        own."""
        return None if self.node.unanswered or self._until == math.inf else self._until

    @property
    def is_gone(self) -> bool:
        """True if the connection has no transport or task left in the loop."""
        return self._task.done() and (self._transport is None or self._gone.done())

    def send(self, request: Request) -> None:
        """Send ``request``."""
        assert self._transport is not None, "not open"
        self._transport.write(self.node.send(*request))

    def expire(self) -> None:
        """Handle that the time ``due`` has passed."""
        self._fail(self._unavailable(SESSION_OVER))

    def close(self) -> None:
        """Close the connection at once. Safe to call twice."""
        self._is_closed = True
        self._task.cancel()
        self._opened.cancel()  # before Python 3.12, wait_for() loses a cancellation at its end
        if self._transport is not None:
            self._transport.abort()

    async def wait_closed(self) -> None:
        """After :meth:`close`: wait until the connection has nothing left in the loop."""
        await asyncio.wait([self._task])
        if self._transport is not None:
            await self._gone

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by asyncio: TCP, and TLS if it is configured, are connected."""
        self._transport = cast(asyncio.Transport, transport)
        if self._is_closed:
            self._transport.abort()
            return
        tune(transport.get_extra_info("socket"), self._options)  # asyncio has set options of its own
        self._transport.write(self.node.start())

    def data_received(self, data: bytes) -> None:
        """Called by asyncio: the broker sent data."""
        if self._is_closed:
            return
        try:
            self._take(data)
        except BaseException:
            self._listener.interrupted()
            raise

    def _take(self, data: bytes) -> None:
        was_open = self.node.is_open
        try:
            if was_open:
                self._listener.answered(self, self.node.receive(data))
                return
            cast(asyncio.Transport, self._transport).write(self.node.advance(data))
        except _Broken as error:
            self._fail(error)
            return
        if self.node.is_open:
            self._until = session_end(self.node, self._clock())
            self._opened.set_result(None)
            self._listener.opened(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """Called by asyncio: no more data will come."""
        self._is_lost()
        error = ConnectionError("the broker closed the connection") if exc is None else exc
        is_secured = self._context is not None
        self._fail(of_opening(self.endpoint, error, is_first=not self.node.has_heard, is_secured=is_secured))

    async def _open(self) -> None:
        try:
            if self._tokens is not None:  # fetched here, as it may take time, and kept until it is used
                fetching = self._loop.run_in_executor(None, self._tokens.token, time.time())
                await self._in_time(fetching)
            await self._secure(await self._connect())
            await asyncio.wait_for(self._opened, self._connect_timeout)
        except _TIMEOUTS:
            self._fail(self._unavailable("timed out"))
        except _Broken as error:
            self._fail(error)

    async def _connect(self) -> socket.socket:
        host, port = self.endpoint
        try:
            looking_up = self._loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
            addresses = await self._in_time(looking_up)
        except (OSError, UnicodeError, *_TIMEOUTS) as error:
            raise self._unavailable(_reason(error)) from error
        reason = "it has no address"
        for family, kind, protocol, _, address in in_order(self.endpoint, addresses):
            try:
                connecting = socket.socket(family, kind, protocol)
            except OSError as error:
                reason = reason_of(error)
                continue
            try:
                connecting.setblocking(False)
                tune(connecting, self._options)
                await self._in_time(self._loop.sock_connect(connecting, address))
            except (OSError, *_TIMEOUTS) as error:
                connecting.close()
                reason = _reason(error)
            except BaseException:
                connecting.close()
                raise
            else:
                self._address = address
                return connecting
        raise self._unavailable(reason)

    async def _secure(self, connected: socket.socket) -> None:
        name = None if self._context is None else self.endpoint.host
        making = self._loop.create_connection(lambda: self, sock=connected, ssl=self._context, server_hostname=name)
        try:
            await asyncio.wait_for(making, self._connect_timeout)
        except asyncio.CancelledError:
            self._is_lost()  # the loop closes the transport itself; uvloop does not report that
            raise
        except _TIMEOUTS as error:
            raise self._unavailable("TLS: timed out") from error
        except OSError as error:
            raise of_handshake(self.endpoint, error) from error

    async def _in_time(self, awaitable: Awaitable[T]) -> T:
        """As wait_for(), which before Python 3.12 loses a cancellation at its end: the opening would go on."""
        try:
            return await asyncio.wait_for(awaitable, self._connect_timeout)
        finally:
            if self._is_closed:
                raise asyncio.CancelledError

    def _is_lost(self) -> None:
        if not self._gone.done():
            self._gone.set_result(None)

    def _fail(self, error: Loss) -> None:
        if not self._is_closed:
            if self._address is not None and not self.node.is_open:
                led_nowhere(self.endpoint, self._address)
            try:
                self.close()
                self._listener.lost(self, error)
            except BaseException:
                self._listener.interrupted()
                raise

    def _unavailable(self, reason: str) -> KafkaUnavailableError:
        return KafkaUnavailableError(f"broker {self.endpoint}: {reason}")


def _reason(error: BaseException) -> str:
    return "timed out" if isinstance(error, _TIMEOUTS) else reason_of(error)
