"""Where a log begins: it moves up durably, and whole segments below it are removed. No crash moves it back."""

import random
from pathlib import Path

import pytest

from dualwrite.broker.log.partition_log import PartitionLog
from dualwrite.broker.log.settings import LogSettings
from dualwrite.broker.process.disk import DiskFiles
from dualwrite.errors import CorruptLogError
from dualwrite.records.batch import Record
from dualwrite.records.header import HEADER_SIZE, peek_header, rebuild_batch
from dualwrite.testing.files import MemoryFiles
from tests.support.broker.logs import DIRECTORY, Reported, add, add_each, opened, whole
from tests.support.broker.simulated import Killed, StoppableFiles
from tests.support.strategies import placed

BATCH = 76  # bytes of one batch of ``add``
TWO_EACH = 160


def segments(files: MemoryFiles) -> list[int]:
    return [int(name[:20]) for name in files.list(DIRECTORY) if name.endswith(".log")]


def log_of(files: MemoryFiles, timestamps: list[int], segment_bytes: int = TWO_EACH) -> PartitionLog:
    """A log of two batches to a segment, with ``timestamps``."""
    log = opened(files, segment_bytes=segment_bytes)
    for timestamp in timestamps:
        add(log, Record(b"key", b"value", timestamp))
    log.sync()
    return log


@pytest.mark.parametrize(
    ("offset", "left"),
    [(0, [0, 2, 4]), (1, [0, 2, 4]), (2, [2, 4]), (3, [2, 4]), (4, [4]), (5, [4]), (6, [6])],
)
def test_truncation_moves_the_log_start_and_removes_whole_segments_below(offset: int, left: list[int]) -> None:
    files = MemoryFiles()
    log = log_of(files, [1000] * 6)
    everything = whole(log)
    log.truncate_before(offset)
    for found in (log, opened(files), opened(files.power_cut(random.Random(1)))):
        assert (found.start_offset, found.end_offset) == (offset, 6)
        assert whole(found) == everything[offset * BATCH :]
    assert segments(files) == left
    assert log.size_bytes == everything[left[0] * BATCH :].__len__()


def test_the_log_start_never_moves_back() -> None:
    files = MemoryFiles()
    log = log_of(files, [1000] * 6)
    log.truncate_before(3)
    log.truncate_before(2)
    assert opened(files).start_offset == log.start_offset == 3


def test_a_log_whose_end_was_not_synced_does_not_end_before_its_start_after_a_power_cut() -> None:
    """With ``durability=os`` readers see records that are not synced, and may delete up to them."""
    for seed in range(8):
        files = MemoryFiles()
        log = opened(files)
        for _ in range(3):
            add(log, Record(b"key", b"value", 1000))
        log.truncate_before(2)
        found = opened(files.power_cut(random.Random(seed)))
        assert (found.start_offset, found.end_offset) == (2, 3)


def test_an_emptied_log_continues_at_its_end() -> None:
    files = MemoryFiles()
    log = log_of(files, [1000] * 3)
    log.truncate_before(3)
    assert not log.removes_segments(3)
    add(log)
    log.sync()
    reported = Reported()
    again = opened(files, reported=reported)
    assert (again.start_offset, again.end_offset, reported.offsets, segments(files)) == (3, 4, [3], [3])


def test_records_below_the_start_have_no_timestamps_any_more() -> None:
    log = opened(MemoryFiles(), segment_bytes=500)
    add(log, Record(None, b"a", 900), Record(None, b"b", 100), Record(None, b"c", 300))
    add_each(log, [200, 400])
    log.truncate_before(1)
    assert log.offset_for_timestamp(0, 5) == (100, 1)
    assert log.offset_for_timestamp(350, 5) == (400, 4)
    assert log.offset_for_timestamp(500, 5) is None
    log.truncate_before(3)
    assert log.max_timestamp(5) == (400, 4)
    assert log.offset_for_timestamp(0, 5) == (200, 3)


@pytest.mark.parametrize("start", [4, 5])
def test_a_crash_at_any_moment_leaves_the_old_start_or_the_new_one(start: int) -> None:
    for stop_at in range(60):
        seen = set()
        for seed in range(8):
            beneath = MemoryFiles()
            log_of(beneath, [1000] * 7).close()
            rng = random.Random(seed)
            files = StoppableFiles(beneath, rng, stop_at)
            done = False
            try:
                log = opened(files, segment_bytes=TWO_EACH)  # type: ignore[arg-type]
                log.truncate_before(start)
                done = True
            except Killed:
                pass
            for after in (beneath, beneath.power_cut(rng)):
                reported = Reported()
                again = opened(after, segment_bytes=TWO_EACH, reported=reported)
                assert again.end_offset == 7
                assert again.start_offset in ((start,) if done else (0, start))
                assert min(segments(after)) == (4 if again.start_offset else 0)
                assert reported.offsets == list(range(min(segments(after)), 7))
                seen.add(again.start_offset)
        if done:
            assert stop_at > 8, "too few uses of the disk to prove anything"
            return
    raise AssertionError("it never came to the end")


def test_a_log_that_ends_before_its_start_is_refused() -> None:
    files = MemoryFiles()
    log = log_of(files, [1000] * 6)
    log.truncate_before(5)
    segment = files.open(DIRECTORY / f"{4:020}.log")
    segment.truncate(10)
    with pytest.raises(CorruptLogError, match="at offset 4, but the log should begin at 5"):
        opened(files)
    assert segment.size() == 10


def test_a_start_that_is_another_logs_removes_nothing() -> None:
    files = MemoryFiles()
    log = log_of(files, [1000] * 6)
    log.sync()
    before = segments(files)
    note = files.open(DIRECTORY / "log-start-offset")
    note.append(b"1000\n")
    with pytest.raises(CorruptLogError, match="at offset 6, but the log should begin at 1000"):
        opened(files)
    assert segments(files) == before


def test_a_start_beyond_the_end_is_a_mistake_of_the_caller() -> None:
    with pytest.raises(AssertionError, match="offset 4, log ends at 3"):
        log_of(MemoryFiles(), [1000] * 3).truncate_before(4)


@pytest.mark.parametrize(
    ("timestamps", "oldest", "limit", "expired"),
    [
        pytest.param([1, 2, 3, 4, 5, 6], 3, 6, 2, id="whole segments alone"),
        pytest.param([1, 2, 3, 4, 5, 6], 4, 6, 2, id="the last record counts"),
        pytest.param([1, 2, 3, 4, 5, 6], 5, 6, 4, id="two segments"),
        pytest.param([1, 2, 3, 4, 5, 6], 7, 6, 6, id="everything"),
        pytest.param([1, 2, 3, 4, 5, 6], 7, 5, 4, id="not above the high watermark"),
        pytest.param([1, 9, 3, 4, 5, 6], 7, 6, 0, id="the oldest first"),
        pytest.param([-1, -1, 3, 4, 5, 6], 7, 6, 0, id="no timestamp is no age"),
        pytest.param([], 7, 0, 0, id="an empty log"),
    ],
)
def test_segments_expire_by_their_largest_timestamp(
    timestamps: list[int], oldest: int, limit: int, expired: int
) -> None:
    assert log_of(MemoryFiles(), timestamps).expired_before(oldest, limit) == expired


@pytest.mark.parametrize(
    ("retention", "limit", "oversized"),
    [
        (6 * BATCH, 6, 0),
        (4 * BATCH + 1, 6, 0),
        (4 * BATCH, 6, 2),
        (BATCH, 6, 4),
        (0, 6, 6),
        (0, 3, 2),
    ],
)
def test_the_oldest_segments_beyond_the_retention_size_are_removed(retention: int, limit: int, oversized: int) -> None:
    assert log_of(MemoryFiles(), [1000] * 6).oversized_before(retention, limit) == oversized


def test_a_segment_whose_records_a_cleaner_has_removed_expires_by_their_timestamp() -> None:
    files = MemoryFiles()
    log = log_of(files, [1000, 1010, 1020, 1030, 1040, 1050])
    replacement = log.begin_replacement(log.sealed_segments()[:1])
    for header, _ in replacement.old[0].batches():
        replacement.leave_out(header)
    replacement.finish()
    assert log.replace(replacement)
    for found in (log, opened(files)):
        assert [found.expired_before(oldest, 6) for oldest in (1010, 1011, 1031)] == [0, 2, 4]


def test_retention_begins_at_the_start_of_the_log() -> None:
    log = log_of(MemoryFiles(), [1000] * 6)
    log.truncate_before(3)
    assert log.expired_before(0, 6) == log.oversized_before(1 << 30, 6) == 3
    assert log.expired_before(2000, 6) == 6


def test_a_new_segment_begins_when_the_last_is_too_old() -> None:
    files = MemoryFiles()
    log = opened(files)
    log.settings = LogSettings(segment_ms=100)
    assert not log.roll_if_due(10**15), "an empty one has no age"
    add_each(log, [1000, 1100, 1101, 1150, 900])
    assert segments(files) == [0, 2]
    assert not log.roll_if_due(1201)
    assert log.roll_if_due(1202)
    assert not log.roll_if_due(5000)
    assert segments(files) == [0, 2, 5]
    assert whole(opened(files)) == whole(log)


def test_a_new_segment_begins_when_an_index_is_full() -> None:
    files = MemoryFiles()
    log = opened(files)
    log.settings = LogSettings(index_interval_bytes=1, segment_index_bytes=24)
    for timestamp in range(8):
        add(log, Record(None, b"v", timestamp))
    assert segments(files) == [0, 3, 6], "two entries of twelve bytes for times"
    log.settings = LogSettings(index_interval_bytes=1, segment_index_bytes=32)
    for _ in range(10):
        add(log, Record(None, b"v", 0))
    assert segments(files) == [0, 3, 6, 11, 16], "four entries of eight bytes for offsets"


def test_a_segment_spans_no_more_offsets_than_its_index_can_count() -> None:
    files = MemoryFiles()
    log = opened(files)
    add(log)
    compacted = peek_header(placed([Record(b"key", b"value", 1000)], 1))._replace(last_offset_delta=2**31 - 3)
    log.append(rebuild_batch(compacted, placed([Record(b"key", b"value", 1000)], 1)[HEADER_SIZE:]))
    assert log.end_offset == 2**31 - 1
    add(log)
    add(log)
    assert segments(files) == [0, 2**31]


def test_settings_may_change_while_the_log_is_open() -> None:
    files = MemoryFiles()
    log = opened(files)
    for _ in range(4):
        add(log)
    log.settings = LogSettings(segment_bytes=TWO_EACH)
    for _ in range(4):
        add(log)
    assert segments(files) == [0, 4, 6]


def test_sealed_segments_do_not_hold_files_open(tmp_path: Path) -> None:
    log = opened(DiskFiles(), tmp_path, segment_bytes=1)
    before = open_descriptors()
    batches = [add(log) for _ in range(300)]
    assert open_descriptors() - before < 5
    assert b"".join(log.read(offset, 1, 300) for offset in range(300)) == b"".join(batches)
    assert open_descriptors() - before < 135, "those that were read last stay open, a bounded number"
    log.close()


def open_descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))
