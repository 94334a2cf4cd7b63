"""Memory for large frames that is used again. To clear and map new memory for every produced batch would cost more than
to receive the batch.
"""

import mmap

_SMALLEST = 64 * 1024
_LARGEST_KEPT = 2 * 1024 * 1024
"""Room for a batch of max.message.bytes and its request."""
_MOST_SPARE_BYTES = 16 * 1024 * 1024


class FrameBuffers:
    """Buffers of all connections of one broker. They belong to the event loop's thread.

    A buffer is mapped and not allocated: the system provides memory only for pages that have received bytes, even if a
    client announces a larger frame than it sends.
    """

    def __init__(self) -> None:
        self._spare: dict[int, list[mmap.mmap]] = {}
        self._spare_bytes = 0

    @property
    def spare_bytes(self) -> int:
        """The bytes that are ready for later frames."""
        return self._spare_bytes

    @staticmethod
    def capacity(size: int) -> int:
        """The bytes that :meth:`take` maps for a frame of ``size`` bytes."""
        return max(_SMALLEST, 1 << (size - 1).bit_length()) if size <= _LARGEST_KEPT else size

    @staticmethod
    def capacity_of(frame: "memoryview | bytearray") -> int:
        """The bytes that are mapped for ``frame``; 0 if :meth:`take` did not return it."""
        buffer = frame.obj if isinstance(frame, memoryview) else None
        return len(buffer) if isinstance(buffer, mmap.mmap) else 0

    def take(self, size: int) -> memoryview:
        """Memory for ``size`` bytes. Its content is arbitrary."""
        capacity = self.capacity(size)
        spare = self._spare.get(capacity)
        if spare:
            self._spare_bytes -= capacity
            buffer = spare.pop()
        else:
            buffer = mmap.mmap(-1, capacity, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        return memoryview(buffer)[:size]

    def give_back(self, frame: "memoryview | bytearray") -> None:
        """Reuse the memory of ``frame``, if :meth:`take` returned it. The caller must no longer use the frame or a view
        of it."""
        buffer = frame.obj if isinstance(frame, memoryview) else None
        if isinstance(buffer, mmap.mmap) and len(buffer) <= min(_LARGEST_KEPT, _MOST_SPARE_BYTES - self._spare_bytes):
            self._spare_bytes += len(buffer)
            self._spare.setdefault(len(buffer), []).append(buffer)
