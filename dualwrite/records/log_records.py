"""Reads the records of a batch with their values and headers, as a consumer does."""

from collections.abc import Iterator
from typing import NamedTuple

from dualwrite.records.compression import batch_body
from dualwrite.records.header import BatchHeader, MalformedBatchError
from dualwrite.records.rewriting import Span, iterate_spans
from dualwrite.records.varint import decode_varint


class LogRecord(NamedTuple):
    """One record of a log.

    :param timestamp: milliseconds since the epoch: the producer's, or the broker's for a topic with LogAppendTime.
    :param key: None is null, and so it is for ``value`` and the value of a header.
    """

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]


def log_records(header: BatchHeader, batch: bytes | memoryview) -> Iterator[LogRecord]:
    """The records of ``batch``, decompressed if necessary.

    :raises MalformedBatchError: if the batch cannot be decompressed, or does not contain its records.
    """
    body = batch_body(header, batch)
    for span in iterate_spans(header, body):
        try:
            yield _with_content(span, body)
        except (ValueError, IndexError) as error:
            raise MalformedBatchError(f"record at offset {span.offset}: {error}") from None


def _with_content(span: Span, body: bytes | memoryview) -> LogRecord:
    _, position = decode_varint(body, span.start)  # the record's size
    _, position = decode_varint(body, position + 1)  # its timestamp, after one byte of attributes
    _, position = decode_varint(body, position)  # its offset
    _, position = _bytes_at(body, position, span.end)
    value, position = _bytes_at(body, position, span.end)
    count, position = decode_varint(body, position)
    if not 0 <= count <= span.end - position:
        raise ValueError("impossible number of headers")
    headers = []
    for _ in range(count):
        name, position = _bytes_at(body, position, span.end)
        content, position = _bytes_at(body, position, span.end)
        headers.append(((name or b"").decode(errors="backslashreplace"), content))
    if position != span.end:
        raise ValueError("its headers do not end with it")
    return LogRecord(span.offset, span.timestamp, span.key, value, tuple(headers))


def _bytes_at(body: bytes | memoryview, position: int, end: int) -> tuple[bytes | None, int]:
    size, position = decode_varint(body, position)
    if size < 0:
        return None, position
    if position + size > end:
        raise ValueError("bytes run past its end")
    return bytes(body[position : position + size]), position + size
