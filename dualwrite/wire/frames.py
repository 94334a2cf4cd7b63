"""Frames: a 4-byte big-endian size and that many bytes. Sans-I/O: bytes go in, frames come out."""

import struct

SIZE_PREFIX = 4
_SIZE = struct.Struct(">i")


class FrameTooLargeError(ValueError):
    """The peer announced a frame of a negative size or over the limit. The caller must close the connection."""


def frame_size(buffer: bytes | memoryview, limit: int, position: int = 0) -> int:
    """The size of the frame that the four bytes at ``position`` announce.

    :raises FrameTooLargeError: if the size is negative or over ``limit`` bytes.
    """
    size: int = _SIZE.unpack_from(buffer, position)[0]
    if not 0 <= size <= limit:
        raise FrameTooLargeError(f"frame of {size} bytes; the limit is {limit}")
    return size


def size_prefix(size: int) -> bytes:
    """The prefix of a frame of ``size`` bytes."""
    return _SIZE.pack(size)


def with_size(payload: bytes | bytearray) -> bytes:
    """``payload`` as a frame."""
    return size_prefix(len(payload)) + payload
