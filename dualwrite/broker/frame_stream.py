"""The frames of one connection: received bytes are split into frames in place, answers are written without joining.

A small frame is cut out of a shared buffer. A large one, a Produce request with its records, is received into the
memory in which it stays until it is in the log: its bytes are never copied.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import cast

from dualwrite.broker.frame_buffers import FrameBuffers
from dualwrite.wire.frames import SIZE_PREFIX, FrameTooLargeError, frame_size, size_prefix

_SHARED_BYTES = 32 * 1024
_MOST_WAITING_BYTES = 256 * 1024
"""After this many unread bytes, reading stops: the client has to wait (Kafka mutes channels)."""
_JOINED_BYTES = 32 * 1024
"""Parts with a smaller total are joined: one copy costs less than a system call with many buffers."""


class StreamEndedError(ConnectionError):
    """The client is gone, or has said that it sends no more. There is no client to answer."""


class FrameStream(asyncio.BufferedProtocol):
    """One connection as frames. Belongs to the event loop's thread; one task reads, and the same one writes.

    :param max_frame_bytes: socket.request.max.bytes.
    :param on_connected: called with the stream once its connection stands.
    :param buffers: where large frames are received.
    """

    def __init__(
        self, max_frame_bytes: int, on_connected: "Callable[[FrameStream], None]", buffers: FrameBuffers
    ) -> None:
        self._max_frame_bytes = max_frame_bytes
        self._on_connected = on_connected
        self._buffers = buffers
        self._shared = memoryview(bytearray(_SHARED_BYTES))
        self._filled = 0
        self._large: memoryview | None = None
        self._large_filled = 0
        self._frames: deque[bytearray | memoryview] = deque()
        self._waiting_bytes = 0
        self._is_paused = False
        self._end: Exception | None = None
        self._reader: asyncio.Future[None] | None = None
        self._writer: asyncio.Future[None] | None = None
        self._transport: asyncio.Transport | None = None

    @property
    def transport(self) -> asyncio.Transport:
        """The transport, once the connection is made."""
        assert self._transport is not None, "no connection is made"
        return self._transport

    async def read(self) -> bytearray | memoryview:
        """The next frame, without its size. The reader may write to it, and must :meth:`release` it.

        :raises StreamEndedError: if no frame follows.
        :raises FrameTooLargeError: if the client announced one that is too large, or of a negative size.
        """
        while not self._frames:
            if self._end is not None:
                raise self._end
            self._reader = asyncio.get_running_loop().create_future()
            await self._reader
        frame = self._frames.popleft()
        self._waiting_bytes -= len(frame)
        if self._is_paused and self._waiting_bytes < _MOST_WAITING_BYTES:
            self._is_paused = False
            if not self.transport.is_closing():
                self.transport.resume_reading()
        return frame

    def release(self, frame: bytearray | memoryview) -> None:
        """Reuse the memory of ``frame``: neither it nor a view of it may be used any more."""
        self._buffers.give_back(frame)

    async def write(self, parts: Sequence[bytes]) -> None:
        """Send ``parts`` as one frame, and wait while the client reads slowly.

        :raises StreamEndedError: if the client is gone.
        """
        if self.transport.is_closing():
            raise StreamEndedError("the connection was closed while the request was handled")
        size = sum(map(len, parts))
        if size < _JOINED_BYTES:
            self.transport.write(b"".join((size_prefix(size), *parts)))
        else:
            self.transport.writelines((size_prefix(size), *parts))
        if self._writer is not None:
            await self._writer

    def close(self) -> None:
        """Close the connection, once all written data is sent."""
        self.transport.close()

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
        if self._large is None:
            self._filled += nbytes
            self._cut()
        else:
            self._large_filled += nbytes
            if self._large_filled == len(self._large):
                whole, self._large = self._large, None
                self._add(whole)
        if self._frames or self._end is not None:
            self._wake(self._reader)
        if not self._is_paused and self._waiting_bytes >= _MOST_WAITING_BYTES:
            self._is_paused = True
            self.transport.pause_reading()

    def eof_received(self) -> bool:
        """The client sends no more; it may still wait for answers, so the connection stays."""
        self._finish(StreamEndedError("the client has sent all that it wants to"))
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is gone."""
        self._finish(StreamEndedError(str(exc or "closed")))
        if self._writer is not None and not self._writer.done():
            self._writer.set_exception(StreamEndedError(str(exc or "closed")))

    def pause_writing(self) -> None:
        """The client reads slowly."""
        self._writer = asyncio.get_running_loop().create_future()

    def resume_writing(self) -> None:
        """The client has read most of the data."""
        self._wake(self._writer)
        self._writer = None

    def _finish(self, end: Exception) -> None:
        self._end = self._end or end
        self._wake(self._reader)

    @staticmethod
    def _wake(waiting: "asyncio.Future[None] | None") -> None:
        if waiting is not None and not waiting.done():
            waiting.set_result(None)

    def _add(self, frame: bytearray | memoryview) -> None:
        self._frames.append(frame)
        self._waiting_bytes += len(frame)

    def _cut(self) -> None:
        """Take the complete frames out of the shared buffer; give a large one that has begun a buffer of its own."""
        start = 0
        while self._filled - start >= SIZE_PREFIX:
            body = start + SIZE_PREFIX
            try:
                size = frame_size(self._shared[start:body], self._max_frame_bytes)
            except FrameTooLargeError as error:
                self._end, self._filled = error, 0
                self.transport.pause_reading()
                return
            if body + size <= self._filled:
                self._add(bytearray(self._shared[body : body + size]))
                start = body + size
            elif SIZE_PREFIX + size > _SHARED_BYTES:
                self._large = self._buffers.take(size)
                self._large_filled = self._filled - body
                self._large[: self._large_filled] = self._shared[body : self._filled]
                self._filled = 0
                return
            else:
                break
        rest = self._filled - start
        if start and rest:
            self._shared[:rest] = bytes(self._shared[start : self._filled])
        self._filled = rest
