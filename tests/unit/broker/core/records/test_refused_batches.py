"""Every batch that the broker refuses for its bytes or its header, with the error and the message that it answers."""

import pytest

from dualwrite.broker.core.record_rules import RefusedBatchError, checked_header
from dualwrite.broker.settings.topic_configs import topic_config
from dualwrite.records.batch import Record
from dualwrite.records.compression import Codec
from dualwrite.records.header import (
    HEADER_SIZE,
    MAGIC_AT,
    peek_header,
    rebuild_batch,
    stamp_append_time,
    with_compression,
    with_delete_horizon,
)
from dualwrite.wire.error_codes import ErrorCode
from tests.support.oracle_batches import oracle_batch

NOW = 10_000_000
GOOD = oracle_batch([Record(b"key", b"1", NOW), Record(b"key", b"2", NOW)])
HEADER = peek_header(GOOD)
LEAST = rebuild_batch(HEADER, b"\x0c\x00\x00\x00\x01\x01\x00" + b"\x0c\x00\x00\x02\x01\x01\x00")
CONTROL_BIT, UNKNOWN_CODEC = 0x20, 5

OLD_FORMAT = "no record batch v2 (since Apache Kafka 0.11)"
NEGATIVE = "a batch header with a negative count of records or offsets"
CHECKSUM = "the batch's CRC-32C does not match"
NO_ORDER = "an idempotent batch without a sequence or an epoch"
WRITTEN_BY_BROKERS = "a client writes neither control batches nor delete horizons"
COUNTS = "record count and offsets of the batch disagree"
TOO_SHORT = "the batch is too short for its record count"


def checked(batch: bytes | None, zstd: bool = True, **configs: str) -> tuple[ErrorCode, str | None] | None:
    """The error and the message of a refusal; None if the broker takes the batch."""
    settings = {name.replace("_", "."): value for name, value in configs.items()}
    try:
        checked_header(batch, topic_config(settings), NOW, zstd)
    except RefusedBatchError as refused:
        return refused.error, refused.message
    return None


def with_fields(**fields: int) -> bytes:
    """The good batch with other fields in its header, and the checksum that fits them."""
    return rebuild_batch(HEADER._replace(**fields), GOOD[HEADER_SIZE:])


def with_magic(magic: int, size: int = len(GOOD)) -> bytes:
    """The first bytes of the good batch in another format."""
    return (GOOD[:MAGIC_AT] + bytes([magic]) + GOOD[MAGIC_AT + 1 :])[:size]


def flipped(batch: bytes) -> bytes:
    """``batch`` with one wrong bit in its last byte."""
    return batch[:-1] + bytes([batch[-1] ^ 1])


def header_alone(record_count: int, codec: Codec = Codec.NONE) -> bytes:
    """A batch without a body."""
    header = HEADER._replace(record_count=record_count, last_offset_delta=max(record_count - 1, 0))
    return rebuild_batch(with_compression(header, codec), b"")


@pytest.mark.parametrize(
    ("batch", "error", "message"),
    [
        pytest.param(None, ErrorCode.INVALID_RECORD, "no record batch for the partition", id="null"),
        pytest.param(b"", ErrorCode.INVALID_RECORD, "no record batch for the partition", id="no bytes"),
        pytest.param(b"\0", ErrorCode.INVALID_RECORD, OLD_FORMAT, id="too short for a magic byte"),
        pytest.param(GOOD[:60], ErrorCode.INVALID_RECORD, OLD_FORMAT, id="a byte less than a header"),
        pytest.param(with_magic(1), ErrorCode.INVALID_RECORD, OLD_FORMAT, id="message set v1"),
        pytest.param(with_magic(0, 30), ErrorCode.INVALID_RECORD, OLD_FORMAT, id="short message set v0"),
        pytest.param(
            with_magic(3), ErrorCode.CORRUPT_MESSAGE, "record batch of magic 3: only 2 is supported", id="later format"
        ),
        pytest.param(
            GOOD[:8] + b"\0\0\0\x30" + GOOD[12:],
            ErrorCode.CORRUPT_MESSAGE,
            "impossible length in a batch header",
            id="a length below the header's",
        ),
        pytest.param(with_fields(record_count=-1), ErrorCode.INVALID_RECORD, NEGATIVE, id="negative count"),
        pytest.param(
            flipped(with_fields(record_count=-1)), ErrorCode.CORRUPT_MESSAGE, NEGATIVE, id="negative count, damaged"
        ),
        pytest.param(
            GOOD + GOOD,
            ErrorCode.INVALID_RECORD,
            "expected exactly one record batch for the partition",
            id="two batches",
        ),
        pytest.param(
            GOOD[:-1],
            ErrorCode.INVALID_RECORD,
            "expected exactly one record batch for the partition",
            id="a batch cut short",
        ),
        pytest.param(flipped(GOOD), ErrorCode.CORRUPT_MESSAGE, CHECKSUM, id="damaged"),
        pytest.param(
            rebuild_batch(with_compression(HEADER, UNKNOWN_CODEC), b""),
            ErrorCode.UNSUPPORTED_COMPRESSION_TYPE,
            None,
            id="unknown codec",
        ),
        pytest.param(
            with_fields(base_offset=1), ErrorCode.INVALID_RECORD, "a client's offsets begin at 0", id="offset 1"
        ),
        pytest.param(
            with_fields(attributes=HEADER.attributes | CONTROL_BIT),
            ErrorCode.INVALID_RECORD,
            WRITTEN_BY_BROKERS,
            id="a control batch",
        ),
        pytest.param(
            rebuild_batch(with_delete_horizon(HEADER, NOW), GOOD[HEADER_SIZE:]),
            ErrorCode.INVALID_RECORD,
            WRITTEN_BY_BROKERS,
            id="a delete horizon",
        ),
        pytest.param(header_alone(0), ErrorCode.INVALID_RECORD, COUNTS, id="no record"),
        pytest.param(with_fields(record_count=3), ErrorCode.INVALID_RECORD, COUNTS, id="more records than offsets"),
        pytest.param(with_fields(record_count=1), ErrorCode.INVALID_RECORD, COUNTS, id="fewer records than offsets"),
        pytest.param(header_alone(1), ErrorCode.INVALID_RECORD, TOO_SHORT, id="a header alone"),
        pytest.param(
            rebuild_batch(HEADER, LEAST[HEADER_SIZE:-1]),
            ErrorCode.INVALID_RECORD,
            TOO_SHORT,
            id="a byte less than the smallest records",
        ),
        pytest.param(with_fields(base_sequence=-1), ErrorCode.INVALID_RECORD, NO_ORDER, id="no sequence"),
        pytest.param(with_fields(producer_epoch=-1), ErrorCode.INVALID_RECORD, NO_ORDER, id="no epoch"),
        pytest.param(
            with_fields(producer_id=-1),
            ErrorCode.INVALID_RECORD,
            "a transactional batch without a producer id",
            id="no producer",
        ),
        pytest.param(
            stamp_append_time(GOOD, NOW),
            ErrorCode.INVALID_TIMESTAMP,
            "only the broker may set the timestamp type LogAppendTime",
            id="a broker's timestamp",
        ),
    ],
)
def test_the_broker_refuses(batch: bytes | None, error: ErrorCode, message: str | None) -> None:
    with pytest.raises(RefusedBatchError) as refused:
        checked_header(batch, topic_config({}), NOW, zstd=True)
    assert (refused.value.error, refused.value.message) == (error, message)
    assert refused.value.args == (error, message), "they are the text of the exception as well"
    assert refused.value.record_errors == (), "the refusal is that of the whole batch"


@pytest.mark.parametrize(
    "batch",
    [
        pytest.param(GOOD, id="two records"),
        pytest.param(LEAST, id="two of the smallest records"),
        pytest.param(with_fields(producer_id=0), id="producer id 0"),
        pytest.param(with_fields(producer_epoch=0), id="epoch 0"),
        pytest.param(with_fields(base_sequence=0), id="sequence 0"),
        pytest.param(
            with_fields(attributes=0, producer_id=-1, producer_epoch=-1, base_sequence=-1), id="no idempotent producer"
        ),
        pytest.param(header_alone(1, Codec.GZIP), id="a header alone that says it is compressed"),
        pytest.param(oracle_batch([Record(None, b"", NOW)] * 500, Codec.GZIP), id="many records in few bytes"),
    ],
)
def test_the_broker_takes(batch: bytes) -> None:
    assert checked_header(batch, topic_config({}), NOW, zstd=True) == peek_header(batch)


@pytest.mark.parametrize("codec", Codec)
def test_zstd_alone_depends_on_the_version_of_the_request(codec: Codec) -> None:
    batch = oracle_batch([Record(b"key", b"value" * 100, NOW)], codec)
    assert peek_header(batch).compression == codec
    assert checked(batch, zstd=True) is None
    refused = (ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, None) if codec is Codec.ZSTD else None
    assert checked(batch, zstd=False) == refused


def test_a_batch_of_the_topics_limit_fits_and_one_byte_more_does_not() -> None:
    size = len(GOOD)
    assert checked(GOOD, max_message_bytes=str(size)) is None
    message = f"batch of {size} bytes; max.message.bytes={size - 1}"
    assert checked(GOOD, max_message_bytes=str(size - 1)) == (ErrorCode.MESSAGE_TOO_LARGE, message)


def test_a_batch_that_is_too_large_is_refused_for_its_size_before_its_checksum() -> None:
    refused = checked(flipped(GOOD), max_message_bytes="1")
    assert refused is not None
    assert refused[0] is ErrorCode.MESSAGE_TOO_LARGE, "Kafka's order: a producer splits such a batch"
