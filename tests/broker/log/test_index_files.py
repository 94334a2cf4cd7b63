"""Index files that were torn by a crash, or that are wrong: the log detects them and does not use them."""

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from dualwrite.broker.log.layout import OFFSET_INDEX, TIME_INDEX, TRANSACTION_INDEX, name_at, offsets_of
from dualwrite.broker.log.partition_log import PartitionLog
from dualwrite.broker.log.settings import LogSettings
from dualwrite.broker.process.disk import DiskFiles
from dualwrite.ids import ProducerIdentity
from dualwrite.ports import Files
from dualwrite.records.batch import Record
from dualwrite.records.control import Marker
from dualwrite.records.rewriting import empty_batch
from dualwrite.testing.files import MemoryFiles
from tests.support.broker.log_histories import LogHistory, known, opened_with_state, replayed
from tests.support.broker.logs import DIRECTORY, add, add_each
from tests.support.broker.simulated import Killed, StoppableFiles

A, B = ProducerIdentity(1, 0), ProducerIdentity(2, 0)
SETTINGS = LogSettings(segment_bytes=250, index_interval_bytes=1)


def opened(files: Files, directory: Path = DIRECTORY) -> PartitionLog:
    return PartitionLog.open(files, directory, SETTINGS, lambda header, body: None, lambda *known: None)


def take_point(log: PartitionLog) -> None:
    log.plan_recovery_point([], lambda offset: [])
    log.write_recovery_points()


def with_aborted(files: Files) -> LogHistory:
    """Aborted transactions in every segment, and a recovery point at the end."""
    history = LogHistory(files, random.Random(1), LogSettings(segment_bytes=600, index_interval_bytes=100))
    for _ in range(10):
        history.write(B)
        history.write(A, transactional=True)
        history.end(A, Marker.ABORT)
    history.take_point()
    return history


def crashes(prepared: MemoryFiles) -> Iterator[tuple[StoppableFiles, random.Random]]:
    """Copies of ``prepared`` that stop at every moment, until a user of one comes to the end."""
    for stop_at in range(200):
        for seed in range(6):
            rng = random.Random(seed)
            files = StoppableFiles(prepared.power_cut(rng), rng, stop_at)
            yield files, rng
        if not files.stopped.is_set():
            return
    raise AssertionError("it never came to the end")


def test_a_crash_while_a_transaction_index_grows_needs_no_replay_and_lists_no_transaction_twice() -> None:
    prepared = MemoryFiles()
    with_aborted(prepared)
    for files, rng in crashes(prepared):
        try:
            history = LogHistory(files, rng)  # type: ignore[arg-type]
            for _ in range(3):
                history.write(A, transactional=True)
                history.end(A, Marker.ABORT)
            history.take_point()
        except Killed:
            pass
        for disk in (files.beneath, files.beneath.power_cut(rng)):
            log, state = opened_with_state(disk)
            assert not log.repairs
            assert known(state) == known(replayed(log)), "each aborted transaction once"


@pytest.mark.slow
def test_a_crash_during_a_segment_replacement_needs_no_replay_and_shows_nothing_aborted() -> None:
    prepared = MemoryFiles()
    expected = known(with_aborted(prepared).state)
    for files, rng in crashes(prepared):
        try:
            history = LogHistory(files, rng)  # type: ignore[arg-type]
            replacement = history.log.begin_replacement(history.log.sealed_segments()[:2])
            for segment in replacement.old:
                for _, batch in segment.batches():
                    replacement.append(batch)
            replacement.finish()
            assert history.log.replace(replacement, history.state.aborted)
        except Killed:
            pass
        for disk in (files.beneath, files.beneath.power_cut(rng)):
            log, state = opened_with_state(disk)
            assert not log.repairs
            assert known(state) == expected
            assert not [name for name in disk.list(DIRECTORY) if name.endswith((".cleaned", ".tmp"))]


def test_an_emptied_batch_has_no_time_after_a_restart_either() -> None:
    files = MemoryFiles()
    log = opened(files)
    add_each(log, [1000, 1001, 5000, 1002, 1003])
    replacement = log.begin_replacement(log.sealed_segments()[:1])
    for header, batch in replacement.old[0].batches():
        replacement.append(empty_batch(header) if header.max_timestamp == 5000 else batch)
    replacement.finish()
    assert log.replace(replacement)
    take_point(log)
    again = opened(files)
    assert not again.repairs
    assert again.max_timestamp(5) == log.max_timestamp(5) == (1003, 4)
    assert again.expired_before(1002, 5) == log.expired_before(1002, 5) == 3
    again.truncate_before(1)
    assert again.max_timestamp(5) == (1003, 4), "also if its header is read"


def test_a_producer_is_known_though_the_segments_before_its_own_were_emptied() -> None:
    log = opened(MemoryFiles())
    add_each(log, [1000] * 9)
    replacement = log.begin_replacement(log.sealed_segments()[:1])
    for header, _ in replacement.old[0].batches():
        replacement.leave_out(header)
    replacement.finish()
    assert log.replace(replacement)
    assert [log.removes_segments(offset) for offset in (0, 2, 3, 6)] == [False, False, True, True]
    log.truncate_before(6)
    assert not log.removes_segments(6)


@pytest.mark.parametrize("suffix", [OFFSET_INDEX, TIME_INDEX])
@pytest.mark.parametrize("segment", [0, 3])
@pytest.mark.parametrize("byte", [-4, -8])
def test_an_index_that_leads_before_the_file_is_made_anew(tmp_path: Path, suffix: str, segment: int, byte: int) -> None:
    log = opened(DiskFiles(), tmp_path)
    add_each(log, [1000, 1001, 1002, 1003, 1004, 1005, 1006])
    take_point(log)
    path = tmp_path / name_at(segment, suffix)
    data = bytearray(path.read_bytes())
    data[byte] ^= 0x80
    path.write_bytes(data)
    again = opened(DiskFiles(), tmp_path)
    assert len(again.repairs) == 1
    assert [again.read(offset, 1, 7) for offset in range(7)] == [log.read(offset, 1, 7) for offset in range(7)]


def test_an_older_snapshot_takes_no_count_of_entries_from_a_newer_one() -> None:
    files = MemoryFiles()
    history = with_aborted(files)
    first = history.log.end_offset
    for _ in range(10):
        history.write(A, transactional=True)
        history.end(A, Marker.ABORT)
    history.take_point()
    *_, last = [base for base in offsets_of(files.list(DIRECTORY), TRANSACTION_INDEX) if base > first]
    files.remove(DIRECTORY / name_at(last, TRANSACTION_INDEX))
    again = LogHistory(files, random.Random(1))
    assert again.log.repairs
    again.take_point()
    log, state = opened_with_state(files)
    assert not log.repairs
    assert known(state) == known(history.state)


@pytest.mark.parametrize("suffix", [OFFSET_INDEX, TIME_INDEX, TRANSACTION_INDEX])
def test_entries_that_a_crash_left_without_a_checksum_are_cut_off_by_the_next_recovery_point(suffix: str) -> None:
    """Look-ups in a sealed segment would take them for entries of its batches."""
    files = MemoryFiles()
    log = opened(files)
    add_each(log, [1000, 1001])
    take_point(log)
    path = DIRECTORY / name_at(0, suffix)
    index = files.reader(path).read(0, 1000)
    files.open(path).append(b"\0" * 24)
    again = opened(files)
    assert not again.repairs
    take_point(again)
    assert files.reader(path).read(0, 1000) == index


def test_the_index_of_a_sealed_segment_is_not_kept_in_memory() -> None:
    log = opened(MemoryFiles())
    for number in range(9):
        add(log, Record(b"k", b"v", number))
    take_point(log)
    assert [len(segment.growing_index.offsets) for segment in log.sealed_segments()] == [0, 0]
