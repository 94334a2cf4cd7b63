"""The checks of a client's batch that depend on the topic's settings alone (Kafka's LogValidator).

The records are parsed only as far as the settings require: for keys in a compacted topic, for old timestamps if there
is a limit for them. For timestamps too far in the future the header is enough, if it has the highest timestamp.
"""

from collections.abc import Callable, Iterable, Sequence

from dualwrite.broker.settings.topic_configs import TopicConfig
from dualwrite.records.compression import Codec, batch_body
from dualwrite.records.header import (
    HEADER_SIZE,
    MAGIC,
    MAGIC_AT,
    NO_TIMESTAMP,
    BatchHeader,
    ImpossibleCountError,
    MalformedBatchError,
    checksum_matches,
    peek_header,
    rebuild_batch,
)
from dualwrite.records.rewriting import Span, iterate_spans, recompressed
from dualwrite.wire.error_codes import ErrorCode

CREATE_TIME, APPEND_TIME = "CreateTime", "LogAppendTime"

_UNBOUNDED = 2**63 - 1
_LAST_CODEC = max(Codec)
_CODECS = {"uncompressed": Codec.NONE, **{codec.name.lower(): codec for codec in Codec if codec}}
_LEAST_RECORD_SIZE = 7  # one byte each: size, attributes, two deltas, key, value and headers


class RefusedBatchError(Exception):
    """The broker refuses a batch. The handler answers ``error`` with ``message`` and the errors of single records."""

    def __init__(
        self, error: ErrorCode, message: str | None = None, record_errors: Sequence[tuple[int, str]] = ()
    ) -> None:
        super().__init__(error, message)
        self.error = error
        self.message = message
        self.record_errors = record_errors
        """The positions of wrong records in the batch, each with its error message."""


def checked_header(records: bytes | memoryview | None, config: TopicConfig, now_ms: int, zstd: bool) -> BatchHeader:
    """The header of ``records`` if they are one batch that a topic with ``config`` accepts.

    :param now_ms: the broker's clock, in milliseconds since the epoch.
    :param zstd: True if the client's version of Produce supports zstd.
    :raises RefusedBatchError: if the topic does not accept them.
    """
    if not records:
        raise RefusedBatchError(ErrorCode.INVALID_RECORD, "no record batch for the partition")
    if len(records) < HEADER_SIZE or records[MAGIC_AT] < MAGIC:
        raise RefusedBatchError(ErrorCode.INVALID_RECORD, "no record batch v2 (since Apache Kafka 0.11)")
    try:
        header = peek_header(records)
    except ImpossibleCountError as error:  # CORRUPT_MESSAGE would make the client retry for two minutes
        is_whole = error.header.size == len(records) and checksum_matches(error.header, records)
        code = ErrorCode.INVALID_RECORD if is_whole else ErrorCode.CORRUPT_MESSAGE
        raise RefusedBatchError(code, str(error)) from None
    except MalformedBatchError as error:
        raise RefusedBatchError(ErrorCode.CORRUPT_MESSAGE, str(error)) from None
    _check_size(header, config)
    if header.size != len(records):
        raise RefusedBatchError(ErrorCode.INVALID_RECORD, "expected exactly one record batch for the partition")
    if not checksum_matches(header, records):
        raise RefusedBatchError(ErrorCode.CORRUPT_MESSAGE, "the batch's CRC-32C does not match")
    if header.compression > _LAST_CODEC or (header.compression == Codec.ZSTD and not zstd):
        raise RefusedBatchError(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE)
    contradiction = _contradiction(header)
    if contradiction is not None:
        raise RefusedBatchError(ErrorCode.INVALID_RECORD, contradiction)
    if header.has_append_time:
        raise RefusedBatchError(ErrorCode.INVALID_TIMESTAMP, "only the broker may set the timestamp type LogAppendTime")
    _check_records(header, records, config, now_ms)
    return header


def as_kept(
    header: BatchHeader, records: bytes | memoryview, config: TopicConfig
) -> tuple[BatchHeader, bytes | memoryview]:
    """A checked batch in the codec that a topic with ``config`` uses (compression.type), and with the highest timestamp
    of its records if its client has not stated that.

    :raises RefusedBatchError: if the batch cannot be decompressed, or is too large after the conversion.
    """
    codec = _CODECS.get(config.compression_type, header.compression)
    is_timed = config.message_timestamp_type == APPEND_TIME or not _lacks_maximum(header)
    if codec == header.compression and is_timed:
        return header, records
    levels = {Codec.GZIP: config.compression_gzip_level, Codec.ZSTD: config.compression_zstd_level}
    try:
        if not is_timed:
            header = header._replace(max_timestamp=max(span.timestamp for span in _spans(header, records)))
        if codec == header.compression:
            stored = rebuild_batch(header, bytes(records[HEADER_SIZE:]))
        else:
            stored = recompressed(header, records, Codec(codec), levels.get(Codec(codec)))
    except MalformedBatchError as error:
        raise RefusedBatchError(ErrorCode.INVALID_RECORD, str(error)) from None
    header = peek_header(stored)
    _check_size(header, config)
    return header, stored


def _lacks_maximum(header: BatchHeader) -> bool:
    """True if the highest timestamp is below the first one. Sarama before 1.45.1 (2025) leaves it out. Without it, time
    would not remove the batch, no reader would find it by time, and its producer would expire at once."""
    return header.max_timestamp < header.base_timestamp


def _spans(header: BatchHeader, records: bytes | memoryview) -> list[Span]:
    return list(iterate_spans(header, batch_body(header, records)))


def _check_size(header: BatchHeader, config: TopicConfig) -> None:
    if header.size > config.max_message_bytes:
        message = f"batch of {header.size} bytes; max.message.bytes={config.max_message_bytes}"
        raise RefusedBatchError(ErrorCode.MESSAGE_TOO_LARGE, message)


def _contradiction(header: BatchHeader) -> str | None:
    if header.base_offset != 0:
        return "a client's offsets begin at 0"
    if header.is_control or header.delete_horizon_ms is not None:
        return "a client writes neither control batches nor delete horizons"
    if header.record_count < 1 or header.last_offset_delta != header.record_count - 1:
        return "record count and offsets of the batch disagree"
    if not header.compression and header.record_count * _LEAST_RECORD_SIZE > header.size - HEADER_SIZE:
        return "the batch is too short for its record count"
    has_producer = header.producer_id >= 0
    if has_producer and (header.base_sequence < 0 or header.producer_epoch < 0):
        return "an idempotent batch without a sequence or an epoch"
    if header.is_transactional and not has_producer:
        return "a transactional batch without a producer id"
    return None


def _check_records(header: BatchHeader, records: bytes | memoryview, config: TopicConfig, now_ms: int) -> None:
    creates = config.message_timestamp_type == CREATE_TIME
    earliest = now_ms - config.message_timestamp_before_max_ms
    latest = now_ms + config.message_timestamp_after_max_ms
    too_new = creates and header.max_timestamp > latest
    is_limited = config.message_timestamp_before_max_ms < _UNBOUNDED or _lacks_maximum(header)
    if not (config.compacts or too_new or (creates and is_limited)):
        return
    try:
        spans = _spans(header, records)
    except MalformedBatchError as error:
        raise RefusedBatchError(ErrorCode.INVALID_RECORD, str(error)) from None
    keyless = _positions(spans, config.compacts, lambda span: span.key is None)
    mistimed = _positions(
        spans, creates, lambda span: span.timestamp != NO_TIMESTAMP and not earliest <= span.timestamp <= latest
    )
    if mistimed or (too_new and not keyless):
        raise RefusedBatchError(
            ErrorCode.INVALID_TIMESTAMP,
            f"a record's timestamp is not {f'between {earliest} and' if earliest > 0 else 'up to'} {latest}",
            [(index, f"timestamp {spans[index].timestamp} is out of range") for index in mistimed],
        )
    if keyless:
        message = "a compacted topic takes no record without a key"
        raise RefusedBatchError(ErrorCode.INVALID_RECORD, message, [(index, "no key") for index in keyless])


def _positions(spans: Iterable[Span], applies: bool, is_wrong: Callable[[Span], bool]) -> list[int]:
    return [index for index, span in enumerate(spans) if is_wrong(span)] if applies else []
