"""Indexes with a flipped bit, of another length, of another time or of another segment: a start makes them anew."""

import random
from pathlib import Path

import pytest

from dualwrite.broker.log.index_checksums import (
    NO_SUMS,
    DamagedIndexError,
    IndexSum,
    checked_index,
    encode_sums,
    read_sums,
)
from dualwrite.broker.log.layout import (
    CHECKSUMS,
    INDEXES,
    LOG,
    OFFSET_INDEX,
    TIME_INDEX,
    TRANSACTION_INDEX,
    name_at,
    offsets_of,
)
from dualwrite.broker.log.settings import LogSettings
from dualwrite.ids import ProducerIdentity
from dualwrite.records.control import Marker
from dualwrite.records.header import MalformedBatchError
from dualwrite.testing.files import MemoryFiles
from tests.support.broker.log_histories import LogHistory, known, opened_with_state
from tests.support.broker.logs import DIRECTORY, add_each, content_of, flipped, rewrite

SEGMENT = DIRECTORY / name_at(0, LOG)
A = ProducerIdentity(1, 0)


def with_aborted(files: MemoryFiles) -> LogHistory:
    """Aborted transactions in several segments, and a recovery point at the end."""
    history = LogHistory(files, random.Random(1), LogSettings(segment_bytes=600, index_interval_bytes=100))
    for _ in range(8):
        history.write(A, transactional=True)
        history.end(A, Marker.ABORT)
    history.take_point()
    return history


@pytest.mark.parametrize("suffix", [*INDEXES, CHECKSUMS])
def test_a_flipped_bit_in_an_index_is_noticed_and_the_index_is_rebuilt(suffix: str) -> None:
    files = MemoryFiles()
    expected = known(with_aborted(files).state)
    contents = {name: content_of(files, DIRECTORY / name) for name in files.list(DIRECTORY) if name.endswith(suffix)}
    rng = random.Random(3)
    for name, content in contents.items():
        for bit in rng.sample(range(len(content) * 8), min(12, len(content) * 8)):
            rewrite(files, DIRECTORY / name, flipped(content, bit))
            again = files.power_cut(random.Random(0))
            log, state = opened_with_state(again)
            assert known(state) == expected, f"bit {bit} of {name}"
            assert log.repairs, f"bit {bit} of {name} was not noticed"
            repaired = LogHistory(again, random.Random(1))
            repaired.take_point()
            assert not opened_with_state(again)[0].repairs
        rewrite(files, DIRECTORY / name, content)
    assert len(contents) > 2


@pytest.mark.parametrize("suffix", [*INDEXES, CHECKSUMS])
def test_an_index_of_any_shorter_length_is_noticed(suffix: str) -> None:
    files = MemoryFiles()
    expected = known(with_aborted(files).state)
    name = min(name for name in files.list(DIRECTORY) if name.endswith(suffix))
    content = content_of(files, DIRECTORY / name)
    for length in range(0, len(content), 3):
        rewrite(files, DIRECTORY / name, content[:length])
        log, state = opened_with_state(files.power_cut(random.Random(0)))
        assert known(state) == expected
        assert log.repairs, f"{name} with {length} bytes was not noticed"


def test_checksums_are_those_of_the_beginnings_of_the_indexes() -> None:
    files = MemoryFiles()
    files.make_directory(DIRECTORY)
    sums = {**NO_SUMS, TIME_INDEX: IndexSum().extended(b"time"), OFFSET_INDEX: IndexSum().extended(b"off")}
    rewrite(files, SEGMENT.with_suffix(CHECKSUMS), encode_sums(sums))
    rewrite(files, SEGMENT.with_suffix(TIME_INDEX), b"time and more")
    assert read_sums(files, SEGMENT) == sums
    assert checked_index(files, SEGMENT.with_suffix(TIME_INDEX), sums[TIME_INDEX]) == b"time"
    assert sums[OFFSET_INDEX].extended(b"set") == IndexSum().extended(b"offset")
    rewrite(files, SEGMENT.with_suffix(OFFSET_INDEX), b"oft")
    with pytest.raises(DamagedIndexError, match=r"\.index has a wrong checksum"):
        checked_index(files, SEGMENT.with_suffix(OFFSET_INDEX), sums[OFFSET_INDEX])
    with pytest.raises(DamagedIndexError, match=r"\.txnindex is missing"):
        checked_index(files, SEGMENT.with_suffix(TRANSACTION_INDEX), sums[TRANSACTION_INDEX])


def test_an_index_that_is_truncated_under_a_running_broker_is_named(  # a start would have made it again
    tmp_path: Path,
) -> None:
    files = MemoryFiles()
    history = LogHistory(files, random.Random(1), LogSettings(segment_bytes=600, index_interval_bytes=1))
    for _ in range(20):
        history.write()
    history.take_point()
    log, _ = opened_with_state(files, LogSettings(segment_bytes=600, index_interval_bytes=1))
    rewrite(files, SEGMENT.with_suffix(OFFSET_INDEX), b"")
    with pytest.raises(MalformedBatchError, match=f"^{SEGMENT}: an index file ends before byte"):
        log.read(3, 1, log.end_offset)


def test_a_flipped_bit_in_an_index_under_a_running_broker_hides_no_record_from_a_reader() -> None:
    """No checksum is read again then. A position behind the record would be one of records that a reader skips."""
    files, settings = MemoryFiles(), LogSettings(segment_bytes=1200, index_interval_bytes=1)
    log = opened_with_state(files, settings)[0]
    add_each(log, range(1000, 1020))
    log.plan_recovery_point([], lambda _: [])
    log.write_recovery_points()
    first = log.sealed_segments()[0]
    assert first.is_stored
    expected = [log.read(offset, 1 << 20, first.next_offset) for offset in range(first.next_offset)]
    index = content_of(files, SEGMENT.with_suffix(OFFSET_INDEX))
    for bit in range(len(index) * 8):
        rewrite(files, SEGMENT.with_suffix(OFFSET_INDEX), flipped(index, bit))
        read = [log.read(offset, 1 << 20, first.next_offset) for offset in range(first.next_offset)]
        assert read == expected, f"bit {bit}"


@pytest.mark.parametrize("is_sealed", [True, False], ids=["sealed", "active"])
@pytest.mark.parametrize("suffix", [OFFSET_INDEX, TIME_INDEX])
def test_an_older_index_with_its_checksum_is_made_anew(suffix: str, is_sealed: bool) -> None:
    """An operator has restored it from a copy."""
    files, settings = MemoryFiles(), LogSettings(segment_bytes=1200, index_interval_bytes=100)
    log = opened_with_state(files, settings)[0]
    add_each(log, range(1000, 1030))
    log.plan_recovery_point([], lambda _: [])
    log.write_recovery_points()
    segment = DIRECTORY / name_at(offsets_of(files.list(DIRECTORY), LOG)[0 if is_sealed else -1], LOG)
    index, entry = content_of(files, segment.with_suffix(suffix)), 8 if suffix == OFFSET_INDEX else 12
    older = index[: -3 * entry]
    assert older
    rewrite(files, segment.with_suffix(suffix), older)
    sums = {**read_sums(files, segment), suffix: IndexSum().extended(older)}
    rewrite(files, segment.with_suffix(CHECKSUMS), encode_sums(sums))
    again = opened_with_state(files, settings)[0]
    assert again.repairs
    assert again.has_unplanned, "a clean stop stores the index anew"
    assert [again.offset_for_timestamp(1000 + offset, 30) for offset in range(30)] == [
        (1000 + offset, offset) for offset in range(30)
    ]


def test_the_transaction_index_of_another_segment_is_not_used() -> None:
    files = MemoryFiles()
    expected = known(with_aborted(files).state)
    first, second = (DIRECTORY / name_at(base, LOG) for base in offsets_of(files.list(DIRECTORY), LOG)[:2])
    index = content_of(files, first.with_suffix(TRANSACTION_INDEX))
    rewrite(files, second.with_suffix(TRANSACTION_INDEX), index)
    sums = {**read_sums(files, second), TRANSACTION_INDEX: IndexSum().extended(index)}
    rewrite(files, second.with_suffix(CHECKSUMS), encode_sums(sums))
    log, state = opened_with_state(files)
    assert any("belongs to another segment" in repair for repair in log.repairs)
    assert known(state) == expected
