"""A partition's producer states, as Kafka stores them in ``.snapshot`` files (ProducerStateManager).

Kafka's form holds only the last batch of a producer, so after a restart Kafka does not recognise a duplicate of an
earlier batch. This form appends the other batches that a client may have in flight; Kafka's tools ignore them.
"""

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import crc32c

from dualwrite.records.header import MAX_SEQUENCE

_VERSION = 1
_PREFIX = struct.Struct(">hI")
_COUNT = struct.Struct(">i")
_ENTRY = struct.Struct(">qhiqiqiq")
_BATCH = struct.Struct(">iiqq")


class RetainedBatch(NamedTuple):
    """One of a producer's last batches: the fields that identify a duplicate of it."""

    first_sequence: int
    last_sequence: int
    first_offset: int
    timestamp: int = -1
    """MaxTimestamp, which the response to a duplicate contains together with the offset."""

    @property
    def offset_delta(self) -> int:
        """The last record's offset minus the first record's."""
        return (self.last_sequence - self.first_sequence) & MAX_SEQUENCE


@dataclass(frozen=True, slots=True)
class ProducerSnapshot:
    """A partition's state of one producer id; the names are those of ``core.partitions.ProducerEntry``."""

    producer_id: int
    epoch: int
    last_timestamp: int
    coordinator_epoch: int
    transaction_start: int
    batches: tuple[RetainedBatch, ...]


def encode_snapshot(producers: Sequence[ProducerSnapshot]) -> bytes:
    """The content of a snapshot file."""
    entries = bytearray(_COUNT.pack(len(producers)))
    earlier = bytearray()
    for producer in producers:
        sequence, offset, delta = -1, -1, 0
        if producer.batches:
            last = producer.batches[-1]
            sequence, delta = last.last_sequence, last.offset_delta
            offset = last.first_offset + delta
        entries += _ENTRY.pack(
            producer.producer_id, producer.epoch, sequence, offset, delta,
            producer.last_timestamp, producer.coordinator_epoch, producer.transaction_start,
        )  # fmt: skip
        earlier.append(len(producer.batches))
        for batch in producer.batches:
            earlier += _BATCH.pack(batch.first_sequence, batch.last_sequence, batch.first_offset, batch.timestamp)
    body = bytes(entries + earlier)
    return _PREFIX.pack(_VERSION, crc32c.crc32c(body)) + body


def decode_snapshot(data: bytes) -> list[ProducerSnapshot]:
    """The producers in the content of a snapshot file, which Kafka may have written.

    :raises ValueError: if ``data`` is not a snapshot, or is damaged. The caller must replay the log.
    """
    try:
        version, checksum = _PREFIX.unpack_from(data)
        if version != _VERSION:
            raise ValueError(f"snapshot of version {version}")
        body = data[_PREFIX.size :]
        if crc32c.crc32c(body) != checksum:
            raise ValueError("wrong checksum")
        return _decode_body(body)
    except (struct.error, IndexError) as error:
        raise ValueError(f"snapshot that ends too early: {error}") from None


def _decode_body(body: bytes) -> list[ProducerSnapshot]:
    (count,) = _COUNT.unpack_from(body)
    position = _COUNT.size
    entries = [_ENTRY.unpack_from(body, position + index * _ENTRY.size) for index in range(count)]
    position += count * _ENTRY.size
    is_ours = position < len(body)
    producers = []
    for producer_id, epoch, sequence, offset, delta, timestamp, coordinator_epoch, start in entries:
        batches: tuple[RetainedBatch, ...] = ()
        if is_ours:
            retained, position = body[position], position + 1
            batches = tuple(
                RetainedBatch(*_BATCH.unpack_from(body, position + index * _BATCH.size)) for index in range(retained)
            )
            position += retained * _BATCH.size
        elif offset >= 0:
            batches = (RetainedBatch((sequence - delta) & MAX_SEQUENCE, sequence, offset - delta, timestamp),)
        producers.append(ProducerSnapshot(producer_id, epoch, timestamp, coordinator_epoch, start, batches))
    return producers
