"""The header of a record batch, which is usually all that the broker reads of a batch.

Layout (KIP-98, "RecordBatch"): base offset, length, partition leader epoch, magic, CRC-32C, attributes, last offset
delta, base timestamp, max timestamp, producer id, producer epoch, base sequence, record count. The checksum covers
everything from the attributes on, so a broker may set the base offset and the leader epoch in place.
"""

import struct
from collections.abc import Iterator
from typing import NamedTuple

import crc32c

from dualwrite.ids import NO_PRODUCER, ProducerIdentity

HEADER_SIZE = 61
MAGIC = 2
MAGIC_AT = 16
"""The position of the magic byte, the same in every version."""

_LAYOUT = struct.Struct(">qiibIhiqqqhii")
_EXTENT = struct.Struct(">qi11xi")
_PLACE = struct.Struct(">qiibI")
_CHECKED = struct.Struct(">hiqqqhii")
_OFFSET_AND_LENGTH = struct.Struct(">qi")
_OFFSET = struct.Struct(">q")
_EPOCH = struct.Struct(">i")
_PREFIX_SIZE = _OFFSET_AND_LENGTH.size
_CRC_AT = 17
_CHECKED_FROM = 21
_MAX_TIMESTAMP_AT = 35
MAX_SEQUENCE = 2**31 - 1

_COMPRESSION_MASK = 0x07
_APPEND_TIME_BIT = 0x08
_TRANSACTIONAL_BIT = 0x10
_CONTROL_BIT = 0x20
_DELETE_HORIZON_BIT = 0x40
NO_TIMESTAMP = -1


_crc32c, _header_of = crc32c.crc32c, tuple.__new__
_HEADER_LENGTH = HEADER_SIZE - _PREFIX_SIZE


class MalformedBatchError(ValueError):
    """The bytes are not a whole record batch v2. The broker answers CORRUPT_MESSAGE or INVALID_RECORD."""


class ImpossibleCountError(MalformedBatchError):
    """A batch header has a negative count of records or offsets; its length and checksum may be correct."""

    def __init__(self, header: "BatchHeader") -> None:
        super().__init__("a batch header with a negative count of records or offsets")
        self.header = header


class BatchHeader(NamedTuple):
    """The fixed part of one batch. Field names are the KIP's."""

    base_offset: int
    batch_length: int
    partition_leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int

    def placed(self, base_offset: int, leader_epoch: int) -> "BatchHeader":
        """The header once :func:`place_batch` has placed its batch."""
        return BatchHeader._make((base_offset, self.batch_length, leader_epoch, *self[3:]))

    @property
    def size(self) -> int:
        """Bytes of the whole batch, header included."""
        return self.batch_length + _PREFIX_SIZE

    @property
    def last_offset(self) -> int:
        """Offset of the batch's last record."""
        return self.base_offset + self.last_offset_delta

    @property
    def next_offset(self) -> int:
        """Offset that follows the batch."""
        return self.base_offset + self.last_offset_delta + 1

    @property
    def last_sequence(self) -> int:
        """Sequence number of the last record; sequences wrap to 0 after 2147483647."""
        if self.base_sequence < 0:
            return self.base_sequence
        return (self.base_sequence + self.last_offset_delta) & MAX_SEQUENCE

    @property
    def producer(self) -> ProducerIdentity:
        """The producer's identity; falsy if the producer is not idempotent."""
        return ProducerIdentity(self.producer_id, self.producer_epoch)

    @property
    def is_transactional(self) -> bool:
        """True if the batch belongs to a transaction."""
        return bool(self.attributes & _TRANSACTIONAL_BIT)

    @property
    def is_control(self) -> bool:
        """True if the batch holds a marker and not user records."""
        return bool(self.attributes & _CONTROL_BIT)

    @property
    def has_append_time(self) -> bool:
        """True if its timestamps are the broker's (LogAppendTime)."""
        return bool(self.attributes & _APPEND_TIME_BIT)

    @property
    def delete_horizon_ms(self) -> int | None:
        """When the batch's tombstones or marker may be removed, in milliseconds since the epoch. The first cleaning
        that found them stored it in place of the base timestamp (KIP-534); None before that."""
        return self.base_timestamp if self.attributes & _DELETE_HORIZON_BIT else None

    @property
    def compression(self) -> int:
        """0 none, 1 gzip, 2 snappy, 3 lz4, 4 zstd."""
        return self.attributes & _COMPRESSION_MASK


def peek_header(buffer: bytes | bytearray | memoryview, position: int = 0) -> BatchHeader:
    """The header at ``position``.

    :raises MalformedBatchError: if fewer than 61 bytes are left, the magic is not 2, or the length is impossible;
        :class:`ImpossibleCountError` if a count is negative.
    """
    if len(buffer) - position < HEADER_SIZE:
        raise MalformedBatchError(f"{len(buffer) - position} bytes where a batch header of {HEADER_SIZE} should be")
    header = BatchHeader._make(_LAYOUT.unpack_from(buffer, position))
    if header.magic != MAGIC:
        raise MalformedBatchError(f"record batch of magic {header.magic}: only {MAGIC} is supported")
    if header.batch_length < HEADER_SIZE - _PREFIX_SIZE:
        raise MalformedBatchError("impossible length in a batch header")
    if header.last_offset_delta < 0 or header.record_count < 0:
        raise ImpossibleCountError(header)
    return header


def peek_extent(buffer: bytes | bytearray | memoryview, position: int = 0) -> tuple[int, int, int]:
    """Base offset, last offset and size in bytes of the batch at ``position``, which was checked before. Faster than
    :func:`peek_header`.

    :raises MalformedBatchError: if fewer than 27 bytes are left, or the length is impossible.
    """
    if len(buffer) - position < _EXTENT.size:
        raise MalformedBatchError(f"{len(buffer) - position} bytes where a batch header should be")
    base_offset, batch_length, last_offset_delta = _EXTENT.unpack_from(buffer, position)
    if batch_length < _HEADER_LENGTH:
        raise MalformedBatchError("impossible length in a batch header")
    return base_offset, base_offset + last_offset_delta, batch_length + _PREFIX_SIZE


def iterate_batches(buffer: bytes | bytearray | memoryview) -> Iterator[tuple[BatchHeader, memoryview]]:
    """The consecutive batches of ``buffer``, as headers and views of their bytes. Does not verify checksums.

    :raises MalformedBatchError: if the batches do not fill ``buffer`` exactly.
    """
    view, position = memoryview(buffer), 0
    while position < len(view):
        header = peek_header(view, position)
        if position + header.size > len(view):
            raise MalformedBatchError(f"batch of {header.size} bytes where {len(view) - position} are left")
        yield header, view[position : position + header.size]
        position += header.size


def checksum_matches(header: BatchHeader, batch: bytes | bytearray | memoryview) -> bool:
    """True if the CRC-32C in ``header`` is that of ``batch``, which must be exactly the batch's bytes."""
    return bool(crc32c.crc32c(memoryview(batch)[_CHECKED_FROM:]) == header.crc)


def place_batch(batch: bytearray | memoryview, base_offset: int, leader_epoch: int) -> None:
    """Write ``base_offset`` and ``leader_epoch`` into ``batch``. The checksum covers neither."""
    _OFFSET.pack_into(batch, 0, base_offset)
    _EPOCH.pack_into(batch, _PREFIX_SIZE, leader_epoch)


def stamp_append_time(batch: bytes | memoryview, timestamp: int) -> bytes:
    """``batch`` with ``timestamp`` as the time of every record (LogAppendTime). The records keep their own timestamps,
    which readers then ignore.

    :param timestamp: milliseconds since the epoch.
    """
    stamped = bytearray(batch)
    (attributes,) = struct.unpack_from(">h", stamped, _CHECKED_FROM)
    struct.pack_into(">h", stamped, _CHECKED_FROM, attributes | _APPEND_TIME_BIT)
    struct.pack_into(">q", stamped, _MAX_TIMESTAMP_AT, timestamp)
    _seal_again(stamped)
    return bytes(stamped)


def _seal_again(batch: bytearray) -> None:
    struct.pack_into(">I", batch, _CRC_AT, crc32c.crc32c(memoryview(batch)[_CHECKED_FROM:]))


def rebuild_batch(header: BatchHeader, body: bytes) -> bytes:
    """A whole batch with the fields of ``header``, except its length and checksum, around ``body`` in its form on
    disk."""
    length = HEADER_SIZE - _PREFIX_SIZE + len(body)
    batch = bytearray(_LAYOUT.pack(*header._replace(batch_length=length, crc=0)))
    batch += body
    _seal_again(batch)
    return bytes(batch)


def with_delete_horizon(header: BatchHeader, horizon_ms: int) -> BatchHeader:
    """``header`` with ``horizon_ms`` in place of the base timestamp. The records' timestamps must be relative to it."""
    return header._replace(attributes=header.attributes | _DELETE_HORIZON_BIT, base_timestamp=horizon_ms)


def with_compression(header: BatchHeader, codec: int) -> BatchHeader:
    """``header`` of a batch whose records are compressed by ``codec``."""
    return header._replace(attributes=header.attributes & ~_COMPRESSION_MASK | codec)


def emptied(header: BatchHeader) -> BatchHeader:
    """The header of a batch whose records were all removed. Such a batch stays for its producer's sequence (Kafka:
    DefaultRecordBatch.writeEmptyHeader)."""
    kept = header.attributes & (_APPEND_TIME_BIT | _TRANSACTIONAL_BIT | _CONTROL_BIT)
    return header._replace(attributes=kept, base_timestamp=NO_TIMESTAMP, record_count=0)


def placeholder(first_offset: int, next_offset: int, max_timestamp: int) -> BatchHeader:
    """The header of an empty batch in place of removed ones: from ``first_offset`` up to but not including
    ``next_offset``, of no producer.

    :param max_timestamp: the highest one of the removed batches, in milliseconds since the epoch.
    """
    checked = 0, next_offset - first_offset - 1, NO_TIMESTAMP, max_timestamp, *NO_PRODUCER, -1, 0
    return BatchHeader._make((first_offset, 0, 0, MAGIC, 0, *checked))


class BatchFields(NamedTuple):
    """The header fields that the writer of a batch chooses."""

    producer: ProducerIdentity = NO_PRODUCER
    base_sequence: int = -1
    transactional: bool = False
    control: bool = False


def seal_batch(body: bytes, fields: BatchFields, record_count: int, first_timestamp: int, max_timestamp: int) -> bytes:
    """A whole batch with base offset 0 around ``body``, the encoded uncompressed records."""
    return seal_placed(0, body, fields, record_count, (first_timestamp, max_timestamp))[1]


def seal_placed(
    base_offset: int, body: bytes, fields: BatchFields, record_count: int, timestamps: tuple[int, int]
) -> tuple[BatchHeader, bytes]:
    """As :func:`seal_batch`, but with the offset in a log. Also returns the header.

    :param timestamps: the first record's and the highest, in milliseconds since the epoch.
    """
    producer, base_sequence, transactional, control = fields
    attributes = (_TRANSACTIONAL_BIT if transactional else 0) | (_CONTROL_BIT if control else 0)
    return _sealed(body, attributes, record_count, timestamps, producer, base_sequence, base_offset)


def seal_transactional(
    body: bytes | bytearray,
    codec: int,
    record_count: int,
    timestamps: tuple[int, int],
    producer: ProducerIdentity,
    base_sequence: int,
) -> bytes:
    """A whole batch of a transaction, with base offset 0, as a producer sends it.

    :param body: the encoded records, compressed by ``codec`` (0 for none).
    :param timestamps: the first record's and the highest, in milliseconds since the epoch.
    """
    return _sealed(body, _TRANSACTIONAL_BIT | codec, record_count, timestamps, producer, base_sequence)[1]


def _sealed(
    body: bytes | bytearray,
    attributes: int,
    record_count: int,
    timestamps: tuple[int, int],
    producer: ProducerIdentity,
    base_sequence: int,
    base_offset: int = 0,
) -> tuple[BatchHeader, bytes]:
    checked = attributes, record_count - 1, *timestamps, *producer, base_sequence, record_count
    fields = _CHECKED.pack(*checked)
    place = base_offset, _HEADER_LENGTH + len(body), 0, MAGIC, _crc32c(body, _crc32c(fields))
    return _header_of(BatchHeader, place + checked), b"".join((_PLACE.pack(*place), fields, body))
