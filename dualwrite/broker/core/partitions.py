"""The state of one partition that follows from its batch headers: producers, open transactions, and limits of readers.

``decide`` checks whether a batch may be appended. ``apply`` applies an appended batch, from a client or at start from
the log. Sources: KIP-98; Kafka's ProducerStateManager, ProducerAppendInfo and UnifiedLog.
"""

from bisect import bisect_left
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from dualwrite.broker.facts.producer_snapshot import ProducerSnapshot, RetainedBatch
from dualwrite.broker.facts.transaction_index import IndexedTransaction
from dualwrite.ids import NO_PRODUCER_EPOCH, ProducerIdentity
from dualwrite.records.control import Marker
from dualwrite.records.header import MAX_SEQUENCE, BatchHeader
from dualwrite.wire.error_codes import ErrorCode

RETAINED_BATCHES = 5
"""How many of a producer's last batches are kept to recognize duplicates: a client has at most five in flight."""


# Python 3.11 looks the members of an enum up slowly.
_NONE = ErrorCode.NONE
_ABORT = Marker.ABORT

NO_SEQUENCE = -1
NO_COORDINATOR_EPOCH = -1


@dataclass(slots=True)
class ProducerEntry:
    """The state of one producer id in a partition."""

    producer_id: int
    epoch: int = NO_PRODUCER_EPOCH
    batches: deque[RetainedBatch] = field(default_factory=lambda: deque(maxlen=RETAINED_BATCHES))
    last_timestamp: int = -1
    transaction_start: int = -1
    """CurrentTxnStartOffset: the offset of the open transaction's first record here, or -1."""
    coordinator_epoch: int = NO_COORDINATOR_EPOCH
    """The coordinator epoch of the last marker, -1 if there was none."""

    @property
    def last_sequence(self) -> int:
        """Sequence of the last record under ``epoch``, -1 if there is none."""
        return self.batches[-1].last_sequence if self.batches else NO_SEQUENCE

    @property
    def last_data_offset(self) -> int:
        """Offset of the last record under ``epoch``, -1 if there is none."""
        if not self.batches:
            return -1
        last = self.batches[-1]
        return last.first_offset + last.offset_delta


class BatchVerdict(NamedTuple):
    """Whether to append a batch: ``error`` refuses it. For a duplicate, ``duplicate_of`` is the offset that it already
    has, and ``duplicate_timestamp`` its MaxTimestamp."""

    error: ErrorCode = _NONE
    duplicate_of: int = -1
    duplicate_timestamp: int = -1

    @property
    def appends(self) -> bool:
        """True if the batch is to be appended."""
        return self.error is _NONE and self.duplicate_of < 0


APPEND = BatchVerdict()


@dataclass(slots=True)
class PartitionState:
    """The state of a partition in memory: always the replay of its batch headers."""

    end_offset: int = 0
    high_watermark: int = 0
    """Readers see offsets below this: on a single node, what is durable."""
    producers: dict[int, ProducerEntry] = field(default_factory=dict)
    open_transactions: OrderedDict[int, int] = field(default_factory=OrderedDict)
    """Producer id -> first offset of its open transaction. The first entry has the lowest offset. In a plain dict the
    search for the first entry passes all that were removed before it."""
    aborted: list[IndexedTransaction] = field(default_factory=list)
    """The aborted transactions, in the order of their markers."""
    _ending: deque[IndexedTransaction] = field(default_factory=deque)
    """Transactions with markers that are not below the high watermark yet. A read_committed reader must not read past
    the first offset of one."""

    @property
    def has_unseen_end(self) -> bool:
        """True if a transaction has ended whose marker is not below the high watermark yet."""
        return bool(self._ending)

    @property
    def last_stable_offset(self) -> int:
        """LSO: read_committed readers see offsets below this (KIP-98)."""
        bound = self.high_watermark
        if self.open_transactions:
            bound = min(bound, next(iter(self.open_transactions.values())))
        if self._ending:
            bound = min(bound, min(ended.first_offset for ended in self._ending))
        return bound

    def decide(self, header: BatchHeader, begins_at_zero: bool = False) -> BatchVerdict:
        """Decide whether a client's batch may be appended next.

        :param begins_at_zero: require the sequence 0 of an unknown producer. A TV2 producer begins every transaction
            with a new epoch, so a batch with another sequence cannot be its first.
        """
        if header.producer_id < 0:
            return APPEND
        entry = self.producers.get(header.producer_id)
        if entry is None:  # an unknown producer, for example an expired one, may begin with any sequence
            out_of_order = begins_at_zero and header.base_sequence != 0
            return BatchVerdict(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER) if out_of_order else APPEND
        if _refuses_epoch(entry, header.producer_epoch):
            return BatchVerdict(ErrorCode.INVALID_PRODUCER_EPOCH)
        duplicate = _find_duplicate(entry, header)
        if duplicate is not None:
            return BatchVerdict(duplicate_of=duplicate.first_offset, duplicate_timestamp=duplicate.timestamp)
        if not _is_next(entry, header):
            return BatchVerdict(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)
        if entry.transaction_start >= 0 and not header.is_transactional:
            return BatchVerdict(ErrorCode.INVALID_TXN_STATE)
        return APPEND

    def decide_marker(self, producer: ProducerIdentity, coordinator_epoch: int, is_tv2: bool) -> ErrorCode:
        """NONE if a marker of ``producer`` may be appended next (Kafka: ProducerAppendInfo.appendEndTxnMarker).

        :param is_tv2: its epoch must be above that of the records, as every TV2 marker's is (KIP-1228); a repeated
            marker after the end is accepted.
        """
        entry = self.producers.get(producer.producer_id)
        if entry is None:
            return _NONE
        if producer.epoch < entry.epoch:
            return ErrorCode.INVALID_PRODUCER_EPOCH
        if is_tv2 and producer.epoch == entry.epoch and entry.transaction_start >= 0:
            return ErrorCode.INVALID_PRODUCER_EPOCH
        if coordinator_epoch < entry.coordinator_epoch:
            return ErrorCode.TRANSACTION_COORDINATOR_FENCED
        return _NONE

    def has_fenced(self, producer: ProducerIdentity) -> bool:
        """True if a later epoch of ``producer``'s id has written here. No batch of a later epoch is taken while a
        transaction is open, so ``producer`` has none: a marker ended it."""
        entry = self.producers.get(producer.producer_id)
        return entry is not None and producer.epoch < entry.epoch

    def refuses_epoch(self, producer: ProducerIdentity) -> bool:
        """True if :meth:`decide` would refuse any batch of ``producer`` because of its epoch."""
        entry = self.producers.get(producer.producer_id)
        return entry is not None and _refuses_epoch(entry, producer.epoch)

    def expire_producers(self, before_ms: int) -> int:
        """Forget producers without a timestamp after ``before_ms``; return their number.

        Keeps producers with an open transaction, and those whose records were deleted (Kafka: isProducerExpired).
        """
        expired = [
            entry.producer_id
            for entry in self.producers.values()
            if entry.transaction_start < 0 and entry.last_timestamp <= before_ms
        ]
        for producer_id in expired:
            del self.producers[producer_id]
        return len(expired)

    def apply(self, header: BatchHeader, marker: Marker | None, coordinator_epoch: int = 0) -> None:
        """Apply the batch that is now the log's last.

        :param marker: the marker of a control batch; None for other batches, and if compaction has emptied the batch.
        :param coordinator_epoch: the coordinator epoch of the marker.
        """
        base_offset, producer_id = header.base_offset, header.producer_id
        assert base_offset >= self.end_offset, f"batch at {base_offset} after {self.end_offset}"
        last_offset = base_offset + header.last_offset_delta
        self.end_offset = last_offset + 1
        if producer_id < 0:
            return
        entry = self.producers.get(producer_id)
        if entry is None:
            entry = self.producers[producer_id] = ProducerEntry(producer_id)
        if header.producer_epoch != entry.epoch:
            entry.epoch = header.producer_epoch
            entry.batches.clear()
        entry.last_timestamp = header.max_timestamp
        if marker is not None:
            entry.coordinator_epoch = coordinator_epoch
            self._end_transaction(entry, last_offset, marker)
            return
        if header.is_control:  # compaction removed the marker and its transaction, and kept the producer's epoch
            return
        batch = RetainedBatch(header.base_sequence, header.last_sequence, base_offset, header.max_timestamp)
        entry.batches.append(batch)
        if entry.transaction_start < 0 and header.is_transactional:
            entry.transaction_start = base_offset
            self.open_transactions[producer_id] = base_offset

    def advance(self, high_watermark: int) -> None:
        """Raise the high watermark, which never goes back. Readers can read below it."""
        assert high_watermark <= self.end_offset, f"high watermark {high_watermark} past {self.end_offset}"
        self.high_watermark = max(self.high_watermark, high_watermark)
        while self._ending and self._ending[0].last_offset < self.high_watermark:
            self._ending.popleft()

    def open_at(self, end_offset: int) -> None:
        """Begin to serve an opened log up to ``end_offset``: all of it is durable. The log may end above its last
        batch, if retention has removed the batches before."""
        self.end_offset = max(self.end_offset, end_offset)
        self.advance(self.end_offset)

    def aborted_between(self, first: int, before: int) -> Iterator[IndexedTransaction]:
        """Aborted transactions that readers must skip between ``first`` and ``before`` (exclusive).

        Every transaction that ends behind another begins at or after the LSO that was left by that one. So the search
        ends where the LSO has reached ``before`` (Kafka: TransactionIndex.collectAbortedTxns).
        """
        start = bisect_left(self.aborted, first, key=lambda ended: ended.last_offset)
        for index in range(start, len(self.aborted)):
            ended = self.aborted[index]
            if ended.first_offset < before:
                yield ended
            if ended.last_stable_offset >= before:
                return

    def aborted_since(self, offset: int) -> list[IndexedTransaction]:
        """Aborted transactions whose markers are at or after ``offset``."""
        return self.aborted[bisect_left(self.aborted, offset, key=lambda ended: ended.last_offset) :]

    def snapshot(self) -> list[ProducerSnapshot]:
        """The state of the producers, for a snapshot at the log's end."""
        return [
            ProducerSnapshot(
                entry.producer_id,
                entry.epoch,
                entry.last_timestamp,
                entry.coordinator_epoch,
                entry.transaction_start,
                tuple(entry.batches),
            )
            for entry in self.producers.values()
        ]

    def restore(
        self, offset: int, producers: Iterable[ProducerSnapshot], aborted: Iterable[IndexedTransaction]
    ) -> None:
        """Restore the state after a replay of the log up to ``offset``."""
        self.end_offset = offset
        for producer in producers:
            batches = deque(producer.batches, maxlen=RETAINED_BATCHES)
            self.producers[producer.producer_id] = ProducerEntry(
                producer.producer_id,
                producer.epoch,
                batches,
                producer.last_timestamp,
                producer.transaction_start,
                producer.coordinator_epoch,
            )
        began = ((entry.transaction_start, entry.producer_id) for entry in self.producers.values())
        self.open_transactions = OrderedDict((producer_id, start) for start, producer_id in sorted(began) if start >= 0)
        self.aborted = list(aborted)

    def forget_aborted(self, gone: Callable[[IndexedTransaction], bool]) -> None:
        """Forget the aborted transactions whose records and markers are ``gone`` from the log."""
        self.aborted = [ended for ended in self.aborted if not gone(ended)]

    def _end_transaction(self, entry: ProducerEntry, marker_offset: int, marker: Marker) -> None:
        """End a transaction. A marker without a transaction is legal: a restart may write a decision's markers
        again."""
        if entry.transaction_start < 0:
            return
        start, entry.transaction_start = entry.transaction_start, -1
        del self.open_transactions[entry.producer_id]
        stable = next(iter(self.open_transactions.values()), marker_offset + 1)
        ended = IndexedTransaction(entry.producer_id, start, marker_offset, stable)
        self._ending.append(ended)
        if marker is _ABORT:
            self.aborted.append(ended)


def _refuses_epoch(entry: ProducerEntry, epoch: int) -> bool:
    """True for an earlier epoch. True also for a later one while a transaction is open: it would fence the markers."""
    return epoch < entry.epoch or (epoch > entry.epoch and entry.transaction_start >= 0)


def _find_duplicate(entry: ProducerEntry, header: BatchHeader) -> RetainedBatch | None:
    """The batch that ``header`` repeats. A transactional batch repeats none from before its own transaction: the client
    would take that one for part of it."""
    if header.producer_epoch != entry.epoch:
        return None
    if header.is_transactional and entry.transaction_start < 0:
        return None
    since = entry.transaction_start if header.is_transactional else 0
    sequences = (header.base_sequence, header.last_sequence)
    return next(
        (
            batch
            for batch in entry.batches
            if (batch.first_sequence, batch.last_sequence) == sequences and batch.first_offset >= since
        ),
        None,
    )


def _is_next(entry: ProducerEntry, header: BatchHeader) -> bool:
    """True if the batch has the next sequence. Sequences wrap to 0, and begin at 0 under a new epoch."""
    if header.producer_epoch != entry.epoch or entry.last_sequence == NO_SEQUENCE:
        return header.base_sequence == 0
    return header.base_sequence == (entry.last_sequence + 1) & MAX_SEQUENCE
