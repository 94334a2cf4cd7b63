"""Histories of a compacted partition, what readers make of them, and a cleaning of files that hold them."""

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from hypothesis import strategies as st

from dualwrite.broker.core.partitions import PartitionState
from dualwrite.broker.log.cleaner import Cleaned, Plan, Source, clean
from dualwrite.broker.log.compaction import KEY_BYTES, AbortedRange, ActiveProducer
from dualwrite.ids import ProducerIdentity
from dualwrite.ports import Files
from dualwrite.records.batch import Record, build_batch
from dualwrite.records.compression import Codec, batch_body, compress
from dualwrite.records.control import Marker, build_marker, read_marker
from dualwrite.records.header import HEADER_SIZE, BatchFields, iterate_batches, peek_header, place_batch, rebuild_batch
from dualwrite.records.rewriting import iterate_spans
from dualwrite.records.varint import decode_varint

DIRECTORY = Path("/data/t-0")
DAY = 86_400_000
_names = itertools.count()


def no_pause() -> None:
    """Never sleeps."""


@dataclass
class History:
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
        return [AbortedRange(each.producer_id, each.first_offset, each.last_offset) for each in self.state.aborted]

    @property
    def producers(self) -> dict[int, ActiveProducer]:
        return {
            each.producer_id: ActiveProducer(
                each.epoch,
                each.batches[-1].first_offset + each.batches[-1].last_sequence - each.batches[-1].first_sequence
                if each.batches
                else -1,
            )
            for each in self.state.producers.values()
        }


@dataclass
class Disk:
    """A partition's sealed segments as files, cleaned again and again."""

    files: Files
    sources: list[Source]
    aborted: list[AbortedRange]
    producers: dict[int, ActiveProducer]
    before: int
    first_dirty: int = 0

    def clean(
        self, now_ms: int, keys: int = 1000, delete_retention_ms: int = DAY, segment_bytes: int = 10**6
    ) -> Cleaned:
        """One cleaning, and the swap of files that follows it."""
        plan = Plan(
            self.sources, self.first_dirty, self.before, now_ms, delete_retention_ms, segment_bytes,
            keys * KEY_BYTES, self.aborted, self.producers,
        )  # fmt: skip
        done = clean(self.files, plan, lambda base: DIRECTORY / f"{base}-{next(_names)}.cleaned", no_pause)
        replaced = {source for made in done.segments for source in made.sources}
        rest = [source for source in self.sources if source not in replaced]
        assert [source for made in done.segments for source in made.sources] + rest == self.sources
        self.sources = [_swapped(self.files, made.path, made.sources) for made in done.segments] + rest
        self.aborted = [entry for entry in self.aborted if entry not in done.forgotten]
        self.first_dirty = done.clean_before
        return done

    def batches(self) -> list[bytes]:
        return [bytes(batch) for source in self.sources for _, batch in iterate_batches(self._content(source))]

    def _content(self, source: Source) -> bytes:
        file = self.files.open(source.path)
        content = file.read(0, source.size)
        file.close()
        return content


def _swapped(files: Files, path: Path, sources: Sequence[Source]) -> Source:
    file = files.open(path)
    size = file.size()
    file.close()
    return Source(path, size, sources[0].base_offset, sources[-1].next_offset)


def on_disk(files: Files, history: History, cuts: Iterable[int] = (), before: int | None = None) -> Disk:
    """``history`` in segments that begin at the batches number ``cuts``."""
    files.make_directory(DIRECTORY)
    edges = sorted({0, *(cut for cut in cuts if 0 < cut < len(history.batches)), len(history.batches)})
    sources = []
    for first, last in itertools.pairwise(edges):
        headers = [peek_header(batch) for batch in history.batches[first:last]]
        path = DIRECTORY / f"{headers[0].base_offset:020}.log"
        file = files.open(path)
        file.append(*history.batches[first:last])
        sources.append(Source(path, file.size(), headers[0].base_offset, headers[-1].next_offset))
        file.close()
    bound = history.state.last_stable_offset if before is None else min(before, history.state.last_stable_offset)
    return Disk(
        files, [each for each in sources if each.base_offset < bound], history.aborted, history.producers, bound
    )


@dataclass(frozen=True)
class Seen:
    """A record as a reader gets it."""

    offset: int
    timestamp: int
    key: bytes | None
    is_tombstone: bool
    content: bytes


def read_committed(batches: Iterable[bytes], aborted: Iterable[AbortedRange], start: int = 0) -> list[Seen]:
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


def seen_in(batch: bytes) -> list[Seen]:
    """The records of one batch."""
    header = peek_header(batch)
    body = batch_body(header, batch)
    return [
        Seen(
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


def last_values(seen: Iterable[Seen]) -> dict[bytes | None, Seen]:
    """The last record of each key that is not a tombstone."""
    last = {record.key: record for record in seen}
    return {key: record for key, record in last.items() if not record.is_tombstone}


def replayed(batches: Iterable[bytes]) -> PartitionState:
    """The state that a restart rebuilds."""
    state = PartitionState()
    for batch in batches:
        header = peek_header(batch)
        state.apply(header, read_marker(batch) if header.is_control and header.record_count else None)
    state.advance(state.end_offset)
    return state


keys = st.sampled_from([b"a", b"b", b"c", b"d" * 30, b"e" * 30])
values = st.none() | st.binary(min_size=1, max_size=5)
contents = st.lists(st.tuples(keys, values), min_size=1, max_size=4)


@st.composite
def histories(draw: st.DrawFn) -> History:
    """Any mixture of plain, idempotent and transactional batches, with TV1's and TV2's epochs."""
    history = History()
    bumps = draw(st.booleans())
    for _ in range(draw(st.integers(1, 25))):
        kind = draw(st.sampled_from(["plain", "idempotent", "transactional", "transactional", "end"]))
        if kind == "plain":
            history.write(draw(contents), draw(st.sampled_from(Codec)))
        elif kind == "idempotent":
            history.write_as(draw(st.sampled_from([1, 2])), draw(contents))
        elif kind == "transactional":
            history.write_as(draw(st.sampled_from([7, 8, 9])), draw(contents), transactional=True)
        elif history.state.open_transactions:
            history.end(draw(st.sampled_from(sorted(history.state.open_transactions))), draw(st.booleans()), bumps)
    return history
