"""Checks of batches that an earlier process wrote, when they are read: a start reads only the ends of old segments.

A batch's checksum covers neither its offset nor its leader epoch. So a batch must begin where the batch before it ends;
a cleaner leaves no gaps.
"""

from collections.abc import Iterable, Iterator
from typing import TypeVar

from dualwrite.records.header import BatchHeader, MalformedBatchError, checksum_matches, iterate_batches

BatchT = TypeVar("BatchT", bytes, memoryview)

LEADER_EPOCH = 0
"""The leader epoch of every partition and batch: the one node has led each partition since its creation."""


class UncheckedPart:
    """The beginning of a segment, which an earlier process wrote, and what was checked of it since: one range, which
    grows while readers go on. So many readers of the same batches pay for one check."""

    def __init__(self) -> None:
        self.size = 0
        """Its size in bytes."""
        self._first = self._end = 0

    def has(self, start: int, end: int) -> bool:
        """True if the batches from byte ``start`` to ``end`` are to be checked."""
        return start < self.size and not (self._first <= start and end <= self._end)

    def was_checked(self, start: int, end: int) -> None:
        """The batches from byte ``start`` to ``end`` are sound."""
        if not self._first <= start <= self._end:
            self._first = self._end = start
        self._end = max(self._end, end)


def checked_batches(
    batches: Iterable[tuple[BatchHeader, BatchT]], expected: int | None = None
) -> Iterator[tuple[BatchHeader, BatchT]]:
    """``batches``, consecutive ones of a segment, each after its check.

    :param expected: the offset where the first batch begins; None if that is unknown.
    :raises MalformedBatchError: at the first damaged batch.
    """
    for header, batch in batches:
        if not checksum_matches(header, batch):
            raise MalformedBatchError(f"wrong checksum of the batch at offset {header.base_offset}")
        if header.partition_leader_epoch != LEADER_EPOCH:
            raise MalformedBatchError(f"leader epoch {header.partition_leader_epoch} at offset {header.base_offset}")
        if expected is not None:
            check_succession(expected, header.base_offset)
        yield header, batch
        expected = header.next_offset


def check_batches(data: bytes, offset: int, following: int) -> None:
    """Check the batches that ``data`` consists of, at least one.

    :param offset: the first batch contains this offset.
    :param following: the offset where the next batch begins.
    :raises MalformedBatchError: if one is damaged.
    """
    headers = [header for header, _ in checked_batches(iterate_batches(data))]
    if headers[0].base_offset > offset:
        check_succession(offset, headers[0].base_offset)
    check_succession(headers[-1].next_offset, following)


def check_succession(expected: int, base_offset: int) -> None:
    """Check that a batch that should begin at ``expected`` begins at ``base_offset``.

    :raises MalformedBatchError: if it does not.
    """
    if base_offset != expected:
        raise MalformedBatchError(f"a batch begins at offset {base_offset} instead of {expected}")
