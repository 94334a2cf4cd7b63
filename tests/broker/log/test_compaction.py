"""Compaction of sealed segments: after any writes, readers see the last value of each key at its own offset."""

import hashlib
import random
from contextlib import suppress
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dualwrite.broker.log.cleaner import CleaningPlan, clean
from dualwrite.broker.log.compaction import AbortedRange
from dualwrite.ids import NO_PRODUCER
from dualwrite.records.batch import Record, build_batch
from dualwrite.records.compression import Codec
from dualwrite.records.header import (
    BatchFields,
    MalformedBatchError,
    checksum_matches,
    peek_header,
    placeholder,
    rebuild_batch,
    seal_batch,
)
from dualwrite.testing.files import MemoryFiles
from tests.support.broker.compactions import (
    DAY,
    DIRECTORY,
    CompactedHistory,
    Disk,
    histories,
    kept,
    last_values,
    no_pause,
    on_disk,
    read_committed,
    read_on,
    reopened,
    seen_in,
)
from tests.support.broker.logs import opened
from tests.support.broker.simulated import Killed, StoppableFiles

cuts = st.sets(st.integers(1, 24), max_size=5)
rounds = st.lists(
    st.tuples(st.sampled_from([1, DAY // 2, DAY * 2]), st.integers(1, 6), st.sampled_from([200, 10**6])),
    min_size=1,
    max_size=5,
)
"""Cleanings: the time since the one before, how many keys there is room for, and the size of a segment."""


@pytest.mark.slow
@given(histories(), cuts, rounds)
def test_a_reader_sees_the_same_last_values_at_the_same_offsets(
    history: CompactedHistory, where: set[int], cleanings: list[tuple[int, int, int]]
) -> None:
    disk = on_disk(history, where)
    whole = disk.batches()
    original = {record.offset: record for batch in whole for record in seen_in(batch)}
    committed = last_values(read_committed(whole, history.aborted))
    now = history.now
    for waited, keys, segment_bytes in cleanings:
        now += waited
        before, count = disk.first_dirty, sum(map(records_in, disk.batches()))
        done = disk.clean(now, keys, segment_bytes=segment_bytes)
        batches = disk.batches()
        assert before <= disk.first_dirty <= disk.before
        assert done.removed_records == count - sum(map(records_in, batches))
        assert last_values(read_committed(batches, disk.aborted)) == committed
        assert all(original[record.offset] == record for batch in batches for record in seen_in(batch))
        assert all(checksum_matches(peek_header(batch), batch) for batch in batches)
        headers = list(map(peek_header, batches))
        assert all(one.next_offset == next_one.base_offset for one, next_one in pairwise(headers))
        assert [header.base_offset for header in headers[:1]] == [0] * bool(whole)


def records_in(batch: bytes) -> int:
    return peek_header(batch).record_count


@given(histories(), cuts, rounds)
def test_a_restart_finds_the_same_producers_and_no_transaction_that_hangs(
    history: CompactedHistory, where: set[int], cleanings: list[tuple[int, int, int]]
) -> None:
    files = MemoryFiles()
    disk = on_disk(history, where, files)
    for waited, keys, segment_bytes in cleanings:
        history.now += waited
        disk.clean(history.now, keys, segment_bytes=segment_bytes)
    _, again = reopened(files)
    assert again.end_offset == history.state.end_offset
    assert again.last_stable_offset == history.state.last_stable_offset
    assert again.open_transactions.keys() == history.state.open_transactions.keys()
    found = {each.producer_id: (each.epoch, each.last_sequence) for each in again.producers.values()}
    for producer in history.state.producers.values():
        assert found[producer.producer_id] == (producer.epoch, producer.last_sequence)


@pytest.mark.slow
@given(histories(), cuts, rounds, st.integers(0, 100))
def test_a_reader_gets_on_from_any_offset(
    history: CompactedHistory, where: set[int], cleanings: list[tuple[int, int, int]], start: int
) -> None:
    disk = on_disk(history, where)
    whole = disk.batches()
    for waited, keys, segment_bytes in cleanings:
        history.now += waited
        disk.clean(history.now, keys, segment_bytes=segment_bytes)
    expected = {record.offset for record in last_values(read_committed(whole, history.aborted)).values()}
    batches = read_on(disk.log, min(start, disk.log.end_offset))
    seen = [record.offset for record in read_committed(batches, disk.aborted, start)]
    assert {offset for offset in expected if offset >= start} <= set(seen)
    assert seen == sorted(seen)
    if start < disk.before:
        assert disk.before in [peek_header(batch).next_offset for batch in batches], "the last offset is still known"


@pytest.mark.slow_cases
@given(histories(), cuts, st.integers(0, 40), st.integers(0, 2**32), st.booleans())
def test_a_crash_at_any_point_of_a_cleaning_changes_nothing_for_readers(
    history: CompactedHistory, where: set[int], stop_at: int, seed: int, loses_power: bool
) -> None:
    files, rng = MemoryFiles(), random.Random(seed)
    stoppable = StoppableFiles(files, rng)
    disk = on_disk(history, where, stoppable)
    committed = last_values(read_committed(disk.batches(), history.aborted))
    disk.clean(history.now, segment_bytes=300)
    stoppable.stop_before(stop_at)
    with suppress(Killed):
        disk.clean(history.now + 2 * DAY, segment_bytes=300)
    found = files.power_cut(rng) if loses_power else files
    log, state = reopened(found)
    assert state.end_offset == history.state.end_offset
    aborted = [
        AbortedRange(transaction.producer_id, transaction.first_offset, transaction.last_offset)
        for transaction in state.aborted
    ]
    assert last_values(read_committed(read_on(log, 0), aborted)) == committed
    assert not [name for name in found.list(DIRECTORY) if name.endswith((".cleaned", ".swap"))]


def plain(*pairs: tuple[bytes, bytes | None]) -> Disk:
    """Batches of one record each, in one segment."""
    history = CompactedHistory()
    for pair in pairs:
        history.write([pair])
    return on_disk(history)


def test_the_last_record_of_each_key_stays() -> None:
    disk = plain((b"a", b"1"), (b"b", b"1"), (b"a", b"2"), (b"c", b"1"), (b"b", b"2"))
    done = disk.clean(5000)
    assert kept(disk) == [(2, b"a", False), (3, b"c", False), (4, b"b", False)]
    assert (done.removed_records, done.clean_before) == (2, 5)
    assert done.written_bytes < done.read_bytes


def test_a_tombstone_is_removed_after_its_retention_time() -> None:
    disk = plain((b"a", b"1"), (b"a", None), (b"z", b"last"))
    disk.clean(5000)
    assert kept(disk) == [(1, b"a", True), (2, b"z", False)]
    assert peek_header(disk.batches()[1]).delete_horizon_ms == 5000 + DAY
    disk.clean(5000 + DAY - 1)
    assert kept(disk)[0] == (1, b"a", True)
    assert peek_header(disk.batches()[1]).delete_horizon_ms == 5000 + DAY, "the first cleaning's moment counts"
    disk.clean(5000 + DAY)
    assert kept(disk) == [(2, b"z", False)]


def test_a_tombstone_hides_nothing_that_came_later() -> None:
    disk = plain((b"a", b"1"), (b"a", None), (b"a", b"2"))
    disk.clean(5000)
    assert kept(disk) == [(2, b"a", False)]


def test_no_time_for_tombstones_removes_them_with_the_second_cleaning() -> None:
    disk = plain((b"a", None), (b"z", b"last"))
    disk.clean(5000, delete_retention_ms=0)
    disk.clean(5000, delete_retention_ms=0)
    assert kept(disk) == [(1, b"z", False)]


def test_endless_time_for_tombstones_keeps_them() -> None:
    disk = plain((b"a", None), (b"z", b"last"))
    before = [record.timestamp for record in seen_in(disk.batches()[0])]
    for now_ms in (5000, 2**62):
        disk.clean(now_ms, delete_retention_ms=2**63 - 1)
        assert kept(disk) == [(0, b"a", True), (1, b"z", False)]
    tombstone = disk.batches()[0]
    assert peek_header(tombstone).delete_horizon_ms == 2**63 - 1
    assert [record.timestamp for record in seen_in(tombstone)] == before


def test_records_of_an_aborted_transaction_go_and_later_its_marker() -> None:
    history = CompactedHistory()
    history.write([(b"a", b"committed")])
    history.write_as(7, [(b"a", b"aborted"), (b"b", b"aborted")], transactional=True)
    history.end(7, commit=False)
    history.write_as(7, [(b"c", b"committed")], transactional=True)
    history.end(7, commit=True)
    history.write([(b"z", b"last")])
    disk = on_disk(history)
    disk.producers.clear()
    disk.clean(5000)
    assert [key for _, key, _ in kept(disk)] == [b"a", None, b"c", None, b"z"]
    assert disk.aborted == [AbortedRange(7, 1, 3)]
    disk.clean(6000)
    assert disk.aborted == [], "readers need not know of it any more"
    assert [key for _, key, _ in kept(disk)][1] is None, "the marker stays for the same time as a tombstone"
    disk.clean(6000 + DAY)
    assert [(offset, key) for offset, key, _ in kept(disk)] == [(0, b"a"), (4, b"c"), (5, None), (6, b"z")]
    assert [record.key for record in read_committed(disk.batches(), disk.aborted)] == [b"a", b"c", b"z"]


def test_the_marker_of_a_commit_stays_while_a_record_of_it_does() -> None:
    history = CompactedHistory()
    history.write_as(7, [(b"a", b"1")], transactional=True)
    history.end(7, commit=True)
    history.write([(b"z", b"1")])
    disk = on_disk(history)
    disk.producers.clear()
    disk.clean_daily()
    assert len(disk.batches()) == 3
    history.write([(b"a", b"2")])
    disk = on_disk(history)
    disk.producers.clear()
    disk.clean_daily()
    assert [offset for offset, _, _ in kept(disk)] == [2, 3]


def test_no_two_keys_are_taken_for_one_however_long_and_alike() -> None:
    alike = b"k" * 40
    digest = hashlib.blake2b(alike, digest_size=20).digest()
    disk = plain(*((key, b"v") for key in (alike, alike + b"1", b"1" + alike, digest, alike[:19], alike[:20])))
    disk.clean(5000)
    assert [offset for offset, _, _ in kept(disk)] == list(range(6))


def test_the_last_batch_of_a_known_producer_stays_empty() -> None:
    history = CompactedHistory()
    history.write_as(1, [(b"a", b"1"), (b"b", b"1")])
    history.write_as(1, [(b"a", b"2"), (b"b", b"2")])
    history.write([(b"a", b"3"), (b"b", b"3")])
    disk = on_disk(history)
    disk.clean(5000)
    placeholder, last, _ = map(peek_header, disk.batches())
    assert (placeholder.base_offset, placeholder.last_offset, placeholder.producer) == (0, 1, NO_PRODUCER)
    assert (last.record_count, last.base_offset, last.last_offset) == (0, 2, 3)
    assert (last.base_sequence, last.last_sequence, last.producer.producer_id) == (2, 3, 1)
    disk.clean(6000)
    assert len(disk.batches()) == 3, "an empty batch is kept as long"
    disk.producers.clear()
    disk.clean(7000)
    placeholder, _ = map(peek_header, disk.batches())
    assert (placeholder.base_offset, placeholder.last_offset, placeholder.producer) == (0, 3, NO_PRODUCER)


def test_an_open_transaction_is_not_touched() -> None:
    history = CompactedHistory()
    history.write([(b"a", b"1")])
    history.write([(b"a", b"2")])
    history.write_as(7, [(b"a", b"open")], transactional=True)
    history.write([(b"a", b"3")])
    disk = on_disk(history)
    disk.clean(5000)
    assert [offset for offset, _, _ in kept(disk)] == [1, 2, 3]


def test_too_many_keys_take_several_cleanings() -> None:
    pairs = [(b"%d" % (index % 10), b"v") for index in range(40)]
    disk = plain(*pairs)
    ends = []
    while disk.first_dirty < disk.before:
        ends.append(disk.clean(5000, keys=4).clean_before)
    assert ends == [4, 8, 12, 16, 20, 24, 28, 32, 36, 40]
    assert [offset for offset, _, _ in kept(disk)] == list(range(30, 40))


def test_a_key_that_is_known_needs_no_more_room() -> None:
    assert plain(*[(b"a", b"v")] * 3, (b"b", b"v"), (b"a", b"v")).clean(5000, keys=1).clean_before == 3


def test_a_batch_with_more_keys_than_there_is_room_for_is_covered_alone() -> None:
    history = CompactedHistory()
    for first in (0, 9, 4):
        history.write([(b"%d" % key, b"v") for key in range(first, first + 9)])
    disk = on_disk(history)
    assert [disk.clean(5000, keys=4).clean_before for _ in range(3)] == [9, 18, 27]
    assert [offset for offset, _, _ in kept(disk)] == [0, 1, 2, 3, *range(13, 27)]


def test_a_batch_that_was_emptied_has_no_timestamp() -> None:
    history = CompactedHistory()
    history.write([(b"z", b"1")])
    history.now = 9000
    history.write_as(1, [(b"a", b"1")])
    history.now = 2000
    history.write([(b"a", b"2")])
    disk = on_disk(history)
    disk.clean(10_000)
    assert peek_header(disk.batches()[1]).record_count == 0
    assert disk.log.max_timestamp(3) == (2000, 2)
    assert disk.log.offset_for_timestamp(1500, 3) == (2000, 2)
    assert disk.log.offset_for_timestamp(3000, 3) is None


@pytest.mark.parametrize(("times", "segments"), [(1, [(0, 12), (12, 24), (24, 36), (36, 40)]), (2, [(0, 40)])])
def test_segments_become_one_up_to_the_size_of_a_segment(times: int, segments: list[tuple[int, int]]) -> None:
    history = CompactedHistory()
    for index in range(40):
        history.write([(b"%02d" % (index % 10), b"v" * 50)])
    disk = on_disk(history, cuts=range(0, 40, 4))
    assert len(disk.segments) == 10
    size = 3 * disk.log.sealed_segments()[0].size
    for _ in range(times):
        disk.clean(5000, segment_bytes=size)
    assert disk.segments == segments


def test_segments_stay_apart_whose_offsets_are_too_many_for_one_index() -> None:
    half = 2**30 - 1
    log = opened(MemoryFiles(), segment_bytes=1)
    for first in range(0, 4 * half, half):
        log.append(rebuild_batch(placeholder(first, first + half, 1000), b""))
    plan = CleaningPlan(log.sealed_segments(), 0, log.end_offset, 5000, DAY, 10**6, 10**6)
    done = clean(plan, log.begin_replacement, no_pause)
    assert [(each.base_offset, each.end_offset) for each in done.replacements] == [(0, 2 * half), (2 * half, 3 * half)]


@pytest.mark.parametrize("codec", Codec)
def test_a_batch_keeps_its_codec(codec: Codec) -> None:
    history = CompactedHistory()
    history.write([(b"a", b"1"), (b"b", b"1")], codec)
    history.write([(b"a", b"2")])
    disk = on_disk(history)
    disk.clean(5000)
    assert peek_header(disk.batches()[0]).compression == codec
    assert kept(disk) == [(1, b"b", False), (2, b"a", False)]


def test_long_batches_are_read_whole() -> None:
    disk = plain((b"a", b"1" * 3_000_000), (b"b", b"2" * 1_500_000), (b"a", b"3"))
    disk.clean(5000)
    assert kept(disk) == [(1, b"b", False), (2, b"a", False)]


def test_a_batch_that_cannot_be_opened_ends_the_cleaning() -> None:
    history = CompactedHistory()
    history.write([(b"a", b"1")])
    history.batches[0] = seal_batch(b"\xff" * 20, BatchFields(), 1, 0, 0)
    with pytest.raises(MalformedBatchError):
        on_disk(history).clean(5000)


def test_a_record_without_a_key_is_removed() -> None:
    history = CompactedHistory()
    history.batches.append(build_batch([Record(None, b"from before the topic was compacted")]))
    history.state.apply(peek_header(history.batches[0]), None)
    history.state.advance(1)
    history.write([(b"a", b"1")])
    disk = on_disk(history)
    disk.clean(5000)
    assert kept(disk) == [(1, b"a", False)]
