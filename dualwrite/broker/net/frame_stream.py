"""The frames of one connection: splits received bytes into frames in place, and writes answers without joining them.

A small frame is cut out of a shared buffer. A large frame, which is a Produce request with its records, is received
into its own memory and stays there until it is in the log: its bytes are never copied. All connections together have
a limited amount of this memory.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence
from copy import copy
from typing import cast

from dualwrite.broker.clients.foreign_protocols import advice, protocol_of
from dualwrite.broker.net.connection_memory import ConnectionMemory
from dualwrite.wire.frames import SIZE_PREFIX, FrameTooLargeError, frame_size, size_prefix

_SHARED_BYTES = 32 * 1024
_MOST_WAITING_BYTES = 256 * 1024
"""The most unread bytes. With more, the stream stops reading and the client must wait (Kafka mutes the channel)."""
_PROTOCOL_BYTES = 8
"""The first bytes of a connection that show another protocol."""
_JOINED_BYTES = 32 * 1024
"""The parts of a smaller answer are joined: one copy costs less than a system call with many buffers."""


class ForeignProtocolError(ValueError):
    """The client speaks another protocol. The caller must close the connection."""


class StreamEndedError(ConnectionError):
    """The client has disconnected, or will send no more requests. There is no client to answer."""


class FrameStream(asyncio.BufferedProtocol):
    """One connection as frames. Belongs to the event loop's thread. One reader takes frames and writes answers.

    :param max_frame_bytes: the largest frame: socket.request.max.bytes, or sasl.server.max.receive.size at first.
    :param on_connected: called with the stream once it is connected.
    :param memory: the memory for large frames and unread answers.
    """

    def __init__(
        self, max_frame_bytes: int, on_connected: "Callable[[FrameStream], None]", memory: ConnectionMemory
    ) -> None:
        self.active_at = time.monotonic()
        """When bytes last arrived, or an answer was last sent, in monotonic seconds."""
        self.held_bytes = 0
        """The bytes of its large frames, from their beginning until their release."""
        self.held_since = self.active_at
        """When the first of its large frames began, or one was last released, in monotonic seconds."""
        self._max_frame_bytes = max_frame_bytes
        self._on_connected = on_connected
        self._memory = memory
        self._shared = memoryview(bytearray(_SHARED_BYTES))
        self._filled = 0
        self._large: memoryview | None = None
        self._large_filled = 0
        self._wanted: int | None = None
        """The size of a large frame that waits for memory. Its beginning is in the shared buffer."""
        self._in_hand: bytearray | memoryview | None = None
        self._frames: deque[bytearray | memoryview] = deque()
        self.arrived_at = self.active_at
        """When the last byte of the frame arrived that was taken last, in monotonic seconds."""
        self._next_arrived_at = self.active_at
        """The same for the first frame that waits."""
        self._later_arrivals: deque[float] = deque()
        """The same for each frame behind it: most often there is none."""
        self._waiting_bytes = 0
        self._is_paused = False
        self._is_refused = False
        self._end: Exception | None = None
        self._writer: asyncio.Future[None] | None = None
        self._transport: asyncio.Transport | None = None
        self._closed: asyncio.Future[None] | None = None
        self._is_closed = False
        self._on_deaf: Callable[[], None] = _ignore
        self._on_ready: Callable[[], None] = _ignore
        self._is_known = False
        """True once the first bytes have shown no other protocol."""

    @property
    def is_blocked(self) -> bool:
        """True while an answer waits for a client that does not read."""
        return self._writer is not None

    @property
    def is_deaf(self) -> bool:
        """True if the client has gone or will send no more, and while the connection is not read, so that its end would
        not be noticed. The request in progress must then not wait."""
        return self._end is not None or self._is_paused

    def when_deaf(self, call: Callable[[], None]) -> None:
        """Call ``call`` whenever :attr:`is_deaf` becomes true."""
        self._on_deaf = call

    def when_ready(self, call: Callable[[], None]) -> None:
        """Call ``call`` whenever frames have arrived, and when no more will: :meth:`take` then has news."""
        self._on_ready = call

    @property
    def has_news(self) -> bool:
        """True if :meth:`take` has a frame, or raises."""
        return bool(self._frames) or self._end is not None

    def starts_with(self, beginnings: tuple[bytes, ...]) -> bool:
        """True if the next frame has arrived and begins with one of ``beginnings``, each of two bytes."""
        return bool(self._frames) and bytes(self._frames[0][:2]) in beginnings

    @property
    def is_receiving(self) -> bool:
        """True in the middle of a large frame."""
        return self._large is not None

    @property
    def address(self) -> str:
        """The client's address, without its port."""
        peer = self.transport.get_extra_info("peername")
        return peer[0] if peer else ""

    @property
    def transport(self) -> asyncio.Transport:
        """The transport, once the connection is made."""
        assert self._transport is not None, "the stream is not connected yet"
        return self._transport

    def limit_frames(self, max_frame_bytes: int) -> None:
        """Accept larger frames from now on, or only smaller ones."""
        self._max_frame_bytes = max_frame_bytes

    def take(self) -> bytearray | memoryview | None:
        """The next frame, without its size; None if it has not arrived yet. The reader may write to it, and must
        :meth:`release` it.

        :raises StreamEndedError: if no frame follows.
        :raises ForeignProtocolError: if the client speaks another protocol.
        :raises FrameTooLargeError: if the client announced a frame that is too large, or of a negative size.
        """
        if not self._frames:
            if self._end is not None:
                raise copy(self._end)  # its traceback would keep the last answer in memory
            return None
        frame = self._in_hand = self._frames.popleft()
        self.arrived_at = self._next_arrived_at
        if self._later_arrivals:
            self._next_arrived_at = self._later_arrivals.popleft()
        self._waiting_bytes -= len(frame)
        self._memory.add_unread(-_small(frame))
        if self._is_paused:
            self._pause_or_resume()
        return frame

    def release(self, frame: bytearray | memoryview) -> None:
        """Reuse the memory of ``frame``. The caller must no longer use the frame or a view of it."""
        self._in_hand = None
        self._give_back(frame)

    def send(self, parts: Sequence[bytes]) -> int:
        """Send ``parts`` as one frame, and return its size. Before the next frame, wait until :meth:`drained`.

        :raises StreamEndedError: if the client has disconnected.
        """
        transport = self.transport
        if transport.is_closing():
            raise StreamEndedError("the connection was closed while the request was handled")
        size = sum(map(len, parts))
        if size < _JOINED_BYTES:
            transport.write(b"".join((size_prefix(size), *parts)))
        else:
            transport.writelines((size_prefix(size), *parts))
        if self._writer is None:
            self.active_at = time.monotonic()
        else:
            self._memory.hold_answer(self, size)
        return SIZE_PREFIX + size

    async def drained(self) -> None:
        """Return once the client has read most of what was sent.

        :raises StreamEndedError: if it has disconnected.
        """
        if self._writer is not None:
            try:
                await self._writer
            finally:
                self._memory.release_answer(self)
            self.active_at = time.monotonic()

    def close(self) -> None:
        """Close the connection once all written data is sent. A frame that was read and not released stays valid."""
        if self._in_hand is not None:
            frame, self._in_hand = self._in_hand, None
            self._give_back(frame, is_reusable=False)
        self.transport.close()

    async def wait_closed(self) -> None:
        """Return once the connection is closed: all that was written is sent, or will never be."""
        if not self._is_closed:
            self._closed = asyncio.get_running_loop().create_future()
            await self._closed

    def abort(self) -> None:
        """Close the connection now, without sending what is not sent yet."""
        self.transport.abort()

    def provide(self, memory: memoryview) -> None:
        """Receive the large frame that has waited for ``memory``."""
        self._wanted = None
        self._receive_into(memory)
        self._pause_or_resume()

    # --- called by the transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The connection is established."""
        self._transport = cast("asyncio.Transport", transport)
        self._on_connected(self)

    def get_buffer(self, sizehint: int) -> memoryview:
        """The buffer for the next bytes."""
        return self._shared[self._filled :] if self._large is None else self._large[self._large_filled :]

    def buffer_updated(self, nbytes: int) -> None:
        """``nbytes`` have arrived in the buffer."""
        self.active_at = time.monotonic()
        if self._large is None:
            self._filled += nbytes
            self._cut()
        else:
            self._large_filled += nbytes
            if self._large_filled == len(self._large):
                whole, self._large = self._large, None
                self._add(whole)
        if self._frames or self._end is not None:
            self._on_ready()
        self._pause_or_resume()

    def eof_received(self) -> bool:
        """The client will send no more. It may still wait for answers, so the connection stays open."""
        self._finish(StreamEndedError("the client will send no more requests"))
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is closed."""
        self._finish(StreamEndedError(str(exc or "closed")))
        writer, self._writer = self._writer, None
        if writer is not None and not writer.done():
            writer.set_exception(StreamEndedError(str(exc or "closed")))
        self._drop_unread()
        self._is_closed = True
        self._wake(self._closed)

    def pause_writing(self) -> None:
        """The client reads slowly."""
        self._writer = asyncio.get_running_loop().create_future()

    def resume_writing(self) -> None:
        """The client has read most of the data."""
        self._wake(self._writer)
        self._writer = None

    def _finish(self, end: Exception) -> None:
        self._end = self._end or end
        self._on_ready()
        self._on_deaf()

    @staticmethod
    def _wake(waiting: "asyncio.Future[None] | None") -> None:
        if waiting is not None and not waiting.done():
            waiting.set_result(None)

    def _add(self, frame: bytearray | memoryview) -> None:
        if self._frames:
            self._later_arrivals.append(self.active_at)
        else:
            self._next_arrived_at = self.active_at
        self._frames.append(frame)
        self._waiting_bytes += len(frame)
        self._memory.add_unread(_small(frame))

    def _pause_or_resume(self) -> None:
        """Stop reading while too many bytes wait, or a large frame waits for memory."""
        most = 1 if self._memory.has_many_unread else _MOST_WAITING_BYTES
        pauses = self._waiting_bytes >= most or self._wanted is not None
        if pauses != self._is_paused and not self._is_refused and not self.transport.is_closing():
            self._is_paused = pauses
            if pauses:
                self.transport.pause_reading()
                self._on_deaf()
            else:
                self.transport.resume_reading()

    def _give_back(self, frame: bytearray | memoryview, is_reusable: bool = True) -> None:
        if isinstance(frame, memoryview):
            self.held_bytes -= len(frame)
            self.held_since = time.monotonic()
            self._memory.give_back(self, frame, is_reusable)

    def _drop_unread(self) -> None:
        """Give back the memory of the frames that no request will be read from."""
        self._memory.stop_waiting(self)
        self._wanted, self._waiting_bytes = None, 0
        self._later_arrivals.clear()
        while self._frames:
            frame = self._frames.popleft()
            self._memory.add_unread(-_small(frame))
            self._give_back(frame)
        if self._large is not None:
            large, self._large = self._large, None
            self._give_back(large, is_reusable=False)  # the transport may still have it

    def _is_foreign(self) -> bool:
        """True, and the connection has ended, if its first bytes are those of another protocol."""
        protocol = protocol_of(bytes(self._shared[: min(self._filled, _PROTOCOL_BYTES)]))
        if protocol is not None:
            self._refuse(ForeignProtocolError(advice(protocol)))
        return protocol is not None

    def _refuse(self, error: Exception) -> None:
        self._end, self._filled, self._is_refused = error, 0, True
        self.transport.pause_reading()
        self._on_deaf()

    def _cut(self) -> None:
        """Take the complete frames out of the shared buffer. Move the beginning of a large frame to its own buffer."""
        start = 0
        if not self._is_known and self._filled >= _PROTOCOL_BYTES:
            self._is_known = True
            if self._is_foreign():
                return
        while self._filled - start >= SIZE_PREFIX:
            body = start + SIZE_PREFIX
            try:
                size = frame_size(self._shared, self._max_frame_bytes, start)
            except FrameTooLargeError as error:
                if not self._is_foreign():
                    self._refuse(error)
                return
            if body + size <= self._filled:
                self._add(bytearray(self._shared[body : body + size]))
                start = body + size
            elif SIZE_PREFIX + size > _SHARED_BYTES:
                self._keep_from(body)
                memory = self._memory.take(self, size)
                if memory is None:
                    self._wanted = size
                else:
                    self._receive_into(memory)
                return
            else:
                break
        self._keep_from(start)

    def _keep_from(self, start: int) -> None:
        """Remove the bytes before ``start`` from the shared buffer."""
        remaining = self._filled - start
        if start and remaining:
            self._shared[:remaining] = bytes(self._shared[start : self._filled])
        self._filled = remaining

    def _receive_into(self, memory: memoryview) -> None:
        """Receive a large frame, whose beginning is the shared buffer's content."""
        self._large, self._large_filled = memory, self._filled
        memory[: self._filled] = self._shared[: self._filled]
        self._filled = 0
        self.active_at = time.monotonic()
        if not self.held_bytes:
            self.held_since = self.active_at
        self.held_bytes += len(memory)


def _ignore() -> None:
    """No one is to be called."""


def _small(frame: bytearray | memoryview) -> int:
    """The size of a frame without memory of its own; 0 for a large one."""
    return 0 if isinstance(frame, memoryview) else len(frame)
