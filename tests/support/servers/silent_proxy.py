"""A proxy before a database server that goes silent as a network does that drops every packet: no end of a connection
reaches the other side, and bytes are lost."""

import re
import socket
import threading
from contextlib import suppress
from dataclasses import dataclass, field

from sqlalchemy import URL

from tests.support.servers.round_trip_proxy import TurnsProxy

_CHUNK = 64 * 1024
COMMIT = rb"COMMIT(?!TED)"
"""The statement, and no isolation level."""


@dataclass
class Flow:
    """One connection of a client's through the proxy."""

    client: socket.socket
    server: socket.socket
    is_silent: threading.Event = field(default_factory=threading.Event)


class SilentProxy(TurnsProxy):
    """Forwards everything until it is to be silent.

    :param url: of the server, by a Unix socket or by TCP.
    """

    def __init__(self, url: str) -> None:
        self.flows: list[Flow] = []
        self.lets_nobody_in = False
        """True to accept new connections, and to say nothing on them."""
        self.silenced = threading.Event()
        """Set once the request of :meth:`silence_at` has come."""
        self._at: re.Pattern[bytes] | None = None
        self._delivers = False
        super().__init__(url)

    @property
    def plain_url(self) -> str:
        """As text."""
        url: URL = self.url
        return url.render_as_string(hide_password=False)

    def silence_at(self, request: bytes, *, delivers: bool) -> None:
        """Silence the next connection on which ``request``, a pattern, is sent; the server gets it if ``delivers``."""
        self.silenced.clear()
        self._delivers, self._at = delivers, re.compile(request)

    def silence_all(self) -> None:
        """Silence the connections that there are."""
        for flow in self.flows:
            flow.is_silent.set()

    def end_silent(self) -> None:
        """The server learns that the clients of silent connections are gone, as by its keepalives."""
        for flow in self.flows:
            if flow.is_silent.is_set():
                with suppress(OSError):
                    flow.server.shutdown(socket.SHUT_RDWR)

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                self._keep(client)
                if self.lets_nobody_in:
                    continue
                flow = Flow(client, self._dial())
                self.flows.append(flow)
                threading.Thread(target=self._to_server, args=(flow,), daemon=True).start()
                threading.Thread(target=self._to_client, args=(flow,), daemon=True).start()

    def _to_server(self, flow: Flow) -> None:
        with suppress(OSError):
            while data := flow.client.recv(_CHUNK):
                is_the_one = self._at is not None and self._at.search(data) is not None
                if is_the_one:
                    flow.is_silent.set()
                    if self._delivers:
                        flow.server.sendall(data)
                    self._at = None
                    self.silenced.set()
                if not flow.is_silent.is_set():
                    flow.server.sendall(data)
            if not flow.is_silent.is_set():
                flow.server.shutdown(socket.SHUT_WR)

    def _to_client(self, flow: Flow) -> None:
        with suppress(OSError):
            while data := flow.server.recv(_CHUNK):
                if not flow.is_silent.is_set():
                    flow.client.sendall(data)
            if not flow.is_silent.is_set():
                flow.client.shutdown(socket.SHUT_WR)
