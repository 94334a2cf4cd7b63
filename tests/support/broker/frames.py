"""Frames as a connection's task reads and writes them, and a connection without a socket."""

import asyncio
import struct
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

from dualwrite.broker.net.connection_memory import ConnectionMemory
from dualwrite.broker.net.frame_stream import FrameStream
from dualwrite.wire.frames import with_size

LIMIT = 4 * 1024 * 1024
"""The largest frame."""


async def read_frame(stream: FrameStream) -> bytearray | memoryview:
    """The next frame, once it has arrived; an error at the end of the stream."""
    while (frame := stream.take()) is None:
        arrived = asyncio.Event()
        stream.when_ready(arrived.set)
        await arrived.wait()
    return frame


async def write_frame(stream: FrameStream, parts: Sequence[bytes]) -> None:
    """Send ``parts`` as one frame, and wait while the client reads slowly."""
    stream.send(parts)
    await stream.drained()


def feed(stream: FrameStream, unsent: bytearray, is_read: Callable[[], bool]) -> None:
    """Give ``unsent`` to the broker's side of a connection, as a socket does, as long as ``is_read`` is true."""
    while unsent and is_read():
        room = stream.get_buffer(-1)
        piece = bytes(unsent[: len(room)])
        del unsent[: len(piece)]
        room[: len(piece)] = piece
        stream.buffer_updated(len(piece))


class Peer:
    """A transport without a socket, and the client at its other end."""

    def __init__(self, memory: ConnectionMemory, address: str = "10.0.0.1") -> None:
        self.address = address
        self.is_reading = True
        self.is_gone = False
        self.unsent = bytearray()
        self.stream = FrameStream(LIMIT, lambda _: None, memory)
        self.stream.connection_made(self)  # type: ignore[arg-type]

    def get_extra_info(self, name: str) -> Any:
        return (self.address, 1) if name == "peername" else SimpleNamespace()

    def pause_reading(self) -> None:
        assert self.is_reading
        self.is_reading = False

    def resume_reading(self) -> None:
        assert not self.is_reading
        self.is_reading = True

    def is_closing(self) -> bool:
        return self.is_gone

    def close(self) -> None:
        self.abort()

    def abort(self) -> None:
        if not self.is_gone:
            self.is_gone = True
            self.stream.connection_lost(None)

    def write(self, data: bytes) -> None:
        if not self.is_gone:
            self.stream.pause_writing()

    def writelines(self, parts: Any) -> None:
        self.write(b"")

    def send(self, data: bytes) -> None:
        """Send ``data``, as much of it as the broker reads."""
        self.unsent += data
        feed(self.stream, self.unsent, lambda: self.is_reading and not self.is_gone)

    def send_rest(self) -> None:
        self.send(b"")


class DeafClient:
    """A connection that does not read its answer. Once the broker has closed it, its end takes time."""

    held_bytes = 0
    held_since = 0.0
    is_receiving = False
    active_at = 0.0

    def __init__(self, address: str = "10.0.0.1") -> None:
        self.address = address
        self.is_aborted = False

    def abort(self) -> None:
        self.is_aborted = True

    def provide(self, memory: memoryview) -> None:
        raise AssertionError("it has not asked for memory")


def begun(size: int) -> bytes:
    """The beginning of a frame of ``size`` bytes."""
    return struct.pack(">i", size) + b"x" * 10


def whole(size: int) -> bytes:
    return with_size(b"y" * size)


async def handle(peer: Peer) -> bytes:
    """Read a request of ``peer``, and answer it at once."""
    frame = await read_frame(peer.stream)
    content = bytes(frame)
    peer.stream.release(frame)
    return content
