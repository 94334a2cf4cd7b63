"""The state of each record's transaction, read from pieces of a log.

Before the last stable offset, the leader's list of aborted transactions decides, by the rule of Kafka's consumer
(CompletedFetch): a transaction is aborted from its first offset to its ABORT marker. Behind the last stable offset
there is no such list: there the next marker of the same producer decides, and without one the transaction is open.
"""

from bisect import bisect_right
from collections.abc import Iterator
from typing import NamedTuple

from dualwrite.client.encoding.transaction_end import LogSlice, batches, marker_in
from dualwrite.client.terms.record_states import RecordState
from dualwrite.ids import ProducerIdentity
from dualwrite.records.control import Marker
from dualwrite.records.header import BatchHeader, MalformedBatchError, checksum_matches, peek_header
from dualwrite.records.log_records import LogRecord, log_records

_OF_MARKER = {Marker.COMMIT: RecordState.COMMIT_MARKER, Marker.ABORT: RecordState.ABORT_MARKER}


class StatedRecord(NamedTuple):
    """A record, the state of its transaction, and the producer that wrote it; falsy if that was not idempotent."""

    record: LogRecord
    state: RecordState
    producer: ProducerIdentity


def stable_records(piece: LogSlice, offset: int) -> Iterator[StatedRecord]:
    """The records of ``piece``, which was read committed, from ``offset`` on: aborted ones and control records, too.

    :raises MalformedBatchError: if a batch is damaged, or older than format v2.
    """
    begun = sorted(piece.aborted, key=lambda transaction: transaction[1], reverse=True)
    aborted: set[int] = set()
    for header, batch in _checked(piece.records):
        while begun and begun[-1][1] <= header.last_offset:
            aborted.add(begun.pop()[0])
        if header.is_control:
            state = _state_of_marker(batch)
            if state is RecordState.ABORT_MARKER:
                aborted.discard(header.producer_id)
        elif not header.is_transactional:
            state = RecordState.PLAIN
        else:
            state = RecordState.ABORTED if header.producer_id in aborted else RecordState.COMMITTED
        yield from _stated(header, batch, state, offset)


class LaterMarkers:
    """The markers behind a partition's last stable offset, by producer."""

    def __init__(self) -> None:
        self._offsets: dict[int, list[int]] = {}
        self._states: dict[int, list[RecordState]] = {}

    def add(self, records: bytes) -> None:
        """Remember the markers in ``records``. Pieces of the log are added in its order.

        :raises MalformedBatchError: if a batch is damaged, or older than format v2.
        """
        for header, batch in _checked(records):
            if header.is_control:
                self._offsets.setdefault(header.producer_id, []).append(header.base_offset)
                self._states.setdefault(header.producer_id, []).append(_state_of_marker(batch))

    def records(self, records: bytes, offset: int) -> Iterator[StatedRecord]:
        """The records of a piece of the same log, from ``offset`` on.

        :raises MalformedBatchError: if a batch is damaged, or older than format v2.
        """
        for header, batch in _checked(records):
            if header.is_control:
                state = _state_of_marker(batch)
            elif not header.is_transactional:
                state = RecordState.PLAIN
            else:
                state = self._ending(header)
            yield from _stated(header, batch, state, offset)

    def _ending(self, header: BatchHeader) -> RecordState:
        """The state of the transaction that the batch belongs to, by the producer's next marker."""
        following = bisect_right(self._offsets.get(header.producer_id, ()), header.last_offset)
        for state in self._states.get(header.producer_id, [])[following:]:
            if state is not RecordState.OTHER_MARKER:
                return RecordState.COMMITTED if state is RecordState.COMMIT_MARKER else RecordState.ABORTED
        return RecordState.OPEN


def _checked(records: bytes) -> Iterator[tuple[BatchHeader, memoryview]]:
    """The whole batches of an answer to Fetch; the last batch may be truncated, the first never is.

    :raises MalformedBatchError: if a batch is damaged, or older than format v2.
    """
    end = 0
    for header, batch in batches(records):
        if not checksum_matches(header, batch):
            raise MalformedBatchError(f"the checksum of the batch at offset {header.base_offset} does not match")
        end += header.size
        yield header, batch
    if records and not end:
        raise MalformedBatchError(f"a batch of {peek_header(records).size} bytes, of which {len(records)} came")


def _stated(header: BatchHeader, batch: memoryview, state: RecordState, offset: int) -> Iterator[StatedRecord]:
    for record in log_records(header, batch):
        if record.offset >= offset:
            yield StatedRecord(record, state, header.producer)


def _state_of_marker(batch: memoryview) -> RecordState:
    marker = marker_in(batch)
    return RecordState.OTHER_MARKER if marker is None else _OF_MARKER[marker]
