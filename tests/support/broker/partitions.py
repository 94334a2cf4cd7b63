"""Builders for a partition's state: batches by their headers only."""

from dualwrite.broker.core.partitions import BatchVerdict, PartitionState
from dualwrite.ids import NO_PRODUCER, ProducerIdentity
from dualwrite.records.batch import Record, build_batch
from dualwrite.records.control import Marker, build_marker
from dualwrite.records.header import BatchFields, BatchHeader, peek_header

A, B, C = (ProducerIdentity(producer_id, 5) for producer_id in (1, 2, 3))
A_NEXT = ProducerIdentity(1, 6)
_DATA = peek_header(build_batch([Record(None, b"")], BatchFields()))
_TRANSACTIONAL = peek_header(build_batch([Record(None, b"")], BatchFields(transactional=True)))
_MARKER = peek_header(build_marker(Marker.COMMIT, A, 0, 0))


def batch(
    producer: ProducerIdentity = NO_PRODUCER, sequence: int = -1, count: int = 1, transactional: bool = False
) -> BatchHeader:
    """A batch of ``count`` records, not placed yet."""
    form = _TRANSACTIONAL if transactional else _DATA
    return form._replace(
        producer_id=producer.producer_id,
        producer_epoch=producer.epoch,
        base_sequence=sequence,
        last_offset_delta=count - 1,
        record_count=count,
    )


def offer(state: PartitionState, header: BatchHeader) -> BatchVerdict:
    """Append ``header`` if the state allows it, as the partition does."""
    verdict = state.decide(header)
    if verdict.appends:
        state.apply(header._replace(base_offset=state.end_offset), None)
    return verdict


def send(
    state: PartitionState, producer: ProducerIdentity, sequence: int, count: int = 1, transactional: bool = True
) -> int:
    """Append a batch that must be allowed; its base offset."""
    offset = state.end_offset
    verdict = offer(state, batch(producer, sequence, count, transactional))
    assert verdict.appends, verdict
    return offset


def mark(state: PartitionState, producer: ProducerIdentity, marker: Marker) -> int:
    """Append a marker; its offset."""
    offset = state.end_offset
    header = _MARKER._replace(base_offset=offset, producer_id=producer.producer_id, producer_epoch=producer.epoch)
    state.apply(header, marker)
    return offset
