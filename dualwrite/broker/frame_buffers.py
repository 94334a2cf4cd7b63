"""Reused memory for large frames. If it were allocated for each frame, the system would have to clear and map it for
every produced batch, which costs more than receiving the batch.
"""

import mmap

_SMALLEST = 64 * 1024
_LARGEST_KEPT = 2 * 1024 * 1024
"""Room for a batch of max.message.bytes and its request."""
_MOST_SPARE_BYTES = 16 * 1024 * 1024


class FrameBuffers:
    """Buffers of all connections of one broker. They belong to the event loop's thread.

    A buffer is mapped and not allocated: the system provides memory only for pages that have received bytes, whatever
    size a client has announced.
    """

    def __init__(self) -> None:
        self._spare: dict[int, list[mmap.mmap]] = {}
        self._spare_bytes = 0

    @property
    def spare_bytes(self) -> int:
        """Bytes that are kept for later frames."""
        return self._spare_bytes

    def take(self, size: int) -> memoryview:
        """Memory for ``size`` bytes, with any content."""
        capacity = max(_SMALLEST, 1 << (size - 1).bit_length()) if size <= _LARGEST_KEPT else size
        spare = self._spare.get(capacity)
        if spare:
            self._spare_bytes -= capacity
            buffer = spare.pop()
        else:
            buffer = mmap.mmap(-1, capacity, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        return memoryview(buffer)[:size]

    def give_back(self, frame: "memoryview | bytearray") -> None:
        """Reuse the memory of ``frame``, if it is from :meth:`take`: neither it nor a view of it may be used any
        more."""
        buffer = frame.obj if isinstance(frame, memoryview) else None
        if isinstance(buffer, mmap.mmap) and len(buffer) <= min(_LARGEST_KEPT, _MOST_SPARE_BYTES - self._spare_bytes):
            self._spare_bytes += len(buffer)
            self._spare.setdefault(len(buffer), []).append(buffer)
