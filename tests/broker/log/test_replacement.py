"""One segment in place of several: empty batches fill the gaps, and a crash leaves the old segments or the new one."""

import os
import random
from collections.abc import Iterable, Sequence
from pathlib import Path

import pytest

from dualwrite.broker.facts.transaction_index import IndexedTransaction
from dualwrite.broker.log.layout import LOG, name_at
from dualwrite.broker.log.partition_log import PartitionLog
from dualwrite.broker.log.recovery import OnSnapshot
from dualwrite.broker.log.replacement import Replacement
from dualwrite.broker.log.settings import LogSettings
from dualwrite.broker.process.disk import DiskFiles
from dualwrite.errors import CorruptLogError
from dualwrite.ids import ProducerIdentity
from dualwrite.ports import Files
from dualwrite.records.batch import Record
from dualwrite.records.control import Marker, build_marker
from dualwrite.records.header import iterate_batches, place_batch
from dualwrite.records.rewriting import empty_batch
from dualwrite.testing.files import MemoryFiles
from tests.support.broker.logs import DIRECTORY, add, add_each, opened, whole
from tests.support.broker.simulated import Killed, StoppableFiles

TWO_EACH = 160
ALL = range(10)


def log_of_ten(files: Files, directory: Path = DIRECTORY) -> PartitionLog:
    """Batches 0 to 9, two to a segment, all but the last two sealed."""
    log = opened(files, directory, segment_bytes=TWO_EACH)
    for number in ALL:
        add(log, Record(b"key", b"val%02d" % number, 1000 + number))
    log.sync()
    return log


def written(log: PartitionLog, first: int, last: int, kept: Iterable[int]) -> Replacement:
    """What shall stand for the sealed segments number ``first`` to ``last``: their batches with offsets in ``kept``."""
    old = log.sealed_segments()[first : last + 1]
    replacement = log.begin_replacement(old)
    for segment in old:
        for header, batch in segment.batches():
            if header.base_offset in kept:
                replacement.append(batch)
            else:
                replacement.leave_out(header)
    replacement.finish()
    return replacement


def from_point(files: Files, on_snapshot: OnSnapshot = lambda *_: None) -> PartitionLog:
    """The log as a restart opens it, from its recovery point on."""
    return PartitionLog.open(files, DIRECTORY, LogSettings(TWO_EACH), lambda *_: None, on_snapshot)


def ranges(batches: bytes) -> list[tuple[int, int]]:
    """The first and the last offset of each batch."""
    return [(header.base_offset, header.last_offset) for header, _ in iterate_batches(batches)]


def offsets(log: PartitionLog) -> list[int]:
    return offsets_in(whole(log))


def offsets_in(batches: bytes) -> list[int]:
    return [header.base_offset for header, _ in iterate_batches(batches) if header.record_count]


def names(files: Files, directory: Path = DIRECTORY) -> list[str]:
    return [name for name in files.list(directory) if name.endswith((".log", ".cleaned", ".swap"))]


@pytest.mark.parametrize(
    ("first", "last", "kept"),
    [
        (0, 3, (0, 7)),
        (0, 3, (1, 2, 6)),
        (0, 3, ()),
        (0, 0, (1,)),
        (1, 2, (3,)),
        (1, 2, ()),
        (3, 3, ()),
        (0, 3, range(8)),
    ],
)
def test_readers_get_what_is_left_and_an_empty_batch_for_each_gap(first: int, last: int, kept: Sequence[int]) -> None:
    files = MemoryFiles()
    log = log_of_ten(files)
    assert log.replace(written(log, first, last, kept))
    expected = [base for base in ALL if not 2 * first <= base < 2 * last + 2 or base in kept]
    for found in (log, opened(files, segment_bytes=TWO_EACH), opened(files.power_cut(random.Random(1)))):
        assert offsets(found) == expected
        assert (found.start_offset, found.end_offset) == (0, 10)
        extents = ranges(whole(found))
        assert [offset for begin, end in extents for offset in range(begin, end + 1)] == list(ALL)
        for offset in ALL:
            following = [base for base in expected if base >= offset]
            for before in range(offset, 11):
                containing = [(begin, end) for begin, end in extents if begin <= offset <= end < before]
                assert ranges(found.read(offset, 1, before)) == containing, (offset, before)
            assert found.offset_for_timestamp(1000 + offset, 10) == (1000 + following[0], following[0])
        assert found.max_timestamp(10) == (1009, 9)
    assert len(names(files)) == 5 - (last - first)


def test_a_replaced_segment_may_be_replaced_again() -> None:
    files = MemoryFiles()
    log = log_of_ten(files)
    assert log.replace(written(log, 0, 1, (0, 3)))
    assert log.replace(written(log, 1, 2, (5, 6)))
    assert ranges(whole(log)) == [(0, 0), (1, 2), (3, 3), (4, 4), (5, 5), (6, 6), (7, 7), (8, 8), (9, 9)]
    assert log.replace(written(log, 0, 1, (3, 6)))
    assert offsets(opened(files)) == offsets(log) == [3, 6, 8, 9]
    assert ranges(whole(opened(files))) == [(0, 2), (3, 3), (4, 5), (6, 6), (7, 7), (8, 8), (9, 9)]
    assert names(files) == [f"{base:020}.log" for base in (0, 8)]


def test_a_replacement_of_removed_segments_is_discarded() -> None:
    files = MemoryFiles()
    log = log_of_ten(files)
    replacement = written(log, 0, 2, (0, 5))
    log.truncate_before(3)
    assert not log.replace(replacement)
    assert (offsets(opened(files))[0], names(files)[0]) == (3, f"{2:020}.log")
    assert not any("cleaned" in name for name in files.list(DIRECTORY))


def test_a_replacement_that_was_given_up_leaves_nothing_in_the_next_one() -> None:
    files = MemoryFiles()
    log = log_of_ten(files)
    written(log, 0, 3, ALL)
    assert log.replace(written(log, 0, 3, (0, 7)))
    assert offsets(log) == offsets(opened(files)) == [0, 7, 8, 9]


def test_a_recovery_point_that_waits_writes_no_index_of_the_old_segments_for_the_new_one() -> None:
    files = MemoryFiles()
    log = log_of_ten(files)
    replacement = written(log, 0, 3, (0, 7))
    log.plan_recovery_point([], lambda _: [])
    assert log.replace(replacement)
    log.write_recovery_points()
    again = from_point(files)
    assert again.repairs == []
    for found in (log, again):
        assert offsets(found) == [0, 7, 8, 9]
        assert found.offset_for_timestamp(1007, 10) == (1007, 7)


@pytest.mark.parametrize("marker_is", ["there", "emptied", "gone"])
def test_a_restart_knows_an_aborted_transaction_only_while_its_marker_is_there(marker_is: str) -> None:
    """Without the marker a reader would skip what the producer has committed since."""
    files, aborted = MemoryFiles(), [IndexedTransaction(7, 0, 1)]
    log = opened(files, segment_bytes=TWO_EACH)
    add(log)
    marker = bytearray(build_marker(Marker.ABORT, ProducerIdentity(7, 0), 0, 1003))
    place_batch(marker, log.end_offset, 0)
    log.append(marker)
    add(log)
    log.plan_recovery_point([], lambda _: aborted)
    log.write_recovery_points()
    replacement = log.begin_replacement(log.sealed_segments())
    for segment in log.sealed_segments():
        for header, batch in segment.batches():
            if not header.is_control or marker_is == "there":
                replacement.append(batch)
            elif marker_is == "emptied":
                replacement.append(empty_batch(header))
            else:
                replacement.leave_out(header)
    replacement.finish()
    assert log.replace(replacement, aborted)
    found: list[IndexedTransaction] = []
    assert from_point(files, lambda _, producers, aborted: found.extend(aborted)).repairs == []
    assert found == (aborted if marker_is == "there" else [])


def test_a_segment_that_replaces_others_holds_no_file_open(tmp_path: Path) -> None:
    log = log_of_ten(DiskFiles(), tmp_path)
    assert log.replace(written(log, 0, 3, (0, 7)))
    opened_files = [os.readlink(link) for link in Path("/proc/self/fd").iterdir() if link.is_symlink()]
    assert str(tmp_path / name_at(0, LOG)) not in opened_files
    assert offsets(log) == [0, 7, 8, 9]
    log.close()


def test_a_log_that_begins_within_a_replaced_segment_still_does() -> None:
    log = log_of_ten(MemoryFiles())
    replacement = written(log, 0, 3, (0, 7))
    log.truncate_before(1)
    assert log.replace(replacement)
    assert (log.start_offset, offsets(log)) == (1, [7, 8, 9])


def test_a_crash_at_any_moment_leaves_the_old_segments_or_the_new_one() -> None:
    before, after = list(ALL), [0, 7, 8, 9]
    seen: list[set[tuple[int, ...]]] = []
    for stop_at in range(80):
        done, found = False, set()
        for seed in range(8):
            beneath = MemoryFiles()
            log = log_of_ten(beneath)
            log.plan_recovery_point([], lambda _: [])
            log.write_recovery_points()
            log.close()
            rng = random.Random(seed)
            files = StoppableFiles(beneath, rng, stop_at)
            try:
                log = opened(files, segment_bytes=TWO_EACH)  # type: ignore[arg-type]
                done = log.replace(written(log, 0, 3, (0, 7)))
            except Killed:
                pass
            for disk in (beneath, beneath.power_cut(rng)):
                again = from_point(disk)
                assert again.repairs == [], "no index is missing, and none is that of another segment"
                assert again.end_offset == 10
                assert offsets(again) in ([after] if done else [before, after])
                assert len(names(disk)) == (5 if offsets(again) == before else 2), "nothing unfinished is left"
                found.add(tuple(offsets(again)))
        seen.append(found)
        if done:
            assert {tuple(before), tuple(after)} in seen, "never undecided: too little is proved"
            return
    raise AssertionError("it never came to the end")


def test_a_missing_segment_behind_a_compacted_one_is_refused() -> None:
    files = MemoryFiles()
    log = log_of_ten(files)
    log.replace(written(log, 0, 0, (1,)))
    files.remove(DIRECTORY / f"{4:020}.log")
    with pytest.raises(CorruptLogError, match="begins at offset 6, but the segment before it ends at 4"):
        opened(files)


def test_a_missing_batch_within_a_segment_is_refused() -> None:
    files = MemoryFiles()
    log = opened(files, segment_bytes=240)
    batches = [add(log) for _ in range(4)]
    path = DIRECTORY / f"{0:020}.log"
    file = files.open(path)
    file.truncate(0)
    file.append(batches[0] + batches[2])
    with pytest.raises(CorruptLogError, match="at byte 76: offset 2 after 0"):
        opened(files)


def test_batches_of_others_are_refused() -> None:
    log = log_of_ten(MemoryFiles())
    sealed = log.sealed_segments()
    (_, zero), (_, one) = sealed[0].batches()
    (header, two), *_ = sealed[1].batches()
    replacement = log.begin_replacement(sealed[:1])
    with pytest.raises(AssertionError, match="1 instead of 0"):
        replacement.append(one)
    replacement.append(zero)
    replacement.append(one)
    for batch in (zero, one, two):
        with pytest.raises(AssertionError):
            replacement.append(batch)
    with pytest.raises(AssertionError, match="2 is not among the old segments"):
        replacement.leave_out(header)
    assert replacement.size == len(zero + one)


def test_a_replacement_that_has_not_all_offsets_of_the_old_segments_is_refused() -> None:
    log = log_of_ten(MemoryFiles())
    replacement = log.begin_replacement(log.sealed_segments()[:2])
    for _, batch in replacement.old[0].batches():
        replacement.append(batch)
    with pytest.raises(AssertionError, match="the new segment ends at 2 instead of 4"):
        replacement.finish()


def test_a_replacement_is_never_larger_than_what_it_replaces() -> None:
    for kept in (ALL[::2], ALL[1::2], (), ALL):
        replacement = written(log_of_ten(MemoryFiles()), 0, 3, kept)
        assert replacement.size <= sum(segment.size for segment in replacement.old), kept


def test_an_empty_batch_belongs_to_no_producer_and_has_the_highest_timestamp_of_those_that_were_left_out() -> None:
    log = opened(MemoryFiles(), segment_bytes=TWO_EACH)
    add_each(log, (1009, 1001, 1002, 1003, 1004, 1005, 1006, 1007, 1008, 1010))
    assert log.replace(written(log, 0, 3, (2, 5)))
    empty = [header for header, _ in iterate_batches(whole(log)) if not header.record_count]
    assert [(header.base_offset, header.last_offset) for header in empty] == [(0, 1), (3, 4), (6, 7)]
    assert [header.max_timestamp for header in empty] == [1009, 1004, 1007]
    assert not any(header.producer or header.is_transactional or header.is_control for header in empty)


def test_a_segment_is_read_to_its_end_though_it_is_removed_meanwhile(tmp_path: Path) -> None:
    log = log_of_ten(DiskFiles(), tmp_path)
    first, second, *_ = log.sealed_segments()
    batches = first.batches()
    next(batches)
    log.truncate_before(6)
    assert [header.base_offset for header, _ in batches] == [1]
    with pytest.raises(FileNotFoundError):
        list(second.batches())
    log.close()
