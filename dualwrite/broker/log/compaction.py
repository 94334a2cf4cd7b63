"""The rules of compaction by key, batch by batch: which records stay. Pure: does no I/O.

- The record with the highest offset of every key stays, at its offset.
- A record without a value (a tombstone) is removed delete.retention.ms after a cleaning first found it and stored the
  time in its batch (KIP-534).
- Records of aborted transactions are removed. A transaction's marker is removed once none of its records is left, after
  the same delay.
- The last batch of a producer that the partition still knows stays, without records if necessary, because its header
  has the producer's last sequence.

Sources: Kafka's Cleaner, CleanedTransactionMetadata and MemoryRecords.filterTo; KIP-98, KIP-534.
"""

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from operator import attrgetter
from typing import NamedTuple

from dualwrite.records.compression import batch_body
from dualwrite.records.control import Marker, read_marker
from dualwrite.records.header import BatchHeader
from dualwrite.records.rewriting import Span, empty_batch, iterate_spans, with_records

KEY_BYTES = 200
"""The memory of one key within log.cleaner.dedupe.buffer.size: a dictionary entry, a digest, an offset."""

_DIGEST_BYTES = 20
_LAST_MOMENT_MS = 2**63 - 1
"""The latest delete horizon that a batch can have. delete.retention.ms may be as long as that: nothing is ever due."""
_first_offset = attrgetter("first_offset")


class AbortedRange(NamedTuple):
    """An aborted transaction: from its first record to its marker."""

    producer_id: int
    first_offset: int
    last_offset: int


class ActiveProducer(NamedTuple):
    """A producer that the partition knows: its epoch, and the offset of its last record, -1 if that is unknown. If the
    last batch has no sequences, the offset is that of its first record."""

    epoch: int
    last_data_offset: int


class KeyOffsets:
    """The highest offset of each key, for at most ``capacity`` keys (Kafka: SkimpyOffsetMap). There is always room for
    one batch, so that every cleaning makes progress.

    :param first_dirty: the offset where the last cleaning ended.
    """

    def __init__(self, capacity: int, first_dirty: int) -> None:
        self.covered_before = first_dirty
        """The end of the range, from ``first_dirty`` on, in which every record's key is known."""
        self._first_dirty = first_dirty
        self._capacity = capacity
        self._offsets: dict[bytes, int] = {}

    def put(self, key: bytes, offset: int) -> bool:
        """Store that ``key`` is at ``offset``. False if there is no room for another key."""
        name = _name(key)
        is_full = len(self._offsets) >= self._capacity and self.covered_before > self._first_dirty
        if is_full and name not in self._offsets:
            return False
        self._offsets[name] = offset
        return True

    def is_latest(self, key: bytes, offset: int) -> bool:
        """True unless ``key`` is known at a higher offset."""
        return offset >= self._offsets.get(_name(key), -1)


def _name(key: bytes) -> bytes:
    """A key's name: the key itself, or its digest if it is long. A digest is longer than a short key, so names are
    unique."""
    return key if len(key) < _DIGEST_BYTES else hashlib.blake2b(key, digest_size=_DIGEST_BYTES).digest()


class Transactions:
    """The transactions at a reader's position. Decides which batches are not needed."""

    def __init__(self, aborted: Iterable[AbortedRange]) -> None:
        self._coming = sorted(aborted, key=_first_offset, reverse=True)
        self._aborting: dict[int, AbortedRange] = {}
        self._met: set[AbortedRange] = set()
        self._staying: set[int] = set()
        """The producers whose transaction has batches that are needed, and no marker yet."""
        self.forgotten: set[AbortedRange] = set()
        """Aborted transactions of which only the marker is left. Readers must no longer get them: once the marker is
        removed too, they would skip the producer's next records."""

    def is_needless(self, header: BatchHeader, batch: bytes) -> bool:
        """True for a batch of an aborted transaction, and for a marker whose transaction has no records left."""
        while self._coming and self._coming[-1].first_offset <= header.last_offset:
            coming = self._coming.pop()
            self._aborting[coming.producer_id] = coming
        if header.is_control:
            return self._ends_nothing(header, batch)
        if not header.is_transactional:
            return False
        aborting = self._aborting.get(header.producer_id)
        if aborting is not None and header.base_offset <= aborting.last_offset:
            self._met.add(aborting)
            return True
        self._staying.add(header.producer_id)
        return False

    def _ends_nothing(self, header: BatchHeader, batch: bytes) -> bool:
        if not header.record_count:
            return True  # an earlier cleaning has emptied the batch
        has_batches = header.producer_id in self._staying
        self._staying.discard(header.producer_id)
        aborted = None if read_marker(batch) is Marker.COMMIT else self._aborting.pop(header.producer_id, None)
        if aborted is None:  # a commit, or an abort below the log's start, which is forgotten before its segment goes
            return not has_batches
        if aborted in self._met:
            return False
        self.forgotten.add(aborted)
        return True


def collect_keys(keys: KeyOffsets, transactions: Transactions, header: BatchHeader, batch: bytes) -> bool:
    """Store the keys of a batch. False if there was not room for all of them; the batch is not covered then.

    :raises MalformedBatchError: if its records cannot be read.
    """
    if not transactions.is_needless(header, batch) and not header.is_control:
        for span in iterate_spans(header, batch_body(header, batch)):
            if span.key is not None and not keys.put(span.key, span.offset):
                return False
    keys.covered_before = header.next_offset
    return True


@dataclass(slots=True)
class Cleaning:
    """One pass over a log, from its first batch on."""

    keys: KeyOffsets
    transactions: Transactions
    producers: Mapping[int, ActiveProducer]
    now_ms: int
    delete_retention_ms: int
    removed: int = field(default=0)
    """Records removed so far."""

    def cleaned(self, header: BatchHeader, batch: bytes) -> bytes | None:
        """``batch`` with the records that stay; None if nothing is left.

        :raises MalformedBatchError: if its records cannot be read.
        """
        if header.next_offset > self.keys.covered_before:
            return batch
        needless = self.transactions.is_needless(header, batch)
        marks_horizon = needless and header.is_control
        if needless and not (header.is_control and not self._is_due(header)):
            remaining: list[Span] = []
            self.removed += header.record_count
        else:
            body = batch_body(header, batch)
            spans = list(iterate_spans(header, body))
            remaining = spans if header.is_control else [span for span in spans if self._stays(span, header)]
            self.removed += len(spans) - len(remaining)
            marks_horizon = marks_horizon or any(span.is_tombstone for span in remaining)
        if not remaining:
            return self._emptied(header, batch)
        if not marks_horizon or header.delete_horizon_ms is not None:
            return batch if len(remaining) == header.record_count else with_records(header, body, remaining)
        return with_records(header, body, remaining, min(self.now_ms + self.delete_retention_ms, _LAST_MOMENT_MS))

    def _emptied(self, header: BatchHeader, batch: bytes) -> bytes | None:
        if not self._holds_sequence(header):
            return None
        return empty_batch(header) if header.record_count else batch

    def _is_due(self, header: BatchHeader) -> bool:
        return header.delete_horizon_ms is not None and header.delete_horizon_ms <= self.now_ms

    def _stays(self, span: Span, header: BatchHeader) -> bool:
        if span.key is None:
            return False  # no client could write it to a compacted topic
        if not self.keys.is_latest(span.key, span.offset):
            return False
        return not span.is_tombstone or not self._is_due(header)

    def _holds_sequence(self, header: BatchHeader) -> bool:
        """True for the last batch of an active producer; without data batches, for its markers of the same epoch."""
        producer = self.producers.get(header.producer_id)
        if producer is None:
            return False
        if producer.last_data_offset >= 0:
            return header.base_offset <= producer.last_data_offset <= header.last_offset
        return header.is_control and header.producer_epoch == producer.epoch
