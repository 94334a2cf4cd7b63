"""A start goes on from the last recovery point: the same state and answers as if everything were read again."""

import random
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest

from dualwrite.broker.core.partitions import PartitionState
from dualwrite.broker.facts.producer_snapshot import encode_snapshot
from dualwrite.broker.log import partition_log
from dualwrite.broker.log.layout import BESIDE_SEGMENT, SNAPSHOT, name_at, offsets_of, read_recovery_point, replace_file
from dualwrite.broker.log.partition_log import PartitionLog
from dualwrite.broker.log.recovery_point import RecoveryPoint, joined
from dualwrite.broker.log.settings import LogSettings
from dualwrite.errors import CorruptLogError
from dualwrite.ids import ProducerIdentity
from dualwrite.ports import File, Files
from dualwrite.records.control import Marker
from dualwrite.records.header import iterate_batches
from dualwrite.testing.files import MemoryFiles
from tests.support.broker.log_histories import SETTINGS, LogHistory, known, opened_with_state, replayed
from tests.support.broker.logs import DIRECTORY, LyingFiles, whole
from tests.support.broker.simulated import Killed, StoppableFiles

A = ProducerIdentity(1, 0)


def assert_sound(log: PartitionLog, state: PartitionState) -> None:
    """The state is that of the log, and every look-up finds what reading from the beginning finds."""
    assert known(state) == known(replayed(log))
    headers = [header for header, _ in iterate_batches(whole(log))]
    for header in headers:
        for offset in {header.base_offset, header.last_offset}:
            (found, *_), *_ = iterate_batches(log.read(offset, 1, log.end_offset))
            assert found == header
        first = next((later for later in headers if later.max_timestamp >= header.max_timestamp), None)
        assert first is not None
        found_time = log.offset_for_timestamp(header.max_timestamp, log.end_offset)
        assert found_time is not None
        assert first.base_offset <= found_time[1] <= first.last_offset
    for before in {0, *(header.next_offset for header in headers[::3])}:
        seen = [header.max_timestamp for header in headers if header.last_offset < before]
        highest = log.max_timestamp(before)
        assert (highest[0] if highest else None) == (max(seen) if seen else None)


def live(files: Files, seed: int, steps: int, points: float = 0.08) -> LogHistory:
    """A history of random appends with recovery points now and then."""
    history = LogHistory(files, random.Random(seed))
    for _ in range(steps):
        history.step()
        if history.rng.random() < points:
            history.take_point()
    return history


def test_a_restart_is_as_good_as_a_replay_of_everything() -> None:
    seen: Counter[str] = Counter()
    for seed in range(60):
        files = MemoryFiles()
        history = live(files, seed, steps=random.Random(seed).randint(1, 90))
        expected = known(history.state)
        log, state = opened_with_state(files)
        assert not log.repairs
        assert known(state) == expected
        assert_sound(log, state)
        seen["from a snapshot"] += read_recovery_point(files, DIRECTORY) > 0
        seen["several segments"] += len(log.sealed_segments()) > 2
        seen["aborted"] += bool(state.aborted)
        seen["open"] += bool(state.open_transactions)
        seen["stored indexes"] += any(sealed_segment.is_stored for sealed_segment in log.sealed_segments())
    assert min(seen.values()) > 10, seen
    assert len(seen) == 5


@pytest.mark.slow
def test_a_log_lives_through_restarts_and_power_cuts() -> None:
    for seed in range(40):
        rng = random.Random(seed)
        files = MemoryFiles()
        history = live(files, seed, steps=20)
        for _ in range(6):
            acknowledged = 0
            if rng.random() < 0.5:
                history.log.sync()
                acknowledged = history.log.end_offset
            files = files.power_cut(rng) if rng.random() < 0.6 else files
            history = LogHistory(files, rng, sequences=history.sequences, clock=history.clock)
            assert history.log.end_offset >= acknowledged
            assert not history.log.repairs
            assert_sound(history.log, history.state)
            for _ in range(rng.randrange(30)):
                history.step()
                if rng.random() < 0.1:
                    history.take_point()


@pytest.mark.slow
def test_a_crash_while_a_recovery_point_is_taken_loses_nothing() -> None:
    for stop_at in range(100):
        done = False
        for seed in range(4):
            beneath, rng = MemoryFiles(), random.Random(seed)
            live(beneath, seed=1, steps=50, points=0.05)
            files = StoppableFiles(beneath, rng, stop_at)
            try:
                history = LogHistory(files, rng)  # type: ignore[arg-type]
                expected = known(history.state)
                history.take_point()
                done = True
            except Killed:
                pass
            for disk in (beneath, beneath.power_cut(rng)):
                log, state = opened_with_state(disk)
                assert not log.repairs
                assert known(state) == (expected if done else known(replayed(log)))
                assert_sound(log, state)
        if done:
            assert stop_at > 8
            return
    raise AssertionError("it never came to the end")


def test_the_snapshot_of_the_recovery_point_is_there_at_any_moment_of_the_next_one() -> None:
    """A crash has left a snapshot without its note: the two newest are not those of the last two notes then."""
    prepared = MemoryFiles()
    history = live(prepared, seed=1, steps=20, points=0)
    history.take_point()
    history.write()
    history.log.sync()
    replace_file(prepared, DIRECTORY / name_at(history.log.end_offset, SNAPSHOT), encode_snapshot([]))
    for stop_at in range(100):
        rng = random.Random(stop_at)
        beneath = prepared.power_cut(rng)
        files = StoppableFiles(beneath, rng, stop_at)
        try:
            again = LogHistory(files, rng)  # type: ignore[arg-type]
            again.write()
            again.take_point()
        except Killed:
            pass
        for disk in (beneath, beneath.power_cut(rng)):
            assert not opened_with_state(disk)[0].repairs
        if not files.stopped.is_set():
            return
    raise AssertionError("it never came to the end")


def test_a_disk_that_lies_about_syncs_is_found_out() -> None:
    with pytest.raises((AssertionError, CorruptLogError)):  # noqa: PT012  one of many seeds will do
        for seed in range(200):
            files = LyingFiles()
            history = live(files, seed, steps=60)
            history.take_point()
            log, state = opened_with_state(files.power_cut(random.Random(seed)))
            assert not log.repairs
            assert known(state) == known(history.state)


class CountingFiles(MemoryFiles):
    """A disk that tells how much is read from segments."""

    def __init__(self) -> None:
        super().__init__()
        self.read_bytes = 0

    def open(self, path: Path) -> File:
        return _Counting(super().open(path), self) if path.suffix == ".log" else super().open(path)

    def reader(self, path: Path) -> File:
        return _Counting(super().reader(path), self) if path.suffix == ".log" else super().reader(path)


class _Counting:
    def __init__(self, file: File, files: CountingFiles) -> None:
        self._file = file
        self._files = files
        self.append, self.size, self.truncate = file.append, file.size, file.truncate
        self.sync, self.close = file.sync, file.close

    def read(self, position: int, size: int) -> bytes:
        data = self._file.read(position, size)
        self._files.read_bytes += len(data)
        return data


def test_after_a_clean_stop_a_start_reads_the_ends_of_the_segments_alone() -> None:
    files = CountingFiles()
    settings = LogSettings(segment_bytes=1_000_000)
    history = LogHistory(files, random.Random(1), settings)
    for _ in range(30_000):
        history.step()
    history.take_point()
    files.read_bytes = 0
    log, state = opened_with_state(files, settings)
    assert len(log.sealed_segments()) >= 4
    assert known(state) == known(history.state)
    assert files.read_bytes < (len(log.sealed_segments()) + 1) * 20_000


def test_only_batches_after_the_recovery_point_are_reported() -> None:
    files = MemoryFiles()
    history = live(files, 3, steps=40, points=0)
    history.take_point()
    point = history.log.end_offset
    history.write(count=2)
    history.write(A)
    reported: list[int] = []
    snapshots: list[int] = []
    PartitionLog.open(
        files,
        DIRECTORY,
        SETTINGS,
        lambda header, body: reported.append(header.base_offset),
        lambda offset, producers, aborted: snapshots.append(offset),
    )
    assert (snapshots, reported) == ([point], [point, point + 2])


def damage(files: MemoryFiles, name: str, how: str) -> None:
    path = DIRECTORY / name
    if how == "missing":
        files.remove(path)
        return
    file = files.open(path)
    data = bytearray(file.read(0, file.size()))
    file.truncate(0)
    if how == "cut":
        file.append(data[: len(data) // 2 + 1])
    elif how == "flipped":
        at = len(data) - 3
        data[at] ^= 0x55
        file.append(data)
    elif how == "junk":
        file.append(b"\xff" * max(len(data), 34))


_SLOWLY = [pytest.param(how, marks=pytest.mark.slow) for how in ("cut", "junk", "emptied")]


@pytest.mark.slow
@pytest.mark.parametrize("how", ["missing", "flipped", *_SLOWLY])
def test_a_damaged_index_or_snapshot_is_rebuilt_from_the_log(how: str) -> None:
    noticed: Counter[str] = Counter()
    for seed in range(4):
        files = MemoryFiles()
        history = live(files, seed, steps=120)
        history.take_point()
        expected = known(history.state)
        for name in files.list(DIRECTORY):
            if not name.endswith((*BESIDE_SEGMENT, SNAPSHOT)):
                continue
            again = files.power_cut(random.Random(seed))
            if how == "flipped" and not again.open(DIRECTORY / name).size():
                continue
            damage(again, name, how)
            log, state = opened_with_state(again)
            if how == "emptied" and not log.repairs:
                noticed["not " + name[20:]] += 1  # an empty .txnindex is one of a segment without aborted transactions
                continue
            assert known(state) == expected
            assert_sound(log, state)
            noticed[name[20:]] += bool(log.repairs)
            repaired = LogHistory(again, random.Random(1))
            repaired.take_point()
            assert not opened_with_state(again)[0].repairs
    assert noticed[".index"] > 3
    assert noticed[SNAPSHOT] > 3


def test_a_log_of_earlier_versions_without_indexes_opens() -> None:
    files = MemoryFiles()
    history = live(files, 5, steps=100, points=0)
    history.log.checkpoint()
    expected = known(history.state)
    log, state = opened_with_state(files)
    assert known(state) == expected
    assert log.repairs == [f"no snapshot up to offset {log.end_offset} can be used: replayed the whole log"]
    LogHistory(files, random.Random(1)).take_point()
    log, state = opened_with_state(files)
    assert not log.repairs
    assert_sound(log, state)
    assert all(sealed_segment.is_stored for sealed_segment in log.sealed_segments())


def test_two_snapshots_are_kept() -> None:
    files = MemoryFiles()
    history = live(files, 5, steps=10, points=0)
    points = []
    for _ in range(4):
        history.write()
        history.take_point()
        points.append(history.log.end_offset)
    assert offsets_of(files.list(DIRECTORY), SNAPSHOT) == points[-2:]


def test_a_snapshot_of_before_the_start_is_removed_after_its_successors() -> None:
    files = MemoryFiles()
    history = live(files, 5, steps=10, points=0)
    history.take_point()
    again = LogHistory(files, random.Random(1))
    points = []
    for _ in range(3):
        again.write()
        again.take_point()
        points.append(again.log.end_offset)
    assert offsets_of(files.list(DIRECTORY), SNAPSHOT) == points[-2:]


def test_the_directory_is_not_listed_for_each_point_and_a_snapshot_may_be_gone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    files = MemoryFiles()
    history = live(files, 5, steps=10, points=0)
    history.take_point()
    gone = history.log.end_offset
    files.remove(DIRECTORY / name_at(gone, SNAPSHOT))
    monkeypatch.setattr(files, "list", lambda _: pytest.fail("listed again"))
    points = []
    for _ in range(4):
        history.write()
        history.take_point()
        points.append(history.log.end_offset)
    monkeypatch.undo()
    assert offsets_of(files.list(DIRECTORY), SNAPSHOT) == points[-2:]


def test_points_that_wait_for_the_disk_are_written_as_one_and_name_each_segment_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    points: list[RecoveryPoint] = []

    def join(waiting: Sequence[RecoveryPoint]) -> RecoveryPoint:
        points.extend(waiting)
        return joined(waiting)

    monkeypatch.setattr(partition_log, "joined", join)
    files = MemoryFiles()
    history = LogHistory(files, random.Random(1))
    planned = 0
    while planned < 30:
        history.write()
        if history.log.point_due:
            history.log.plan_recovery_point(history.state.snapshot(), history.state.aborted_since)
            planned += 1
    history.log.write_recovery_points()
    assert len(points) == 30
    assert max(len(point.indexes) for point in points) <= 2  # the segment that was sealed, and the one after it
    assert offsets_of(files.list(DIRECTORY), SNAPSHOT) == [points[-1].offset]
    assert all(segment.is_stored for segment in history.log.sealed_segments())
    expected = known(history.state)
    log, state = opened_with_state(files)
    assert not log.repairs
    assert known(state) == expected
    assert_sound(log, state)


def test_duplicates_of_all_batches_in_flight_are_known_after_a_clean_stop() -> None:
    files = MemoryFiles()
    history = LogHistory(files, random.Random(1))
    for _ in range(7):
        history.write(A)
    history.take_point()
    _, state = opened_with_state(files)
    assert [batch.first_sequence for batch in state.producers[1].batches] == [2, 3, 4, 5, 6]


def test_a_producer_whose_records_are_deleted_is_known_after_a_crash() -> None:
    files = MemoryFiles()
    history = live(files, 7, steps=60, points=0)
    history.write(ProducerIdentity(77, 3))
    history.end(A, Marker.ABORT)
    for _ in range(60):
        history.write()
    history.take_point()
    history.log.truncate_before(history.log.end_offset)
    history.write()
    log, state = opened_with_state(files)
    assert log.start_offset == log.end_offset - 1
    assert state.producers == history.state.producers
    assert state.aborted == []


def test_a_restart_knows_no_aborted_transaction_below_the_start_of_the_log() -> None:
    files = MemoryFiles()
    history = LogHistory(files, random.Random(1), LogSettings())
    for _ in range(3):
        history.write(A, transactional=True)
        history.end(A, Marker.ABORT)
    history.take_point()
    history.log.truncate_before(2)
    assert [ended.last_offset for ended in opened_with_state(files, LogSettings())[1].aborted] == [3, 5]


def test_points_are_due_after_a_roll_and_after_many_bytes() -> None:
    history = LogHistory(MemoryFiles(), random.Random(1), LogSettings(segment_bytes=2000))
    assert not history.log.has_unplanned
    due = []
    for _ in range(60):
        history.write()
        due.append(history.log.point_due)
        if due[-1]:
            history.take_point()
    assert 2 < sum(due) < 20
    assert history.log.has_unplanned
    history.take_point()
    assert not history.log.has_unplanned


def test_no_recovery_point_is_stored_for_a_log_that_was_given_up() -> None:
    files = MemoryFiles()
    history = live(files, 1, steps=5, points=0)
    history.log.plan_recovery_point(history.state.snapshot(), history.state.aborted_since)
    history.log.abandon()
    history.take_point()
    assert read_recovery_point(files, DIRECTORY) == 0
