"""Compaction and what survives it: the note of where it ended, crashes at any moment, and files that were edited."""

import errno
import random
from contextlib import suppress
from pathlib import Path

import pytest

from dualwrite.broker.core.cluster import CreateTopic
from dualwrite.broker.log.layout import CLEANER_OFFSET, LOG, name_at, read_mark
from dualwrite.broker.log.settings import LogSettings
from dualwrite.broker.runtime.partition import Partition
from dualwrite.ids import ProducerIdentity, TopicPartition
from dualwrite.ports import File
from dualwrite.records.control import Marker
from dualwrite.testing.files import MemoryFiles
from tests.support.broker.compactions import CompactedHouse
from tests.support.broker.simulated import DATA_DIR, Killed, StoppableFiles, run


def test_where_the_cleaning_ended_survives_a_restart() -> None:
    files = MemoryFiles()

    async def main() -> None:
        house = CompactedHouse(files)
        await house.write(b"a", b"a", b"z")
        await house.compaction.run_once()

    async def again() -> None:
        house = CompactedHouse(files)
        assert house.left() == [1, 2]
        appends = files.appends.count
        await house.compaction.run_once()
        assert files.appends.count == appends
        await house.write(b"n")
        assert house.partition.end_offset == 4

    run(main())
    assert CLEANER_OFFSET in files.list(DATA_DIR / "c-0")
    run(again())


def test_a_damaged_cleaner_offset_file_is_rewritten_by_the_next_cleaning() -> None:
    async def main() -> None:
        house = CompactedHouse(MemoryFiles())
        house.files.open(DATA_DIR / "c-0" / CLEANER_OFFSET).append(b"garbage")
        await house.write(b"a", b"a", b"z")
        await house.compaction.run_once()
        assert house.left() == [1, 2]
        assert read_mark(house.files, DATA_DIR / "c-0" / CLEANER_OFFSET) == 2

    run(main())


def test_a_cleaner_offset_above_the_end_of_the_log_does_not_outlive_a_start() -> None:
    """An operator has removed the segments, and other records get their offsets before the next cleaning."""

    async def main() -> None:
        files, directory = MemoryFiles(), DATA_DIR / "c-0"
        house = CompactedHouse(files)
        await house.write(b"a", b"a", b"a", b"z")
        await house.compaction.run_once()
        for name in files.list(directory):
            if name != CLEANER_OFFSET:
                files.remove(directory / name)
        again = CompactedHouse(files)
        await again.write(b"a", b"a", b"z")
        await again.compaction.run_once()
        assert again.left() == [1, 2]

    run(main())


def test_a_damaged_cleaner_offset_does_not_prevent_a_start() -> None:
    files = MemoryFiles()
    CompactedHouse(files).files.open(DATA_DIR / "c-0" / CLEANER_OFFSET).append(b"garbage")
    assert CompactedHouse(files).left() == []


@pytest.mark.parametrize("durable", [True, False], ids=["fsync", "os"])
def test_no_power_cut_undoes_a_transaction_whose_older_values_were_removed(durable: bool) -> None:
    """With durability=os its marker may not be on disk when its records are compacted."""

    async def main() -> None:
        files = MemoryFiles()
        house = CompactedHouse(files, durable=durable)
        house.rooms.cluster.checkpoint()  # the topic is on disk
        await house.write(b"a")
        await house.write(b"a", producer=ProducerIdentity(7, 0))
        await house.write(b"z")
        await house.rooms.flusher.close()  # the recovery points of the segments have synced what is there
        house.partition.log.settings = LogSettings()
        await house.end(ProducerIdentity(7, 0), Marker.COMMIT)
        await house.compaction.run_once()
        assert house.left() == [1, 2, 3]
        for seed in range(8):
            again = CompactedHouse(files.power_cut(random.Random(seed)))
            assert not again.partition.state.open_transactions

    run(main())


class UnreadableFiles(MemoryFiles):
    """A disk that has lost the first segment of one partition."""

    def reader(self, path: Path) -> File:
        if path == DATA_DIR / "c-0" / name_at(0, LOG):
            raise OSError(errno.EIO, "injected")
        return super().reader(path)


async def with_two_dirty_logs(files: MemoryFiles) -> tuple[CompactedHouse, Partition]:
    """The house and the partition of a second topic, which is less dirty."""
    house = CompactedHouse(files)
    assert house.rooms.cluster.create_topic(CreateTopic("d", configs={"cleanup.policy": "compact"})).fact is not None
    second = house.rooms.cluster.partition(TopicPartition("d", 0))
    assert second is not None
    second.log.settings = LogSettings(segment_bytes=0)
    await house.write(b"a", b"a", b"z")
    house.partition = second
    await house.write(b"a", b"a", b"z")
    return house, second


def test_a_log_that_cannot_be_read_keeps_no_other_from_its_cleaning() -> None:
    async def main() -> None:
        house, second = await with_two_dirty_logs(UnreadableFiles())
        await house.compaction.run_once()
        assert [segment.next_offset for segment in second.log.sealed_segments()] == [2]

    run(main())


def test_a_stop_ends_the_run() -> None:
    async def main() -> None:
        house, _ = await with_two_dirty_logs(MemoryFiles())
        calls = 0

        def stop() -> None:
            nonlocal calls
            calls += 1
            raise InterruptedError

        house.thread.pause = stop
        await house.compaction.run_once()
        assert calls == 1

    run(main())


def test_after_a_crash_at_any_moment_the_next_cleaning_finishes_the_work() -> None:
    async def main(files: MemoryFiles, stop_at: int, rng: random.Random) -> bool:
        """True if the first cleaning came to its end."""
        stoppable = StoppableFiles(files, rng)
        house = CompactedHouse(stoppable)  # type: ignore[arg-type]
        await house.write(b"a", b"a", b"z")
        await house.rooms.flusher.close()
        stoppable.stop_before(stop_at)
        with suppress(Killed):
            await house.compaction.run_once()
        for found in (files.power_cut(rng), files):
            again = CompactedHouse(found)
            await again.compaction.run_once()
            assert again.left() == [1, 2]
        return not stoppable.stopped.is_set()

    for stop_at in range(60):
        if run(main(MemoryFiles(), stop_at, random.Random(stop_at))):
            assert stop_at > 8, "too few uses of the disk to prove anything"
            return
    raise AssertionError("it never came to the end")
