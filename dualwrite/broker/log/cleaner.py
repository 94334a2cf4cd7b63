"""Cleans sealed segments into fewer and smaller ones beside them (Kafka: Cleaner). Runs in a thread of its own.

It reads files that nobody writes any more, through handles of its own, and touches nothing that the log knows: whoever
asked swaps what was made for what it was made of, or throws it away. Its memory is bounded: the keys of one round by
log.cleaner.dedupe.buffer.size, the records of one batch by what a batch may unpack to.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from dualwrite.broker.log.compaction import (
    KEY_BYTES,
    AbortedRange,
    ActiveProducer,
    Cleaning,
    KeyOffsets,
    Transactions,
    note_keys,
)
from dualwrite.ports import File, Files
from dualwrite.records.header import HEADER_SIZE, BatchHeader, peek_header

_READ_BYTES = 1024 * 1024
_WRITE_BYTES = 1024 * 1024
_LONGEST_RANGE = 2**31 - 1
"""Offsets in an index are relative to the segment's, in 32 bits."""


@dataclass(frozen=True, slots=True)
class Source:
    """A sealed segment: where it is, how many bytes of it count, and its offsets."""

    path: Path
    size: int
    base_offset: int
    next_offset: int


@dataclass(frozen=True, slots=True)
class Plan:
    """What to clean, and what is known of the partition.

    :param sources: the log's sealed segments from its beginning on, up to the one that holds the offset before
        ``before``.
    :param first_dirty: where the last cleaning ended. :param before: nothing at or above this is cleaned.
    """

    sources: Sequence[Source]
    first_dirty: int
    before: int
    now_ms: int
    delete_retention_ms: int
    segment_bytes: int
    dedupe_bytes: int
    aborted: Sequence[AbortedRange] = ()
    producers: Mapping[int, ActiveProducer] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class CleanedSegment:
    """One new segment, synced under a name of its own, for ``sources``; ``aborted`` is what its .txnindex holds."""

    path: Path
    sources: Sequence[Source]
    aborted: Sequence[AbortedRange]


@dataclass(slots=True)
class Cleaned:
    """What a cleaning made.

    ``clean_before`` is where the next one begins; ``forgotten`` are aborted transactions that readers need not know of
    any more.
    """

    segments: list[CleanedSegment]
    clean_before: int
    forgotten: frozenset[AbortedRange]
    read_bytes: int = 0
    written_bytes: int = 0
    removed_records: int = 0


def clean(files: Files, plan: Plan, cleaned_path: Callable[[int], Path], pause: Callable[[], None]) -> Cleaned:
    """Carry ``plan`` out.

    :param cleaned_path: the path of the new segment with a base offset; what is there is overwritten.
    :param pause: called after every batch; may sleep, so that others get on, or raise, to end the cleaning.
    :raises MalformedBatchError: if a batch cannot be opened or holds no sound records: the log cannot be cleaned.
    """
    keys = _note_all_keys(files, plan, pause)
    sources = [source for source in plan.sources if source.base_offset < keys.covered_before]
    transactions = Transactions(plan.aborted)
    cleaning = Cleaning(
        keys, transactions, plan.producers, min(plan.before, keys.covered_before), plan.now_ms, plan.delete_retention_ms
    )
    result = Cleaned([], keys.covered_before, frozenset())
    made: list[tuple[Path, list[Source]]] = []
    writer: _Writer | None = None
    for source in sources:
        if writer is None or not writer.has_room(source, plan.segment_bytes):
            if writer is not None:
                result.written_bytes += writer.finish()
            writer = _Writer(files, cleaned_path(source.base_offset), source.base_offset)
            made.append((writer.path, []))
        made[-1][1].append(source)
        for header, batch in _batches(files, source):
            kept = cleaning.cleaned(header, batch)
            if kept is not None:
                writer.write(kept)
            pause()
        result.read_bytes += source.size
    if writer is not None:
        result.written_bytes += writer.finish()
    result.segments = [CleanedSegment(path, group, _aborted_in(group, plan, transactions)) for path, group in made]
    result.forgotten = frozenset(transactions.forgotten)
    result.removed_records = cleaning.removed
    return result


def _note_all_keys(files: Files, plan: Plan, pause: Callable[[], None]) -> KeyOffsets:
    """The keys of the dirty part, or of as much of it as there is room for; the rest waits for the next cleaning."""
    keys = KeyOffsets(max(1, plan.dedupe_bytes // KEY_BYTES))
    keys.covered_before = plan.first_dirty
    transactions = Transactions(plan.aborted)
    for source in plan.sources:
        if source.next_offset <= plan.first_dirty:
            continue
        for header, batch in _batches(files, source):
            if header.next_offset > plan.before:
                return keys
            if header.base_offset >= plan.first_dirty and not note_keys(keys, transactions, header, batch):
                return keys
            pause()
    return keys


def _aborted_in(group: Sequence[Source], plan: Plan, transactions: Transactions) -> list[AbortedRange]:
    first, before = group[0].base_offset, group[-1].next_offset
    return [
        entry for entry in plan.aborted if first <= entry.last_offset < before and entry not in transactions.forgotten
    ]


def _batches(files: Files, source: Source) -> Iterator[tuple[BatchHeader, memoryview]]:
    """The batches of a sealed segment, which are whole: its log has seen to that."""
    file = files.open(source.path)
    try:
        position = 0
        while position < source.size:
            chunk = memoryview(file.read(position, min(_READ_BYTES, source.size - position)))
            used = 0
            while len(chunk) - used >= HEADER_SIZE:
                header = peek_header(chunk, used)
                if used + header.size > len(chunk):
                    break
                yield header, chunk[used : used + header.size]
                used += header.size
            if not used:  # one batch that is longer than a chunk
                header = peek_header(chunk)
                yield header, memoryview(file.read(position, header.size))
                used = header.size
            position += used
    finally:
        file.close()


class _Writer:
    """Writes one new segment; bytes gather until it is worth a call."""

    def __init__(self, files: Files, path: Path, base_offset: int) -> None:
        self.path = path
        self._base_offset = base_offset
        self._file: File = files.open(path)
        self._file.truncate(0)
        self._parts: list[bytes | memoryview] = []
        self._waiting = 0
        self._size = 0

    def has_room(self, source: Source, segment_bytes: int) -> bool:
        """Whether ``source`` fits in too, even if all of it stays."""
        offsets = source.next_offset - self._base_offset
        return not self._size or (self._size + source.size <= segment_bytes and offsets <= _LONGEST_RANGE)

    def write(self, batch: bytes | memoryview) -> None:
        self._parts.append(batch)
        self._size += len(batch)
        self._waiting += len(batch)
        if self._waiting >= _WRITE_BYTES:
            self._flush()

    def finish(self) -> int:
        """Sync; the size in bytes."""
        self._flush()
        self._file.sync()
        self._file.close()
        return self._size

    def _flush(self) -> None:
        self._file.append(*self._parts)
        self._parts, self._waiting = [], 0
