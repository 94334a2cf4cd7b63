"""Reads and writes the frames of a stream, as a connection's task does."""

import asyncio
from collections.abc import Sequence

from dualwrite.broker.net.frame_stream import FrameStream


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
