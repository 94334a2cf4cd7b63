"""Recovery points at run time: taken beside the work, so that a start reads little, and never for a deleted topic."""

import asyncio
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from dualwrite.broker.core.cluster import CreateTopic
from dualwrite.broker.log.layout import SNAPSHOT, read_recovery_point
from dualwrite.broker.process.system import sync_threads
from dualwrite.broker.runtime.flusher import SYNC_THREADS, Flusher
from dualwrite.ids import ProducerIdentity, TopicPartition
from dualwrite.ports import File
from dualwrite.records.control import Marker
from dualwrite.testing.files import MemoryFile, MemoryFiles
from tests.support.broker.simulated import DATA_DIR, TOPIC, Rooms, append, never, run
from tests.support.waiting import PATIENCE_SECONDS

A, B = ProducerIdentity(7, 0), ProducerIdentity(8, 0)
HOME = DATA_DIR / f"{TOPIC}-0"
Test = Callable[[Rooms, MemoryFiles], Awaitable[None]]


def with_small_segments(test: Test, durable: bool = True) -> None:
    async def main() -> None:
        files = MemoryFiles()
        rooms = Rooms(files, Flusher(durable, on_failure=never))
        assert rooms.cluster.create_topic(CreateTopic(TOPIC, 1, configs={"segment.bytes": "1048576"})).fact is not None
        await rooms.flusher.barrier()
        await test(rooms, files)

    run(main())


def fill(rooms: Rooms, batches: int = 30) -> None:
    """Enough for a new segment."""
    for _ in range(batches):
        append(rooms.partition(0), b"x" * 50_000)


@pytest.mark.parametrize("durable", [True, False])
def test_a_sealed_segment_gets_a_recovery_point_without_a_waiting_request(durable: bool) -> None:
    async def test(rooms: Rooms, files: MemoryFiles) -> None:
        fill(rooms)
        assert read_recovery_point(files, HOME) == 0
        await rooms.flusher.close()
        (sealed,) = rooms.partition(0).log.sealed_segments()
        assert sealed.next_offset < read_recovery_point(files, HOME) < 30
        assert sealed.is_stored
        again = Rooms(files)
        assert again.partition(0).state.end_offset == 30
        assert not again.partition(0).log.repairs

    with_small_segments(test, durable)


def test_a_clean_stop_notes_the_end_once() -> None:
    async def test(rooms: Rooms, files: MemoryFiles) -> None:
        append(rooms.partition(0), b"v", A, 0)
        rooms.partition(0).append_marker(Marker.ABORT, A, 1000)
        await rooms.flusher.close()
        rooms.cluster.checkpoint()
        assert read_recovery_point(files, HOME) == 2
        syncs = files.syncs.count
        rooms.partition(0).checkpoint()
        assert files.syncs.count == syncs, "nothing has changed"
        again = Rooms(files)
        assert again.partition(0).state == rooms.partition(0).state
        syncs = files.syncs.count
        again.partition(0).checkpoint()
        assert files.syncs.count == syncs

    with_small_segments(test)


def test_a_clean_stop_syncs_several_partitions_at_a_time() -> None:
    """A stop has a limit, and each partition takes some fsyncs."""
    inside: set[int] = set()
    have_met = threading.Event()

    class MeetingFile(MemoryFile):
        def sync(self) -> None:
            if threading.current_thread() is not threading.main_thread():
                inside.add(threading.get_ident())
                if len(inside) == SYNC_THREADS:
                    have_met.set()
                assert have_met.wait(PATIENCE_SECONDS)
            super().sync()

    class MeetingFiles(MemoryFiles):
        def open(self, path: Path) -> File:
            file = super().open(path)
            file.__class__ = MeetingFile
            return file

    async def main() -> None:
        files = MeetingFiles()
        rooms = Rooms(files)
        assert rooms.cluster.create_topic(CreateTopic(TOPIC, SYNC_THREADS)).fact is not None
        for index in range(SYNC_THREADS):
            append(rooms.partition(index), b"v")
        await rooms.flusher.barrier()
        with sync_threads() as threads:
            rooms.cluster.checkpoint(threads.map)
        again = Rooms(files)
        assert [again.partition(index).state.end_offset for index in range(SYNC_THREADS)] == [1] * SYNC_THREADS
        homes = [DATA_DIR / f"{TOPIC}-{index}" for index in range(SYNC_THREADS)]
        assert [read_recovery_point(files, home) for home in homes] == [1] * SYNC_THREADS

    run(main())


def test_a_deleted_topic_gets_no_recovery_point() -> None:
    async def test(rooms: Rooms, files: MemoryFiles) -> None:
        fill(rooms)
        await rooms.cluster.delete_topic(TOPIC)
        await rooms.flusher.close()
        assert files.list(HOME) == []
        assert rooms.cluster.partition(TopicPartition(TOPIC, 0)) is None

    with_small_segments(test)


def test_deleting_records_keeps_the_state_of_their_producers() -> None:
    async def test(rooms: Rooms, files: MemoryFiles) -> None:
        partition = rooms.partition(0)
        append(partition, b"v", A, 0)
        partition.append_marker(Marker.COMMIT, A, 1000)
        append(partition, b"open", B, 0)
        fill(rooms)
        await rooms.flusher.barrier()
        partition.truncate_before(partition.end_offset)
        await asyncio.sleep(0)
        again = Rooms(files).partition(0)
        assert again.log.start_offset == again.log.end_offset == 33
        assert again.state.producers == partition.state.producers
        assert again.state.open_transactions == {B.producer_id: 2}
        assert len([name for name in files.list(HOME) if name.endswith(".log")]) == 1
        await rooms.flusher.close()
        assert len([name for name in files.list(HOME) if name.endswith(SNAPSHOT)]) <= 2

    with_small_segments(test)


def test_a_failed_recovery_point_stops_the_process() -> None:
    stopped: list[BaseException] = []

    def stop(error: BaseException) -> None:
        stopped.append(error)

    async def main() -> None:
        files = MemoryFiles()
        rooms = Rooms(files, Flusher(durable=False, on_failure=stop))  # type: ignore[arg-type]
        assert rooms.cluster.create_topic(CreateTopic(TOPIC, 1, configs={"segment.bytes": "1048576"})).fact is not None
        fill(rooms)
        files.syncs.fail()
        with pytest.raises(OSError, match="injected"):  # a real process has ended before that
            await rooms.flusher.close()

    run(main())
    assert [str(error) for error in stopped] == ["[Errno 5] input/output error (injected)"]
