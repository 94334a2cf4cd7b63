"""A non-blocking socket to one broker: connecting, TLS and the opening advance whenever the socket is ready.

The blocking driver has several of these in one selector; the control plane's connection waits on a single one.
"""

import errno
import math
import os
import socket
import ssl
import struct
from collections import deque
from collections.abc import Callable
from typing import Any, NoReturn

from dualwrite.client.config.settings import ClientSettings
from dualwrite.client.net.addresses import in_order, led_nowhere
from dualwrite.client.net.connection_errors import of_handshake, of_opening, reason_of
from dualwrite.client.net.sasl import make_mechanism
from dualwrite.client.net.socket_options import tune
from dualwrite.client.net.tls import ssl_context
from dualwrite.client.protocol.broker_protocol import BrokerProtocol, Response
from dualwrite.client.terms.endpoint import Endpoint
from dualwrite.errors import ConfigurationError, KafkaUnavailableError
from dualwrite.wire.apis import ApiKey, Message

PATIENCE = 0.05
"""Seconds that :meth:`SocketConnection.receive_patiently` waits at most."""

SESSION_OVER = "its authentication has run out"

_SESSION_USED = 0.85
"""The part of an authentication's lifetime after which it is renewed, as in the Java client."""

_READ_SIZE = 64 * 1024
_STARTED = (0, errno.EINPROGRESS)
_TIMEVAL = struct.Struct("@ll")
_PLAIN = "socket"
"""The module of Python's own sockets; those with TLS, and of programs patched for green threads, have others."""
_NOT_NOW = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)


def context_of(settings: ClientSettings) -> ssl.SSLContext | None:
    """The TLS context of the connections; None if they are not encrypted.

    :raises ConfigurationError: if a file of the settings is missing or not in PEM form.
    """
    return None if settings.tls is None else ssl_context(settings.tls)


def node_of(endpoint: Endpoint, settings: ClientSettings) -> BrokerProtocol:
    """The protocol of a new connection to ``endpoint``."""
    mechanism = None if settings.sasl is None else make_mechanism(settings.sasl)
    return BrokerProtocol(str(endpoint), settings.client_id, mechanism)


def session_end(node: BrokerProtocol, now: float) -> float:
    """When a connection that opened at ``now`` must not be used any more (KIP-368)."""
    return math.inf if node.session_lifetime is None else now + _SESSION_USED * node.session_lifetime


class SocketConnection:
    """One connection, in any stage. Every method but close() raises the connection's error, after closing the socket.

    It tries the addresses of the endpoint's name in turn until one accepts the connection. Only the name look-up may
    block, as the system's resolver does.

    :param context: the TLS context; None if the connection is not encrypted.
    :param now: monotonic seconds.
    :raises KafkaUnavailableError: if the name is unknown, or no address can be reached.
    :raises ConfigurationError: if TLS or SASL is refused; correct the settings that the message names.
    """

    def __init__(
        self, endpoint: Endpoint, settings: ClientSettings, context: ssl.SSLContext | None, now: float
    ) -> None:
        self.endpoint = endpoint
        self.node = node_of(endpoint, settings)
        self._is_patient = False
        """True if the socket blocks in a receive: the connection is open, and not encrypted."""
        self.attempt = 0
        """Counts the sockets: each must be registered with a selector."""
        self._options = settings.socket
        self._connect_timeout = settings.connect_timeout
        self._until = now
        self._context = context
        self._unsent = bytearray()
        self._addresses: deque[Any] = deque()
        self._address: Any = None
        self._stage: Callable[[float], list[Response]] = self._connecting
        self._turn = True
        try:
            found = socket.getaddrinfo(endpoint.host, endpoint.port, type=socket.SOCK_STREAM)
            self._addresses.extend(in_order(endpoint, found))
        except (OSError, UnicodeError) as error:
            raise self._unavailable(reason_of(error)) from error
        self._dial("it has no address", now)

    @property
    def wants_write(self) -> bool:
        """True if the link can advance when the socket is writable; it always can when the socket is readable."""
        return self._turn or bool(self._unsent)

    @property
    def can_be_patient(self) -> bool:
        """True if :meth:`receive_patiently` may be used. Not while a request is only partly written: the broker cannot
        answer it."""
        return self._is_patient and not self._unsent

    @property
    def due(self) -> float | None:
        """When :meth:`expire` is to be called, in monotonic seconds; None is never.

        While the connection is being opened, this is the end of the time for the current address. Afterwards it is the
        end of the authentication, if that expires; not while a request is unanswered.
        """
        return None if self.node.unanswered or self._until == math.inf else self._until

    @property
    def is_waiting(self) -> bool:
        """True if the link waits for the socket."""
        return self.node.unanswered > 0 or not self.node.is_open

    def fileno(self) -> int:
        """The socket's file descriptor; a different one after each address that failed."""
        return self.socket.fileno()

    def advance(self, now: float) -> list[Response]:
        """Do what the ready socket allows; return the answers that arrived."""
        try:
            return self._stage(now)
        except (OSError, KafkaUnavailableError, ConfigurationError) as error:
            self._raise(error)

    def send(self, tag: int, api_key: ApiKey, version: int, message: Message) -> None:
        """Send ``message``; :meth:`advance` sends the part that the socket does not take now."""
        try:
            self._write(self.node.send(tag, api_key, version, message))
        except OSError as error:
            self._raise(error)

    def receive_patiently(self) -> list[Response] | None:
        """Wait up to ``PATIENCE`` for data, in a single system call; None if none came."""
        try:
            data = self.socket.recv(_READ_SIZE)
        except BlockingIOError:
            return None
        except OSError as error:
            self._raise(error)
        try:
            return self.node.receive(_something(data))
        except (ConnectionError, KafkaUnavailableError) as error:
            self._raise(error)

    def expire(self, now: float) -> None:
        """Handle that the time :attr:`due` has passed: try the next address, or give up."""
        if self._stage == self._connecting:
            self.socket.close()
            self._dial("timed out", now)
        else:
            self._raise(self._unavailable(SESSION_OVER) if self.node.is_open else TimeoutError())

    def close(self) -> None:
        """Close the socket. Safe to call twice."""
        self.socket.close()

    def _dial(self, reason: str, now: float) -> None:
        """Begin to connect to the next address; ``reason`` is the error of the previous one."""
        while self._addresses:
            family, kind, protocol, _, address = self._addresses.popleft()
            self._address = address
            try:
                self.socket = socket.socket(family, kind, protocol)
            except OSError as error:
                reason = reason_of(error)
                continue
            self.socket.setblocking(False)
            tune(self.socket, self._options)
            code = self.socket.connect_ex(address)
            if code in _STARTED:
                self.attempt += 1
                self._until = now + self._connect_timeout
                return
            self.socket.close()
            reason = os.strerror(code)
        raise self._unavailable(reason)

    def _connecting(self, now: float) -> list[Response]:
        code = self.socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code:
            self.socket.close()
            self._dial(os.strerror(code), now)
            return []
        if self._context is None:
            self._start()
            return []
        self.socket = self._context.wrap_socket(
            self.socket, server_hostname=self.endpoint.host, do_handshake_on_connect=False
        )
        self._stage = self._handshaking
        return self._handshaking(now)

    def _handshaking(self, now: float) -> list[Response]:
        assert isinstance(self.socket, ssl.SSLSocket)
        try:
            self.socket.do_handshake()
        except ssl.SSLWantReadError:
            self._turn = False
        except ssl.SSLWantWriteError:
            self._turn = True
        else:
            self._start()
        return []

    def _start(self) -> None:
        self._turn = False
        self._stage = self._opening
        self._write(self.node.start())

    def _opening(self, now: float) -> list[Response]:
        self._flush()
        data = self._read()
        if data is not None:
            self._write(self.node.advance(data))
        if self.node.is_open:
            self._stage = self._exchanging
            self._until = session_end(self.node, now)
            # gevent's and eventlet's sockets know neither MSG_DONTWAIT nor SO_RCVTIMEO: they wait for ever, unless they
            # are non-blocking.
            if type(self.socket).__module__ == _PLAIN:
                # MSG_DONTWAIT marks a call that must not wait; a call that may wait is spared the system call that asks
                # first.
                self.socket.setblocking(True)
                wait = _TIMEVAL.pack(0, int(PATIENCE * 1e6))
                self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, wait)
                self._is_patient = True
        return []

    def _exchanging(self, now: float) -> list[Response]:
        self._flush()
        data = self._read()
        return [] if data is None else self.node.receive(data)

    def _read(self) -> bytes | None:
        """The data that has arrived; None if there is none. A TLS record is shorter than the size that is read, so no
        data stays in the TLS layer, where a selector does not see it."""
        try:
            if self._context is None:
                return _something(self.socket.recv(_READ_SIZE, socket.MSG_DONTWAIT))
            return _something(self.socket.recv(_READ_SIZE))
        except _NOT_NOW:
            return None

    def _write(self, data: bytes) -> None:
        if self._unsent:
            self._unsent += data
            return
        sent = self._send(data)
        if sent < len(data):
            self._unsent += memoryview(data)[sent:]

    def _flush(self) -> None:
        if self._unsent:
            del self._unsent[: self._send(self._unsent)]

    def _send(self, data: bytes | bytearray) -> int:
        try:
            return self.socket.send(data, socket.MSG_DONTWAIT) if self._context is None else self.socket.send(data)
        except _NOT_NOW:
            return 0

    def _raise(self, error: Exception) -> NoReturn:
        self.socket.close()
        if self._stage != self._connecting and not self.node.is_open:
            led_nowhere(self.endpoint, self._address)
        if isinstance(error, (KafkaUnavailableError, ConfigurationError)):
            raise error
        if self._stage == self._handshaking:
            raise of_handshake(self.endpoint, error) from error
        is_secured = self._context is not None
        raise of_opening(self.endpoint, error, is_first=not self.node.has_heard, is_secured=is_secured) from error

    def _unavailable(self, reason: str) -> KafkaUnavailableError:
        return KafkaUnavailableError(f"broker {self.endpoint}: {reason}")


def _something(data: bytes) -> bytes:
    if not data:
        raise ConnectionError("the broker closed the connection")
    return data
