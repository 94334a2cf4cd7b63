"""The sockets on which the broker listens. A socket that other machines can reach must authenticate its clients."""

import socket
from collections.abc import Sequence
from typing import NamedTuple

from dualwrite.broker.clients.bind_errors import bind_refusal
from dualwrite.broker.clients.listeners import WILDCARDS, Listener, host_and_port, is_loopback
from dualwrite.broker.config import BrokerOptions
from dualwrite.broker.settings.cluster_settings import RECEIVE_BUFFER, SEND_BUFFER
from dualwrite.broker.tls.listener_tls import ListenerTls
from dualwrite.errors import ConfigurationError


class BoundListener(NamedTuple):
    """A listener whose ports are known, its socket, which does not accept connections yet, and its TLS, if any."""

    listener: Listener
    socket: socket.socket
    tls: ListenerTls | None


def bind_listeners(options: BrokerOptions) -> list[BoundListener]:
    """Bind every listener.

    :raises ConfigurationError: if an address or a certificate cannot be used, or if other machines reach a listener
        that authenticates no client, and ``allow_anonymous`` is off.
    """
    bound: list[BoundListener] = []
    try:
        for listener in options.listeners:
            tls = ListenerTls(listener, options.for_listener(listener.name)) if listener.protocol.is_tls else None
            sock = listen(listener.host or WILDCARDS[1], listener.port)
            _set_buffers(sock, options)
            host, port = sock.getsockname()[:2]
            bound.append(BoundListener(listener.on_port(port), sock, tls))
            if not is_loopback(host):
                options.refuse_unprotected(listener)
    except BaseException:
        close_all(bound)
        raise
    return bound


def _set_buffers(sock: socket.socket, options: BrokerOptions) -> None:
    """Set the buffers of every connection that ``sock`` will accept: they inherit those of the socket that listens."""
    for key, name in ((RECEIVE_BUFFER, socket.SO_RCVBUF), (SEND_BUFFER, socket.SO_SNDBUF)):
        size = options.number(key)
        if size > 0:
            sock.setsockopt(socket.SOL_SOCKET, name, size)


def close_all(bound: Sequence[BoundListener]) -> None:
    """Close the sockets."""
    for one in bound:
        one.socket.close()


def listen(host: str, port: int) -> socket.socket:
    """A bound socket that does not accept connections yet. A name with several addresses is bound to one of them, IPv4
    if possible, so that there is one port even if ``port`` is 0.

    :raises ConfigurationError: if the address cannot be used.
    """
    try:
        addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, kind, protocol, _, chosen = min(addresses, key=lambda info: info[0] != socket.AF_INET)
        listener = socket.socket(family, kind, protocol)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(chosen)
        except OSError:
            listener.close()
            raise
    except OSError as error:
        raise _refused(host, port, error) from None
    return listener


def take_connections(listener: socket.socket, backlog: int) -> None:
    """Let the system take connections for the bound socket ``listener``, until the broker accepts them.

    Two processes may bind a port as long as neither of them listens on it, and uvloop hides the failure of the second.

    :raises ConfigurationError: if another process listens there by now.
    """
    try:
        listener.listen(backlog)
    except OSError as error:
        host, port = listener.getsockname()[:2]
        raise _refused(host, port, error) from None


def _refused(host: str, port: int, error: OSError) -> ConfigurationError:
    return ConfigurationError(f"cannot listen on {host_and_port(host, port)}: {bind_refusal(error, '--listen')}")
