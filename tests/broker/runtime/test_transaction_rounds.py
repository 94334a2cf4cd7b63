"""How many rounds of fsyncs a transaction waits for, and what readers see meanwhile."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from dualwrite.broker.api.records.delete_records import handle as delete_records
from dualwrite.broker.api.records.list_offsets import handle as list_offsets
from dualwrite.broker.api.records.offset_for_leader_epoch import handle as offset_for_leader_epoch
from dualwrite.broker.facts.transactions import TransactionVersion
from dualwrite.broker.runtime.flusher import Flusher
from dualwrite.records.control import Marker
from dualwrite.testing.files import MemoryFiles
from dualwrite.wire.apis import DeleteRecordsRequest, Message, OffsetForLeaderEpochRequest
from dualwrite.wire.error_codes import ErrorCode
from tests.support.broker.in_process import InProcessBroker, list_request
from tests.support.broker.simulated import TOPIC, Rooms, everybody_may, never, run
from tests.support.crash.power_cuts import PowerCutClient
from tests.support.requests.calls import fetch_request

TV1, TV2 = TransactionVersion.TV1, TransactionVersion.TV2
RECORD_AND_MARKER = 2


class CountedFlusher(Flusher):
    """Counts its rounds."""

    def __init__(self) -> None:
        super().__init__(durable=True, on_failure=never, timed=self._counted)
        self.rounds = 0

    @contextmanager
    def _counted(self) -> Iterator[None]:
        self.rounds += 1
        yield


def with_client(
    test: Callable[[PowerCutClient, CountedFlusher], Awaitable[None]], files: MemoryFiles | None = None
) -> None:
    async def main() -> None:
        flusher = CountedFlusher()
        client = PowerCutClient(await Rooms(files or MemoryFiles(), flusher).with_topic())
        await client.begin_session()
        flusher.rounds = 0
        await test(client, flusher)

    run(main())


@pytest.mark.parametrize(("version", "rounds"), [(TV1, 4), (TV2, 2)])
def test_transactions_one_after_another_wait_for_so_many_rounds(version: TransactionVersion, rounds: int) -> None:
    async def test(client: PowerCutClient, flusher: CountedFlusher) -> None:
        for marker in (Marker.COMMIT, Marker.ABORT) * 5:
            unit = await client.transaction((0, 1), version=version)
            await client.end(unit, marker, version)
        assert flusher.rounds == 10 * rounds

    with_client(test)


@pytest.mark.parametrize(("version", "writes"), [(TV1, 5), (TV2, 4)])
def test_a_transaction_of_one_record_is_so_many_writes(version: TransactionVersion, writes: int) -> None:
    """Three facts, the record and the marker; under TV2 the last fact goes with the next transaction's first."""
    files = MemoryFiles()

    async def test(client: PowerCutClient, _: CountedFlusher) -> None:
        await client.end(await client.transaction((0,), version=version), Marker.COMMIT, version)
        before = files.appends.count
        for _number in range(10):
            await client.end(await client.transaction((0,), version=version), Marker.COMMIT, version)
        assert files.appends.count - before == 10 * writes

    with_client(test, files)


def test_the_markers_go_with_the_next_round_unless_a_reader_waits() -> None:
    async def test(client: PowerCutClient, flusher: CountedFlusher) -> None:
        reader, partition = asyncio.Event(), client.rooms.partition(0)
        await client.end(await client.transaction((0,)), Marker.COMMIT)
        for _ in range(20):
            await asyncio.sleep(0)
        assert flusher.rounds == 2
        assert partition.visible_before(committed_only=True) == 0
        unit = await client.transaction((0,))
        assert partition.visible_before(committed_only=True) == RECORD_AND_MARKER
        partition.add_reader(reader)
        await client.end(unit, Marker.COMMIT)
        reader.clear()
        for _ in range(50):  # steps of the event loop
            await asyncio.sleep(0)
        assert reader.is_set()
        assert partition.visible_before(committed_only=True) == 2 * RECORD_AND_MARKER

    with_client(test)


async def latest(rooms: Rooms) -> int:
    broker = InProcessBroker(rooms)
    answer = await broker.connect("127.0.0.1").ask(list_request(0, -1), 7)
    await broker.close()
    return int(answer.topics[0].partitions[0].offset)


async def fetched(rooms: Rooms) -> int:
    """The last stable offset of a Fetch that does not wait for records."""
    broker = InProcessBroker(rooms)
    answer = await broker.connect("127.0.0.1").ask(fetch_request(TOPIC, committed=True), 12)
    await broker.close()
    (part,) = answer.responses[0].partitions
    assert bool(part.records) is bool(part.last_stable_offset)
    return int(part.last_stable_offset)


async def end_of_epoch(rooms: Rooms) -> int:
    entry = OffsetForLeaderEpochRequest.OffsetForLeaderTopic
    wanted = entry.OffsetForLeaderPartition(partition=0, current_leader_epoch=-1, leader_epoch=0)
    request = OffsetForLeaderEpochRequest(replica_id=-1, topics=[entry(topic=TOPIC, partitions=[wanted])])
    answer: Message = await offset_for_leader_epoch(request, 4, _context(rooms))
    return int(answer.topics[0].partitions[0].end_offset)


async def deleted(rooms: Rooms) -> int:
    return int((await _deletion(rooms)).low_watermark)


async def _deletion(rooms: Rooms) -> Any:
    """The answer about the partition, all of whose records are to be deleted."""
    entry = DeleteRecordsRequest.DeleteRecordsTopic
    wanted = entry.DeleteRecordsPartition(partition_index=0, offset=-1)
    request = DeleteRecordsRequest(topics=[entry(name=TOPIC, partitions=[wanted])], timeout_ms=1000)
    answer: Message = await delete_records(request, 2, _context(rooms))
    return answer.topics[0].partitions[0]


def _context(rooms: Rooms) -> Any:
    return everybody_may(rooms)


@pytest.mark.parametrize("ask", [latest, fetched, end_of_epoch, deleted])
def test_a_reader_that_asks_after_the_answer_sees_the_transaction(ask: Callable[[Rooms], Awaitable[int]]) -> None:
    async def test(client: PowerCutClient, flusher: CountedFlusher) -> None:
        await client.end(await client.transaction((0,)), Marker.COMMIT)
        assert client.rooms.partition(0).visible_before(committed_only=True) == 0, "the markers are not on disk yet"
        assert await ask(client.rooms) == RECORD_AND_MARKER

    with_client(test)


async def latest_error(rooms: Rooms) -> int:
    answer: Message = await list_offsets(list_request(0, -1), 7, _context(rooms))
    return int(answer.topics[0].partitions[0].error_code)


async def deletion_error(rooms: Rooms) -> int:
    return int((await _deletion(rooms)).error_code)


@pytest.mark.parametrize("ask", [latest_error, deletion_error])
def test_a_topic_that_is_deleted_while_a_request_waits_for_its_transactions_is_unknown(
    ask: Callable[[Rooms], Awaitable[int]],
) -> None:
    """To change files of a deleted topic could stop the broker."""

    async def test(client: PowerCutClient, flusher: CountedFlusher) -> None:
        await client.end(await client.transaction((0,)), Marker.COMMIT)
        asking = asyncio.ensure_future(ask(client.rooms))
        await asyncio.sleep(0)
        assert flusher.latest_waiter is not None
        assert not flusher.latest_waiter.done()
        await client.rooms.cluster.delete_topic(TOPIC)
        assert await asking == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    with_client(test)
