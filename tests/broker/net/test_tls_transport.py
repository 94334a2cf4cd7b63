"""The TLS transport by itself, on every event loop: large data, slow readers, half-closed connections, late clients."""

import asyncio
import socket
import ssl
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
import uvloop

from dualwrite.broker.net.connection_memory import ConnectionMemory
from dualwrite.broker.net.frame_stream import FrameStream, StreamEndedError
from dualwrite.broker.tls.transport import RECEIVE_BYTES, TlsHandshakeError, TlsTransport
from tests.support.broker.frames import read_frame, write_frame
from tests.support.broker.secured import Keys
from tests.support.waiting import PATIENCE_SECONDS

LARGEST = 16 * 1024 * 1024
ASYNC_RUNNERS: dict[str, Callable[[Coroutine[Any, Any, Any]], Any]] = {"asyncio": asyncio.run, "uvloop": uvloop.run}


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Keys:
    return Keys(tmp_path_factory.mktemp("keys"))


@pytest.fixture(params=ASYNC_RUNNERS)
def run(request: pytest.FixtureRequest) -> Callable[[Coroutine[Any, Any, Any]], Any]:
    """Runs a coroutine on each event loop in turn."""
    return ASYNC_RUNNERS[request.param]


Run = Callable[[Coroutine[Any, Any, Any]], Any]


class EchoServer:
    """Sends every frame back. Notes how each connection ended."""

    def __init__(self, keys: Keys, seconds: float = PATIENCE_SECONDS) -> None:
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(keys.broker)
        self._seconds = seconds
        self._received = memoryview(bytearray(RECEIVE_BYTES))
        self._tasks: list[asyncio.Task[None]] = []
        self.ended: list[Exception] = []

    def accept(self) -> asyncio.BufferedProtocol:
        stream = FrameStream(LARGEST, self._start, ConnectionMemory())
        return TlsTransport(self._context, "SSL", stream, self._received)

    def _start(self, stream: FrameStream) -> None:
        self._tasks.append(asyncio.get_running_loop().create_task(self._serve(stream)))

    async def _serve(self, stream: FrameStream) -> None:
        assert isinstance(stream.transport, TlsTransport)
        try:
            await stream.transport.handshake(self._seconds)
            while True:
                frame = await read_frame(stream)
                await write_frame(stream, [b"", bytes(frame[:1]), b"", bytes(frame[1:])])
                stream.release(frame)
        except ConnectionError as error:
            self.ended.append(error)
        finally:
            stream.close()

    async def with_client(self, client: Callable[[socket.socket], Any]) -> Any:
        """What ``client`` returns, which uses a connection in a thread of its own."""
        loop = asyncio.get_running_loop()
        server = await loop.create_server(self.accept, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]

        def work() -> Any:
            with socket.create_connection(("127.0.0.1", port), PATIENCE_SECONDS) as connection:
                return client(connection)

        try:
            result = await loop.run_in_executor(None, work)
            await asyncio.wait_for(asyncio.gather(*self._tasks), PATIENCE_SECONDS)
            return result
        finally:
            server.close()


def framed(body: bytes) -> bytes:
    return len(body).to_bytes(4, "big") + body


def received(connection: socket.socket, count: int) -> bytes:
    data = bytearray()
    while len(data) < count and (part := connection.recv(count - len(data))):
        data += part
    return bytes(data)


async def sent_and_received(
    connection: socket.socket, context: ssl.SSLContext, data: bytes, most: int = LARGEST
) -> bytes:
    """Send ``data`` and receive as much at the same time. In one thread: before Python 3.13 two threads may not use one
    SSLSocket at once.

    :param most: how many bytes to receive at a time.
    """
    connection.setblocking(False)
    reader, writer = await asyncio.open_connection(sock=connection, ssl=context, server_hostname="localhost")
    writer.write(data)
    answer = bytearray()
    while len(answer) < len(data) and (part := await asyncio.wait_for(reader.read(most), PATIENCE_SECONDS)):
        answer += part
    writer.close()
    await writer.wait_closed()
    return bytes(answer)


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
@pytest.mark.parametrize("size", [0, 1, 16_384, 100_000, 5_000_000])
def test_frames_of_every_size_come_back_whole(run: Run, keys: Keys, version: ssl.TLSVersion, size: int) -> None:
    context = keys.context()
    context.maximum_version = version
    body = bytes(range(256)) * (size // 256) + bytes(size % 256)

    def client(connection: socket.socket) -> bytes:
        return asyncio.run(sent_and_received(connection, context, framed(body) * 2))

    assert run(EchoServer(keys).with_client(client)) == framed(body) * 2


def test_a_client_that_reads_slowly_is_waited_for(run: Run, keys: Keys) -> None:
    """Its answers stay in its requests' order and are whole; the broker pauses in between."""
    bodies = [bytes([number]) * 1_000_000 for number in range(8)]

    def client(connection: socket.socket) -> bytes:
        return asyncio.run(sent_and_received(connection, keys.context(), b"".join(map(framed, bodies)), most=65_536))

    assert run(EchoServer(keys).with_client(client)) == b"".join(map(framed, bodies))


def test_a_client_that_sends_no_more_still_gets_its_answers(run: Run, keys: Keys) -> None:
    """It says close_notify, and reads on: as with a half-closed connection without TLS."""

    def client(connection: socket.socket) -> bytes:
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        secured = keys.context().wrap_bio(incoming, outgoing, server_hostname="localhost")

        def until(step: Callable[[], Any]) -> Any:
            while True:
                try:
                    return step()
                except ssl.SSLWantReadError:
                    if outgoing.pending:
                        connection.sendall(outgoing.read())
                    part = connection.recv(65_536)
                    incoming.write(part) if part else incoming.write_eof()

        until(secured.do_handshake)
        secured.write(framed(b"x" * 10) * 3)
        with pytest.raises(ssl.SSLWantReadError):
            secured.unwrap()
        connection.sendall(outgoing.read())
        connection.shutdown(socket.SHUT_WR)
        answer = b""
        while len(answer) < 42:
            answer += until(lambda: secured.read(100))
        return answer

    assert run(EchoServer(keys).with_client(client)) == framed(b"x" * 10) * 3


def test_a_connection_that_ends_within_a_frame_is_reported_as_ended(run: Run, keys: Keys) -> None:
    def client(connection: socket.socket) -> bytes:
        with keys.context().wrap_socket(connection, server_hostname="localhost") as secured:
            secured.sendall(framed(b"x")[:3])
            return b""

    server = EchoServer(keys)
    run(server.with_client(client))
    assert [type(error) for error in server.ended] == [StreamEndedError]


def test_bytes_other_than_tls_after_the_handshake_end_the_connection(run: Run, keys: Keys) -> None:
    def client(connection: socket.socket) -> bytes:
        raw = connection.dup()
        secured = keys.context().wrap_socket(connection, server_hostname="localhost")
        secured.sendall(framed(b"x"))
        received(secured, 5)
        with raw, secured:
            raw.sendall(b"\x17\x03\x03\x00\x10" + b"garbage" * 10)
            try:
                while raw.recv(1000):
                    continue
            except ConnectionResetError:
                return b"reset"
            return b"closed"

    server = EchoServer(keys)
    assert run(server.with_client(client)) in (b"reset", b"closed")
    assert [type(error) for error in server.ended] == [StreamEndedError]


@pytest.mark.parametrize(
    ("sent", "kind", "why"),
    [
        (b"", StreamEndedError, "closed before the TLS handshake"),
        (b"\x16\x03\x01\x02\x00\x01", TlsHandshakeError, "it ended the connection during the TLS handshake"),
        (b"\x00\x00\x00\x10", TlsHandshakeError, "it speaks no TLS, and this listener is SSL"),
    ],
)
def test_a_client_may_disconnect_before_its_handshake_is_done(
    run: Run, keys: Keys, sent: bytes, kind: type[Exception], why: str
) -> None:
    def client(connection: socket.socket) -> None:
        connection.sendall(sent)
        connection.shutdown(socket.SHUT_WR)
        assert connection.recv(1) == b""

    server = EchoServer(keys)
    run(server.with_client(client))
    (error,) = server.ended
    assert type(error) is kind
    assert why in str(error)


@pytest.mark.parametrize("sent", [b"", b"\x16\x03\x01\x02\x00\x01"])
def test_a_client_that_is_late_is_closed(run: Run, keys: Keys, sent: bytes) -> None:
    def client(connection: socket.socket) -> bytes:
        connection.sendall(sent)
        return connection.recv(1)

    server = EchoServer(keys, seconds=0.05)
    assert run(server.with_client(client)) == b""
    (error,) = server.ended
    assert str(error) == "it did not finish the TLS handshake within 0.05 s"
