"""The end of a connection: nothing after it is a request, its reason stays, and all of its memory comes back."""

import asyncio
import struct
import weakref
from collections.abc import Iterator
from contextlib import suppress

import pytest

from dualwrite.broker.net.connection_memory import ConnectionMemory
from dualwrite.broker.net.frame_stream import ForeignProtocolError, FrameStream, StreamEndedError
from dualwrite.wire.frames import FrameTooLargeError
from tests.support.broker.frames import LIMIT, Peer, begun, handle, read_frame, whole, write_frame
from tests.support.broker.scripted_clock import ScriptedClock

MEBIBYTE = 1024 * 1024
TOO_LARGE = struct.pack(">i", LIMIT + 1)


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    made = asyncio.new_event_loop()
    yield made
    made.close()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> ScriptedClock:
    clock = ScriptedClock()
    monkeypatch.setattr("time.monotonic", clock.monotonic)
    return clock


# --- the end is the end


@pytest.mark.parametrize("requests_before", [0, 1, 10])
def test_the_content_of_a_frame_that_is_too_large_is_never_taken_for_requests(
    loop: asyncio.AbstractEventLoop, requests_before: int
) -> None:
    """A client may put any bytes into a frame, such as requests that another client could not send."""
    peer = Peer(ConnectionMemory())
    for _ in range(requests_before):
        peer.send(whole(30_000))
    peer.send(TOO_LARGE)
    for _ in range(3):
        peer.send(whole(1000))
    for _ in range(requests_before):
        assert len(loop.run_until_complete(handle(peer))) == 30_000
        peer.send_rest()
    for _ in range(2):
        with pytest.raises(FrameTooLargeError):
            peer.stream.take()
        peer.send_rest()
    assert not peer.is_reading


def test_the_reason_for_the_end_stays_when_the_client_hangs_up() -> None:
    """A client of another protocol often does, and the log should say what it spoke."""
    large, foreign = Peer(ConnectionMemory()), Peer(ConnectionMemory())
    large.send(TOO_LARGE)
    foreign.send(b"GET / HTTP/1.1\r\n")
    for peer, reason in ((large, FrameTooLargeError), (foreign, ForeignProtocolError)):
        peer.stream.eof_received()
        peer.abort()
        with pytest.raises(reason):
            peer.stream.take()


def test_another_protocol_is_recognised_by_its_first_four_bytes() -> None:
    peer = Peer(ConnectionMemory())
    peer.send(b"GET ")
    with pytest.raises(ForeignProtocolError, match="HTTP"):
        peer.stream.take()


class LargeAnswer:
    """Stands for an answer of many megabytes."""


def answered_last(stream: FrameStream) -> "weakref.ref[LargeAnswer]":
    """Serve ``stream`` until its end. The reference is to the last answer."""
    answer = LargeAnswer()
    reference = weakref.ref(answer)
    with suppress(StreamEndedError):
        stream.take()
    return reference


def test_the_end_of_a_stream_keeps_nothing_of_its_reader_in_memory() -> None:
    """The stream lives until the client has read the last answer, and raises the same error each time."""
    peer = Peer(ConnectionMemory())
    peer.stream.eof_received()
    assert answered_last(peer.stream)() is None


# --- memory


def test_memory_of_a_request_is_given_back_once(loop: asyncio.AbstractEventLoop) -> None:
    """Given back again when its connection closes, it would be memory that the limit does not count."""
    memory = ConnectionMemory(2 * MEBIBYTE)
    peer, other = Peer(memory), Peer(memory)
    other.send(begun(MEBIBYTE))
    peer.send(whole(MEBIBYTE))
    loop.run_until_complete(handle(peer))
    peer.stream.close()
    assert memory.request_bytes == MEBIBYTE


def test_memory_that_the_transport_may_still_fill_is_not_reused() -> None:
    memory = ConnectionMemory()
    lost, other = Peer(memory), Peer(memory)
    lost.send(begun(100_000))
    being_filled = lost.stream.get_buffer(-1)
    lost.abort()
    other.send(whole(100_000))
    being_filled[:] = b"z" * len(being_filled)
    frame = other.stream.take()
    assert frame is not None
    assert bytes(frame) == b"y" * 100_000


def test_small_requests_of_clients_that_have_gone_no_longer_count() -> None:
    """Otherwise each connection could at last have only one request that waits, for as long as the broker runs."""
    memory = ConnectionMemory()
    peers = [Peer(memory) for _ in range(600)]
    for peer in peers:
        peer.send(whole(30_000))
    assert memory.has_many_unread
    for peer in peers:
        peer.abort()
    assert not memory.has_many_unread


def test_a_large_request_that_waits_in_front_and_goes_lets_smaller_ones_in() -> None:
    memory = ConnectionMemory(3 * MEBIBYTE)
    holder, first, second = Peer(memory), Peer(memory, "10.0.0.2"), Peer(memory, "10.0.0.2")
    holder.send(begun(2 * MEBIBYTE))
    first.send(begun(2 * MEBIBYTE))
    second.send(begun(MEBIBYTE // 2))
    assert second.is_reading
    third = Peer(memory, "10.0.0.3")
    third.send(begun(MEBIBYTE))
    assert not third.is_reading
    second.abort()
    assert not first.is_reading
    first.abort()
    assert third.is_reading


# --- which client is slow


def test_a_client_that_keeps_sending_large_requests_is_not_stalled(
    loop: asyncio.AbstractEventLoop, clock: ScriptedClock
) -> None:
    """It always has one of them under way. Each that is answered shows that it makes progress."""
    memory = ConnectionMemory(2 * MEBIBYTE)
    busy, waiting = Peer(memory), Peer(memory, "10.0.0.2")
    busy.send(whole(MEBIBYTE) + begun(MEBIBYTE))
    first = loop.run_until_complete(read_frame(busy.stream))
    busy.send_rest()
    waiting.send(begun(2 * MEBIBYTE))
    clock.now += 29
    busy.stream.release(first)
    clock.now += 2
    busy.send(b"x")
    memory.close_stalled()
    assert not busy.is_gone
    clock.now += 30
    busy.send(b"x")
    memory.close_stalled()
    assert busy.is_gone, "the second one has not arrived for half a minute"


def test_a_client_that_has_just_read_its_answer_is_not_idle(
    loop: asyncio.AbstractEventLoop, clock: ScriptedClock
) -> None:
    peer = Peer(ConnectionMemory())

    async def answer() -> None:
        writing = asyncio.ensure_future(write_frame(peer.stream, [b"x" * 100_000]))
        await asyncio.sleep(0)
        clock.now += 600
        peer.stream.resume_writing()
        await writing

    loop.run_until_complete(answer())
    assert peer.stream.active_at == clock.now


def test_the_end_comes_after_the_cancellation_of_an_answer_too(loop: asyncio.AbstractEventLoop) -> None:
    """A broker that stops cancels the connections whose clients do not read."""
    memory = ConnectionMemory()
    peer = Peer(memory)

    async def scenario() -> None:
        answering = asyncio.ensure_future(write_frame(peer.stream, [b"answer"]))
        await asyncio.sleep(0)
        assert memory.answer_bytes == len(b"answer")
        answering.cancel()
        await asyncio.gather(answering, return_exceptions=True)
        peer.abort()
        await peer.stream.wait_closed()
        assert memory.answer_bytes == 0

    loop.run_until_complete(asyncio.wait_for(scenario(), 20))
