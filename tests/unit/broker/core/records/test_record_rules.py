"""Which batches a topic's settings refuse: timestamps out of bounds, and no keys where the log is compacted."""

import re
from collections.abc import Sequence

import pytest

from dualwrite.broker.core.record_rules import RefusedBatchError, as_kept, checked_header
from dualwrite.broker.settings.topic_configs import topic_config
from dualwrite.records.batch import Record
from dualwrite.records.compression import Codec, batch_body, compress
from dualwrite.records.header import (
    HEADER_SIZE,
    BatchFields,
    checksum_matches,
    peek_header,
    rebuild_batch,
    seal_batch,
    with_compression,
)
from dualwrite.records.rewriting import iterate_spans, recompressed
from dualwrite.wire.error_codes import ErrorCode
from tests.support.oracle_batches import oracle_batch

NOW = 10_000_000
HOUR = 3_600_000
COMPACT = {"cleanup.policy": "compact"}
BOUNDED = {"message.timestamp.before.max.ms": "500", "message.timestamp.after.max.ms": "200"}
APPEND_TIME = {"message.timestamp.type": "LogAppendTime"}


def refusal(records: Sequence[Record], configs: dict[str, str], codec: Codec = Codec.NONE) -> RefusedBatchError | None:
    """Why a topic with ``configs`` refuses a batch, if it does. The codec compresses even what grows by it."""
    batch = oracle_batch(records)
    return refusal_of(recompressed(peek_header(batch), batch, codec), configs)


def refusal_of(batch: bytes, configs: dict[str, str]) -> RefusedBatchError | None:
    try:
        checked_header(batch, topic_config(configs), NOW, zstd=True)
    except RefusedBatchError as refused:
        return refused
    return None


def without_maximum(batch: bytes) -> bytes:
    """``batch`` as Sarama made it before 1.45.1: with a highest timestamp of -1."""
    return rebuild_batch(peek_header(batch)._replace(max_timestamp=-1), batch[HEADER_SIZE:])


def at(*timestamps: int) -> list[Record]:
    return [Record(b"key", b"value", timestamp) for timestamp in timestamps]


@pytest.mark.parametrize("codec", Codec)
@pytest.mark.parametrize(
    ("configs", "timestamps", "wrong"),
    [
        pytest.param({}, [0, NOW, NOW + HOUR], [], id="any past, an hour of future"),
        pytest.param({}, [NOW, NOW + HOUR + 1, 5], [1], id="too far in the future"),
        pytest.param(BOUNDED, [NOW - 500, NOW + 200], [], id="on both bounds"),
        pytest.param(BOUNDED, [NOW - 501, NOW, NOW + 201], [0, 2], id="beyond both bounds"),
        pytest.param(BOUNDED, [NOW - 501], [0], id="too far in the past"),
        pytest.param(BOUNDED, [NOW, -1], [], id="no timestamp is within any bounds"),
        pytest.param({**BOUNDED, **APPEND_TIME}, [0, NOW + HOUR * 2], [], id="the broker stamps them anyway"),
    ],
)
def test_timestamps_have_bounds(configs: dict[str, str], timestamps: list[int], wrong: list[int], codec: Codec) -> None:
    refused = refusal(at(*timestamps), configs, codec)
    if not wrong:
        assert refused is None
    else:
        assert refused is not None
        assert refused.error is ErrorCode.INVALID_TIMESTAMP
        bounds = f"between {NOW - 500} and {NOW + 200}" if configs else f"up to {NOW + HOUR}"
        assert refused.message == f"a record's timestamp is not {bounds}"
        assert refused.record_errors == [
            (position, f"timestamp {timestamps[position]} is out of range") for position in wrong
        ]


@pytest.mark.parametrize(("earliest", "bounds"), [(-1, "up to"), (0, "up to"), (1, "between 1 and")])
def test_the_message_names_a_lower_bound_after_the_epoch(earliest: int, bounds: str) -> None:
    refused = refusal(at(NOW + HOUR + 1), {"message.timestamp.before.max.ms": str(NOW - earliest)})
    assert refused is not None
    assert refused.message == f"a record's timestamp is not {bounds} {NOW + HOUR}"


@pytest.mark.parametrize("codec", Codec)
def test_a_compacted_topic_takes_no_record_without_a_key(codec: Codec) -> None:
    records = [Record(b"a", b"1", NOW), Record(None, b"2", NOW), Record(b"", None, NOW), Record(None, None, NOW)]
    refused = refusal(records, COMPACT, codec)
    assert refused is not None
    assert refused.error is ErrorCode.INVALID_RECORD
    assert refused.message == "a compacted topic takes no record without a key"
    assert refused.record_errors == [(1, "no key"), (3, "no key")]
    assert refusal(records, {}, codec) is None
    assert refusal([records[0], records[2]], {"cleanup.policy": "compact,delete"}, codec) is None


@pytest.mark.parametrize("field", ["record_count", "last_offset_delta"])
def test_a_negative_count_is_for_good_and_a_broken_one_is_worth_another_try(field: str) -> None:
    good = oracle_batch(at(NOW))
    header = peek_header(good)
    counted = rebuild_batch(header._replace(**{field: -1}), good[HEADER_SIZE:])
    refused = refusal_of(counted, {})
    assert refused is not None
    assert refused.error is ErrorCode.INVALID_RECORD
    for broken in (counted[:-1], counted[:-1] + bytes([counted[-1] ^ 1])):
        refused = refusal_of(broken, {})
        assert refused is not None
        assert refused.error is ErrorCode.CORRUPT_MESSAGE


def test_a_wrong_timestamp_counts_before_a_missing_key() -> None:
    refused = refusal([Record(None, b"1", NOW), Record(b"a", b"1", 0)], {**COMPACT, **BOUNDED})
    assert refused is not None
    assert (refused.error, refused.record_errors[0][0]) == (ErrorCode.INVALID_TIMESTAMP, 1)


def test_a_header_with_a_future_timestamp_is_refused_even_without_records() -> None:
    batch = seal_batch(b"\x0c\x00\x00\x00\x01\x01\x00", BatchFields(), 1, NOW, NOW + 2 * HOUR)
    refused = refusal_of(batch, {})
    assert refused is not None
    assert (refused.error, refused.record_errors) == (ErrorCode.INVALID_TIMESTAMP, [])


@pytest.mark.parametrize("configs", [COMPACT, BOUNDED])
def test_records_that_cannot_be_looked_at_are_refused_where_they_must_be(configs: dict[str, str]) -> None:
    nonsense = seal_batch(b"\xff" * 20, BatchFields(), 1, NOW, NOW)
    refused = refusal_of(nonsense, configs)
    assert refused is not None
    assert refused.error is ErrorCode.INVALID_RECORD
    assert refused.message == "record at byte 0 of the decompressed batch: no complete varint at byte 0"
    assert refusal_of(nonsense, {}) is None, "the records are not parsed"


@pytest.mark.parametrize(
    ("setting", "codec"),
    [
        ("uncompressed", Codec.NONE),
        ("gzip", Codec.GZIP),
        ("snappy", Codec.SNAPPY),
        ("lz4", Codec.LZ4),
        ("zstd", Codec.ZSTD),
    ],
)
@pytest.mark.parametrize("source", Codec)
def test_a_topic_with_a_codec_of_its_own_keeps_batches_in_it(setting: str, codec: Codec, source: Codec) -> None:
    batch = oracle_batch([Record(b"key", b"value" * 100, NOW)] * 2, compression=source)
    config = topic_config({"compression.type": setting})
    header, kept = as_kept(checked_header(batch, config, NOW, zstd=True), batch, config)
    assert (header, header.compression) == (peek_header(kept), codec)
    assert (kept is batch) == (codec is source)
    unchanged = as_kept(peek_header(batch), batch, topic_config({"compression.type": "producer"}))
    assert unchanged == (peek_header(batch), batch)


@pytest.mark.parametrize("codec", Codec)
@pytest.mark.parametrize("setting", ["producer", "uncompressed", "zstd"])
def test_a_highest_timestamp_that_the_client_has_left_out_is_found(codec: Codec, setting: str) -> None:
    batch = without_maximum(oracle_batch(at(NOW - 5, NOW + 7, NOW - 100), compression=codec))
    config = topic_config({"compression.type": setting})
    header, kept = as_kept(checked_header(batch, config, NOW, zstd=True), batch, config)
    assert (header, header.max_timestamp, header.base_timestamp) == (peek_header(kept), NOW + 7, NOW - 5)
    assert checksum_matches(header, kept)
    timestamps = [span.timestamp for span in iterate_spans(header, batch_body(header, kept))]
    assert timestamps == [NOW - 5, NOW + 7, NOW - 100]


def test_where_the_broker_stamps_records_no_highest_timestamp_is_looked_for() -> None:
    batch = without_maximum(oracle_batch(at(NOW)))
    config = topic_config(APPEND_TIME)
    assert as_kept(checked_header(batch, config, NOW, zstd=True), batch, config) == (peek_header(batch), batch)


def test_a_timestamp_that_the_header_leaves_out_is_held_to_the_bounds() -> None:
    refused = refusal_of(without_maximum(oracle_batch(at(NOW, NOW + HOUR + 1))), {})
    assert refused is not None
    assert refused.error is ErrorCode.INVALID_TIMESTAMP
    assert [index for index, _ in refused.record_errors] == [1]


def test_a_batch_that_is_too_large_in_the_topics_codec_is_refused() -> None:
    batch = oracle_batch([Record(None, b"v" * 5000, NOW)], compression=Codec.GZIP)
    config = topic_config({"compression.type": "uncompressed", "max.message.bytes": "1000"})
    header = checked_header(batch, config, NOW, zstd=True)
    with pytest.raises(RefusedBatchError) as refused:
        as_kept(header, batch, config)
    assert refused.value.error is ErrorCode.MESSAGE_TOO_LARGE
    assert re.fullmatch(r"batch of 50\d\d bytes; max\.message\.bytes=1000", refused.value.message or "")


def test_a_batch_that_cannot_be_opened_for_the_topics_codec_is_refused() -> None:
    whole = peek_header(oracle_batch(at(NOW)))
    batch = rebuild_batch(with_compression(whole, Codec.GZIP), b"no gzip at all")
    config = topic_config({"compression.type": "zstd"})
    with pytest.raises(RefusedBatchError) as refused:
        as_kept(checked_header(batch, config, NOW, zstd=True), batch, config)
    assert refused.value.error is ErrorCode.INVALID_RECORD
    assert re.match("gzip records that cannot be decompressed: ", refused.value.message or "")


@pytest.mark.parametrize(
    ("codec", "setting", "level"),
    [(Codec.GZIP, "compression.gzip.level", level) for level in (1, 9)]
    + [(Codec.ZSTD, "compression.zstd.level", level) for level in (1, 19)],
)
def test_a_topic_compresses_at_the_level_of_its_codec(codec: Codec, setting: str, level: int) -> None:
    text = b"".join(b"%d squared is %d, " % (number, number * number) for number in range(2000))
    batch = oracle_batch([Record(b"key", text, NOW)])
    config = topic_config({"compression.type": codec.name.lower(), setting: str(level)})
    header, kept = as_kept(peek_header(batch), batch, config)
    assert header.compression == codec
    assert kept[HEADER_SIZE:] == compress(codec, batch[HEADER_SIZE:], level)
    assert kept[HEADER_SIZE:] != compress(codec, batch[HEADER_SIZE:]), "the level makes a difference"
