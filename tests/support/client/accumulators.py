"""The native producer's accumulator, filled and emptied by hand."""

from typing import Any

from dualwrite.client.engine.accumulator import PartitionQueue, ProducerBatch, RecordAccumulator
from dualwrite.ids import ProducerIdentity
from dualwrite.records.batch import iterate_records
from dualwrite.records.compression import Codec
from dualwrite.records.outgoing import OutgoingRecord

ME = ProducerIdentity(7, 3)
DELIVERY_TIMEOUT = 30.0
SMALL = 100
"""Bytes of a batch in which no second record of 50 bytes has room."""


def make(
    batch_size: int = 1_000_000, linger: float | None = None, batch_records: int = 10_000, tracks_all: bool = False
) -> RecordAccumulator:
    """An empty accumulator."""
    return RecordAccumulator(batch_size, DELIVERY_TIMEOUT, linger, batch_records, tracks_all=tracks_all)


def add(
    accumulator: RecordAccumulator, *values: bytes, partition: int = 0, now: float = 0.0, on_delivery: Any = None
) -> PartitionQueue:
    """Add records with ``values``; the queue of their partition."""
    queue = accumulator.queue("t", partition)
    for value in values:
        accumulator.append(queue, OutgoingRecord("t", value, on_delivery=on_delivery), len(value), 0, now)
    return queue


def take(accumulator: RecordAccumulator, queue: PartitionQueue, to: Any = "leader") -> ProducerBatch:
    """The next batch, which may be sent."""
    assert queue.may_send(to, 0.0, 5)
    return accumulator.take(queue, to, ME, Codec.NONE, None)


def values(batch: ProducerBatch) -> list[bytes | None]:
    """The values of a batch that was taken."""
    return [record.value for record in iterate_records(batch.data)]
