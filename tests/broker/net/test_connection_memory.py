"""Memory of all connections: requests wait for it and get it, all of it comes back, and no client holds it for ever."""

import asyncio
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dualwrite.broker.net.connection_memory import ConnectionMemory
from dualwrite.broker.net.frame_stream import StreamEndedError
from dualwrite.wire.frames import with_size
from tests.support.broker.frames import Peer, begun, handle, read_frame, whole, write_frame

MEBIBYTE = 1024 * 1024


async def handle_if_there(peer: Peer) -> None:
    """Answer the next request of ``peer`` if it has arrived."""
    handling = asyncio.ensure_future(handle(peer))
    await asyncio.sleep(0)
    handling.cancel()
    await asyncio.gather(handling, return_exceptions=True)


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    made = asyncio.new_event_loop()
    yield made
    made.close()


def test_a_request_waits_for_memory_and_then_arrives_whole(loop: asyncio.AbstractEventLoop) -> None:
    memory = ConnectionMemory(2 * MEBIBYTE)
    first, second, small = Peer(memory), Peer(memory, "10.0.0.2"), Peer(memory, "10.0.0.3")
    first.send(begun(2 * MEBIBYTE))
    second.send(whole(MEBIBYTE))
    assert first.is_reading
    assert not second.is_reading
    small.send(whole(1000))
    assert loop.run_until_complete(handle(small)) == b"y" * 1000, "small requests go on"
    first.send(b"x" * (2 * MEBIBYTE - 10))
    assert memory.request_bytes == 2 * MEBIBYTE
    assert loop.run_until_complete(handle(first)) == b"x" * 2 * MEBIBYTE
    assert second.is_reading
    second.send_rest()
    assert loop.run_until_complete(handle(second)) == b"y" * MEBIBYTE
    assert memory.request_bytes == 0


def test_a_request_larger_than_all_memory_is_received_alone() -> None:
    memory = ConnectionMemory(MEBIBYTE)
    first, second = Peer(memory), Peer(memory)
    first.send(begun(3 * MEBIBYTE))
    second.send(begun(40_000))
    assert first.is_reading
    assert not second.is_reading
    first.abort()
    assert second.is_reading


def test_a_client_that_waits_for_its_second_request_gets_the_memory_of_its_first(
    loop: asyncio.AbstractEventLoop,
) -> None:
    memory = ConnectionMemory(MEBIBYTE)
    peer = Peer(memory)
    peer.send(whole(MEBIBYTE) * 3)
    for _ in range(3):
        assert loop.run_until_complete(handle(peer)) == b"y" * MEBIBYTE
        peer.send_rest()
    assert memory.request_bytes == 0
    assert peer.is_reading


def test_every_way_to_leave_gives_the_memory_back(loop: asyncio.AbstractEventLoop) -> None:
    memory = ConnectionMemory(3 * MEBIBYTE)
    half, unread, in_hand, waiting = (Peer(memory) for _ in range(4))
    half.send(begun(MEBIBYTE))
    unread.send(whole(MEBIBYTE))
    in_hand.send(whole(MEBIBYTE))
    waiting.send(begun(MEBIBYTE))
    frame = loop.run_until_complete(read_frame(in_hand.stream))
    assert memory.request_bytes == 3 * MEBIBYTE
    assert not waiting.is_reading
    waiting.abort()
    half.abort()
    unread.abort()
    assert memory.request_bytes == MEBIBYTE, "its handler still has it"
    in_hand.abort()
    assert memory.request_bytes == MEBIBYTE
    in_hand.stream.close()
    assert memory.request_bytes == 0
    other = Peer(memory)
    other.send(whole(MEBIBYTE))
    assert bytes(frame) == b"y" * MEBIBYTE
    assert loop.run_until_complete(read_frame(other.stream)) is not frame


def test_memory_of_a_frame_that_may_be_in_use_is_not_reused(loop: asyncio.AbstractEventLoop) -> None:
    memory = ConnectionMemory()
    peer, other = Peer(memory), Peer(memory)
    peer.send(with_size(b"a" * 100_000))
    frame = loop.run_until_complete(read_frame(peer.stream))
    peer.stream.close()  # as a task does that is cancelled while a thread decodes the frame
    other.send(with_size(b"b" * 100_000))
    assert bytes(frame) == b"a" * 100_000


def test_stalled_requests_are_closed_only_if_others_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    memory = ConnectionMemory(2 * MEBIBYTE)
    stalled, moving, waiting = Peer(memory), Peer(memory, "10.0.0.2"), Peer(memory, "10.0.0.3")
    stalled.send(begun(MEBIBYTE))
    moving.send(begun(MEBIBYTE))
    now = 200.0
    memory.close_stalled()
    assert not stalled.is_gone, "no request waits for its memory"
    moving.stream.held_since = now
    moving.send(b"x")
    waiting.send(whole(MEBIBYTE))
    memory.close_stalled()
    assert (stalled.is_gone, moving.is_gone) == (True, False)
    assert waiting.is_reading


def test_a_pause_of_the_broker_does_not_count_as_one_of_the_client(monkeypatch: pytest.MonkeyPatch) -> None:
    """The time that a request waits for memory is not its client's."""
    now = 100.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    memory = ConnectionMemory(MEBIBYTE)
    first, second, third = (Peer(memory) for _ in range(3))
    for peer in (first, second, third):
        peer.send(begun(MEBIBYTE))
    now = 150.0
    memory.close_stalled()
    assert [peer.is_gone for peer in (first, second, third)] == [True, False, False]
    memory.close_stalled()
    assert [peer.is_gone for peer in (first, second, third)] == [True, False, False]


def test_many_small_requests_wait_one_by_one(loop: asyncio.AbstractEventLoop) -> None:
    """A client can send requests while the broker answers an earlier one. Thousands of connections may do so."""
    memory = ConnectionMemory()
    peers = [Peer(memory) for _ in range(200)]
    for peer in peers:
        peer.send(whole(30_000) * 8)
    kept = sum(240_032 - len(peer.unsent) for peer in peers)
    assert kept < 17 * MEBIBYTE + len(peers) * 64_000
    for peer in peers:
        for _ in range(8):
            assert loop.run_until_complete(handle(peer)) == b"y" * 30_000
            peer.send_rest()
        assert not peer.unsent
    assert not memory.has_many_unread


# --- answers


def test_answers_that_are_not_read_are_bounded_and_the_slowest_client_is_closed(
    loop: asyncio.AbstractEventLoop,
) -> None:
    async def run() -> None:
        memory = ConnectionMemory(3 * MEBIBYTE)
        peers = [Peer(memory, address) for address in ("10.0.0.1", "10.0.0.2", "10.0.0.2", "10.0.0.3")]
        tasks = []
        for peer in peers:
            tasks.append(asyncio.ensure_future(write_frame(peer.stream, [bytes(MEBIBYTE)])))
            await asyncio.sleep(0)
        assert [peer.is_gone for peer in peers] == [False, True, False, False]
        assert memory.answer_bytes == 4 * MEBIBYTE, "the memory of the closed connection is not free yet"
        await memory.room_for_answers()
        assert memory.answer_bytes == 3 * MEBIBYTE
        with pytest.raises(StreamEndedError):
            await tasks[1]
        assert memory.answer_share == 0
        peers[0].stream.resume_writing()
        await tasks[0]
        assert memory.answer_bytes == 2 * MEBIBYTE
        for peer in peers[2:]:
            peer.abort()
        await asyncio.gather(*tasks[2:], return_exceptions=True)
        assert memory.answer_bytes == 0

    loop.run_until_complete(run())


# --- every order of events

EVENTS = st.tuples(
    st.integers(0, 5), st.sampled_from(["small", "large", "half", "rest", "handle", "lose", "look"]), st.integers(1, 3)
)


@given(st.lists(EVENTS, max_size=60), st.sampled_from([MEBIBYTE, 3 * MEBIBYTE]))
def test_in_every_order_of_events_the_limit_holds_and_all_memory_comes_back(
    events: list[tuple[int, str, int]], most: int
) -> None:
    loop = asyncio.new_event_loop()
    memory = ConnectionMemory(most)
    peers = [Peer(memory, f"10.0.0.{number // 2}") for number in range(6)]
    waiting = [False] * 6  # in the middle of a frame
    for number, event, size in events:
        peer = peers[number]
        if peer.is_gone:
            peers[number], waiting[number] = Peer(memory, peer.address), False
        elif event == "lose":
            peer.abort()
        elif event == "rest" and waiting[number]:
            peer.send(b"x" * (400_000 - 10))
            waiting[number] = False
        elif event == "half" and not waiting[number]:
            peer.send(begun(400_000))
            waiting[number] = True
        elif event == "small" and not waiting[number]:
            peer.send(whole(size))
        elif event == "large" and not waiting[number]:
            peer.send(whole(size * 300_000))
        elif event == "handle":
            loop.run_until_complete(handle_if_there(peer))
        elif event == "look":
            memory.close_stalled()
        for each in peers:
            each.send_rest()
        assert 0 <= memory.request_bytes <= most
    for peer in peers:
        peer.abort()
    assert memory.request_bytes == 0
    assert not memory.has_many_unread
    late = Peer(memory)
    late.send(whole(MEBIBYTE))
    assert len(loop.run_until_complete(handle(late))) == MEBIBYTE
    loop.close()
