"""Batches with fewer records: what stays is the same record at the same offset, and kafka-python agrees."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.record.default_records import DefaultRecordBatch

from dualwrite.records.batch import Record
from dualwrite.records.compression import Codec, batch_body
from dualwrite.records.header import (
    HEADER_SIZE,
    BatchFields,
    BatchHeader,
    MalformedBatchError,
    checksum_matches,
    peek_header,
    place_batch,
    rebuild_batch,
    seal_batch,
    stamp_append_time,
)
from dualwrite.records.rewriting import Span, empty_batch, iterate_spans, recompressed, with_records
from tests.support.oracle_batches import oracle_batch
from tests.support.strategies import batch_fields, placed, record_lists

OFFSET = 40


def spans_of(batch: bytes | bytearray) -> list[Span]:
    header = peek_header(batch)
    return list(iterate_spans(header, batch_body(header, batch)))


def rewritten(batch: bytes | bytearray, keep: set[int], horizon_ms: int | None = None) -> bytes:
    """``batch`` with the records at the positions ``keep``."""
    header = peek_header(batch)
    kept = [span for index, span in enumerate(spans_of(batch)) if index in keep]
    return with_records(header, batch_body(header, batch), kept, horizon_ms)


def content(batch: bytes) -> list[tuple[int, int, bytes | None, bytes | None, object]]:
    """What kafka-python reads."""
    return [
        (record.offset, record.timestamp, record.key, record.value, record.headers)
        for record in DefaultRecordBatch(bytes(batch))
    ]


@given(record_lists)
def test_spans_are_the_records(records: list[Record]) -> None:
    assert [(span.offset, span.timestamp, span.key, span.is_tombstone) for span in spans_of(placed(records, 7))] == [
        (7 + delta, record.timestamp, record.key, record.value is None) for delta, record in enumerate(records)
    ]


@given(record_lists, st.sets(st.integers(0, 4)), st.sampled_from(Codec), st.none() | st.integers(0, 2**42))
def test_kept_records_are_unchanged_under_every_codec(
    records: list[Record], keep: set[int], codec: Codec, horizon_ms: int | None
) -> None:
    batch = bytearray(oracle_batch(records, compression=codec, headers=[("h", b"1")]))
    place_batch(batch, OFFSET, leader_epoch=0)
    before = peek_header(batch)
    after_batch = rewritten(batch, keep, horizon_ms)
    after = peek_header(after_batch)
    assert checksum_matches(after, after_batch)
    kept = [entry for index, entry in enumerate(content(batch)) if index in keep]
    assert content(after_batch) == kept
    same = ("base_offset", "last_offset", "producer", "base_sequence", "last_sequence", "is_transactional")
    assert [getattr(after, name) for name in same] == [getattr(before, name) for name in same]
    if kept:
        assert after.max_timestamp == max(timestamp for _, timestamp, *_ in kept)
        assert after.delete_horizon_ms == horizon_ms
        assert after.record_count == len(kept)


@given(record_lists, batch_fields)
def test_an_empty_batch_keeps_the_offsets_and_the_producer(records: list[Record], fields: BatchFields) -> None:
    batch = placed(records, OFFSET, fields)
    before, after_batch = peek_header(batch), empty_batch(peek_header(batch))
    after = peek_header(after_batch)
    assert len(after_batch) == HEADER_SIZE
    assert checksum_matches(after, after_batch)
    assert spans_of(after_batch) == []
    assert (after.record_count, after.base_timestamp, after.compression) == (0, -1, 0)
    assert after.max_timestamp == before.max_timestamp
    assert (after.base_offset, after.last_offset, after.last_sequence) == (
        before.base_offset, before.last_offset, before.last_sequence,
    )  # fmt: skip
    assert (after.producer, after.is_transactional, after.is_control) == (
        before.producer, before.is_transactional, before.is_control,
    )  # fmt: skip


def test_a_horizon_once_noted_stays() -> None:
    batch = rewritten(placed([Record(b"a", None, 10), Record(b"b", None, 20)]), {0, 1}, horizon_ms=5000)
    again = rewritten(batch, {1})
    assert peek_header(again).delete_horizon_ms == 5000
    assert content(again) == [(1, 20, b"b", None, [])]


def test_append_time_is_the_time_of_every_record_and_stays() -> None:
    batch = stamp_append_time(bytes(placed([Record(b"a", b"1", 10), Record(b"b", b"2", 90)])), 77)
    header = peek_header(batch)
    assert header.has_append_time
    assert checksum_matches(header, batch)
    assert [span.timestamp for span in spans_of(batch)] == [77, 77]
    kept = peek_header(rewritten(batch, {0}))
    assert (kept.has_append_time, kept.max_timestamp) == (True, 77)


def claimed(body: bytes, record_count: int) -> bytes:
    return seal_batch(body, BatchFields(), record_count, 0, 0)


@pytest.mark.parametrize(
    "batch",
    [
        pytest.param(claimed(b"", 1), id="no records"),
        pytest.param(claimed(b"\x01", 1), id="negative size"),
        pytest.param(claimed(b"\x0c\x00\x00\x00\x01\x01\x00\x00", 1), id="bytes left over"),
        pytest.param(claimed(b"\x40\x00\x00\x00\x01\x01\x00", 1), id="record past the end"),
        pytest.param(claimed(b"\x0c\x00\x00\x00\x01\x40\x00", 1), id="value past the record"),
        pytest.param(claimed(b"\x0c\x00\x00\x00\x40\x01\x00", 1), id="key past the end"),
        pytest.param(claimed(b"\xff" * 12, 1), id="endless number"),
    ],
)
def test_nonsense_is_refused(batch: bytes) -> None:
    with pytest.raises(MalformedBatchError):
        spans_of(batch)


@pytest.mark.parametrize(("base", "horizon"), [(2**63 - 1, 5), (-(2**63), 2**62), (2**63 - 1, None)])
def test_absurd_timestamps_wrap_as_java_s_do(base: int, horizon: int | None) -> None:
    batch = placed([Record(b"a", b"1", 0), Record(b"b", b"2", 50)])
    header: BatchHeader = peek_header(batch)._replace(base_timestamp=base)
    absurd = rebuild_batch(header, bytes(batch[HEADER_SIZE:]))
    wanted = [span.timestamp for span in spans_of(absurd)]
    assert all(-(2**63) <= timestamp < 2**63 for timestamp in wanted)
    assert [span.timestamp for span in spans_of(rewritten(absurd, {0, 1}, horizon))] == wanted


@pytest.mark.parametrize("codec", Codec)
@given(records=record_lists, source=st.sampled_from(Codec))
def test_a_batch_in_another_codec_is_the_same_batch(codec: Codec, records: list[Record], source: Codec) -> None:
    batch = oracle_batch(records, compression=source)
    before = peek_header(batch)
    other = recompressed(before, batch, codec)
    after = peek_header(other)
    assert (after.compression, checksum_matches(after, other), after.size) == (codec, True, len(other))
    same = {"attributes": 0, "batch_length": 0, "crc": 0}
    assert after._replace(**same) == before._replace(**same)
    assert batch_body(after, other) == batch_body(before, batch)
    assert recompressed(after, other, Codec.NONE) == recompressed(before, batch, Codec.NONE)


def test_a_batch_that_contradicts_its_header_is_not_recompressed() -> None:
    batch = oracle_batch([Record(b"k", b"v", 1)])
    header = peek_header(batch)._replace(record_count=2)
    with pytest.raises(MalformedBatchError):
        recompressed(header, batch, Codec.GZIP)
