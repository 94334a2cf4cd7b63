"""A partition at run time: readers see what is durable, and are woken when there is more."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import NoReturn

import pytest

from dualwrite.broker.runtime.flusher import Flusher
from dualwrite.ids import ProducerIdentity
from dualwrite.records.batch import Record, build_batch
from dualwrite.records.control import Marker
from dualwrite.records.header import BatchFields, peek_header
from dualwrite.testing.files import MemoryFiles
from tests.support.broker.simulated import Rooms, append, never, read_log, run

A, B = ProducerIdentity(7, 0), ProducerIdentity(8, 0)


def with_rooms(test: Callable[[Rooms, MemoryFiles], Awaitable[None]], durable: bool = True) -> None:
    async def main() -> None:
        files = MemoryFiles()
        await test(await Rooms(files, Flusher(durable, on_failure=never)).with_topic(1), files)

    run(main())


def test_a_record_is_shown_when_it_is_durable_and_not_before() -> None:
    async def test(rooms: Rooms, files: MemoryFiles) -> None:
        partition, reader = rooms.partition(0), asyncio.Event()
        partition.add_reader(reader)
        assert append(partition, b"v").base_offset == 0
        assert (partition.end_offset, partition.visible_before(committed_only=False)) == (1, 0)
        assert not reader.is_set()
        await rooms.flusher.barrier()
        assert partition.visible_before(committed_only=False) == 1
        assert reader.is_set()

    with_rooms(test)


def test_a_batch_that_may_be_written_to_is_placed_where_it_lies() -> None:
    async def test(rooms: Rooms, files: MemoryFiles) -> None:
        partition = rooms.partition(0)
        append(partition, b"first")
        batch = build_batch([Record(None, b"v")])
        frame = bytearray(b"around" + batch + b"around")
        assert partition.append(memoryview(frame)[6:-6], peek_header(batch)).base_offset == 1
        assert peek_header(frame, 6).base_offset == 1
        assert (frame[:6], frame[-6:]) == (b"around", b"around")
        frame[:] = bytes(len(frame))  # the next request comes
        await rooms.flusher.barrier()
        assert [entry.value for entry in read_log(partition)] == [b"first", b"v"]

    with_rooms(test)


def test_a_batch_that_is_not_appended_is_not_touched() -> None:
    async def test(rooms: Rooms, files: MemoryFiles) -> None:
        partition = rooms.partition(0)
        for sequence in (0, 1):
            append(partition, b"v", A, sequence)
        for sequence, appended in ((0, 0), (1, 1), (7, -1)):  # twice a duplicate, and a gap
            batch = build_batch([Record(None, b"v")], BatchFields(A, sequence, transactional=True))
            frame = bytearray(batch)
            result = partition.append(memoryview(frame), peek_header(batch))
            assert not result.verdict.appends
            assert result.base_offset == appended
            assert frame == batch
        assert partition.end_offset == 2

    with_rooms(test)


def test_a_batch_that_may_not_be_written_to_is_copied() -> None:
    async def test(rooms: Rooms, files: MemoryFiles) -> None:
        partition, batch = rooms.partition(0), build_batch([Record(None, b"v")])
        for expected, given in enumerate((batch, memoryview(batch))):
            assert partition.append(given, peek_header(batch)).base_offset == expected
        assert peek_header(batch).base_offset == 0

    with_rooms(test)


def test_a_reader_that_left_is_not_woken() -> None:
    async def test(rooms: Rooms, files: MemoryFiles) -> None:
        partition, reader = rooms.partition(0), asyncio.Event()
        partition.add_reader(reader)
        partition.remove_reader(reader)
        partition.remove_reader(reader)
        append(partition, b"v")
        await rooms.flusher.barrier()
        assert not reader.is_set()

    with_rooms(test)


def test_with_durability_os_a_record_is_shown_at_once() -> None:
    async def test(rooms: Rooms, files: MemoryFiles) -> None:
        append(rooms.partition(0), b"v")
        assert rooms.partition(0).visible_before(committed_only=True) == 1

    with_rooms(test, durable=False)


def test_a_committed_reader_waits_for_the_marker() -> None:
    async def test(rooms: Rooms, files: MemoryFiles) -> None:
        partition = rooms.partition(0)
        append(partition, b"v", A, 0)
        await rooms.flusher.barrier()
        assert (partition.visible_before(committed_only=False), partition.visible_before(committed_only=True)) == (1, 0)
        partition.append_marker(Marker.COMMIT, A, timestamp_ms=5)
        assert partition.visible_before(committed_only=True) == 0
        await rooms.flusher.barrier()
        assert partition.visible_before(committed_only=True) == 2

    with_rooms(test)


def test_a_duplicate_gets_its_offset_and_is_not_appended() -> None:
    async def test(rooms: Rooms, files: MemoryFiles) -> None:
        partition = rooms.partition(0)
        append(partition, b"plain")
        first, again = append(partition, b"v", A, 0), append(partition, b"v", A, 0)
        assert (first.base_offset, again.base_offset, partition.end_offset) == (1, 1, 2)
        assert [entry.value for entry in read_log(partition)] == [b"plain", b"v"]

    with_rooms(test)


def test_a_batch_is_placed_in_the_log_and_the_clients_bytes_are_left_alone() -> None:
    async def test(rooms: Rooms, files: MemoryFiles) -> None:
        partition = rooms.partition(0)
        append(partition, b"first")
        append(partition, b"second")
        header = peek_header(partition.log.read(1, 1000, 2))
        assert (header.base_offset, header.partition_leader_epoch) == (1, 0)

    with_rooms(test)


def test_records_found_at_a_restart_are_durable_and_visible() -> None:
    async def test(rooms: Rooms, files: MemoryFiles) -> None:
        append(rooms.partition(0), b"v", A, 0)
        rooms.partition(0).append_marker(Marker.ABORT, ProducerIdentity(7, 1), timestamp_ms=5)
        append(rooms.partition(0), b"w", ProducerIdentity(7, 1), 0)
        reopened = (await Rooms(files).with_topic()).partition(0)
        assert reopened.visible_before(committed_only=False) == 3
        assert reopened.visible_before(committed_only=True) == 2
        assert reopened.state.producers == rooms.partition(0).state.producers
        assert reopened.state.aborted == rooms.partition(0).state.aborted

    with_rooms(test)


def appends(rooms: Rooms) -> None:
    append(rooms.partition(0), b"v")


def deletes_records(rooms: Rooms) -> None:
    rooms.partition(0).truncate_before(1)


@pytest.mark.parametrize("change", [appends, deletes_records])
def test_a_disk_that_refuses_a_change_of_a_log_stops_the_broker(change: Callable[[Rooms], None]) -> None:
    reasons: list[BaseException] = []

    def stop(error: BaseException) -> NoReturn:
        reasons.append(error)
        raise error

    async def main() -> None:
        files = MemoryFiles()
        rooms = await Rooms(files, Flusher(durable=True, on_failure=stop)).with_topic(1)
        append(rooms.partition(0), b"before")
        await rooms.flusher.barrier()
        files.appends.fail()
        with pytest.raises(OSError, match="no space left") as raised:
            change(rooms)
        assert reasons == [raised.value]

    run(main())


def test_the_last_stable_offset_is_not_below_the_logs_start() -> None:
    """The records with which a transaction began may be deleted while it is open."""

    async def test(rooms: Rooms, files: MemoryFiles) -> None:
        partition = rooms.partition(0)
        append(partition, b"before")
        for sequence in range(3):
            append(partition, b"open", A, sequence)
        await rooms.flusher.barrier()
        assert (partition.last_stable_offset, partition.visible_before(committed_only=True)) == (1, 1)
        partition.truncate_before(3)
        assert (partition.last_stable_offset, partition.visible_before(committed_only=True)) == (3, 3)
        assert partition.visible_before(committed_only=False) == 4

    with_rooms(test)


def test_aborted_transactions_below_the_logs_start_are_forgotten() -> None:
    async def test(rooms: Rooms, files: MemoryFiles) -> None:
        partition = rooms.partition(0)
        for producer in (A, B):
            append(partition, b"aborted", producer, 0)
            partition.append_marker(Marker.ABORT, producer, 1000)
        await rooms.flusher.barrier()
        assert [ended.first_offset for ended in partition.state.aborted] == [0, 2]
        partition.truncate_before(1)
        assert [ended.first_offset for ended in partition.state.aborted] == [0, 2], "its marker is still there"
        partition.truncate_before(2)
        assert [ended.first_offset for ended in partition.state.aborted] == [2]
        assert (partition.log.start_offset, partition.state.producers.keys()) == (2, {A.producer_id, B.producer_id})

    with_rooms(test)
