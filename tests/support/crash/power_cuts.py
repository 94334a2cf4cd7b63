"""Every power cut at every moment of a short history, and the oracle of the crash simulation about each disk.

The seeded simulation tears files at random. Here a power cut leaves whole batches, as many of each file's unsynced ones
as the case has it, independently of the other files: this is what decides between safe and unsafe orders of fsyncs.
"""

import asyncio
import random
from collections.abc import Callable, Coroutine, Iterator
from itertools import product
from pathlib import Path
from typing import Any

from dualwrite.broker.api.transactions.joining import join_transaction
from dualwrite.broker.core.commands import AddPartitions, EndTransaction, InitProducerId
from dualwrite.broker.facts.transactions import TransactionVersion
from dualwrite.ids import NO_PRODUCER, ProducerIdentity, TopicPartition
from dualwrite.records.control import Marker
from dualwrite.records.header import MalformedBatchError, iterate_batches
from dualwrite.testing.files import MemoryFiles
from dualwrite.wire.error_codes import ErrorCode
from tests.support.broker.crash_simulation import CrashHistory, CrashUnit, MortalFlusher, check, fates
from tests.support.broker.simulated import (
    TOPIC,
    Killed,
    Rooms,
    StoppableFiles,
    append,
    end_other_tasks,
    everybody_may,
    read_log,
    run,
)

TXN_ID = "app-0"
PowerCutHistory = Callable[["PowerCutClient"], Coroutine[Any, Any, None]]


class PowerCutClient:
    """A client whose requests a test writes down, one after another. The history has what it was told."""

    def __init__(self, rooms: Rooms) -> None:
        self.rooms = rooms
        self.history = CrashHistory()
        self.identity = NO_PRODUCER
        self._sequences: dict[int, int] = {}

    async def begin_session(self, keep: bool = False) -> None:
        reply = await self.rooms.coordinator.execute(InitProducerId(TXN_ID, 60_000, True, keep))
        assert reply.error is ErrorCode.NONE
        self._become(reply.producer)

    def _become(self, producer: ProducerIdentity) -> None:
        self.history.told(TXN_ID, producer)
        if producer != self.identity:
            self._sequences.clear()
        self.identity = producer

    async def transaction(
        self, *requests: tuple[int, ...], version: TransactionVersion = TransactionVersion.TV2
    ) -> CrashUnit:
        """Each request writes one record to each of its partitions, and waits for the disk."""
        unit = CrashUnit(len(self.history.units), TXN_ID, self.identity)
        self.history.began(unit)
        for number, indexes in enumerate(requests):
            names = frozenset(TopicPartition(TOPIC, index) for index in indexes)
            if version is TransactionVersion.TV1:
                reply = await self.rooms.coordinator.execute(AddPartitions(TXN_ID, self.identity, names))
                assert reply.error is ErrorCode.NONE
            broker, is_implicit = everybody_may(self.rooms), version is TransactionVersion.TV2
            error = await join_transaction(broker, TXN_ID, self.identity, names, is_implicit)  # type: ignore[arg-type]
            assert error is ErrorCode.NONE
            records = []
            for index in indexes:
                value = b"%d/%d.%d" % (unit.token, number, index)
                result = append(self.rooms.partition(index), value, self.identity, self._sequences.get(index, 0))
                assert result.verdict.appends, result.verdict
                self._sequences[index] = self._sequences.get(index, 0) + 1
                records.append((index, result.base_offset, value))
            await self.rooms.flusher.barrier()
            for record in records:
                self.history.acknowledged(unit, record)
        return unit

    async def end(
        self, unit: CrashUnit | None, marker: Marker, version: TransactionVersion = TransactionVersion.TV2
    ) -> None:
        """Commit or abort ``unit``; None for an abort without a transaction."""
        if unit is not None:
            unit.asked.add(marker)
        self.history.open.pop(TXN_ID, None)
        reply = await self.rooms.coordinator.execute(EndTransaction(TXN_ID, self.identity, marker, version))
        assert reply.error is ErrorCode.NONE
        if unit is not None:
            unit.answered = marker
        self._become(reply.producer)


def check_every_power_cut(script: PowerCutHistory) -> int:
    """Run ``script`` until each operation of the disk in turn, and check every disk that a power cut can leave then.
    Return the number of disks."""
    known: set[tuple[object, ...]] = set()
    stop_at, is_over = 0, False
    while not is_over:
        stop_at += 1
        is_over = run(_check_at(script, stop_at, known))
    return len(known)


async def _check_at(script: PowerCutHistory, stop_at: int, known: set[tuple[object, ...]]) -> bool:
    disk = MemoryFiles()
    await (await Rooms(disk).with_topic()).flusher.close()
    files = StoppableFiles(disk, random.Random(stop_at))
    client = PowerCutClient(await Rooms(files, MortalFlusher(files, durable=True)).with_topic())
    files.stop_before(stop_at)
    is_over = await _until_stopped(script(client), files)
    seen = _visible(client.rooms)
    for key, after in _power_cuts(disk):
        key = (key, len(client.history.units), *(unit.answered for unit in client.history.units), len(seen))
        if key not in known:
            known.add(key)
            await _check_starts(after, client.history, seen)
            await _check(after, client.history, seen)
    return is_over


async def _until_stopped(work: Coroutine[Any, Any, None], files: StoppableFiles) -> bool:
    """Do ``work`` until it is over, or the disk stops. Return True if it is over."""
    working, stopped = asyncio.ensure_future(work), asyncio.ensure_future(files.stopped.wait())
    await asyncio.wait({working, stopped}, return_when=asyncio.FIRST_COMPLETED)
    is_over = not files.stopped.is_set()
    await end_other_tasks()
    if not working.cancelled() and not isinstance(working.exception(), Killed):
        working.result()
    return is_over


async def _start(files: StoppableFiles) -> None:
    rooms = await Rooms(files, MortalFlusher(files, durable=True)).with_topic()
    await rooms.coordinator.finish_decided()


async def _check_starts(disk: MemoryFiles, history: CrashHistory, seen: set[tuple[int, int, Marker | None]]) -> None:
    """Cut the power before each operation of a start on ``disk``, and check every disk that this leaves."""
    known: set[object] = set()
    stop_at, is_over = 0, False
    while not is_over:
        stop_at += 1
        began = disk.power_cut(random.Random(0))  # a copy: all of it is synced
        files = StoppableFiles(began, random.Random(stop_at), stop_at)
        is_over = await _until_stopped(_start(files), files)
        for key, after in _power_cuts(began):
            if key not in known:
                known.add(key)
                await _check(after, history, seen)


def _visible(rooms: Rooms) -> set[tuple[int, int, Marker | None]]:
    """What a read_committed consumer could have seen: the offset and the fate of each record below the LSO."""
    return {
        (index, entry.offset, fate)
        for index, partition in enumerate(rooms.partitions())
        for entry, fate in fates(read_log(partition))
        if entry.offset < partition.visible_before(committed_only=True)
    }


async def _check(disk: MemoryFiles, history: CrashHistory, seen: set[tuple[int, int, Marker | None]]) -> None:
    rooms = await Rooms(disk).with_topic()
    await rooms.coordinator.finish_decided()
    await rooms.flusher.barrier()
    check(rooms, history)
    lost = seen - _visible(rooms)
    assert not lost, f"a consumer saw {lost}, which is now undone"
    await rooms.flusher.close()
    await _check_next_session(disk)


async def _check_next_session(disk: MemoryFiles) -> None:
    """The start is repeated, and finds nothing to do; a new session then ends what is open, and all is shown."""
    rooms = await Rooms(disk).with_topic()
    ends = [partition.end_offset for partition in rooms.partitions()]
    assert await rooms.coordinator.finish_decided() == 0, "a second start found something to finish"
    assert [partition.end_offset for partition in rooms.partitions()] == ends
    await rooms.coordinator.execute(InitProducerId(TXN_ID, 60_000))
    await rooms.flusher.close()
    for partition in rooms.partitions():
        shown = partition.visible_before(committed_only=True)
        assert shown == partition.end_offset, f"hanging transaction: {partition.name} is shown up to {shown}"


# --- the disks


def _power_cuts(files: MemoryFiles) -> Iterator[tuple[object, MemoryFiles]]:
    """Every disk after a power cut that leaves whole batches, with a key that names its content."""
    contents = files._names  # the simulated disk has no public way to choose what a power cut leaves
    lengths = {path: _possible_lengths(path, bytes(content.data), content.synced) for path, content in contents.items()}
    for chosen in product(*lengths.values()):
        after = files.power_cut(random.Random(0))
        after._names.clear()
        after._durable_names.clear()
        for path, length in zip(lengths, chosen, strict=True):
            file = after.open(path)
            file.append(bytes(contents[path].data[:length]))
            file.sync()
        for directory in {path.parent for path in lengths}:
            after.sync_directory(directory)
        yield chosen, after


def _possible_lengths(path: Path, data: bytes, synced: int) -> list[int]:
    if path.suffix != ".log":
        return [len(data)]
    lengths, position = [synced], 0
    try:
        for header, _ in iterate_batches(data):
            position += header.size
            if position > synced:
                lengths.append(position)
    except MalformedBatchError:  # the last append was torn
        lengths.append(len(data))
    return lengths
