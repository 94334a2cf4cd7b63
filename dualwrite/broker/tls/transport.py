"""TLS over an asyncio transport, for the server's side of one connection.

asyncio's own TLS does not fit. It sends no alert when a handshake fails, so a client learns only that the connection
was closed; on Python 3.10 a handshake that fails waits for its timeout; and uvloop's differs from both. Here the bytes
go through OpenSSL's memory buffers, which behaves alike on every event loop.
"""

import asyncio
import ssl
from collections.abc import Iterable
from contextlib import suppress
from typing import Any, cast

from dualwrite.broker.clients.handshake_failures import ended, explain, late
from dualwrite.broker.net.frame_stream import FrameStream, StreamEndedError

RECEIVE_BYTES = 256 * 1024
"""The size of the buffer into which encrypted bytes are received."""
_MOST_ENCRYPTED_BYTES = 256 * 1024
"""The most bytes that are encrypted before they are handed to the socket, so that OpenSSL's buffer stays small."""
_FIRST_BYTES = 8


class TlsHandshakeError(ConnectionError):
    """The client's handshake failed. The message says why."""


class TlsTransport(asyncio.Transport, asyncio.BufferedProtocol):
    """The transport of ``stream``, and the protocol of the transport beneath. Belongs to the event loop's thread.

    :param context: the listener's certificate, and its requirements for clients.
    :param protocol: the listener's security protocol, for messages.
    :param received: the buffer for encrypted bytes. All connections of an event loop can share one, because its content
        is consumed before the loop turns to another connection.
    """

    def __init__(
        self, context: ssl.SSLContext, protocol: str, stream: FrameStream, received: "memoryview[int]"
    ) -> None:
        super().__init__()
        self._protocol = protocol
        self._stream = stream
        self._received = received
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        self._first = b""
        self._is_secured = False
        self._is_paused = False
        self._is_closed = False
        self._broken: ssl.SSLError | None = None
        self._handshake: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._raw: asyncio.Transport | None = None

    async def handshake(self, seconds: float) -> None:
        """Wait until the connection is encrypted.

        :raises TlsHandshakeError: if the handshake fails, or does not finish within ``seconds``. The client has been
            sent the alert, if there is one.
        :raises StreamEndedError: if the connection ends before the client has sent anything.
        """
        try:
            await asyncio.wait_for(self._handshake, seconds)
        except asyncio.TimeoutError:
            raise TlsHandshakeError(late(seconds)) from None

    @property
    def peer_certificate(self) -> bytes | None:
        """The client's certificate in DER form, which has been verified; None if it presented none."""
        return self._tls.getpeercert(binary_form=True)

    @property
    def raw(self) -> asyncio.Transport:
        """The transport beneath, once the connection is made."""
        assert self._raw is not None, "the connection is not made yet"
        return self._raw

    # --- called by the stream and the connection

    def write(self, data: "bytes | bytearray | memoryview[Any]") -> None:
        """Encrypt and send ``data``."""
        self.writelines((data,))

    def writelines(self, list_of_data: "Iterable[bytes | bytearray | memoryview[Any]]") -> None:
        """Encrypt and send the parts."""
        if self._is_closed:
            return
        for data in list_of_data:
            rest = memoryview(data)
            while rest:  # OpenSSL encrypts all that it gets, and its buffer never shrinks
                rest = rest[self._tls.write(rest[:_MOST_ENCRYPTED_BYTES]) :]
                if self._outgoing.pending >= _MOST_ENCRYPTED_BYTES:
                    self._flush()
        self._flush()

    def pause_reading(self) -> None:
        """Receive nothing more for now."""
        self._is_paused = True
        self.raw.pause_reading()

    def resume_reading(self) -> None:
        """Go on receiving, first with the bytes that are here already."""
        self._is_paused = False
        self.raw.resume_reading()
        asyncio.get_running_loop().call_soon(self._read)

    def close(self) -> None:
        """Say that the broker sends nothing more, and close the connection once all is sent."""
        if not self._is_closed:
            self._is_closed = True
            if self._is_secured:
                with suppress(ssl.SSLError):  # it would wait for the client to say the same
                    self._tls.unwrap()
            self._flush()
        self.raw.close()

    def abort(self) -> None:
        """Close the connection now."""
        self._is_closed = True
        self.raw.abort()

    def is_closing(self) -> bool:
        """True once the broker's end is being closed."""
        return self._is_closed or self.raw.is_closing()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """What the transport beneath knows of the socket."""
        return self.raw.get_extra_info(name, default)

    # --- called by the transport beneath

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The connection is accepted; its handshake begins."""
        self._raw = cast("asyncio.Transport", transport)
        self._stream.connection_made(self)

    def get_buffer(self, sizehint: int) -> "memoryview[int]":
        """The buffer for encrypted bytes."""
        return self._received

    def buffer_updated(self, nbytes: int) -> None:
        """``nbytes`` have arrived in the buffer."""
        self._incoming.write(self._received[:nbytes])
        if not self._is_secured:
            if len(self._first) < _FIRST_BYTES:
                self._first += bytes(self._received[: min(nbytes, _FIRST_BYTES - len(self._first))])
            self._continue_handshake()
        if self._is_secured:
            self._read()

    def eof_received(self) -> bool:
        """The client will send no more."""
        self._fail(self._ending())
        return self._stream.eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is closed."""
        self._fail(self._ending())
        self._is_closed = True
        self._stream.connection_lost(exc or self._broken)

    def pause_writing(self) -> None:
        """The client reads slowly."""
        self._stream.pause_writing()

    def resume_writing(self) -> None:
        """The client has read most of the data."""
        self._stream.resume_writing()

    def _continue_handshake(self) -> None:
        if self._handshake.done():  # it failed or was too late, and the connection is about to be closed
            return
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            self._flush()
        except ssl.SSLError as error:
            self._flush()  # the alert, which names the reason to the client
            verification = error.verify_message if isinstance(error, ssl.SSLCertVerificationError) else None
            self._fail(TlsHandshakeError(explain(error.reason, verification, self._first, self._protocol)))
        else:
            self._flush()
            self._is_secured = True
            self._handshake.set_result(None)

    def _ending(self) -> ConnectionError:
        """The end of a connection during its handshake. One that the broker ends, and one on which the client sent
        nothing, such as a balancer's look at the port, is no failure."""
        if self._is_closed or not self._first:
            return StreamEndedError("closed before the TLS handshake")
        return TlsHandshakeError(ended(self._first, self._protocol))

    def _fail(self, error: ConnectionError) -> None:
        if not self._handshake.done():
            self._handshake.set_exception(error)
            self._handshake.exception()  # no warning if the connection's task is gone

    def _read(self) -> None:
        """Give the stream what has been decrypted, until it pauses or there is no more."""
        while not (self._is_paused or self.is_closing()):
            buffer = self._stream.get_buffer(-1)
            try:
                # typeshed does not know that any buffer will do, and that the result is then a number.
                count = cast("int", self._tls.read(len(buffer), cast("bytearray", buffer)))
            except ssl.SSLWantReadError:
                break
            except ssl.SSLError as error:  # no bytes of the client: it broke TLS, or sent an alert
                self._flush()
                self._broken = error
                self.abort()
                return
            if not count:
                self._stream.eof_received()
                break
            self._stream.buffer_updated(count)
        self._flush()

    def _flush(self) -> None:
        if self._outgoing.pending and not self.raw.is_closing():
            self.raw.write(self._outgoing.read())
