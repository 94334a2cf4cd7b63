"""Options that are set on a connection's socket before it connects."""

import socket

from dualwrite.client.config.settings import SocketSettings


def tune(connection: socket.socket, settings: SocketSettings) -> None:
    """Set the options of ``settings`` on ``connection``."""
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, settings.no_delay)
    if settings.keepalive:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if settings.send_buffer:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, settings.send_buffer)
    if settings.receive_buffer:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, settings.receive_buffer)
