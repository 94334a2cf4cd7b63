"""Cleans sealed segments: writes fewer and smaller segments beside them (Kafka: Cleaner). Runs in its own thread.

The cleaner reads files that no longer change, through its own handles, and changes nothing in the log. The caller swaps
the result in, or discards it. Memory is bounded: the keys of one cleaning by log.cleaner.dedupe.buffer.size, the
records of one batch by the limit for a decompressed batch.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from dualwrite.broker.log.compaction import (
    KEY_BYTES,
    AbortedRange,
    ActiveProducer,
    Cleaning,
    KeyOffsets,
    Transactions,
    collect_keys,
)
from dualwrite.broker.log.replacement import Replacement
from dualwrite.broker.log.segment import Segment

_LONGEST_RANGE = 2**31 - 1
"""Offsets in an index are relative to the segment's base offset, in 32 bits."""

Begin = Callable[[Sequence[Segment]], Replacement]
"""Begins the replacement of sealed segments: ``PartitionLog.begin_replacement``."""


@dataclass(frozen=True, slots=True)
class CleaningPlan:
    """The segments to clean, and the state of the partition.

    :param sources: the log's sealed segments from its beginning on, up to the segment with the last offset below
        ``before``.
    :param first_dirty: the offset where the last cleaning ended.
    :param before: the bound of the cleaning: it changes nothing at or above this offset.
    """

    sources: Sequence[Segment]
    first_dirty: int
    before: int
    now_ms: int
    delete_retention_ms: int
    segment_bytes: int
    dedupe_bytes: int
    aborted: Sequence[AbortedRange] = ()
    producers: Mapping[int, ActiveProducer] = field(default_factory=dict)


@dataclass(slots=True)
class Cleaned:
    """The result of a cleaning: finished replacements, which the caller puts into the log from its beginning on.

    The next cleaning begins at ``clean_before``. Once all replacements are in place, readers no longer need to know the
    ``forgotten`` aborted transactions.
    """

    replacements: list[Replacement]
    clean_before: int
    forgotten: frozenset[AbortedRange] = frozenset()
    read_bytes: int = 0
    written_bytes: int = 0
    removed_records: int = 0

    def discard(self) -> None:
        """Discard the replacements that are not in the log."""
        while self.replacements:
            self.replacements.pop().discard()


def clean(plan: CleaningPlan, begin: Begin, pause: Callable[[], None]) -> Cleaned:
    """Carry out ``plan``.

    :param pause: called after every batch; may sleep, so that other threads can run, or raise to end the cleaning.
    :raises MalformedBatchError: if a batch cannot be decompressed or its records are malformed. This log cannot be
        cleaned.
    :raises OSError: if a segment was removed meanwhile, or the disk is full. The new files are removed if possible.
    """
    keys = KeyOffsets(max(1, plan.dedupe_bytes // KEY_BYTES), plan.first_dirty)
    has_all = _collect_keys(plan, keys, pause)
    transactions = Transactions(plan.aborted)
    cleaning = Cleaning(keys, transactions, plan.producers, plan.now_ms, plan.delete_retention_ms)
    result = Cleaned([], plan.before if has_all else keys.covered_before)
    try:
        for group in _grouped(plan, keys.covered_before):
            replacement = begin(group)
            result.replacements.append(replacement)
            for source in group:
                _clean_into(replacement, source, cleaning, pause)
                result.read_bytes += source.size
            replacement.finish()
            result.written_bytes += replacement.size
    except BaseException:
        result.discard()
        raise
    result.forgotten = frozenset(transactions.forgotten)
    result.removed_records = cleaning.removed
    return result


def _collect_keys(plan: CleaningPlan, keys: KeyOffsets, pause: Callable[[], None]) -> bool:
    """Collect the keys of the dirty part. False if there was room for only some of them; the others wait for the next
    cleaning."""
    transactions = Transactions(plan.aborted)
    for source in plan.sources:
        if source.next_offset <= plan.first_dirty:
            continue
        for header, batch in source.batches():
            if header.next_offset > plan.before:
                return True
            if header.next_offset > plan.first_dirty and not collect_keys(keys, transactions, header, batch):
                return False
            pause()
    return True


def _grouped(plan: CleaningPlan, before: int) -> Iterator[list[Segment]]:
    """The segments below ``before``, in groups that each fit into one segment (Kafka: groupSegmentsBySize)."""
    group: list[Segment] = []
    for source in plan.sources:
        if source.base_offset >= before:
            break
        size = source.size + sum(segment.size for segment in group)
        if group and (size > plan.segment_bytes or source.next_offset - group[0].base_offset > _LONGEST_RANGE):
            yield group
            group = []
        group.append(source)
    if group:
        yield group


def _clean_into(replacement: Replacement, source: Segment, cleaning: Cleaning, pause: Callable[[], None]) -> None:
    for header, batch in source.batches():
        rewritten = cleaning.cleaned(header, batch)
        if rewritten is None:
            replacement.leave_out(header)
        else:
            replacement.append(rewritten)
        pause()
