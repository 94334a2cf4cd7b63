"""How a transaction ended, read from a piece of the log that begins with its first acknowledged record.

The coordinator soon forgets the outcome: every recovery begins with an InitProducerId, which sets the transactional id
to Empty, regardless of what ended before. A log keeps its markers as long as its records, so a recovery that died can
read them again.
"""

from collections.abc import Iterator
from typing import NamedTuple

from dualwrite.ids import EndedTransaction, Ending, ProducerIdentity
from dualwrite.records.control import Marker, read_marker
from dualwrite.records.header import BatchHeader, MalformedBatchError, peek_header


class LogSlice(NamedTuple):
    """The answer to a Fetch for one partition, from the requested offset on.

    :param high_watermark: the offset before which records can be read.
    :param last_stable_offset: the offset before which every transaction has ended.
    :param aborted: (producer id, first offset) of the aborted transactions that have records among ``records``, or that
        began before and are still open there; empty if it was read uncommitted.
    :param records: batches; the last one may be truncated.
    """

    high_watermark: int
    last_stable_offset: int
    aborted: tuple[tuple[int, int], ...]
    records: bytes


def batches(records: bytes) -> Iterator[tuple[BatchHeader, memoryview]]:
    """The whole batches at the beginning of ``records``."""
    view, position = memoryview(records), 0
    while True:
        try:
            header = peek_header(view, position)
        except MalformedBatchError:
            return
        end = position + header.size
        if end > len(view):
            return
        yield header, view[position:end]
        position = end


def ending_in(slice_: LogSlice, producer: ProducerIdentity, offset: int) -> EndedTransaction:
    """How the transaction that ``producer`` began with the record at ``offset`` ended. ``slice_`` begins at ``offset``
    and was read committed, and every transaction up to there has ended."""
    strange = mismatch_at(slice_.records, producer, offset)
    if strange is not None:
        return EndedTransaction(strange)
    aborted = any(who == producer.producer_id and first <= offset for who, first in slice_.aborted)
    was_overtaken = commits_after(slice_.records, producer.producer_id)
    return EndedTransaction(Ending.ABORTED if aborted else Ending.COMMITTED, was_overtaken)


def mismatch_at(records: bytes, producer: ProducerIdentity, offset: int) -> Ending | None:
    """The answer if ``records``, read from ``offset`` on, do not begin with a record of ``producer``; None if they
    do."""
    header = next((header for header, _ in batches(records)), None)
    if header is None or header.base_offset > offset or not header.record_count:
        return Ending.UNKNOWN  # deleted or compacted
    if header.producer != producer or header.is_control:
        return Ending.LOST
    return None


def first_marker_in(records: bytes, producer_id: int) -> Ending | None:
    """How the producer's transaction ends in ``records``; None if it does not."""
    marker = next(_markers(records, producer_id), None)
    if marker is None:
        return None
    return Ending.COMMITTED if marker is Marker.COMMIT else Ending.ABORTED


def offset_after(records: bytes) -> int | None:
    """The offset that follows the last whole batch; None if there is none."""
    following = None
    for header, _ in batches(records):
        following = header.next_offset
    return following


def _markers(records: bytes, producer_id: int) -> Iterator[Marker]:
    for header, batch in batches(records):
        if header.producer_id == producer_id and header.is_control:
            marker = marker_in(batch)
            if marker is not None:
                yield marker


def batches_before(records: bytes, end: int) -> bytes:
    """The batches at the beginning of ``records`` that begin before the offset ``end``. A truncated batch stays."""
    size = 0
    for header, batch in batches(records):
        if header.base_offset >= end:
            return records[:size]
        size += len(batch)
    return records


def marker_in(batch: memoryview) -> Marker | None:
    """The marker of a control batch; None if compaction has emptied it, or a later Kafka version defines its kind."""
    try:
        return read_marker(batch)
    except MalformedBatchError:
        return None


def commits_after(records: bytes, producer_id: int) -> bool:
    """True if the producer, after the first transaction in ``records``, has committed another one that has records
    here, whether or not read_committed consumers see them yet. A marker alone proves nothing: a coordinator that was
    restarted may write one again."""
    has_ended = has_begun = False
    for header, batch in batches(records):
        if header.producer_id != producer_id:
            continue
        if not header.is_control:
            has_begun = has_ended
        elif has_begun and marker_in(batch) is Marker.COMMIT:
            return True
        else:
            has_ended, has_begun = True, False
    return False
