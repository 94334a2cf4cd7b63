"""Histories of a compacted partition, what readers make of them, and a cleaning of files that hold them, alone or in a
broker."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from hypothesis import strategies as st

from dualwrite.broker.core.cluster import CreateTopic
from dualwrite.broker.core.partitions import PartitionState
from dualwrite.broker.log.cleaner import Cleaned, CleaningPlan, clean
from dualwrite.broker.log.compaction import KEY_BYTES, AbortedRange, ActiveProducer
from dualwrite.broker.log.partition_log import PartitionLog
from dualwrite.broker.log.settings import LogSettings
from dualwrite.broker.runtime.compaction import CleanerSettings, Compaction
from dualwrite.broker.runtime.flusher import Flusher
from dualwrite.broker.runtime.partition import Partition, replay_into
from dualwrite.ids import ProducerIdentity, TopicPartition
from dualwrite.ports import Files
from dualwrite.records.batch import Record, build_batch
from dualwrite.records.compression import Codec, batch_body, compress
from dualwrite.records.control import Marker, build_marker, read_marker
from dualwrite.records.header import HEADER_SIZE, BatchFields, iterate_batches, peek_header, place_batch, rebuild_batch
from dualwrite.records.rewriting import iterate_spans
from dualwrite.records.varint import decode_varint
from dualwrite.testing.files import MemoryFiles
from tests.support.broker.simulated import LoopCleanerThread, Rooms, never

DIRECTORY = Path("/data/t-0")
DAY = 86_400_000


def no_pause() -> None:
    """Never sleeps."""


@dataclass
class CompactedHistory:
    """Batches as a partition has them, and the state that follows from them."""

    batches: list[bytes] = field(default_factory=list)
    state: PartitionState = field(default_factory=PartitionState)
    sequences: dict[int, int] = field(default_factory=dict)
    epochs: dict[int, int] = field(default_factory=dict)
    now: int = 1000

    def write(self, records: Sequence[tuple[bytes, bytes | None]], codec: Codec = Codec.NONE) -> None:
        self._append(records, BatchFields(), codec)

    def write_as(
        self, producer_id: int, records: Sequence[tuple[bytes, bytes | None]], transactional: bool = False
    ) -> None:
        producer = ProducerIdentity(producer_id, self.epochs.setdefault(producer_id, 0))
        sequence = self.sequences.get(producer_id, 0)
        self.sequences[producer_id] = sequence + len(records)
        self._append(records, BatchFields(producer, sequence, transactional), Codec.NONE)

    def end(self, producer_id: int, commit: bool, bump: bool = True) -> None:
        """End the transaction of ``producer_id``; ``bump`` its epoch first, as TV2 does."""
        if bump:
            self.epochs[producer_id] += 1
            self.sequences[producer_id] = 0
        producer = ProducerIdentity(producer_id, self.epochs[producer_id])
        marker = Marker.COMMIT if commit else Marker.ABORT
        self._place(bytearray(build_marker(marker, producer, 0, self.now)), marker)

    def _append(self, records: Sequence[tuple[bytes, bytes | None]], fields: BatchFields, codec: Codec) -> None:
        batch = build_batch([Record(key, value, self.now + at) for at, (key, value) in enumerate(records)], fields)
        if codec:
            header = peek_header(batch)
            header = header._replace(attributes=header.attributes | codec)
            batch = rebuild_batch(header, compress(codec, batch[HEADER_SIZE:]))
        self._place(bytearray(batch), None)

    def _place(self, batch: bytearray, marker: Marker | None) -> None:
        place_batch(batch, self.state.end_offset, 0)
        self.batches.append(bytes(batch))
        self.state.apply(peek_header(batch), marker)
        self.state.advance(self.state.end_offset)
        self.now += 10

    @property
    def aborted(self) -> list[AbortedRange]:
        return [
            AbortedRange(transaction.producer_id, transaction.first_offset, transaction.last_offset)
            for transaction in self.state.aborted
        ]

    @property
    def producers(self) -> dict[int, ActiveProducer]:
        return {
            producer.producer_id: ActiveProducer(producer.epoch, producer.last_data_offset)
            for producer in self.state.producers.values()
        }


SEALED_AT = 2**60
"""A moment at which every segment is old."""


class Disk:
    """A partition's log, of which everything is sealed, cleaned again and again."""

    def __init__(
        self, files: Files, history: CompactedHistory, cuts: Iterable[int] = (), directory: Path = DIRECTORY
    ) -> None:
        self.state = PartitionState()
        self.log = PartitionLog.open(files, directory, LogSettings(), replay_into(self.state))
        for number, batch in enumerate(history.batches):
            self.log.settings = LogSettings(segment_bytes=0 if number in cuts else 1 << 30)
            self.log.append(bytearray(batch))
        self.log.settings = LogSettings()
        for _ in range(2):  # it is rolled if nothing has come between two looks
            self.log.roll_if_due(SEALED_AT)
        self.log.sync()
        self.before = history.state.last_stable_offset
        self.aborted = history.aborted
        self.producers = history.producers
        self.first_dirty = 0

    def clean(
        self, now_ms: int, keys: int = 1000, delete_retention_ms: int = DAY, segment_bytes: int = 10**6
    ) -> Cleaned:
        """One cleaning, and the swap that follows it."""
        sources = [
            sealed_segment for sealed_segment in self.log.sealed_segments() if sealed_segment.base_offset < self.before
        ]
        plan = CleaningPlan(
            sources, self.first_dirty, self.before, now_ms, delete_retention_ms, segment_bytes,
            keys * KEY_BYTES, self.aborted, self.producers,
        )  # fmt: skip
        done = clean(plan, self.log.begin_replacement, no_pause)
        for replacement in done.replacements:
            assert self.log.replace(replacement)
        self.aborted = [entry for entry in self.aborted if entry not in done.forgotten]
        self.first_dirty = done.clean_before
        return done

    def clean_daily(self) -> None:
        """Four cleanings, a day after each other: the last finds nothing that has to wait."""
        for day in range(4):
            self.clean(5000 + day * DAY)

    def batches(self) -> list[bytes]:
        return [bytes(batch) for segment in self.log.sealed_segments() for _, batch in segment.batches()]

    @property
    def segments(self) -> list[tuple[int, int]]:
        return [(segment.base_offset, segment.next_offset) for segment in self.log.sealed_segments()]


def on_disk(history: CompactedHistory, cuts: Iterable[int] = (), files: Files | None = None) -> Disk:
    """``history`` in segments that begin at the batches number ``cuts``."""
    return Disk(files or MemoryFiles(), history, set(cuts))


@dataclass(frozen=True)
class SeenRecord:
    """A record as a reader gets it."""

    offset: int
    timestamp: int
    key: bytes | None
    is_tombstone: bool
    content: bytes


def read_committed(batches: Iterable[bytes], aborted: Iterable[AbortedRange], start: int = 0) -> list[SeenRecord]:
    """What a read_committed consumer takes from ``batches``, by the rule of Kafka's own consumers: an aborted
    transaction is skipped from its first offset on until a marker of its producer comes."""
    coming = sorted((entry for entry in aborted if entry.last_offset >= start), key=lambda entry: entry.first_offset)
    skipping: set[int] = set()
    seen = []
    for batch in batches:
        header = peek_header(batch)
        if header.last_offset < start:
            continue
        while coming and coming[0].first_offset <= header.last_offset:
            skipping.add(coming.pop(0).producer_id)
        if header.is_control:
            if header.record_count and read_marker(batch) is Marker.ABORT:
                skipping.discard(header.producer_id)
        elif not (header.is_transactional and header.producer_id in skipping):
            seen += [record for record in seen_in(batch) if record.offset >= start]
    return seen


def seen_in(batch: bytes) -> list[SeenRecord]:
    """The records of one batch."""
    header = peek_header(batch)
    body = batch_body(header, batch)
    return [
        SeenRecord(
            span.offset,
            span.timestamp,
            span.key,
            span.is_tombstone,
            _after_timestamp(bytes(body[span.start : span.end])),
        )
        for span in iterate_spans(header, body)
    ]


def _after_timestamp(record: bytes) -> bytes:
    """What is the same in every batch that holds the record."""
    _, position = decode_varint(record, 0)
    _, position = decode_varint(record, position + 1)
    return record[position:]


def last_values(seen: Iterable[SeenRecord]) -> dict[bytes | None, SeenRecord]:
    """The last record of each key that is not a tombstone."""
    last = {record.key: record for record in seen}
    return {key: record for key, record in last.items() if not record.is_tombstone}


def reopened(files: Files) -> tuple[PartitionLog, PartitionState]:
    """What a restart finds."""
    state = PartitionState()
    log = PartitionLog.open(files, DIRECTORY, LogSettings(), replay_into(state))
    state.advance(state.end_offset)
    return log, state


def read_on(log: PartitionLog, start: int) -> list[bytes]:
    """The batches that a consumer fetches from ``start`` on, a few bytes at a time."""
    found: list[bytes] = []
    while part := log.read(max(start, log.start_offset), 150, log.end_offset):
        batches = list(iterate_batches(part))
        found += [bytes(batch) for _, batch in batches]
        assert batches[-1][0].next_offset > start, "a reader must get on"
        start = batches[-1][0].next_offset
    return found


def kept(disk: Disk) -> list[tuple[int, bytes | None, bool]]:
    """Offset, key and whether it is a tombstone; a marker's key is None."""
    return [
        (record.offset, None if peek_header(batch).is_control else record.key, record.is_tombstone)
        for batch in disk.batches()
        for record in seen_in(batch)
    ]


class CompactedHouse:
    """A broker's rooms with one compacted partition, whose segments hold a batch each."""

    def __init__(
        self, files: MemoryFiles, configs: dict[str, str | None] | None = None, durable: bool = True, **settings: int
    ) -> None:
        self.files = files
        self.rooms = Rooms(files, Flusher(durable, on_failure=never))
        if self.rooms.cluster.topic("c") is None:
            topic = CreateTopic("c", configs={"cleanup.policy": "compact", **(configs or {})})
            assert self.rooms.cluster.create_topic(topic).fact is not None
        found = self.rooms.cluster.partition(TopicPartition("c", 0))
        assert found is not None
        self.partition: Partition = found
        self.partition.log.settings = LogSettings(segment_bytes=0)
        self.thread = LoopCleanerThread()
        self.compaction = Compaction(
            files, self.rooms.cluster, self.rooms.flusher, self.rooms.clock, CleanerSettings(**settings), self.thread
        )

    async def write(
        self, *keys: bytes, producer: ProducerIdentity | None = None, sequence: int = 0, value: bytes | None = b"v"
    ) -> None:
        """One batch of one record for each key."""
        for key in keys:
            fields = BatchFields() if producer is None else BatchFields(producer, sequence, transactional=True)
            content = build_batch([Record(key, value, self.rooms.clock.now_ms)], fields)
            assert self.partition.append(content, peek_header(content)).verdict.appends
        await self.rooms.flusher.barrier()

    async def end(self, producer: ProducerIdentity, marker: Marker) -> None:
        self.partition.append_marker(marker, producer, self.rooms.clock.now_ms)
        await self.rooms.flusher.barrier()

    def left(self) -> list[int]:
        """The offsets of the records that are in the log."""
        return [record.offset for batch in read_on(self.partition.log, 0) for record in seen_in(batch)]


keys = st.sampled_from([b"a", b"b", b"c", b"d" * 30, b"e" * 30])
values = st.none() | st.binary(min_size=1, max_size=5)
contents = st.lists(st.tuples(keys, values), min_size=1, max_size=4)


@st.composite
def histories(draw: st.DrawFn) -> CompactedHistory:
    """Any mixture of plain, idempotent and transactional batches, with TV1's and TV2's epochs."""
    history = CompactedHistory()
    bumps = draw(st.booleans())
    for _ in range(draw(st.integers(1, 25))):
        kind = draw(st.sampled_from(["plain", "idempotent", "transactional", "transactional", "end"]))
        if kind == "plain":
            history.write(draw(contents), draw(st.sampled_from(Codec)))
        elif kind == "idempotent":
            history.write_as(draw(st.sampled_from([1, 2])), draw(contents))
        elif kind == "transactional":
            producer_id = draw(st.sampled_from([7, 8, 9]))
            if producer_id == 9:  # as batches of a transaction's offsets: they have no sequences
                history.sequences[producer_id] = -1
            history.write_as(producer_id, draw(contents), transactional=True)
        elif history.state.open_transactions:
            history.end(draw(st.sampled_from(sorted(history.state.open_transactions))), draw(st.booleans()), bumps)
    return history
