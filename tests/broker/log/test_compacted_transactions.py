"""Compaction and transactions: a marker stays as long as any record that it ends, and takes no other record along."""

import pytest

from dualwrite.records.control import Marker
from dualwrite.testing.files import MemoryFiles
from tests.support.broker.compactions import CompactedHistory, kept, on_disk, reopened


def test_the_marker_of_an_abort_stays_while_a_record_below_the_start_of_the_log_does() -> None:
    """DeleteRecords forgets the aborted transaction, and keeps the segment. A replay would open the transaction again,
    and no marker would end it."""
    history = CompactedHistory()
    history.write_as(7, [(b"a", b"aborted")], transactional=True)
    history.end(7, commit=False)
    history.write([(b"z", b"last")])
    files = MemoryFiles()
    disk = on_disk(history, files=files)
    disk.log.truncate_before(2)
    disk.first_dirty, disk.aborted = 2, []
    disk.producers.clear()
    disk.clean_daily()
    assert not reopened(files)[1].open_transactions


def test_each_marker_goes_with_the_records_of_its_own_transaction() -> None:
    history = CompactedHistory()
    for key in (b"a", b"b", b"c"):
        history.write_as(7, [(key, b"1")], transactional=True)
        history.end(7, commit=True)
    history.write([(b"b", b"2")])
    disk = on_disk(history)
    disk.producers.clear()
    disk.clean_daily()
    assert [offset for offset, _, _ in kept(disk)] == [0, 1, 4, 5, 6]


@pytest.mark.parametrize("first_to_end", [7, 8])
def test_records_of_aborted_transactions_go_in_whatever_order_they_end(first_to_end: int) -> None:
    history = CompactedHistory()
    history.write_as(7, [(b"a", b"1")], transactional=True)
    history.write_as(8, [(b"b", b"1")], transactional=True)
    for producer_id in (first_to_end, 15 - first_to_end):
        history.end(producer_id, commit=False)
    disk = on_disk(history)
    disk.producers.clear()
    disk.clean(5000)
    assert [offset for offset, _, _ in kept(disk)] == [2, 3]


def test_an_aborted_transaction_below_the_last_cleaning_ends_there() -> None:
    """The keys are collected from there on: its marker is not read again."""
    history = CompactedHistory()
    history.write([(b"a", b"1")])
    history.write_as(7, [(b"x", b"aborted")], transactional=True)
    history.end(7, commit=False)
    history.write_as(7, [(b"a", None)], transactional=True)
    history.end(7, commit=True)
    disk = on_disk(history)
    before, disk.before = disk.before, 3
    disk.clean(5000)
    disk.before = before
    disk.clean(6000)
    assert [offset for offset, _, _ in kept(disk)] == [2, 3, 4]


def test_a_record_may_have_the_key_of_a_marker() -> None:
    key = bytes([0, 0, 0, Marker.COMMIT])
    history = CompactedHistory()
    history.write([(key, b"1"), (b"a", b"1")])
    history.write_as(7, [(b"b", b"1")], transactional=True)
    history.end(7, commit=True)
    disk = on_disk(history)
    disk.clean(5000)
    assert [offset for offset, _, _ in kept(disk)] == [0, 1, 2, 3]
    history.write([(key, b"2")])
    disk = on_disk(history)
    disk.clean(5000)
    assert [offset for offset, _, _ in kept(disk)] == [1, 2, 3, 4]


def test_the_last_batch_of_a_producer_without_sequences_stays_too() -> None:
    """The offsets of a transaction are such a batch; it holds the producer's epoch."""
    history, files = CompactedHistory(), MemoryFiles()
    history.epochs[7], history.sequences[7] = 3, -1
    history.write_as(7, [(b"a", b"1"), (b"b", b"1")], transactional=True)
    history.end(7, commit=True, bump=False)
    history.write([(b"a", b"2"), (b"b", b"2")])
    disk = on_disk(history, files=files)
    disk.clean_daily()
    assert reopened(files)[1].producers[7].epoch == 3
