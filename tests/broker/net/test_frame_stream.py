"""Frames are read whole and in order however their bytes arrive, and the client waits if no task reads them."""

import asyncio
import socket
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dualwrite.broker.net.connection_memory import ConnectionMemory
from dualwrite.broker.net.frame_stream import FrameStream, StreamEndedError
from dualwrite.wire.frames import FrameTooLargeError, with_size
from tests.support.broker.frames import read_frame, write_frame

LIMIT = 4 * 1024 * 1024
ResultT = TypeVar("ResultT")

frame_sizes = st.integers(0, 300) | st.integers(32_000, 33_500) | st.just(100_000)


class FakeTransport:
    """Keeps what is written, and whether reading is paused."""

    def __init__(self) -> None:
        self.written = bytearray()
        self.parts: list[bytes] = []
        self.is_reading = True
        self.is_closed = False

    def write(self, data: bytes) -> None:
        self.written += data

    def writelines(self, parts: Any) -> None:
        self.parts = list(parts)
        self.written += b"".join(self.parts)

    def pause_reading(self) -> None:
        self.is_reading = False

    def resume_reading(self) -> None:
        self.is_reading = True

    def is_closing(self) -> bool:
        return self.is_closed

    def close(self) -> None:
        self.is_closed = True


def connected() -> tuple[FrameStream, FakeTransport]:
    transport = FakeTransport()
    stream = FrameStream(LIMIT, lambda _: None, ConnectionMemory())
    stream.connection_made(transport)  # type: ignore[arg-type]
    return stream, transport


def feed(stream: FrameStream, data: bytes, most: int) -> None:
    """What a socket does that has ``data`` in pieces of ``most`` bytes."""
    position = 0
    while position < len(data):
        room = stream.get_buffer(-1)
        assert len(room) > 0
        piece = data[position : position + min(most, len(room))]
        room[: len(piece)] = piece
        stream.buffer_updated(len(piece))
        position += len(piece)


def within(seconds: float, work: Callable[[], Awaitable[ResultT]]) -> ResultT:
    async def main() -> ResultT:
        return await asyncio.wait_for(work(), seconds)

    return asyncio.run(main())


@given(st.lists(frame_sizes, max_size=8), st.integers(1, 70_000))
def test_frames_come_out_as_they_went_in_however_they_were_cut(sizes: list[int], piece: int) -> None:
    frames = [bytes([number + 1]) * size for number, size in enumerate(sizes)]
    stream, _ = connected()
    feed(stream, b"".join(map(with_size, frames)), max(piece, sum(sizes) // 50 + 1))

    async def read() -> list[bytes]:
        return [bytes(await read_frame(stream)) for _ in frames]

    assert within(20, read) == frames


def test_a_frame_that_is_released_makes_room_for_the_next_and_one_that_is_held_does_not() -> None:
    stream, _ = connected()

    async def read(content: bytes) -> bytearray | memoryview:
        feed(stream, with_size(content * 100_000), 65_536)
        return await read_frame(stream)

    async def run() -> None:
        held, released = await read(b"a"), await read(b"b")
        stream.release(released)
        third = await read(b"c")
        assert bytes(held) == b"a" * 100_000
        assert bytes(third) == b"c" * 100_000
        assert isinstance(third, memoryview)
        assert isinstance(released, memoryview)
        assert third.obj is released.obj

    within(20, run)


@pytest.mark.parametrize("size", [10, 40_000])
def test_the_reader_of_a_frame_may_write_to_it(size: int) -> None:
    stream, _ = connected()

    async def read() -> bytes:
        feed(stream, with_size(b"a" * size) * 2, 65_536)
        first = await read_frame(stream)
        memoryview(first)[:1] = b"x"
        return bytes(await read_frame(stream))

    assert within(20, read) == b"a" * size


def test_a_reader_waits_for_the_rest_of_its_frame() -> None:
    stream, _ = connected()

    async def read() -> bytes:
        feed(stream, with_size(b"whole")[:6], 100)
        reading = asyncio.ensure_future(read_frame(stream))
        await asyncio.sleep(0)
        assert not reading.done()
        feed(stream, with_size(b"whole")[6:], 100)
        return bytes(await reading)

    assert within(20, read) == b"whole"


def test_a_client_waits_while_its_frames_are_not_read() -> None:
    stream, transport = connected()
    frame = bytes(100_000)
    for _ in range(2):
        feed(stream, with_size(frame), 65_536)
    assert transport.is_reading
    feed(stream, with_size(frame), 65_536)
    assert not transport.is_reading

    async def read() -> None:
        await read_frame(stream)

    within(20, read)
    assert transport.is_reading


@pytest.mark.parametrize("size", [LIMIT + 1, -1])
def test_frames_before_one_of_an_impossible_size_are_read_and_nothing_after_it(size: int) -> None:
    stream, transport = connected()
    feed(stream, with_size(b"good") + size.to_bytes(4, "big", signed=True) + with_size(b"lost"), 1000)

    async def read() -> bytes:
        first = bytes(await read_frame(stream))
        with pytest.raises(FrameTooLargeError, match=str(size)):
            await read_frame(stream)
        return first

    assert within(20, read) == b"good"
    assert transport.is_closed is False


def test_a_frame_of_the_largest_size_is_not_reserved_before_it_comes() -> None:
    """Any client can announce a hundred megabytes; the system provides memory only once bytes arrive."""
    stream, _ = connected()
    feed(stream, LIMIT.to_bytes(4, "big") + b"x" * 10, 1000)
    assert len(stream.get_buffer(-1)) == LIMIT - 10


def test_frames_sent_before_the_end_are_read_first() -> None:
    stream, _ = connected()
    feed(stream, with_size(b"last") + b"\x00\x00", 1000)
    assert stream.eof_received(), "a client that sends nothing more may still wait for answers"

    async def read() -> bytes:
        last = bytes(await read_frame(stream))
        with pytest.raises(StreamEndedError):
            await read_frame(stream)
        return last

    assert within(20, read) == b"last"


def test_a_waiting_reader_learns_that_the_connection_is_lost() -> None:
    stream, _ = connected()

    async def read() -> None:
        reading = asyncio.ensure_future(read_frame(stream))
        await asyncio.sleep(0)
        stream.connection_lost(ConnectionResetError("reset"))
        with pytest.raises(StreamEndedError, match="reset"):
            await reading

    within(20, read)


def test_a_writer_waits_for_a_slow_client_and_learns_that_it_is_lost() -> None:
    stream, transport = connected()

    async def write() -> None:
        stream.pause_writing()
        writing = asyncio.ensure_future(write_frame(stream, [b"one"]))
        await asyncio.sleep(0)
        assert not writing.done()
        stream.resume_writing()
        await writing
        stream.pause_writing()
        writing = asyncio.ensure_future(write_frame(stream, [b"two"]))
        await asyncio.sleep(0)
        stream.connection_lost(None)
        with pytest.raises(StreamEndedError):
            await writing
        transport.is_closed = True
        with pytest.raises(StreamEndedError):
            await write_frame(stream, [b"three"])

    within(20, write)
    assert transport.written == with_size(b"one") + with_size(b"two")


def test_large_parts_are_written_as_they_are() -> None:
    stream, transport = connected()
    records = bytes(50_000)

    async def write() -> None:
        await write_frame(stream, [b"head", records])

    within(20, write)
    assert transport.written == with_size(b"head" + records)
    assert any(part is records for part in transport.parts)


def test_a_real_socket_carries_large_frames_both_ways() -> None:
    async def exchange() -> bytes:
        loop = asyncio.get_running_loop()
        ours, theirs = socket.socketpair()
        theirs.setblocking(False)
        _, stream = await loop.create_connection(
            lambda: FrameStream(LIMIT, lambda _: None, ConnectionMemory()), sock=ours
        )
        frame = bytes(range(256)) * 8192
        sending = asyncio.ensure_future(loop.sock_sendall(theirs, with_size(frame)))
        read = await read_frame(stream)
        await sending
        answering = asyncio.ensure_future(write_frame(stream, [bytes(read[:1000]), bytes(read[1000:])]))
        back = bytearray()
        while len(back) < len(frame) + 4:
            back += await loop.sock_recv(theirs, 1 << 20)
        await answering
        stream.close()
        theirs.close()
        assert bytes(back) == with_size(frame)
        return bytes(read[:4])

    assert within(20, exchange) == b"\x00\x01\x02\x03"
