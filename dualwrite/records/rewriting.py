"""Reads the records of any batch one by one, and makes batches with fewer records or in another codec.

A record keeps its bytes, because its offset is relative to the batch's base offset, which stays. Its headers are not
parsed. Only its timestamp is rewritten, if a delete horizon replaces the base timestamp (KIP-534).
"""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from dualwrite.records.compression import Codec, batch_body, compress
from dualwrite.records.header import (
    BatchHeader,
    MalformedBatchError,
    emptied,
    rebuild_batch,
    with_compression,
    with_delete_horizon,
)
from dualwrite.records.varint import decode_varint, encode_varint

_HALF = 2**63


class Span(NamedTuple):
    """One record and its place: ``body[start:end]``, with its size field."""

    offset: int
    timestamp: int
    key: bytes | None
    is_tombstone: bool
    start: int
    end: int


def iterate_spans(header: BatchHeader, body: bytes | memoryview) -> Iterator[Span]:
    """The records of a batch. ``body`` has them decompressed.

    :raises MalformedBatchError: if the records do not fill ``body`` exactly.
    """
    position, base_offset, base_timestamp = 0, header.base_offset, header.base_timestamp
    append_time = header.max_timestamp if header.has_append_time else None
    try:
        for _ in range(header.record_count):
            start = position
            size, position = decode_varint(body, position)
            end = position + size
            if size < 0 or end > len(body):
                raise ValueError("impossible size")
            delta, position = decode_varint(body, position + 1)
            offset_delta, position = decode_varint(body, position)
            key_size, position = decode_varint(body, position)
            key = None
            if key_size >= 0:
                key = bytes(body[position : position + key_size])
                position += key_size
            value_size, position = decode_varint(body, position)
            if position + max(value_size, 0) > end:
                raise ValueError("key and value run past the record's end")
            timestamp = base_timestamp + delta if append_time is None else append_time
            yield Span(base_offset + offset_delta, _wrapped(timestamp), key, value_size < 0, start, end)
            position = end
    except (ValueError, IndexError) as error:
        raise MalformedBatchError(f"record at byte {position} of the decompressed batch: {error}") from None
    if position != len(body):
        raise MalformedBatchError(f"records end at byte {position} of {len(body)}")


def with_records(
    header: BatchHeader, body: bytes | memoryview, kept: Iterable[Span], horizon_ms: int | None = None
) -> bytes:
    """The batch with only the records ``kept``. Without records it is empty, and keeps the producer's sequence.

    :param body: the decompressed records.
    :param horizon_ms: the delete horizon for a batch without one.
    """
    spans = list(kept)
    if not spans:
        return empty_batch(header)
    if horizon_ms is None:
        parts = [bytes(body[span.start : span.end]) for span in spans]
    else:
        parts = [_moved(body, span, header, horizon_ms) for span in spans]
    if not header.has_append_time:
        header = header._replace(max_timestamp=max(span.timestamp for span in spans))
    if horizon_ms is not None:
        header = with_delete_horizon(header, horizon_ms)
    records = b"".join(parts)
    if header.compression != Codec.NONE:
        records = compress(header.compression, records)
    return rebuild_batch(header._replace(record_count=len(spans)), records)


def recompressed(header: BatchHeader, batch: bytes | memoryview, codec: Codec, level: int | None = None) -> bytes:
    """``batch`` with its records compressed by ``codec``: the same records, the same offsets and timestamps.

    :param level: as for :func:`~dualwrite.records.compression.compress`.
    :raises MalformedBatchError: if the batch cannot be decompressed, or does not contain its records.
    """
    body = batch_body(header, batch)
    for _ in iterate_spans(header, body):
        pass  # check the records before they are compressed
    records = bytes(body) if codec is Codec.NONE else compress(codec, bytes(body), level)
    return rebuild_batch(with_compression(header, codec), records)


def empty_batch(header: BatchHeader) -> bytes:
    """The batch without records: 61 bytes with its offsets and its producer's last sequence."""
    return rebuild_batch(emptied(header), b"")


def _moved(body: bytes | memoryview, span: Span, header: BatchHeader, base_timestamp: int) -> bytes:
    """The bytes of one record, with its timestamp relative to ``base_timestamp``."""
    _, at = decode_varint(body, span.start)
    delta, rest = decode_varint(body, at + 1)
    content = (
        bytes(body[at : at + 1])
        + encode_varint(_wrapped(header.base_timestamp + delta - base_timestamp))
        + bytes(body[rest : span.end])
    )
    return encode_varint(len(content)) + content


def _wrapped(timestamp: int) -> int:
    """``timestamp`` as a Java long, which wraps around: a client's wrong timestamp must not stop a cleaner."""
    return timestamp if -_HALF <= timestamp < _HALF else (timestamp + _HALF) % (2 * _HALF) - _HALF
