"""Journals: records come back in order, a batch whole or not at all, and damage is refused."""

import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.record.memory_records import MemoryRecords

from dualwrite.broker.log.journal import Journal
from dualwrite.broker.process.disk import DiskFiles
from dualwrite.errors import CorruptLogError
from dualwrite.ids import NO_PRODUCER
from dualwrite.ports import Files
from dualwrite.records.batch import Record
from dualwrite.records.header import BatchFields, place_batch, seal_batch
from dualwrite.testing.files import MemoryFiles
from tests.support.broker.logs import add, opened
from tests.support.strategies import record_lists

DIRECTORY = Path("/data/__transaction_state-0")


def journal(files: Files, directory: Path = DIRECTORY) -> tuple[Journal, list[Record]]:
    """The journal of ``directory``, and the records that it replayed."""
    replayed: list[Record] = []
    return Journal.open(files, directory, replayed.append), replayed


@given(st.lists(record_lists, max_size=8))
def test_records_come_back_in_order_with_their_offsets(appends: list[list[Record]]) -> None:
    files = MemoryFiles()
    first, replayed = journal(files)
    assert replayed == []
    for records in appends:
        first.append(records)
    expected = [record for records in appends for record in records]
    again, replayed = journal(files)
    assert replayed == [record._replace(offset=offset) for offset, record in enumerate(expected)]
    assert again.log.end_offset == len(expected)


def test_a_reopened_journal_continues_at_its_end(tmp_path: Path) -> None:
    for number in range(4):
        opened_journal, replayed = journal(DiskFiles(), tmp_path)
        assert [record.value for record in replayed] == [b"%d" % earlier for earlier in range(number)]
        opened_journal.append([Record(b"k", b"%d" % number, 1000)])
        opened_journal.log.sync()
        opened_journal.log.close()


def test_a_journal_longer_than_one_read_comes_back_whole(tmp_path: Path) -> None:
    written, _ = journal(DiskFiles(), tmp_path)
    for number in range(40):
        written.append([Record(b"%d" % number, b"x" * 100_000)])
    written.log.close()
    again, replayed = journal(DiskFiles(), tmp_path)
    assert [record.key for record in replayed] == [b"%d" % number for number in range(40)]
    again.log.close()


def test_after_a_power_cut_each_append_is_whole_or_missing() -> None:
    files = MemoryFiles()
    written, _ = journal(files)
    written.append([Record(b"a", b"1"), Record(b"a", b"2")])
    written.log.sync()
    for key in (b"b", b"c"):
        written.append([Record(key, b"1" * 600), Record(key, b"2" * 600)])
    seen = set()
    for seed in range(100):
        _, replayed = journal(files.power_cut(random.Random(seed)))
        seen.add(b"".join(record.key or b"" for record in replayed))
    assert seen == {b"aa", b"aabb", b"aabbcc"}


def test_an_append_of_nothing_is_refused() -> None:
    written, _ = journal(MemoryFiles())
    with pytest.raises(ValueError, match="at least one record"):
        written.append([])
    assert written.log.end_offset == 0


def test_batches_are_plain_ones_that_kafka_python_reads(tmp_path: Path) -> None:
    written, _ = journal(DiskFiles(), tmp_path)
    written.append([Record(b"k", None, 5), Record(b"l", b"v", 6)])
    written.log.close()
    batch = MemoryRecords((tmp_path / "00000000000000000000.log").read_bytes()).next_batch()
    assert (batch.is_transactional, batch.is_control_batch, batch.producer_id) == (
        False,
        False,
        NO_PRODUCER.producer_id,
    )
    assert [(record.key, record.value, record.timestamp) for record in batch] == [(b"k", None, 5), (b"l", b"v", 6)]


def test_a_wrong_checksum_in_an_earlier_segment_is_refused() -> None:
    files = MemoryFiles()
    log = opened(files, DIRECTORY, segment_bytes=1)
    damaged = bytearray(add(log, Record(b"k", b"v")))
    add(log)
    damaged[-2] ^= 1
    segment = files.open(DIRECTORY / "00000000000000000000.log")
    segment.truncate(0)
    segment.append(damaged)
    with pytest.raises(
        CorruptLogError, match=r"state-0/00000000000000000000\.log: at byte 0: wrong checksum of the batch; later"
    ):
        journal(files)


def test_a_batch_without_readable_records_is_refused() -> None:
    files = MemoryFiles()
    log = opened(files, DIRECTORY)
    add(log)
    batch = bytearray(seal_batch(b"\xff" * 9, BatchFields(), 1, 0, 0))
    place_batch(batch, 1, 0)
    log.append(batch)
    with pytest.raises(CorruptLogError, match="batch at offset 1: record at byte 61"):
        journal(files)


def test_a_torn_tail_is_cut_and_its_length_kept() -> None:
    files = MemoryFiles()
    written, _ = journal(files)
    written.append([Record(b"k", b"v")])
    files.open(DIRECTORY / "00000000000000000000.log").append(b"torn")
    again, replayed = journal(files)
    assert (again.log.cut_bytes, len(replayed)) == (4, 1)
