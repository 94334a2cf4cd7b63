"""Reading a log: whole batches within bounds, offsets for timestamps, appends that must not be."""

from pathlib import Path

import pytest
from kafka.record.memory_records import MemoryRecords, MemoryRecordsBuilder

from dualwrite.broker.log.partition_log import PartitionLog
from dualwrite.broker.process.disk import DiskFiles
from dualwrite.records.batch import Record
from dualwrite.records.header import BatchFields, MalformedBatchError, peek_header, place_batch, seal_batch
from dualwrite.testing.files import MemoryFiles
from tests.support.broker.logs import add, add_each, opened, whole
from tests.support.strategies import placed

GZIP = 1


def log_of(count: int, segment_bytes: int = 1 << 30) -> tuple[PartitionLog, list[bytes]]:
    """A log of ``count`` batches of one record each, all of one size."""
    log = opened(MemoryFiles(), segment_bytes=segment_bytes)
    return log, [add(log) for _ in range(count)]


def add_placed(log: PartitionLog, batch: bytes) -> None:
    """Append a batch that another library built."""
    placed_batch = bytearray(batch)
    place_batch(placed_batch, log.end_offset, 0)
    log.append(placed_batch)


@pytest.mark.parametrize(
    ("offset", "max_batches", "before", "expected"),
    [
        pytest.param(0, 9, 4, range(4), id="everything"),
        pytest.param(2, 9, 4, range(2, 4), id="from the middle"),
        pytest.param(0, 9, 2, range(2), id="up to a bound"),
        pytest.param(1, 1, 4, range(1, 2), id="one"),
        pytest.param(0, 2.5, 4, range(2), id="half a batch is none"),
        pytest.param(1, 0.5, 4, range(1, 2), id="the first is given though it is too large"),
        pytest.param(4, 9, 4, range(0), id="at the end"),
        pytest.param(9, 9, 4, range(0), id="beyond the end"),
        pytest.param(2, 9, 2, range(0), id="at the bound"),
        pytest.param(3, 9, 2, range(0), id="beyond the bound"),
        pytest.param(0, 9, 0, range(0), id="nothing is visible"),
        pytest.param(0, 9, 99, range(4), id="a bound beyond the end"),
    ],
)
def test_a_read_returns_whole_batches_within_its_bounds(
    offset: int, max_batches: float, before: int, expected: range
) -> None:
    log, batches = log_of(4)
    max_bytes = int(max_batches * len(batches[0]))
    assert log.read(offset, max_bytes, before) == b"".join(batches[index] for index in expected)


def test_a_first_batch_that_is_too_large_can_be_declined() -> None:
    log, batches = log_of(3)
    assert log.read(1, len(batches[1]) - 1, 3, at_least_one=False) == b""
    assert log.read(1, len(batches[1]), 3, at_least_one=False) == batches[1]
    assert log.read(1, 0, 3, at_least_one=True) == batches[1]


def test_an_offset_inside_a_batch_reads_the_whole_batch() -> None:
    log = opened(MemoryFiles())
    first = add(log, *[Record(b"k", b"v")] * 5)
    second = add(log, *[Record(b"k", b"v")] * 5)
    assert log.read(3, 1000, 10) == first + second
    assert log.read(4, len(first), 10) == first
    assert log.read(5, 1000, 10) == second


def test_a_batch_that_reaches_the_bound_is_withheld_whole() -> None:
    log = opened(MemoryFiles())
    first = add(log, *[Record(b"k", b"v")] * 5)
    add(log, *[Record(b"k", b"v")] * 5)
    assert [log.read(0, 1000, before) for before in (4, 5, 9)] == [b"", first, first]


def test_a_read_stops_at_the_end_of_a_segment() -> None:
    log, batches = log_of(5, segment_bytes=160)
    assert [log.read(offset, 1000, 5) for offset in range(6)] == [
        batches[0] + batches[1],
        batches[1],
        batches[2] + batches[3],
        batches[3],
        batches[4],
        b"",
    ]
    assert whole(log) == b"".join(batches)


def test_a_batch_larger_than_a_segment_has_a_segment_of_its_own() -> None:
    files = MemoryFiles()
    log = opened(files, segment_bytes=100)
    large = add(log, Record(None, b"x" * 1000))
    small = add(log)
    assert files.list(log.directory) == [f"{base:020}.log" for base in (0, 1)]
    assert whole(log) == large + small


def test_reading_below_the_start_is_a_mistake_of_the_caller() -> None:
    files = MemoryFiles()
    log = opened(files, segment_bytes=1)
    add_each(log, [1, 2, 3])
    log.truncate_before(1)
    with pytest.raises(AssertionError, match="offset 0, log begins at 1"):
        opened(files).read(0, 100, 3)


def test_reads_agree_with_a_plain_list_across_index_entries(tmp_path: Path) -> None:
    """Enough small batches for many index entries, on a real disk."""
    log = opened(DiskFiles(), tmp_path, segment_bytes=100_000)
    batches = [add(log, Record(b"k", b"v" * (index * 37 % 300))) for index in range(3000)]
    starts = [int(name[:20]) for name in DiskFiles().list(tmp_path)]
    assert len(starts) > 5
    for offset in range(0, 3000, 13):
        for limit in (1, 5_000, 60_000):
            segment_end = min((start for start in starts if start > offset), default=3000)
            expected = b""
            for batch in batches[offset : min(segment_end, 2900)]:
                if expected and len(expected) + len(batch) > limit:
                    break
                expected += batch
            assert log.read(offset, limit, before=2900) == expected
        if offset < 2900:
            assert log.size_between(offset, 2900) == len(log.read(offset, 1 << 20, before=2900))
    log.close()


def test_a_batch_at_another_offset_than_the_end_is_a_mistake_of_the_caller() -> None:
    log, _ = log_of(2)
    for offset in (0, 1, 3):
        with pytest.raises(AssertionError, match=f"batch at {offset}, log ends at 2"):
            log.append(placed([Record(None, None)], offset))
    assert log.end_offset == 2


def test_a_buffer_that_is_not_one_batch_is_a_mistake_of_the_caller() -> None:
    log, _ = log_of(0)
    batch = placed([Record(None, None)])
    for wrong in (batch + b"x", batch[:-1], batch + batch):
        with pytest.raises(AssertionError, match=f"in a buffer of {len(wrong)}"):
            log.append(wrong)
    with pytest.raises(MalformedBatchError):
        log.append(bytearray(10))
    assert (log.end_offset, log.unsynced, whole(log)) == (0, False, b"")


@pytest.mark.parametrize("segment_bytes", [1, 200, 1 << 30])
@pytest.mark.parametrize(
    ("timestamp", "before", "found"),
    [
        pytest.param(0, 8, (100, 0), id="older than everything"),
        pytest.param(100, 8, (100, 0), id="exactly"),
        pytest.param(101, 8, (300, 1), id="in between"),
        pytest.param(301, 8, (400, 3), id="out of order: the first by offset"),
        pytest.param(401, 8, (700, 6), id="among equal ones the first"),
        pytest.param(701, 8, None, id="newer than everything"),
        pytest.param(401, 6, None, id="only beyond the bound"),
        pytest.param(401, 7, (700, 6), id="just before the bound"),
        pytest.param(0, 0, None, id="nothing is visible"),
    ],
)
def test_a_timestamp_finds_the_first_record_at_or_after_it(
    segment_bytes: int, timestamp: int, before: int, found: tuple[int, int] | None
) -> None:
    log = opened(MemoryFiles(), segment_bytes=segment_bytes)
    add_each(log, [100, 300, 200, 400, 250, 400, 700, 700])
    assert log.offset_for_timestamp(timestamp, before) == found


def test_a_timestamp_is_found_to_the_record() -> None:
    log = opened(MemoryFiles())
    add(log, Record(None, b"a", 10), Record(None, b"b", 30), Record(None, b"c", 20), Record(None, b"d", 40))
    assert [log.offset_for_timestamp(timestamp, 4) for timestamp in (10, 11, 30, 31, 41)] == [
        (10, 0),
        (30, 1),
        (30, 1),
        (40, 3),
        None,
    ]
    assert log.offset_for_timestamp(31, 3) is None


def test_timestamps_are_found_across_index_entries() -> None:
    log = opened(MemoryFiles(), segment_bytes=30_000)
    timestamps = [index * 7 % 1000 for index in range(2000)]
    add_each(log, timestamps)
    for wanted in range(0, 1001, 9):
        expected = next(((at, offset) for offset, at in enumerate(timestamps) if at >= wanted), None)
        assert log.offset_for_timestamp(wanted, 2000) == expected
    for before in range(0, 2001, 37):
        highest = max(timestamps[:before], default=None)
        expected = None if highest is None else (highest, timestamps.index(highest))
        assert log.max_timestamp(before) == expected


def test_a_compressed_batch_is_opened_for_its_records_timestamps() -> None:
    log = opened(MemoryFiles())
    add_each(log, [5])
    builder = MemoryRecordsBuilder(magic=2, compression_type=GZIP, batch_size=1 << 16)
    for timestamp in (10, 20, 30):
        builder.append(timestamp, None, b"v" * 100)
    builder.close()
    add_placed(log, builder.buffer())
    assert peek_header(log.read(1, 1000, 4)).compression == GZIP
    assert log.offset_for_timestamp(7, 4) == (10, 1)
    assert log.offset_for_timestamp(15, 4) == (20, 2)
    assert log.max_timestamp(4) == (30, 3)
    assert log.offset_for_timestamp(31, 4) is None


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(b"\xff" * 20, id="nonsense"),
        pytest.param(b"\x0c\x00\x00\x00\x01\x01\x00", id="all older than claimed"),
    ],
)
def test_records_that_contradict_their_header_count_as_unreadable(body: bytes) -> None:
    log = opened(MemoryFiles())
    add_placed(log, seal_batch(body, BatchFields(), 1, first_timestamp=10, max_timestamp=20))
    assert log.offset_for_timestamp(15, 1) == (20, 0)


def test_append_time_is_the_time_of_every_record() -> None:
    log = opened(MemoryFiles())
    batch = placed([Record(None, b"a", 10), Record(None, b"b", 90)])
    batch[22] |= 0x08  # LogAppendTime
    log.append(batch)
    assert log.offset_for_timestamp(50, 2) == (90, 0)


def test_the_highest_timestamp_of_an_empty_log_is_none() -> None:
    log, _ = log_of(0)
    assert log.max_timestamp(0) is None
    assert log.offset_for_timestamp(0, 0) is None
    assert log.offset_for_timestamp(-1, 5) is None


def test_records_without_a_timestamp_are_found_as_such() -> None:
    log = opened(MemoryFiles())
    add_each(log, [-1, -1])
    assert log.offset_for_timestamp(0, 2) is None
    assert log.max_timestamp(2) == (-1, 0)


def test_kafka_python_reads_the_segment_files(tmp_path: Path) -> None:
    log = opened(DiskFiles(), tmp_path)
    add_each(log, [100, 200, 300])
    log.close()
    theirs = MemoryRecords((tmp_path / "00000000000000000000.log").read_bytes())
    found = []
    while theirs.has_next():
        batch = theirs.next_batch()
        assert batch.validate_crc()
        found.extend((record.offset, record.timestamp, record.value) for record in batch)
    assert found == [(0, 100, b"v"), (1, 200, b"v"), (2, 300, b"v")]
