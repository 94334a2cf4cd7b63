"""A TCP proxy before a broker that counts requests, and can hold one of them back until the test releases it."""

import socket
import struct
import threading
from collections import Counter
from contextlib import suppress

from dualwrite.wire.apis import ApiKey


class HoldingProxy:
    """Listens from the start, so that the broker can advertise :attr:`port`; forwards once ``broker_port`` is set.

    :param api: the API whose ``number``-th request (from 1 on) is held; None for none.
    :param cuts: its connection is cut; else there is no answer on it any more.
    """

    def __init__(self, api: ApiKey | None = None, number: int = 1, *, cuts: bool = True) -> None:
        self.broker_port = 0
        self.held = threading.Event()
        self._api = api
        self._number = number
        self._cuts = cuts
        self.swallows = False
        """True to let all requests of the API go unanswered, and never deliver them."""
        self.seen: Counter[ApiKey] = Counter()
        """Requests by API."""
        self._request = b""
        self._upstream: socket.socket | None = None
        self._client: socket.socket | None = None
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def release(self) -> None:
        """Deliver the request that was held, on its own connection to the broker, and wait for the answer."""
        assert self._upstream is not None
        with self._upstream:
            self._upstream.sendall(self._request)
            assert read_frame(self._upstream)

    def hang_up(self) -> None:
        """Cut the connection on which the request was held, if it is not cut."""
        assert self._client is not None
        self._client.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Accept no more."""
        self._listener.close()
        if self._upstream is not None:
            self._upstream.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with client, suppress(OSError):
            upstream = socket.create_connection(("127.0.0.1", self.broker_port))
            try:
                self._forward(client, upstream)
            finally:
                if upstream is not self._upstream:
                    upstream.close()

    def _forward(self, client: socket.socket, upstream: socket.socket) -> None:
        while request := read_frame(client):
            api = ApiKey(struct.unpack_from(">h", request, 4)[0])
            self.seen[api] += 1
            if api is self._api and self.swallows:
                continue
            if api is self._api and self.seen[api] == self._number:
                self._request, self._upstream, self._client = request, upstream, client
                self.held.set()
                while not self._cuts and read_frame(client):
                    pass
                return  # cuts the client, not the way to the broker
            upstream.sendall(request)
            answer = read_frame(upstream)
            if not answer:
                return
            client.sendall(answer)


def read_frame(connection: socket.socket) -> bytes:
    """One frame with its size; empty if the connection ends."""
    prefix = _read(connection, 4)
    return prefix + _read(connection, struct.unpack(">i", prefix)[0]) if prefix else b""


def _read(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        part = connection.recv(size - len(data))
        if not part:
            return b""
        data += part
    return data
