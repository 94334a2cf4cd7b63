"""The options that are set on a socket."""

import socket

import pytest

from dualwrite.client.config.settings import ClientSettings, SocketSettings
from dualwrite.client.net.socket_connection import SocketConnection
from dualwrite.client.terms.endpoint import Endpoint


@pytest.mark.parametrize(
    ("settings", "option", "value"),
    [
        (SocketSettings(), (socket.IPPROTO_TCP, socket.TCP_NODELAY), True),
        (SocketSettings(no_delay=False), (socket.IPPROTO_TCP, socket.TCP_NODELAY), False),
        (SocketSettings(), (socket.SOL_SOCKET, socket.SO_KEEPALIVE), False),
        (SocketSettings(keepalive=True), (socket.SOL_SOCKET, socket.SO_KEEPALIVE), True),
    ],
)
def test_a_connections_flags_are_those_of_its_settings(
    settings: SocketSettings, option: tuple[int, int], value: bool
) -> None:
    assert bool(_connected(settings, option)) is value


@pytest.mark.parametrize(("name", "option"), [("send_buffer", socket.SO_SNDBUF), ("receive_buffer", socket.SO_RCVBUF)])
def test_a_connections_buffers_are_those_of_its_settings(name: str, option: int) -> None:
    usual = _connected(SocketSettings(), (socket.SOL_SOCKET, option))
    small = _connected(SocketSettings(**{name: 8192}), (socket.SOL_SOCKET, option))
    assert 8192 <= small <= 2 * 8192 < usual, "Linux keeps twice what it is told, for itself"


def _connected(settings: SocketSettings, option: tuple[int, int]) -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        endpoint = Endpoint(*listener.getsockname()[:2])
        link = SocketConnection(endpoint, ClientSettings((endpoint,), socket=settings), None, 0.0)
        try:
            return link.socket.getsockopt(*option)
        finally:
            link.close()
