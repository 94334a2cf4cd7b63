"""Builds and reads uncompressed record batches record by record: for journals, markers and tests, not for user data."""

import struct
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from dualwrite.records.header import (
    HEADER_SIZE,
    BatchFields,
    BatchHeader,
    MalformedBatchError,
    peek_header,
    seal_placed,
)
from dualwrite.records.varint import decode_varint, encode_varint


class Record(NamedTuple):
    """One record: key and value in bytes (None is null), timestamp in milliseconds since the epoch, and its offset if
    it was read from a log."""

    key: bytes | None
    value: bytes | None
    timestamp: int = 0
    offset: int = 0


_NULL = encode_varint(-1)
_HEAD_OF_FIRST = bytes(3)
"""No attributes, and the timestamp and the offset of the batch itself."""
_NO_HEADERS = b"\x00"
_BYTES_AROUND = len(_HEAD_OF_FIRST + _NO_HEADERS)
_PLAIN = BatchFields()


def build_batch(records: Sequence[Record], fields: BatchFields | None = None) -> bytes:
    """One batch of ``records`` with base offset 0. Ignores the offsets in ``records``.

    :raises ValueError: if there are no records.
    """
    return place_records(0, records, fields)[1]


def place_records(
    base_offset: int, records: Sequence[Record], fields: BatchFields | None = None
) -> tuple[BatchHeader, bytes]:
    """As :func:`build_batch`, but with the offset in a log. Also returns the header."""
    if not records:
        raise ValueError("a record batch holds at least one record")
    fields = fields or _PLAIN
    first = records[0].timestamp
    if len(records) == 1:
        return seal_placed(base_offset, _encode_first(records[0]), fields, 1, (first, first))
    body = b"".join(_encode_record(record, delta, first) for delta, record in enumerate(records))
    highest = max(record.timestamp for record in records)
    return seal_placed(base_offset, body, fields, len(records), (first, highest))


def iterate_records(batch: bytes | memoryview) -> Iterator[Record]:
    """The records of one uncompressed batch, with their offsets.

    :raises MalformedBatchError: if the batch is compressed or its records do not fill it exactly.
    """
    header = peek_header(batch)
    if header.compression:
        raise MalformedBatchError("compressed batch where an uncompressed one is expected")
    position = HEADER_SIZE
    try:
        for _ in range(header.record_count):
            size, position = decode_varint(batch, position)
            if size < 0:  # reading would move backwards, perhaps for ever
                raise ValueError("negative size")
            yield _decode_record(batch, position, header)
            position += size
    except (ValueError, IndexError, struct.error) as error:
        raise MalformedBatchError(f"record at byte {position}: {error}") from error
    if position != header.size:
        raise MalformedBatchError(f"records end at byte {position} of a batch of {header.size}")


def _encode_first(record: Record) -> bytes:
    """The first record of a batch, whose timestamp is the batch's. Faster than :func:`_encode_record`."""
    key, value, timestamp, _ = record
    if key is None or value is None:
        return _encode_record(record, 0, timestamp)
    key_size, value_size = encode_varint(len(key)), encode_varint(len(value))
    size = len(key) + len(value) + len(key_size) + len(value_size) + _BYTES_AROUND
    return b"".join((encode_varint(size), _HEAD_OF_FIRST, key_size, key, value_size, value, _NO_HEADERS))


def _encode_record(record: Record, offset_delta: int, first_timestamp: int) -> bytes:
    key, value, timestamp, _ = record
    body = b"".join(
        (
            b"\x00",  # no attributes
            encode_varint(timestamp - first_timestamp),
            encode_varint(offset_delta),
            _NULL if key is None else encode_varint(len(key)),
            key or b"",
            _NULL if value is None else encode_varint(len(value)),
            value or b"",
            _NO_HEADERS,
        )
    )
    return encode_varint(len(body)) + body


def _decode_record(batch: bytes | memoryview, position: int, header: BatchHeader) -> Record:
    timestamp_delta, position = decode_varint(batch, position + 1)
    offset_delta, position = decode_varint(batch, position)
    key, position = _decode_bytes(batch, position)
    value, position = _decode_bytes(batch, position)
    return Record(key, value, header.base_timestamp + timestamp_delta, header.base_offset + offset_delta)


def _decode_bytes(batch: bytes | memoryview, position: int) -> tuple[bytes | None, int]:
    size, position = decode_varint(batch, position)
    if size < 0:
        return None, position
    if position + size > len(batch):
        raise ValueError("bytes run past the end of the batch")
    return bytes(batch[position : position + size]), position + size
