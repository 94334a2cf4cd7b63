"""Snapshots of producers and indexes of aborted transactions: Kafka's bytes, and nothing damaged is taken for sound."""

import struct

import crc32c
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dualwrite.broker.facts.producer_snapshot import (
    ProducerSnapshot,
    RetainedBatch,
    decode_snapshot,
    encode_snapshot,
)
from dualwrite.broker.facts.transaction_index import IndexedTransaction, decode_aborted, encode_aborted

longs = st.integers(-1, 2**63 - 1)
ints = st.integers(-1, 2**31 - 1)
offsets = st.integers(0, 2**62)
batches = st.builds(RetainedBatch, ints, ints, offsets, longs)
producers = st.builds(
    ProducerSnapshot,
    producer_id=longs,
    epoch=st.integers(-1, 2**15 - 1),
    last_timestamp=longs,
    coordinator_epoch=ints,
    transaction_start=longs,
    batches=st.lists(batches, max_size=5).map(tuple),
)


def entry(producer: ProducerSnapshot, sequence: int, offset: int, delta: int) -> bytes:
    """ProducerSnapshot.json of Kafka, field by field."""
    return struct.pack(
        ">qhiqiqiq",
        producer.producer_id,
        producer.epoch,
        sequence,
        offset,
        delta,
        producer.last_timestamp,
        producer.coordinator_epoch,
        producer.transaction_start,
    )


def kafkas(*entries: bytes) -> bytes:
    """A snapshot as Kafka writes it."""
    body = struct.pack(">i", len(entries)) + b"".join(entries)
    return struct.pack(">hI", 1, crc32c.crc32c(body)) + body


FULL = ProducerSnapshot(7, 3, 1234, 0, 55, (RetainedBatch(4, 5, 50, 1200), RetainedBatch(6, 8, 55, 1234)))
MARKED = ProducerSnapshot(8, 4, 99, 2, -1, ())


def test_the_beginning_is_kafkas() -> None:
    data = encode_snapshot([FULL, MARKED])
    expected = kafkas(entry(FULL, 8, 57, 2), entry(MARKED, -1, -1, 0))
    assert data[6 : len(expected)] == expected[6:]


def test_kafkas_own_snapshots_are_read() -> None:
    (full, marked) = decode_snapshot(kafkas(entry(FULL, 8, 57, 2), entry(MARKED, -1, -1, 0)))
    assert full.batches == (RetainedBatch(6, 8, 55, 1234),)
    assert (full.producer_id, full.epoch, full.transaction_start, full.coordinator_epoch) == (7, 3, 55, 0)
    assert marked == MARKED
    assert decode_snapshot(kafkas()) == []


def test_sequences_that_wrapped_keep_their_distance() -> None:
    wrapped = ProducerSnapshot(7, 3, 9, 0, -1, (RetainedBatch(2**31 - 2, 1, 50, 9),))
    assert wrapped.batches[0].offset_delta == 3
    assert decode_snapshot(kafkas(entry(wrapped, 1, 53, 3)))[0].batches == wrapped.batches


@pytest.mark.slow
@given(st.lists(producers, max_size=6))
def test_snapshots_come_back(known: list[ProducerSnapshot]) -> None:
    assert decode_snapshot(encode_snapshot(known)) == known


@given(st.data())
def test_a_damaged_snapshot_is_refused(data: st.DataObject) -> None:
    content = bytearray(encode_snapshot([FULL, MARKED]))
    at = data.draw(st.integers(0, len(content) - 1))
    content[at] ^= data.draw(st.integers(1, 255))
    with pytest.raises(ValueError, match=r"snapshot|checksum"):
        decode_snapshot(bytes(content))


def test_a_snapshot_cut_anywhere_is_refused() -> None:
    content = encode_snapshot([FULL, MARKED])
    for length in range(len(content)):
        with pytest.raises(ValueError, match=r"snapshot|checksum"):
            decode_snapshot(content[:length])


def test_entries_of_aborted_transactions_are_kafkas() -> None:
    aborted = [IndexedTransaction(7, 10, 12, 11), IndexedTransaction(8, 3, 15, 16)]
    data = encode_aborted(aborted)
    assert data == struct.pack(">hqqqq", 0, 7, 10, 12, 11) + struct.pack(">hqqqq", 0, 8, 3, 15, 16)
    assert decode_aborted(data) == aborted
    assert [transaction.last_stable_offset for transaction in decode_aborted(data)] == [11, 16]
    assert decode_aborted(b"") == []


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (bytes(33), "33 bytes are not a whole number of entries"),
        (struct.pack(">hqqqq", 1, 7, 10, 12, 11), "entry of version 1"),
        (struct.pack(">hqqqq", 0, 7, 12, 10, 11), "entry with the offsets 12 and 10"),
        (struct.pack(">hqqqq", 0, 7, -1, 10, 11), "entry with the offsets -1 and 10"),
        (struct.pack(">hqqqq", 0, 7, 1, 10, 11) * 2, "entry with the offsets 1 and 10"),
    ],
)
def test_bytes_that_are_not_a_transaction_index_are_refused(data: bytes, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        decode_aborted(data)
