"""Batches of the native producer: what is gathered is what kafka-python and aiokafka read, in every codec."""

import gzip
from collections.abc import Sequence
from typing import NamedTuple

import pytest
from aiokafka.record.memory_records import MemoryRecords as AiokafkaRecords
from hypothesis import example, given
from hypothesis import strategies as st
from kafka.record.memory_records import MemoryRecords

from dualwrite.client.encoding.batches import BatchBuilder, Headers, record_size
from dualwrite.ids import ProducerIdentity
from dualwrite.records.compression import Codec, batch_body
from dualwrite.records.header import HEADER_SIZE, MAX_SEQUENCE, checksum_matches, peek_header
from tests.support.strategies import LATEST_TIMESTAMP, maybe_bytes, producers, timestamps

LARGE = 1 << 30
IDENTITY = ProducerIdentity(4711, 3)


class Entry(NamedTuple):
    key: bytes | None
    value: bytes | None
    headers: Headers = ()
    timestamp: int = 0


header_lists = st.lists(st.tuples(st.text(max_size=8), maybe_bytes), max_size=3)
entries = st.lists(st.builds(Entry, maybe_bytes, maybe_bytes, header_lists, timestamps), min_size=1, max_size=6)

ODD = [
    Entry(None, None),
    Entry(b"", b"", [("", b""), ("", None)], LATEST_TIMESTAMP),
    Entry(b"k", None, [("same", b"1"), ("same", b"2")], 1),
    Entry("ключ".encode(), bytes(range(256)) * 300, [("имя", None)] * 70, 0),
]


def gathered(records: Sequence[Entry], limit: int = LARGE) -> BatchBuilder:
    builder = BatchBuilder(limit)
    for entry in records:
        builder.append(*entry)
    return builder


def read_by_kafka_python(batch: bytes) -> list[Entry]:
    (read,) = list(MemoryRecords(batch))
    assert read.validate_crc()
    return [Entry(record.key, record.value, record.headers, record.timestamp) for record in read]


def read_by_aiokafka(batch: bytes) -> list[Entry]:
    read = AiokafkaRecords(batch).next_batch()
    assert read is not None
    assert read.validate_crc()
    return [Entry(record.key, record.value, record.headers, record.timestamp) for record in read]


@given(entries, st.sampled_from(Codec), producers, st.integers(0, MAX_SEQUENCE))
@example(ODD, Codec.NONE, IDENTITY, 0)
@example(ODD, Codec.GZIP, IDENTITY, 0)
@example(ODD, Codec.SNAPPY, IDENTITY, 0)
@example(ODD, Codec.LZ4, IDENTITY, 0)
@example(ODD, Codec.ZSTD, IDENTITY, MAX_SEQUENCE)
def test_other_clients_read_the_built_batches(
    records: list[Entry], codec: Codec, producer: ProducerIdentity, sequence: int
) -> None:
    batch = gathered(records).seal(codec, None, producer, sequence)
    expected = [entry._replace(headers=tuple(entry.headers)) for entry in records]
    for read in (read_by_kafka_python, read_by_aiokafka):
        assert [entry._replace(headers=tuple(entry.headers)) for entry in read(batch)] == expected
    header = peek_header(batch)
    assert (header.size, header.base_offset, header.record_count) == (len(batch), 0, len(records))
    assert (header.producer, header.base_sequence) == (producer, sequence)
    assert header.is_transactional
    assert not header.is_control
    assert header.base_timestamp == records[0].timestamp
    assert header.max_timestamp == max(entry.timestamp for entry in records)
    assert checksum_matches(header, batch)


@pytest.mark.parametrize("count", [1, 127, 128, 20_000])
def test_offsets_count_up_past_every_table(count: int) -> None:
    batch = gathered([Entry(None, None)] * count).seal(Codec.NONE, None, IDENTITY, 0)
    (read,) = list(MemoryRecords(batch))
    assert [record.offset for record in read] == list(range(count))
    assert peek_header(batch).last_offset_delta == count - 1


@pytest.mark.parametrize("size", [0, 63, 64, 16_383, 16_384, 3_000_000])
def test_sizes_count_up_past_every_table(size: int) -> None:
    entry = Entry(b"k" * size, b"v" * size, [("h" * size, b"x" * size)])
    assert read_by_kafka_python(gathered([entry]).seal(Codec.NONE, None, IDENTITY, 0)) == [entry]


@pytest.mark.parametrize("later", [-LATEST_TIMESTAMP, -1, 0, 63, 16_384, LATEST_TIMESTAMP])
def test_a_later_record_may_be_of_any_time(later: int) -> None:
    records = [Entry(b"a", b"b", (), LATEST_TIMESTAMP), Entry(b"c", b"d", (), LATEST_TIMESTAMP + later)]
    batch = gathered(records).seal(Codec.NONE, None, IDENTITY, 0)
    assert [entry.timestamp for entry in read_by_kafka_python(batch)] == [entry.timestamp for entry in records]
    assert peek_header(batch).max_timestamp == max(LATEST_TIMESTAMP, LATEST_TIMESTAMP + later)


@pytest.mark.parametrize("codec", [codec for codec in Codec if codec])
def test_only_compressible_batches_are_stored_compressed(codec: Codec) -> None:
    regular = gathered([Entry(b"key", b"value " * 500)])
    batch = regular.seal(codec, None, IDENTITY, 0)
    assert peek_header(batch).compression == codec
    assert len(batch) < regular.size / 2
    tiny = gathered([Entry(None, b"v")])
    assert tiny.seal(codec, None, IDENTITY, 0) == tiny.seal(Codec.NONE, None, IDENTITY, 0)


@pytest.mark.parametrize(("codec", "least", "most"), [(Codec.GZIP, 1, 9), (Codec.ZSTD, -50, 12)])
def test_a_level_is_passed_on(codec: Codec, least: int, most: int) -> None:
    builder = gathered([Entry(b"%d" % number, b"%d" % (number * 7919 % 10007)) for number in range(5000)])
    sizes = [len(builder.seal(codec, level, IDENTITY, 0)) for level in (least, most)]
    assert sizes[1] < sizes[0]


@given(entries)
def test_the_size_is_that_of_the_batch_and_has_an_upper_bound(records: list[Entry]) -> None:
    builder, bound = BatchBuilder(LARGE), HEADER_SIZE
    for entry in records:
        builder.append(*entry)
        bound += record_size(entry.key, entry.value, entry.headers)
        assert builder.size <= bound
    assert builder.size == len(builder.seal(Codec.NONE, None, IDENTITY, 0))
    assert builder.count == len(records)


@given(entries, st.integers(0, 400))
def test_a_batch_with_room_for_its_records_stays_within_the_limit(records: list[Entry], limit: int) -> None:
    builder = BatchBuilder(limit)
    for entry in records:
        if builder.has_room(record_size(entry.key, entry.value, entry.headers)):
            builder.append(*entry)
    assert builder.count >= 1, "the first record has room, however large it is"
    assert builder.count == 1 or builder.size <= limit


def test_a_batch_can_be_sealed_again_with_another_identity() -> None:
    builder = gathered(ODD)
    first, second = (builder.seal(Codec.GZIP, 1, ProducerIdentity(1, epoch), epoch) for epoch in (7, 8))
    assert read_by_kafka_python(first) == read_by_kafka_python(second)
    assert peek_header(second).producer == ProducerIdentity(1, 8)
    assert gzip.decompress(second[HEADER_SIZE:]) == batch_body(peek_header(first), first)
