"""Record batches: what is built here kafka-python reads, and the other way round; nothing malformed gets through."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.record.default_records import DefaultRecordBatch
from kafka.record.memory_records import MemoryRecords

from dualwrite.ids import NO_PRODUCER, ProducerIdentity
from dualwrite.records.batch import Record, build_batch, iterate_records
from dualwrite.records.header import (
    HEADER_SIZE,
    MAX_SEQUENCE,
    BatchFields,
    BatchHeader,
    MalformedBatchError,
    checksum_matches,
    iterate_batches,
    peek_extent,
    peek_header,
    place_batch,
    seal_batch,
)
from tests.support.oracle_batches import oracle_batch
from tests.support.strategies import attempt, batch_fields, placed, record_lists

GZIP, LZ4_BITS = 1, 3


@given(record_lists, st.integers(0, 2**40), batch_fields)
def test_kafka_python_reads_our_batches(records: list[Record], offset: int, fields: BatchFields) -> None:
    batch = placed(records, offset, BatchFields(fields.producer, fields.base_sequence, fields.transactional))
    theirs = DefaultRecordBatch(bytes(batch))
    assert theirs.validate_crc()
    assert (theirs.producer_id, theirs.producer_epoch) == (fields.producer.producer_id, fields.producer.epoch)
    assert (theirs.is_transactional, theirs.is_control_batch) == (fields.transactional, False)
    assert theirs.base_sequence == fields.base_sequence
    assert theirs.max_timestamp == max(record.timestamp for record in records)
    assert [(record.key, record.value, record.timestamp, record.offset) for record in theirs] == [
        (record.key, record.value, record.timestamp, offset + delta) for delta, record in enumerate(records)
    ]


@given(record_lists)
def test_kafka_pythons_batches_are_read_here(records: list[Record]) -> None:
    batch = oracle_batch(records)
    header = peek_header(batch)
    assert checksum_matches(header, batch)
    assert header.producer == ProducerIdentity(9, 2)
    assert (header.is_transactional, header.is_control, header.compression) == (True, False, 0)
    assert (header.base_sequence, header.last_sequence) == (5, 4 + len(records))
    assert list(iterate_records(batch)) == [record._replace(offset=delta) for delta, record in enumerate(records)]


@given(record_lists, batch_fields, st.integers(0, 2**40))
def test_a_batch_survives_its_bytes(records: list[Record], fields: BatchFields, offset: int) -> None:
    batch = placed(records, offset, fields)
    header = peek_header(batch)
    assert checksum_matches(header, batch)
    assert header.size == len(batch)
    assert (header.last_offset, header.next_offset) == (offset + len(records) - 1, offset + len(records))
    assert (header.is_transactional, header.is_control) == (fields.transactional, fields.control)
    assert list(iterate_records(bytes(batch))) == [
        record._replace(offset=offset + delta) for delta, record in enumerate(records)
    ]


@given(record_lists, st.integers(0, 2**40))
def test_the_quick_look_agrees_with_the_whole_header(records: list[Record], offset: int) -> None:
    batch = b"junk" + placed(records, offset)
    header = peek_header(batch, 4)
    assert peek_extent(batch, 4) == (header.base_offset, header.last_offset, header.size)


def test_placing_a_batch_leaves_its_checksum_alone() -> None:
    batch = bytearray(oracle_batch([Record(b"k", b"v", 1)]))
    place_batch(batch, 1234, leader_epoch=7)
    header = peek_header(batch)
    assert (header.base_offset, header.partition_leader_epoch) == (1234, 7)
    assert checksum_matches(header, batch)


def test_headers_of_records_are_passed_over() -> None:
    batch = oracle_batch([Record(b"k", b"v", 1), Record(b"l", b"w", 2)], headers=[("trace", b"1"), ("none", b"")])
    assert [record.key for record in iterate_records(batch)] == [b"k", b"l"]


def test_a_compressed_batch_is_not_opened() -> None:
    batch = oracle_batch([Record(b"k", b"v" * 100, 1)], compression=GZIP)
    assert peek_header(batch).compression == GZIP
    with pytest.raises(MalformedBatchError, match="compressed"):
        list(iterate_records(batch))


def test_no_records_make_no_batch() -> None:
    with pytest.raises(ValueError, match="at least one record"):
        build_batch([])


@pytest.mark.parametrize(
    ("base", "count", "last"),
    [(0, 1, 0), (5, 3, 7), (MAX_SEQUENCE, 1, MAX_SEQUENCE), (MAX_SEQUENCE, 2, 0), (-1, 3, -1)],
)
def test_the_last_sequence_wraps_to_zero(base: int, count: int, last: int) -> None:
    batch = build_batch([Record(None, None)] * count, BatchFields(NO_PRODUCER, base))
    assert peek_header(batch).last_sequence == last


def test_consecutive_batches_are_separated() -> None:
    first, second = placed([Record(b"a", None)] * 2), placed([Record(b"b", None)], 2)
    found = list(iterate_batches(first + second))
    assert [(header.base_offset, bytes(view)) for header, view in found] == [(0, bytes(first)), (2, bytes(second))]
    theirs = MemoryRecords(bytes(first + second))
    assert [theirs.next_batch().base_offset, theirs.next_batch().base_offset] == [0, 2]
    assert list(iterate_batches(b"")) == []


def test_batches_that_end_too_early_are_refused() -> None:
    batch = placed([Record(b"a", b"b")])
    for length in range(1, len(batch)):
        with pytest.raises(MalformedBatchError, match=r"batch header|are left"):
            list(iterate_batches(batch[:length]))


@pytest.mark.parametrize("length", [0, 1, HEADER_SIZE - 1])
def test_a_short_header_is_refused(length: int) -> None:
    with pytest.raises(MalformedBatchError, match="where a batch header"):
        peek_header(bytes(length))


def test_a_short_extent_is_refused() -> None:
    with pytest.raises(MalformedBatchError, match="26 bytes where a batch header"):
        peek_extent(bytes(26))


@pytest.mark.parametrize(
    ("position", "form", "value", "message"),
    [
        (8, ">i", -1, "impossible length"),
        (8, ">i", 48, "impossible length"),
        (16, ">b", 1, "magic 1"),
        (23, ">i", -1, "negative count"),
        (57, ">i", -1, "negative count"),
    ],
)
def test_an_impossible_header_is_refused(position: int, form: str, value: int, message: str) -> None:
    batch = placed([Record(b"k", b"v")])
    struct.pack_into(form, batch, position, value)
    with pytest.raises(MalformedBatchError, match=message):
        peek_header(batch)


@given(record_lists, st.data())
def test_a_changed_byte_breaks_the_checksum(records: list[Record], data: st.DataObject) -> None:
    batch = placed(records)
    position = data.draw(st.integers(17, len(batch) - 1), label="position")
    batch[position] ^= data.draw(st.integers(1, 255), label="flip")
    header = attempt(lambda: peek_header(batch), MalformedBatchError)
    # an impossible header is noticed even sooner
    assert isinstance(header, MalformedBatchError) or not checksum_matches(header, batch)


@given(st.binary(max_size=60), st.integers(1, 2**31 - 1))
def test_records_of_any_bytes_are_read_or_malformed(body: bytes, count: int) -> None:
    batch = seal_batch(body, BatchFields(), count, 0, 0)
    outcome = attempt(lambda: list(iterate_records(batch)), MalformedBatchError)
    if isinstance(outcome, MalformedBatchError):
        assert "record" in str(outcome)
    else:
        assert len(outcome) == count


@pytest.mark.parametrize(
    ("body", "count"),
    [
        pytest.param(b"\x0b" + b"\x00" * 20, 2**31 - 1, id="a negative size that leads back"),
        pytest.param(b"", 1, id="no record"),
        pytest.param(b"\x0c\x00\x00\x00\x01\x01\x00\x00", 1, id="bytes after the last record"),
        pytest.param(b"\x0c\x00\x00\x00\x50\x01\x00", 1, id="a key past the end"),
    ],
)
def test_records_that_do_not_fill_their_batch_are_refused(body: bytes, count: int) -> None:
    with pytest.raises(MalformedBatchError, match="record"):
        list(iterate_records(seal_batch(body, BatchFields(), count, 0, 0)))


@pytest.mark.parametrize(
    ("attributes", "append_time", "codec"), [(0x08, True, 0), (LZ4_BITS, False, LZ4_BITS), (0x30, False, 0)]
)
def test_attributes_are_kafkas_bits(attributes: int, append_time: bool, codec: int) -> None:
    header = BatchHeader(0, 49, 0, 2, 0, attributes, 0, 0, 0, -1, -1, -1, 1)
    assert (header.has_append_time, header.compression) == (append_time, codec)
    assert header.is_control == header.is_transactional == (attributes == 0x30)
    assert not header.producer
