"""The TLS transport over a connection without a socket: each of its steps by itself."""

import asyncio
import gc
import ssl
from collections.abc import Callable
from typing import Any

import pytest

from dualwrite.broker.net.connection_memory import ConnectionMemory
from dualwrite.broker.net.frame_stream import FrameStream, StreamEndedError
from dualwrite.broker.tls.transport import RECEIVE_BYTES, TlsHandshakeError, TlsTransport
from dualwrite.wire.frames import with_size
from tests.support.broker.secured import Keys
from tests.support.waiting import PATIENCE_SECONDS

LARGEST = 16 * 1024 * 1024
SMALL = with_size(bytes(1000))


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Keys:
    return Keys(tmp_path_factory.mktemp("keys"))


class TlsPeer:
    """The transport beneath, and the client at its other end."""

    def __init__(self, keys: Keys, most: ssl.TLSVersion = ssl.TLSVersion.TLSv1_3) -> None:
        server, client = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), keys.context()
        server.load_cert_chain(keys.broker)
        server.minimum_version, client.maximum_version = ssl.TLSVersion.TLSv1_3, most
        self.is_reading, self.is_gone = True, False
        self.unsent = bytearray()
        self.written: list[int] = []
        """The sizes of the broker's writes."""
        self.stream = FrameStream(LARGEST, lambda _: None, ConnectionMemory())
        self.transport = TlsTransport(server, "SSL", self.stream, memoryview(bytearray(RECEIVE_BYTES)))
        self.transport.connection_made(self)  # type: ignore[arg-type]
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.client = client.wrap_bio(self._incoming, self._outgoing, server_hostname="localhost")

    def shake_hands(self) -> "TlsPeer":
        """Send what the handshake needs, as often as the broker answers."""
        while True:
            try:
                self.client.do_handshake()
            except ssl.SSLWantReadError:
                if not self._outgoing.pending:
                    return self
                self.deliver()
            else:
                self.deliver()
                return self

    def send(self, data: bytes) -> None:
        for start in range(0, len(data), 16_000):
            self.client.write(data[start : start + 16_000])
        self.deliver()

    def deliver(self, more: bytes = b"") -> None:
        """Hand over what was sent, as much of it as the broker reads."""
        self.unsent += self._outgoing.read() + more
        while self.unsent and self.is_reading and not self.is_gone:
            room = self.transport.get_buffer(-1)
            piece = bytes(self.unsent[: len(room)])
            del self.unsent[: len(piece)]
            room[: len(piece)] = piece
            self.transport.buffer_updated(len(piece))

    def taken(self) -> int:
        """How many frames the broker has by now."""
        count = 0
        while (frame := self.stream.take()) is not None:
            self.stream.release(frame)
            count += 1
        return count

    # --- the transport beneath

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return default

    def is_closing(self) -> bool:
        return self.is_gone

    def pause_reading(self) -> None:
        self.is_reading = False

    def resume_reading(self) -> None:
        self.is_reading = True

    def write(self, data: bytes) -> None:
        self.written.append(len(data))
        self._incoming.write(data)

    def close(self) -> None:
        self.abort()

    def abort(self) -> None:
        if not self.is_gone:
            self.is_gone = True
            asyncio.get_running_loop().call_soon(self.transport.connection_lost, None)


def test_the_rest_that_was_decrypted_is_read_after_a_pause(keys: Keys) -> None:
    """The client sends nothing more, so no event of the socket would bring it."""

    async def main() -> None:
        peer = TlsPeer(keys).shake_hands()
        peer.send(SMALL * 500)
        assert not peer.is_reading
        count = peer.taken()
        assert 200 < count < 300, "the broker takes no more requests than it has room for"
        for _ in range(10):
            await asyncio.sleep(0)
            peer.deliver()
            count += peer.taken()
        assert count == 500

    asyncio.run(main())


def test_a_client_must_wait_while_its_requests_are_not_taken(keys: Keys) -> None:
    async def main() -> None:
        peer = TlsPeer(keys).shake_hands()
        peer.send(SMALL * 3000)
        assert len(peer.unsent) > 2_000_000

    asyncio.run(main())


@pytest.mark.parametrize("end", [FrameStream.close, FrameStream.abort])
def test_nothing_is_read_once_the_broker_closes(keys: Keys, end: Callable[[FrameStream], None]) -> None:
    async def main() -> None:
        peer = TlsPeer(keys).shake_hands()
        peer.stream.when_ready(lambda: end(peer.stream))
        peer.send(SMALL * 100)
        assert peer.taken() < 50

    asyncio.run(main())


def test_a_client_is_told_that_the_broker_closes_and_nothing_follows(keys: Keys) -> None:
    async def main() -> None:
        peer = TlsPeer(keys).shake_hands()
        peer.transport.write(b"last")
        peer.transport.close()
        count = len(peer.written)
        peer.transport.write(b"too late")
        assert len(peer.written) == count
        assert peer.client.read(100) == b"last"
        assert peer.client.read(100) == b"", "without close_notify it would wait"

    asyncio.run(main())


def test_a_large_answer_is_encrypted_in_parts(keys: Keys) -> None:
    """OpenSSL's buffer keeps its largest size for as long as the connection is open."""

    async def main() -> None:
        peer = TlsPeer(keys).shake_hands()
        peer.written.clear()
        peer.transport.write(bytes(4_000_000))
        assert max(peer.written) < 600_000

    asyncio.run(main())


def test_a_handshake_that_goes_on_after_its_time_is_harmless(keys: Keys) -> None:
    async def main() -> None:
        peer = TlsPeer(keys)
        with pytest.raises(TlsHandshakeError, match="within 0 s"):
            await peer.transport.handshake(0)
        peer.shake_hands()
        assert not peer.written, "the connection is about to be closed"

    asyncio.run(main())


def test_a_client_that_speaks_another_version_gets_an_alert(keys: Keys) -> None:
    async def main() -> None:
        peer = TlsPeer(keys, most=ssl.TLSVersion.TLSv1_2)
        with pytest.raises(ssl.SSLError, match=r"(?i)alert protocol version"):
            peer.shake_hands()
        with pytest.raises(TlsHandshakeError):
            await peer.transport.handshake(1)

    asyncio.run(main())


def test_a_client_that_breaks_tls_gets_an_alert_and_the_broker_says_why(keys: Keys) -> None:
    async def main() -> None:
        peer = TlsPeer(keys).shake_hands()
        peer.deliver(b"\x17\x03\x03\x00\x20" + bytes(32))
        assert peer.is_gone
        with pytest.raises(ssl.SSLError, match=r"(?i)alert bad record mac"):
            peer.client.read(100)
        await asyncio.sleep(0)
        with pytest.raises(StreamEndedError, match=r"(?i)bad record mac"):
            peer.stream.take()

    asyncio.run(main())


def test_a_handshake_ends_with_its_connection(keys: Keys) -> None:
    async def main() -> None:
        peer = TlsPeer(keys)
        peer.transport.connection_lost(ConnectionResetError())
        with pytest.raises(StreamEndedError, match="closed before the TLS handshake"):
            await peer.transport.handshake(PATIENCE_SECONDS)

    asyncio.run(main())


def test_a_handshake_that_fails_without_a_waiter_leaves_no_warning(keys: Keys) -> None:
    warnings: list[dict[str, Any]] = []

    async def main() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: warnings.append(context))
        peer = TlsPeer(keys)
        peer.deliver(b"GET / HTTP/1.1\r\n\r\n")
        peer.transport.connection_lost(None)
        del peer
        gc.collect()

    asyncio.run(main())
    assert not warnings
