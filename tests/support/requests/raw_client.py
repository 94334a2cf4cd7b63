"""A Kafka client that sends exactly what a test says: one request, several at once, or bytes that are no request."""

import select
import socket
import ssl
import struct
from types import TracebackType

from dualwrite.wire.apis import APIS, ApiKey, Message
from dualwrite.wire.codec import read_response, read_response_correlation, write_request
from dualwrite.wire.frames import SIZE_PREFIX, frame_size, with_size
from tests.support.waiting import PATIENCE_SECONDS

_KEYS = {api.request: key for key, api in APIS.items()}
_LIMIT = 1 << 30


def key_of(request: Message) -> ApiKey:
    """The API that ``request`` belongs to."""
    return _KEYS[type(request)]


class RawClient:
    """One connection. Every wait ends after ``PATIENCE_SECONDS`` with a TimeoutError.

    :param source: the address to connect from; None leaves it to the system.
    :param tls: encrypts the connection.
    """

    def __init__(
        self,
        bootstrap_servers: str,
        source: str | None = None,
        client_id: str = "raw",
        *,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        host, _, port = bootstrap_servers.rpartition(":")
        ours = None if source is None else (source, 0)
        self._socket = socket.create_connection((host.strip("[]"), int(port)), PATIENCE_SECONDS, ours)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if tls is not None:
            self._socket = tls.wrap_socket(self._socket, server_hostname=host)
        self._correlation = 0
        self._client_id = client_id

    @property
    def port(self) -> int:
        """The port of this side."""
        port: int = self._socket.getsockname()[1]
        return port

    def reset(self) -> None:
        """Close the connection as a process does that ends with unread data: with RST."""
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.close()

    def ask(self, request: Message, version: int) -> Message:
        """The answer to ``request``."""
        correlation = self.send(request, version)
        return self.receive(key_of(request), version, correlation)

    def send(self, request: Message, version: int) -> int:
        """Send ``request`` without waiting; its correlation id."""
        self._correlation += 1
        frame = write_request(key_of(request), version, self._correlation, self._client_id, request)
        self.send_bytes(with_size(frame))
        return self._correlation

    def receive(self, key: ApiKey, version: int, correlation: int) -> Message:
        """The next answer, which must be the one to ``correlation``."""
        frame = self.receive_frame()
        assert read_response_correlation(frame) == correlation
        return read_response(key, version, frame)

    def receive_frame(self) -> bytes:
        """The next frame, of any kind."""
        return self._receive_exactly(frame_size(self._receive_exactly(SIZE_PREFIX), _LIMIT))

    def has_answer(self) -> bool:
        """True once some of the next frame is there, or the broker has closed the connection."""
        return bool(select.select([self._socket], [], [], 0)[0])

    def send_bytes(self, data: bytes) -> None:
        """Send ``data`` as it is."""
        self._socket.sendall(data)

    def send_end(self) -> None:
        """Tell the broker that nothing more will be sent."""
        self._socket.shutdown(socket.SHUT_WR)

    def give_up_after(self, seconds: float) -> None:
        """Let every wait end after ``seconds``."""
        self._socket.settimeout(seconds)

    def read_to_end(self) -> bytes:
        """What the broker still sends until it closes the connection."""
        data = bytearray()
        try:
            while part := self._socket.recv(1 << 16):
                data += part
        except ConnectionResetError:
            return bytes(data)  # it closed while bytes of ours were unread: closed all the same
        return bytes(data)

    def close(self) -> None:
        """Hang up."""
        self._socket.close()

    def __enter__(self) -> "RawClient":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _receive_exactly(self, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            part = self._socket.recv(min(size - len(data), 1 << 20))
            if not part:
                raise ConnectionResetError("the broker closed the connection")
            data += part
        return bytes(data)
