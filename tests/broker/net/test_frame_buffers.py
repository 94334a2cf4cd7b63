"""Buffers of large frames are reused, never by two frames at a time, and only a limited number is kept."""

import mmap

from hypothesis import given
from hypothesis import strategies as st

from dualwrite.broker.net.frame_buffers import FrameBuffers

MEBIBYTE = 1024 * 1024
MOST_SPARE = 16 * MEBIBYTE

sizes = st.integers(1, 300_000) | st.integers(MEBIBYTE - 2, MEBIBYTE + 2) | st.just(3 * MEBIBYTE)


def memory_of(frame: memoryview) -> mmap.mmap:
    assert isinstance(frame.obj, mmap.mmap)
    return frame.obj


@given(st.lists(sizes | st.integers(-40, -1), max_size=40))
def test_no_two_frames_that_are_held_share_memory(steps: list[int]) -> None:
    """A positive step takes a frame of so many bytes, a negative one gives one of those that are held back."""
    buffers, held = FrameBuffers(), list[memoryview]()
    for step in steps:
        if step > 0:
            frame = buffers.take(step)
            assert len(frame) == step
            assert not frame.readonly
            held.append(frame)
        elif held:
            buffers.give_back(held.pop(step % len(held)))
        assert len({id(memory_of(frame)) for frame in held}) == len(held)


def test_a_frame_is_received_where_one_of_like_size_was() -> None:
    buffers = FrameBuffers()
    first = buffers.take(1_000_100)
    buffers.give_back(first)
    assert buffers.spare_bytes == MEBIBYTE
    again = buffers.take(900_000)
    assert memory_of(again) is memory_of(first)
    assert buffers.spare_bytes == 0
    assert memory_of(buffers.take(900_000)) is not memory_of(first)


def test_a_small_frame_does_not_take_the_memory_of_a_large_one() -> None:
    buffers = FrameBuffers()
    large = buffers.take(MEBIBYTE)
    buffers.give_back(large)
    assert memory_of(buffers.take(40_000)) is not memory_of(large)


def test_only_a_bounded_number_of_buffers_is_kept() -> None:
    buffers = FrameBuffers()
    for frame in [buffers.take(MEBIBYTE) for _ in range(40)]:
        buffers.give_back(frame)
    assert buffers.spare_bytes == MOST_SPARE
    for _ in range(16):
        buffers.take(MEBIBYTE)
    assert buffers.spare_bytes == 0


def test_a_frame_beyond_the_ordinary_gives_its_memory_back_to_the_system() -> None:
    buffers = FrameBuffers()
    frame = buffers.take(3 * MEBIBYTE)
    assert len(memory_of(frame)) == 3 * MEBIBYTE, "no more than was asked for"
    buffers.give_back(frame)
    assert buffers.spare_bytes == 0


def test_a_small_frame_is_none_of_theirs() -> None:
    buffers = FrameBuffers()
    buffers.give_back(bytearray(100))
    buffers.give_back(memoryview(bytearray(100)))
    assert buffers.spare_bytes == 0


def test_memory_is_taken_from_the_system_when_bytes_come_and_not_before() -> None:
    """Any client can announce a hundred megabytes on every connection, which together exceed the machine's memory."""
    buffers = FrameBuffers()
    before = resident_bytes()
    held = [buffers.take(100 * MEBIBYTE) for _ in range(10)]
    assert resident_bytes() - before < 100 * MEBIBYTE
    assert len(held) == 10


def resident_bytes() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * mmap.PAGESIZE
