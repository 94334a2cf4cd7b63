"""What is durable, and when: sync beside appends, rolled segments, disks that refuse, and disks that lie."""

import random
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from types import FrameType

import pytest

from dualwrite.broker.log.partition_log import PartitionLog
from dualwrite.broker.process.disk import DiskFiles
from dualwrite.ports import File
from dualwrite.testing.files import MemoryFile, MemoryFiles
from tests.support.broker.logs import LyingFiles, Reported, add, opened, whole

SEEDS = range(60)


class Gate:
    """Holds the syncs of files until it is opened."""

    def __init__(self) -> None:
        self.reached = threading.Event()
        self.opened = threading.Event()


class GatedFile(MemoryFile):
    gate: Gate | None = None

    def sync(self) -> None:
        if GatedFile.gate is not None and threading.current_thread() is not threading.main_thread():
            GatedFile.gate.reached.set()
            assert GatedFile.gate.opened.wait(10)
        super().sync()


class GatedFiles(MemoryFiles):
    def open(self, path: Path) -> File:
        file = super().open(path)
        assert isinstance(file, MemoryFile)
        file.__class__ = GatedFile
        return file


def survivors(files: MemoryFiles, seed: int) -> list[int]:
    reported = Reported()
    opened(files.power_cut(random.Random(seed)), reported=reported)
    return reported.offsets


def test_unsynced_says_whether_a_sync_is_due() -> None:
    log = opened(MemoryFiles(), segment_bytes=160)
    seen = [log.unsynced]
    for _ in range(5):
        add(log)
        seen.append(log.unsynced)
    log.sync()
    seen.append(log.unsynced)
    assert seen == [False, True, True, True, True, True, False]


def test_synced_batches_survive_every_power_cut() -> None:
    files = MemoryFiles()
    log = opened(files, segment_bytes=160)
    for _ in range(5):
        add(log)
    log.sync()
    assert all(survivors(files, seed) == [0, 1, 2, 3, 4] for seed in SEEDS)


def test_without_a_sync_a_power_cut_may_take_the_last_segment_and_nothing_else() -> None:
    files = MemoryFiles()
    log = opened(files, segment_bytes=160)
    for _ in range(6):
        add(log)
    seen = {tuple(survivors(files, seed)) for seed in SEEDS}
    assert seen == {(0, 1, 2, 3), (0, 1, 2, 3, 4), (0, 1, 2, 3, 4, 5)}


def test_a_disk_that_lies_about_syncs_is_found_out() -> None:
    files = LyingFiles()
    log = opened(files)
    for _ in range(5):
        add(log)
    log.sync()
    assert any(survivors(files, seed) != [0, 1, 2, 3, 4] for seed in SEEDS)


def test_the_name_of_a_new_segment_is_durable_before_anything_is_in_it() -> None:
    files = MemoryFiles()
    log = opened(files, segment_bytes=1)
    for expected in range(1, 6):
        add(log)
        names = [files.power_cut(random.Random(seed)).list(log.directory) for seed in SEEDS]
        assert all(len(found) == expected for found in names)


def test_a_rolled_segment_is_synced_once() -> None:
    files = MemoryFiles()
    log = opened(files, segment_bytes=1)
    add(log)
    before = files.syncs.count
    add(log)  # the full segment and the directory
    add(log)
    assert files.syncs.count - before == 4
    log.sync()
    log.sync()
    assert files.syncs.count - before == 6
    add(log)  # nothing is unsynced: the directory alone
    assert files.syncs.count - before == 7


@contextmanager
def waiting_sync(log: PartitionLog) -> Iterator[None]:
    """Another thread syncs ``log``, and waits in the file's sync until the block has ended."""
    GatedFile.gate = gate = Gate()
    try:
        worker = threading.Thread(target=log.sync)
        worker.start()
        assert gate.reached.wait(10)
        yield
        gate.opened.set()
        worker.join(10)
    finally:
        GatedFile.gate = None


def test_a_sync_covers_appends_before_it_and_not_those_during_it() -> None:
    files = GatedFiles()
    log = opened(files, segment_bytes=240)
    add(log)
    with waiting_sync(log):
        add(log)
    assert log.unsynced
    assert all(survivors(files, seed)[:1] == [0] for seed in SEEDS)
    log.sync()
    assert not log.unsynced


def test_a_sync_that_ends_after_a_later_one_takes_nothing_of_it_back() -> None:
    files = GatedFiles()
    log = opened(files)
    add(log)
    with waiting_sync(log):
        add(log)
        log.sync()
    assert log.synced_offset == 2


def test_a_roll_during_a_sync_leaves_nothing_behind() -> None:
    files = GatedFiles()
    log = opened(files, segment_bytes=160)
    add(log)
    with waiting_sync(log):
        for _ in range(4):  # two rolls while the worker still syncs the first segment
            add(log)
        assert all(survivors(files, seed)[:4] == [0, 1, 2, 3] for seed in SEEDS)
    assert log.unsynced
    log.sync()
    assert all(survivors(files, seed) == [0, 1, 2, 3, 4] for seed in SEEDS)


class OwnerAtLine:
    """Lets ``owner`` run before the ``left``-th next line of PartitionLog.sync. ``has_run`` once it did."""

    def __init__(self, left: int, owner: Callable[[], None]) -> None:
        self._left = left
        self._owner = owner
        self.has_run = False

    def __call__(self, frame: FrameType, event: str, argument: object) -> "OwnerAtLine | None":
        if frame.f_code is not PartitionLog.sync.__code__:
            return None
        if event == "line":
            self._left -= 1
            if not self._left:
                self.has_run = True
                self._owner()
        return self


def test_whenever_the_owner_appends_and_rolls_during_a_sync_nothing_is_called_synced_too_soon() -> None:
    for line in count(1):
        files = MemoryFiles()
        log = opened(files, segment_bytes=160)
        owner = OwnerAtLine(line, lambda log=log: [add(log) for _ in range(3)])  # type: ignore[misc]
        for _ in range(2):
            add(log)
        before = sys.gettrace()
        sys.settrace(owner)
        try:
            log.sync()
        finally:
            sys.settrace(before)
        assert log.synced_offset >= 2
        for seed in SEEDS:
            assert len(survivors(files, seed)) >= log.synced_offset, f"the owner at line {line}"
        if not owner.has_run:
            assert line > 3
            return


def test_a_worker_syncs_a_real_disk_while_the_owner_appends(tmp_path: Path) -> None:
    log = opened(DiskFiles(), tmp_path, segment_bytes=2000)
    done = threading.Event()
    errors: list[BaseException] = []

    def keep_syncing() -> None:
        try:
            while not done.is_set():
                log.sync()
        except BaseException as error:  # noqa: BLE001 - reported by the test's own thread
            errors.append(error)

    worker = threading.Thread(target=keep_syncing)
    worker.start()
    batches = [add(log) for _ in range(500)]
    done.set()
    worker.join(10)
    assert not errors
    log.sync()
    assert not log.unsynced
    assert whole(log) == b"".join(batches)
    log.close()


def test_a_refused_sync_is_raised_and_nothing_is_called_synced() -> None:
    files = MemoryFiles()
    log = opened(files)
    add(log)
    files.syncs.fail()
    with pytest.raises(OSError, match="injected"):
        log.sync()
    assert log.unsynced


@pytest.mark.parametrize("nth", [1, 2])
def test_a_refused_sync_stops_a_roll(nth: int) -> None:
    files = MemoryFiles()
    log = opened(files, segment_bytes=1)
    add(log)
    files.syncs.fail(nth)
    with pytest.raises(OSError, match="injected"):
        add(log)
    assert log.end_offset == 1


def test_a_refused_append_leaves_the_end_where_it_was_and_a_tail_that_recovery_cuts() -> None:
    files = MemoryFiles()
    log = opened(files)
    kept = add(log)
    files.appends.fail()
    with pytest.raises(OSError, match="injected"):
        add(log)
    assert log.end_offset == 1
    again = opened(files)
    assert (again.end_offset, again.cut_bytes, whole(again)) == (1, len(kept) // 2, kept)


@pytest.mark.parametrize("seed", SEEDS)
def test_what_a_start_acknowledges_after_a_failed_sync_survives_a_power_cut(seed: int) -> None:
    """The system still shows the batch whose sync failed. A log that went on behind it would lose what follows."""
    files = MemoryFiles()
    log = opened(files)
    kept = add(log)
    log.sync()
    add(log)
    files.syncs.fail()
    with pytest.raises(OSError, match="injected"):
        log.sync()
    again = opened(files)
    assert whole(again) == kept
    later = add(again)
    again.sync()
    assert whole(opened(files.power_cut(random.Random(seed)))) == kept + later
