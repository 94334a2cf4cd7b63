"""Damage that a start or a reader used to take for sound data: in notes and old batches."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dualwrite.broker.log.batch_checks import UncheckedPart, check_batches, checked_batches
from dualwrite.broker.log.cleaner import CleaningPlan, clean
from dualwrite.broker.log.layout import (
    LOG,
    LOG_START_OFFSET,
    RECOVERY_POINT,
    name_at,
    offsets_of,
    read_mark,
    write_mark,
)
from dualwrite.broker.log.settings import LogSettings
from dualwrite.errors import CorruptLogError
from dualwrite.ids import ProducerIdentity
from dualwrite.records.header import MalformedBatchError, iterate_batches, place_batch
from dualwrite.testing.files import MemoryFiles
from tests.support.broker.log_histories import LogHistory, opened_with_state
from tests.support.broker.logs import DIRECTORY, add_each, content_of, flipped, opened, rewrite
from tests.support.broker.logs import whole as whole_log

NOTE = DIRECTORY / LOG_START_OFFSET
SEGMENT = DIRECTORY / name_at(0, LOG)
A = ProducerIdentity(1, 0)


# --- notes


@pytest.mark.parametrize("number", [0, 5, 42, 2**63 - 1])
def test_every_flipped_bit_and_every_truncation_of_a_note_is_refused(number: int) -> None:
    files = MemoryFiles()
    files.make_directory(DIRECTORY)
    write_mark(files, NOTE, number)
    content = content_of(files, NOTE)
    assert read_mark(files, NOTE) == number
    damages = [flipped(content, bit) for bit in range(len(content) * 8)]
    for damaged in (*damages, *(content[:length] for length in range(len(content)))):
        rewrite(files, NOTE, damaged)
        with pytest.raises(CorruptLogError, match=r"log-start-offset: damaged, .*remove it: deleted records"):
            read_mark(files, NOTE)


def test_a_note_that_an_operator_has_written_needs_no_checksum() -> None:
    files = MemoryFiles()
    files.make_directory(DIRECTORY)
    rewrite(files, NOTE, b"42\n")
    assert read_mark(files, NOTE) == 42


def test_a_damaged_start_offset_removes_no_segment() -> None:
    """A bare number with one flipped bit was another number, and the start removed what was below it."""
    files = MemoryFiles()
    log = opened(files, segment_bytes=160)
    add_each(log, [1000] * 12)
    log.truncate_before(1)
    log.checkpoint()
    segments = offsets_of(files.list(DIRECTORY), LOG)
    rewrite(files, NOTE, content_of(files, NOTE).replace(b"1 ", b"9 ", 1))
    with pytest.raises(CorruptLogError, match="log-start-offset: damaged, wrong checksum"):
        opened(files)
    assert offsets_of(files.list(DIRECTORY), LOG) == segments


# --- batches below the ends of old segments


def old_log(files: MemoryFiles, batches: int = 12) -> bytes:
    """The bytes of the first segment of a log that a start reads only at its end; each batch has one record."""
    history = LogHistory(files, random.Random(1), LogSettings(index_interval_bytes=150))
    for _ in range(batches):
        history.write()
    history.take_point()
    return content_of(files, SEGMENT)


@pytest.mark.parametrize("field", [0, 7, 8, 11, 12, 15, 16, 17, 20, 22, 26, 34, 42, 50, 56, 60, 65])
def test_a_damaged_batch_is_refused_to_its_reader_and_others_are_read(field: int) -> None:
    """An offset and a leader epoch have no checksum in Kafka's format."""
    files = MemoryFiles()
    whole = old_log(files)
    starts = [0]
    for header, _ in iterate_batches(whole):
        starts.append(starts[-1] + header.size)
    rewrite(files, SEGMENT, flipped(whole, (starts[4] + field) * 8))
    log, _ = opened_with_state(files)
    with pytest.raises(MalformedBatchError, match=f"^{SEGMENT}: "):
        whole_log(log)
    assert log.read(0, 1, log.end_offset) == whole[: starts[1]]
    assert log.read(11, 1, log.end_offset) == whole[starts[11] :]


@pytest.mark.parametrize("field", [27, 35, 57], ids=["base timestamp", "max timestamp", "record count"])
def test_a_start_takes_no_time_from_a_damaged_batch_at_the_end_of_a_segment(field: int) -> None:
    """It reads that batch to check the index. A wrong time would answer look-ups, and decide when retention removes the
    segment."""
    files = MemoryFiles()
    history = LogHistory(files, random.Random(1))
    for _ in range(40):
        history.write()
    history.take_point()
    sealed = history.log.sealed_segments()[0].path
    content = content_of(files, sealed)
    *_, (_, last) = iterate_batches(content)
    for bit in range(8):
        rewrite(files, sealed, flipped(content, (len(content) - len(last) + field) * 8 + bit))
        with pytest.raises(CorruptLogError, match=f"{sealed.name}: at byte .*: .*; later segments follow it"):
            opened_with_state(files)
    rewrite(files, sealed, content)
    assert not opened_with_state(files)[0].repairs


def test_a_cleaner_gives_damaged_content_no_new_checksum() -> None:
    files, settings = MemoryFiles(), LogSettings(segment_bytes=2000, index_interval_bytes=150)
    history = LogHistory(files, random.Random(1), settings)
    for _ in range(40):
        history.write()
    history.take_point()
    rewrite(files, SEGMENT, flipped(content_of(files, SEGMENT), 70 * 8))
    log, _ = opened_with_state(files, settings)
    sources = log.sealed_segments()
    plan = CleaningPlan(sources, 0, log.end_offset, 0, 0, 1 << 20, 1 << 20)
    with pytest.raises(MalformedBatchError, match=f"{SEGMENT}: wrong checksum of the batch at offset 0"):
        clean(plan, log.begin_replacement, lambda: None)
    assert not [name for name in files.list(DIRECTORY) if name.endswith(".cleaned")]


@pytest.mark.parametrize("first_dirty", [0, 60])
@pytest.mark.parametrize("bit", range(64))
def test_a_cleaner_refuses_a_segment_whose_first_batch_has_another_offset(bit: int, first_dirty: int) -> None:
    """A start reads the end of this segment only, and the batch's checksum does not cover the offset."""
    files, settings = MemoryFiles(), LogSettings(segment_bytes=2000, index_interval_bytes=150)
    history = LogHistory(files, random.Random(1), settings)
    for _ in range(100):
        history.write()
    history.take_point()
    source = history.log.sealed_segments()[-1]
    rewrite(files, source.path, flipped(content_of(files, source.path), bit))
    log, _ = opened_with_state(files, settings)
    sources = log.sealed_segments()
    plan = CleaningPlan(sources, first_dirty, source.next_offset, 0, 0, 1 << 20, 1 << 20)
    words = f"^{source.path}: a batch begins at offset -?[0-9]+ instead of {source.base_offset}"
    with pytest.raises(MalformedBatchError, match=words):
        clean(plan, log.begin_replacement, lambda: None)
    assert not [name for name in files.list(DIRECTORY) if name.endswith(".cleaned")]


def test_a_compacted_segment_that_ends_earlier_is_refused() -> None:
    files = MemoryFiles()
    history = LogHistory(files, random.Random(1), LogSettings(segment_bytes=600))
    for _ in range(20):
        history.write()
    replacement = history.log.begin_replacement(history.log.sealed_segments()[:2])
    for source in replacement.old:
        for _, batch in source.batches():
            replacement.append(batch)
    replacement.finish()
    assert history.log.replace(replacement)
    history.take_point()
    content = content_of(files, SEGMENT)
    *_, (last, _) = iterate_batches(content)
    rewrite(files, SEGMENT, content[: -last.size])
    words = f"but the segment before it ends at {last.base_offset} .{SEGMENT}"
    with pytest.raises(CorruptLogError, match=words):
        opened_with_state(files)


def test_a_log_that_was_cut_without_its_recovery_point_rolls_and_starts_again_after_a_kill() -> None:
    """An operator has removed the recovery point, to lose what followed."""
    files = MemoryFiles()
    content, settings = old_log(files), LogSettings(index_interval_bytes=150)
    *_, (last, _) = iterate_batches(content)
    files.remove(DIRECTORY / RECOVERY_POINT)
    rewrite(files, SEGMENT, content[:-1])
    shorter = LogSettings(segment_bytes=len(content) - last.size, index_interval_bytes=150)
    log, _ = opened_with_state(files, shorter)
    end_offset = log.end_offset
    add_each(log, [1, 2])
    assert [segment.path for segment in log.sealed_segments()][:1] == [SEGMENT]
    again, _ = opened_with_state(files, settings)
    assert again.end_offset == end_offset + 2


def test_a_reader_behind_a_batch_of_a_wrong_length_is_refused_and_does_not_wait() -> None:
    files = MemoryFiles()
    whole = old_log(files)
    starts = [0]
    for header, _ in iterate_batches(whole):
        starts.append(starts[-1] + header.size)
    rewrite(files, SEGMENT, flipped(whole, (starts[4] + 9) * 8))
    log, _ = opened_with_state(files)
    with pytest.raises(MalformedBatchError, match=f"^{SEGMENT}: "):
        log.read(5, 1, log.end_offset)


@pytest.mark.parametrize("field", [7, 15, 34, 42, 60])
def test_no_search_for_a_time_is_answered_from_a_damaged_batch(field: int) -> None:
    files, settings = MemoryFiles(), LogSettings(index_interval_bytes=150)
    log = opened_with_state(files, settings)[0]
    add_each(log, range(1000, 1012))
    log.plan_recovery_point([], lambda _: [])
    log.write_recovery_points()
    whole = content_of(files, SEGMENT)
    rewrite(files, SEGMENT, flipped(whole, (4 * len(whole) // 12 + field) * 8))
    log, _ = opened_with_state(files, settings)
    assert not log.repairs
    for search in (lambda: log.offset_for_timestamp(1005, 12), lambda: log.max_timestamp(6)):
        with pytest.raises(MalformedBatchError, match=f"^{SEGMENT}: "):
            search()


def moved(batch: bytes, base_offset: int, leader_epoch: int = 0) -> bytes:
    placed = bytearray(batch)
    place_batch(placed, base_offset, leader_epoch)
    return bytes(placed)


def test_an_offset_must_follow_the_one_before() -> None:
    batches = [bytes(batch) for _, batch in iterate_batches(old_log(MemoryFiles(), 3))]
    data = b"".join(batches)
    check_batches(data, 0, 3)
    check_batches(batches[1], 1, 2)
    for wrong, offset, following in (
        (b"".join((batches[0], moved(batches[1], 5), moved(batches[2], 6))), 0, 7),
        (data, 0, 4),
        (data, 0, 2),
        (moved(batches[0], 1), 0, 2),
        (moved(batches[1], 0), 1, 2),
        (moved(batches[0], 0, leader_epoch=1), 0, 1),
    ):
        with pytest.raises(MalformedBatchError, match=r"a batch begins at offset|leader epoch 1"):
            check_batches(wrong, offset, following)


def read_at(files: MemoryFiles, offset: int) -> bytes:
    log, _ = opened_with_state(files)
    return log.read(offset, 1, log.end_offset)


@pytest.mark.parametrize("bit", range(64))
def test_a_flipped_bit_of_an_offset_in_a_compacted_log_is_not_served(bit: int) -> None:
    files = MemoryFiles()
    history = LogHistory(files, random.Random(1), LogSettings(segment_bytes=4000, index_interval_bytes=300))
    for _ in range(80):
        history.write()
    replacement = history.log.begin_replacement(history.log.sealed_segments())
    batches = [each for source in replacement.old for each in source.batches()]
    for number, (header, batch) in enumerate(batches):
        if number % 8 == 7:
            replacement.append(batch)
        else:
            replacement.leave_out(header)
    replacement.finish()
    assert history.log.replace(replacement)
    history.take_point()
    content, position = content_of(files, SEGMENT), 0
    for header, _ in iterate_batches(content):
        rewrite(files, SEGMENT, flipped(content, position * 8 + bit))
        with pytest.raises((CorruptLogError, MalformedBatchError), match=f"{SEGMENT}: "):
            read_at(files, header.base_offset)
        position += header.size
    assert position == len(content)


def test_batches_are_checked_one_by_one() -> None:
    data = old_log(MemoryFiles(), 3)
    damaged = flipped(data, (len(data) - 1) * 8)
    checked = checked_batches(iterate_batches(damaged))
    assert [next(checked)[0].base_offset for _ in range(2)] == [0, 1]
    with pytest.raises(MalformedBatchError, match="wrong checksum of the batch at offset 2"):
        next(checked)


def test_readers_that_follow_one_another_pay_for_one_check() -> None:
    part = UncheckedPart()
    assert not part.has(0, 10), "nothing is old"
    part.size = 100
    assert part.has(0, 10)
    part.was_checked(0, 10)
    part.was_checked(10, 30)
    assert [part.has(start, end) for start, end in ((0, 10), (5, 30), (0, 31), (30, 40), (100, 120))] == [
        False,
        False,
        True,
        True,
        False,
    ]
    part.was_checked(60, 90)
    assert part.has(0, 10), "one range is remembered"
    assert not part.has(60, 90)


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(1, 20))), st.integers(0, 50), st.integers(1, 20))
def test_no_byte_passes_that_was_not_checked(checked: list[tuple[int, int]], start: int, length: int) -> None:
    part, sound = UncheckedPart(), set[int]()
    part.size = 50
    for first, size in checked:
        part.was_checked(first, first + size)
        sound.update(range(first, first + size))
    if not part.has(start, start + length):
        assert start >= part.size or sound.issuperset(range(start, start + length))
