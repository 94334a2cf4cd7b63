"""Data directories with every kind of file: of a broker that was stopped, that was killed, or that was killed while it
wrote or replaced a file."""

import asyncio
import random
import uuid
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path

from dualwrite.broker.access.acls import AclOperation, ResourceType
from dualwrite.broker.access.scram_credentials import ScramCredential, ScramHash
from dualwrite.broker.core.cluster import CreateTopic
from dualwrite.broker.core.commands import AddPartitions, EndTransaction, InitProducerId
from dualwrite.broker.core.offsets import CommitOffsets, CommittedPosition
from dualwrite.broker.facts.acls import AclCreated
from dualwrite.broker.facts.credentials import DecoySecretCreated, ScramCredentialSet
from dualwrite.broker.facts.transactions import TransactionVersion
from dualwrite.broker.log.settings import LogSettings
from dualwrite.broker.runtime.compaction import CleanerSettings, Compaction
from dualwrite.broker.runtime.flusher import Flusher
from dualwrite.broker.runtime.partition import Partition
from dualwrite.ids import NO_PRODUCER, ProducerIdentity, TopicPartition
from dualwrite.records.batch import Record, build_batch
from dualwrite.records.compression import Codec
from dualwrite.records.control import Marker
from dualwrite.records.header import BatchFields, peek_header
from dualwrite.records.rewriting import recompressed
from dualwrite.testing.files import MemoryFiles
from tests.damage.kinds import LEFT_CLEANED, LEFT_NOTE, LEFT_SWAP, kind_of
from tests.support.broker.ending_files import no_last_words
from tests.support.broker.simulated import (
    DATA_DIR,
    TOPIC,
    Killed,
    LoopCleanerThread,
    Rooms,
    StoppableFiles,
    end_other_tasks,
    run,
)
from tests.support.requests.acl_calls import acl

COMPACTED = "compacted"
SMALL_SEGMENTS = LogSettings(segment_bytes=900, index_interval_bytes=150)
Contents = dict[Path, bytes]


def contents_of(files: MemoryFiles) -> Contents:
    """Every file of the data directory, with its bytes."""
    contents = {}
    for directory in files.list(DATA_DIR):
        for name in files.list(DATA_DIR / directory):
            file = files.reader(DATA_DIR / directory / name)
            contents[DATA_DIR / directory / name] = file.read(0, file.size())
    return contents


def files_of(contents: Contents) -> MemoryFiles:
    """A disk that holds ``contents``, durably."""
    files = MemoryFiles()
    for path, content in contents.items():
        files.make_directory(path.parent)
        file = files.open(path)
        file.append(content)
        file.sync()
        files.sync_directory(path.parent)
    return files


@cache
def stopped() -> Contents:
    """The files after a clean stop."""
    files = MemoryFiles()

    async def life() -> None:
        rooms = await _used(files)
        await rooms.flusher.close()
        rooms.cluster.checkpoint()

    run(life())
    return contents_of(files)


@cache
def killed() -> Contents:
    """The files after a kill. All that was written was acknowledged; some of it follows the last recovery points."""
    files = files_of(stopped())

    async def life() -> None:
        rooms = Rooms(files)
        await rooms.coordinator.finish_decided()
        for number in range(3):
            write(rooms.partition(0), [Record(b"after", b"%d" % number, 1_000_000 + number)])
        await _transaction(rooms, "late", Marker.COMMIT, [[Record(None, b"late", 1_000_001)]])
        await _transaction(rooms, "late", Marker.ABORT, [[Record(None, b"late, aborted", 1_000_002)]])
        await rooms.offsets.commit(CommitOffsets("late", {TopicPartition(TOPIC, 0): CommittedPosition(5)}))
        assert rooms.cluster.create_topic(CreateTopic("late", 1)).fact is not None
        await rooms.flusher.barrier()

    run(life())
    return contents_of(files)


class RenamingFiles(StoppableFiles):
    """A disk that notes at which of its operations files are renamed."""

    def __init__(self, files: MemoryFiles, stop_at: int | None = None) -> None:
        super().__init__(files, random.Random(0), stop_at)
        self.operations = 0
        self.renamed_at: dict[str, int] = {}

    def use(self, last_words: Callable[[], None] = no_last_words) -> None:
        super().use(last_words)
        self.operations += 1

    def rename(self, path: Path, name: str) -> None:
        self.renamed_at.setdefault(kind_of(path.with_name(name)), self.operations)
        self.renamed_at.setdefault(kind_of(path), self.operations)
        super().rename(path, name)


@cache
def interrupted() -> tuple[Contents, ...]:
    """The files after kills that left a file of each kind behind that a start removes or finishes."""
    noted = RenamingFiles(files_of(stopped()))
    run(_compact_until_killed(noted))
    contents = []
    for kind, later in ((LEFT_NOTE, 0), (LEFT_CLEANED, 0), (LEFT_SWAP, 1)):
        files = RenamingFiles(files_of(stopped()), noted.renamed_at[kind] + later)
        run(_compact_until_killed(files))
        contents.append(contents_of(files.beneath))
    return tuple(contents)


async def _compact_until_killed(files: RenamingFiles) -> None:
    async def life() -> None:
        rooms = Rooms(files, Flusher(durable=True, on_failure=files.end_process))
        partition = rooms.cluster.partition(TopicPartition(COMPACTED, 0))
        assert partition is not None
        _fill_compacted(partition, "again")
        await rooms.flusher.barrier()
        await _compact(rooms)

    living, stopped_disk = asyncio.ensure_future(life()), asyncio.ensure_future(files.stopped.wait())
    await asyncio.wait({living, stopped_disk}, return_when=asyncio.FIRST_COMPLETED)
    await end_other_tasks()
    if not living.cancelled() and not isinstance(living.exception(), Killed | None):
        living.result()


def write(
    partition: Partition,
    records: Sequence[Record],
    producer: ProducerIdentity = NO_PRODUCER,
    sequence: int = -1,
    codec: Codec = Codec.NONE,
    transactional: bool = False,
) -> None:
    """Append one batch of ``records``, compressed by ``codec``, as a producer's."""
    batch = build_batch(records, BatchFields(producer, sequence, transactional))
    if codec:
        batch = recompressed(peek_header(batch), batch, codec)
    partition.append(batch, peek_header(batch))


async def _used(files: MemoryFiles) -> Rooms:
    rooms = await Rooms(files).with_topic()
    configs = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0"}
    assert rooms.cluster.create_topic(CreateTopic(COMPACTED, 1, configs=configs)).fact is not None
    _secure(rooms)
    for partition in rooms.cluster.partitions():
        partition.log.settings = SMALL_SEGMENTS
    for step in (_plain, _transactions, _deleted, _compacted, _groups):
        await step(rooms)
        await rooms.flusher.barrier()
    return rooms


def _secure(rooms: Rooms) -> None:
    credential = ScramCredential(ScramHash.SHA_256, 4096, b"salt" * 4, b"stored" * 5, b"server" * 5)
    rooms.cluster.record(DecoySecretCreated(b"decoy" * 6), ScramCredentialSet("alice", credential))
    rooms.cluster.record(AclCreated(uuid.UUID(int=7), acl(AclOperation.READ, ResourceType.TOPIC, TOPIC)))
    rooms.cluster.configure_broker("", {"log.retention.ms": "-1"})
    rooms.cluster.configure_group("workers", {"consumer.session.timeout.ms": "50000"})


async def _plain(rooms: Rooms) -> None:
    codecs = (Codec.NONE, Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD)
    for number in range(15):
        records = [Record(b"k%d" % number, b"value %d" % index * 5, 1000 + 10 * number) for index in range(2)]
        write(rooms.partition(0), records, codec=codecs[number % len(codecs)])
    producer = (await rooms.coordinator.execute(InitProducerId(None, 60_000))).producer
    for sequence in range(3):
        write(rooms.partition(0), [Record(None, b"idempotent", 2000)], producer, sequence)


async def _transactions(rooms: Rooms) -> None:
    for number in range(8):
        batches = [[Record(None, b"tx %d.%d" % (number, index), 3000 + number) for index in range(2)]] * 2
        await _transaction(rooms, "app", Marker.COMMIT if number % 3 else Marker.ABORT, batches)
        write(rooms.partition(1), [Record(None, b"between", 3000 + number)])
    await _transaction(rooms, "prepared", None, [[Record(None, b"prepared", 4000)]])


async def _transaction(
    rooms: Rooms, transactional_id: str, end: Marker | None, batches: Sequence[Sequence[Record]]
) -> None:
    """A transaction in one partition that ends with ``end``, or is left prepared."""
    execute, names = rooms.coordinator.execute, frozenset({TopicPartition(TOPIC, 1)})
    producer = (await execute(InitProducerId(transactional_id, 60_000, end is None))).producer
    await execute(AddPartitions(transactional_id, producer, names))
    sequence = 0
    for records in batches:
        write(rooms.partition(1), records, producer, sequence, transactional=True)
        sequence += len(records)
    if end is not None:
        await execute(EndTransaction(transactional_id, producer, end, TransactionVersion.TV2))


async def _deleted(rooms: Rooms) -> None:
    for number in range(20):
        write(rooms.partition(2), [Record(None, b"deleted %d" % number * 9, 5000 + number)])
    await rooms.flusher.barrier()
    rooms.partition(2).truncate_before(12)


async def _compacted(rooms: Rooms) -> None:
    partition = rooms.cluster.partition(TopicPartition(COMPACTED, 0))
    assert partition is not None
    _fill_compacted(partition, "first")
    await rooms.flusher.barrier()
    await _compact(rooms)
    _fill_compacted(partition, "second")


def _fill_compacted(partition: Partition, word: str) -> None:
    partition.log.settings = SMALL_SEGMENTS
    for number in range(24):
        records = [Record(b"key %d" % (number % 5), f"{word} {number}".encode() * 5, 6000 + number)]
        write(partition, [*records, Record(b"own key %d" % number, word.encode(), 6000 + number)])


async def _compact(rooms: Rooms) -> None:
    thread = LoopCleanerThread()
    compaction = Compaction(rooms.files, rooms.cluster, rooms.flusher, rooms.clock, CleanerSettings(), thread)
    await compaction.run_once()


async def _groups(rooms: Rooms) -> None:
    for number in range(6):
        positions = {TopicPartition(TOPIC, index): CommittedPosition(number + index) for index in range(2)}
        await rooms.offsets.commit(CommitOffsets(f"group-{number % 3}", positions))
