"""Fuzzes the files of a data directory: a start finds everything that was acknowledged, or says in one line what is
damaged."""

import random
import time
from functools import cache
from pathlib import Path

from dualwrite.broker.core.commands import AddPartitions, EndTransaction, InitProducerId
from dualwrite.broker.core.offsets import CommitOffsets, CommittedPosition
from dualwrite.broker.facts.transactions import TransactionVersion
from dualwrite.broker.log.layout import CLEANER_OFFSET, write_mark
from dualwrite.broker.log.settings import LogSettings
from dualwrite.errors import CorruptLogError
from dualwrite.ids import TopicPartition
from dualwrite.records.batch import iterate_records
from dualwrite.records.control import Marker
from dualwrite.records.header import BatchHeader, MalformedBatchError, checksum_matches, iterate_batches
from dualwrite.testing.files import MemoryFiles
from dualwrite.wire.error_codes import ErrorCode
from tests.fuzz.messages import mutated
from tests.support.broker.in_process import InProcessBroker, list_request
from tests.support.broker.simulated import DATA_DIR, TOPIC, Rooms, append, run
from tests.support.requests.calls import fetch_request, only_partition

SLOWEST_SECONDS = 30.0
READ_ERRORS = (ErrorCode.NONE, ErrorCode.CORRUPT_MESSAGE, ErrorCode.OFFSET_OUT_OF_RANGE)

Found = dict[tuple[str, int], bytes | None]
"""The value of the record at each partition and offset."""


def fuzz_files(seed: int) -> str:
    """Start on a data directory with one damaged file, and return the kind of the file and the outcome. An
    AssertionError begins with the seed that repeats it."""
    _original()
    began = time.monotonic()
    try:
        outcome = run(_episode(random.Random(seed)), seed)
        assert time.monotonic() - began < SLOWEST_SECONDS, "too slow"
    except Exception as error:
        raise AssertionError(f"fuzz_files({seed}): {error!r}") from error
    return outcome


@cache
def _original() -> tuple[dict[Path, bytes], Found]:
    """The files of a broker that was stopped, cleanly, and the records in them."""
    files = MemoryFiles()
    run(_used(files))
    rooms = Rooms(files)
    return _contents(files), _found(rooms)


async def _used(files: MemoryFiles) -> None:
    rooms = await Rooms(files).with_topic()
    for partition in rooms.partitions():
        partition.log.settings = LogSettings(segment_bytes=2000, index_interval_bytes=200)
    for number in range(40):
        append(rooms.partition(0), b"%d" % number * 20)
        if number % 5 == 0:
            await _transaction(rooms, number)
    for _ in range(3):
        append(rooms.partition(2), b"deleted")
    await rooms.flusher.barrier()
    rooms.partition(2).truncate_before(2)
    write_mark(files, rooms.partition(2).log.directory / CLEANER_OFFSET, 1)
    await rooms.offsets.commit(CommitOffsets("g", {TopicPartition(TOPIC, 0): CommittedPosition(3)}))
    reply = await rooms.coordinator.execute(InitProducerId("prepared", 60_000, True))
    await rooms.coordinator.execute(AddPartitions("prepared", reply.producer, frozenset({TopicPartition(TOPIC, 1)})))
    append(rooms.partition(1), b"prepared", reply.producer, 0)
    await rooms.flusher.close()
    rooms.cluster.checkpoint()


async def _transaction(rooms: Rooms, number: int) -> None:
    execute, names = rooms.coordinator.execute, frozenset({TopicPartition(TOPIC, 1)})
    producer = (await execute(InitProducerId("app", 60_000))).producer
    await execute(AddPartitions("app", producer, names))
    append(rooms.partition(1), b"tx %d" % number, producer, 0)
    marker = Marker.COMMIT if number % 2 else Marker.ABORT
    await execute(EndTransaction("app", producer, marker, TransactionVersion.TV2))


def _contents(files: MemoryFiles) -> dict[Path, bytes]:
    contents = {}
    for directory in files.list(DATA_DIR):
        for name in files.list(DATA_DIR / directory):
            path = DATA_DIR / directory / name
            file = files.reader(path)
            contents[path] = file.read(0, file.size())
    return contents


async def _episode(rng: random.Random) -> str:
    contents, original = _original()
    path = rng.choice(sorted(contents))
    damaged = mutated(contents[path], rng)
    files = MemoryFiles()
    for each, content in contents.items():
        files.make_directory(each.parent)
        file = files.open(each)
        file.append(damaged if each == path else content)
        file.sync()
        files.sync_directory(each.parent)
    kind = path.suffix or path.name
    try:
        rooms = Rooms(files)
        await rooms.coordinator.finish_decided()
        await rooms.flusher.barrier()
        found = _found(rooms)
    except CorruptLogError as error:
        if "\n" in str(error):
            raise AssertionError("the error has several lines") from error
        return f"{kind}: refused"
    _compare(found, original, kind)
    await _clients_are_answered(rooms)
    append(rooms.partition(0), b"more")
    await rooms.flusher.close()
    return f"{kind}: started"


async def _clients_are_answered(rooms: Rooms) -> None:
    """Every reader gets records or an error, and none of them a closed connection."""
    broker = InProcessBroker(rooms)
    client = broker.connect("127.0.0.1")
    for index in range(3):
        partition = rooms.partition(index)
        for offset in range(partition.log.start_offset, partition.log.end_offset, 7):
            answer = await client.ask(fetch_request(TOPIC, offset, partition=index, committed=True), 12)
            assert only_partition(answer).error_code in READ_ERRORS
        for timestamp in (-1, -2, 0, 1_000_000, 2**50):
            await client.ask(list_request(index, timestamp), 5)
    await broker.close()


def _found(rooms: Rooms) -> Found:
    producers = [
        (str(partition.name), producer.producer_id, producer.epoch, producer.last_sequence, producer.transaction_start)
        for partition in rooms.cluster.partitions()
        for producer in partition.state.producers.values()
    ]
    transactions = sorted(rooms.coordinator.table.entries.items())
    state = rooms.cluster.state, transactions, rooms.offsets.table.groups, sorted(producers)
    found: Found = {("the broker's memory", number): repr(part).encode() for number, part in enumerate(state)}
    for partition in rooms.cluster.partitions():
        place = str(partition.name)
        offset = partition.log.start_offset
        try:
            while data := partition.log.read(offset, 1 << 20, partition.log.end_offset):
                for header, batch in iterate_batches(data):
                    if header.next_offset <= offset:
                        raise MalformedBatchError("offsets go back")
                    found.update(_records(place, header, batch))
                    offset = header.next_offset
        except MalformedBatchError:  # a reader gets CORRUPT_MESSAGE
            found[place, offset] = None
    return found


def _records(place: str, header: BatchHeader, batch: memoryview) -> Found:
    """The values of the records in ``batch``; None for each if a reader notices that the batch is damaged."""
    if not checksum_matches(header, batch):
        return {(place, header.base_offset): None}
    if header.is_control:
        return {}
    return {(place, record.offset): record.value for record in iterate_records(batch)}


def _compare(found: Found, original: Found, kind: str) -> None:
    """No value may be wrong, and none may be missing without a sign."""
    values, known = set(found.values()), set(original.values())
    assert values <= known | {None}, f"{sorted(values - known - {None})} appeared after damage to {kind}"
    if None not in values:
        assert values == known, f"{sorted(known - values)[:5]} are missing after damage to {kind}"
