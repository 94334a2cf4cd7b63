"""Records on their way into batches: what a batch has room for, what it carries, and the memory that is counted."""

import pytest

from dualwrite.client.encoding.batches import BatchBuilder, record_size
from dualwrite.client.engine.accumulator import PartitionQueue, RecordAccumulator
from dualwrite.records.compression import Codec
from dualwrite.records.header import peek_header
from dualwrite.records.outgoing import OutgoingRecord
from tests.support.client.accumulators import ME, SMALL, add, make, take

HEADERS = {"a-name": b"a value", "none": None}


def append(
    accumulator: RecordAccumulator, *records: OutgoingRecord, now: float = 0.0, taken_ms: int = 1
) -> tuple[PartitionQueue, list[bool]]:
    """Add ``records``; their queue, and whether each one made a batch due."""
    queue = accumulator.queue("t", 0)
    sizes = [len(record.value or b"") + len(record.key or b"") for record in records]
    added = zip(records, sizes, strict=True)
    return queue, [accumulator.append(queue, record, size, taken_ms, now) for record, size in added]


@pytest.mark.parametrize("headers", [None, HEADERS], ids=["no headers", "headers"])
@pytest.mark.parametrize("has_room", [True, False])
def test_a_record_joins_a_batch_if_it_fits_in_its_largest_form(
    headers: dict[str, bytes | None] | None, has_room: bool
) -> None:
    first, second = OutgoingRecord("t", b"first"), OutgoingRecord("t", b"second", b"key", headers=headers)
    builder = BatchBuilder(0)
    builder.append(first.key, first.value, first.headers, 0)
    limit = builder.size + record_size(second.key, second.value, second.headers)
    queue, made_due = append(make(limit if has_room else limit - 1), first, second)
    assert made_due == [False, not has_room]
    assert [batch.count for batch in queue.waiting] == ([] if has_room else [1])


def test_a_batch_takes_no_more_records_than_its_limit() -> None:
    accumulator = make(batch_records=2)
    queue, made_due = append(accumulator, *[OutgoingRecord("t", b"x")] * 5)
    assert made_due == [False, False, True, False, True]
    accumulator.flush(0.0)
    assert [batch.count for batch in queue.waiting] == [2, 2, 1]


def test_a_record_makes_its_batch_due_once_the_batch_has_lingered() -> None:
    accumulator = make(linger=0.5)
    record = OutgoingRecord("t", b"x")
    made_due = [append(accumulator, record, now=now)[1] for now in (10.0, 10.4, 10.5)]
    assert made_due == [[False], [False], [True]]


def test_a_batch_carries_keys_values_headers_and_timestamps() -> None:
    """A record's own timestamp counts, or else the time at which the producer took it."""
    accumulator, expected = make(tracks_all=True), BatchBuilder(0)
    records = [
        OutgoingRecord("t", b"value", b"key", timestamp=1_700_000_000_123, headers=HEADERS),
        OutgoingRecord("t", None, b"only a key"),
    ]
    queue, _ = append(accumulator, *records, taken_ms=1_700_000_000_500)
    expected.append(b"key", b"value", tuple(HEADERS.items()), 1_700_000_000_123)
    expected.append(b"only a key", None, (), 1_700_000_000_500)
    accumulator.flush(0.0)
    batch = take(accumulator, queue)
    assert batch.data == expected.seal(Codec.NONE, None, ME, 0)
    assert [timestamp for _, _, timestamp, _ in batch.tracked_records()] == [1_700_000_000_123, 1_700_000_000_500]


@pytest.mark.parametrize(("level", "codec"), [(None, Codec.GZIP), (9, Codec.GZIP), (0, Codec.NONE)])
def test_a_batch_is_compressed_at_the_level_that_is_set(level: int | None, codec: Codec) -> None:
    """gzip's level 0 only stores, so that the batch stays uncompressed."""
    accumulator = make()
    queue = add(accumulator, b"x" * 1000)
    accumulator.flush(0.0)
    batch = accumulator.take(queue, "leader", ME, Codec.GZIP, level)
    assert peek_header(batch.data).compression == codec


def test_every_record_is_tracked_if_all_are_reported() -> None:
    accumulator = make(tracks_all=True)
    queue = add(accumulator, b"a", b"b", now=2.0)
    accumulator.flush(2.0)
    tracked = list(take(accumulator, queue).tracked_records())
    assert [(record.value, place, since) for record, place, _, since in tracked] == [(b"a", 0, 2.0), (b"b", 1, 2.0)]


def test_only_records_with_a_callback_are_tracked_otherwise() -> None:
    accumulator = make()
    add(accumulator, b"a")
    add(accumulator, b"b", on_delivery=print)
    queue = add(accumulator, b"c")
    accumulator.flush(0.0)
    assert [(record.value, place) for record, place, _, _ in take(accumulator, queue).tracked_records()] == [(b"b", 1)]


def test_a_record_that_is_tracked_in_part_is_an_error() -> None:
    """Each later record would be reported with another one's offset."""
    accumulator = make(tracks_all=True)
    queue = add(accumulator, b"a", b"b")
    accumulator.flush(0.0)
    batch = queue.waiting[0]
    batch.tracked.pop()
    with pytest.raises(ValueError, match="shorter"):
        list(batch.tracked_records())


def test_a_record_counts_for_its_bytes_and_some_more_until_it_is_acknowledged() -> None:
    accumulator = make(SMALL)
    counted = []
    for size in (50, 60, 70):
        queue = add(accumulator, b"x" * size)
        counted.append((accumulator.buffered, accumulator.records))
    accumulator.flush(0.0)
    for _ in range(3):
        accumulator.acknowledge(take(accumulator, queue))
        counted.append((accumulator.buffered, accumulator.records))
    assert counted == [(90, 1), (190, 2), (300, 3), (210, 2), (110, 1), (0, 0)]


def test_a_batch_counts_for_all_of_its_records() -> None:
    accumulator = make()
    queue = add(accumulator, b"a" * 10, b"b" * 20)
    other = add(accumulator, b"c" * 30, partition=1)
    assert (accumulator.buffered, accumulator.records) == (180, 3)
    accumulator.flush(0.0)
    accumulator.acknowledge(take(accumulator, queue))
    assert (accumulator.buffered, accumulator.records) == (70, 1)
    accumulator.acknowledge(take(accumulator, other))
    assert (accumulator.buffered, accumulator.records) == (0, 0)
