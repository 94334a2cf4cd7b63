"""The state of a partition after a restart: the snapshot of its producers and its aborted transactions restore it."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dualwrite.broker.core.partitions import RETAINED_BATCHES, BatchVerdict, PartitionState, ProducerEntry
from dualwrite.broker.facts.producer_snapshot import ProducerSnapshot, RetainedBatch
from dualwrite.broker.facts.transaction_index import IndexedTransaction
from dualwrite.ids import NO_PRODUCER, ProducerIdentity
from dualwrite.records.control import Marker
from dualwrite.wire.error_codes import ErrorCode
from tests.support.broker.partitions import A_NEXT, A, B, C, batch, mark, offer, send

ZERO = ProducerIdentity(0, 5)
WRITTEN = ProducerSnapshot(1, 6, 1000, 3, 40, (RetainedBatch(0, 2, 40, 900), RetainedBatch(3, 3, 43, 1000)))
"""A producer with an open transaction, whose last transaction was ended by the coordinator of epoch 3."""


def restored(state: PartitionState) -> PartitionState:
    """The state after a restart that finds a snapshot at the log's end."""
    after = PartitionState()
    after.restore(state.end_offset, state.snapshot(), state.aborted)
    after.open_at(state.end_offset)
    return after


def test_a_restored_state_has_all_of_a_producer() -> None:
    state = PartitionState()
    state.restore(44, [WRITTEN], [])
    (entry,) = state.producers.values()
    assert entry == ProducerEntry(1, 6, entry.batches, last_timestamp=1000, transaction_start=40, coordinator_epoch=3)
    assert tuple(entry.batches) == WRITTEN.batches
    assert (state.end_offset, list(state.producers), state.open_transactions) == (44, [1], {1: 40})


def test_the_snapshot_of_a_restored_state_is_the_same_again() -> None:
    state = PartitionState()
    idle = replace(WRITTEN, producer_id=0, transaction_start=-1)
    state.restore(44, [WRITTEN, idle], [])
    assert state.snapshot() == [WRITTEN, idle]


def test_a_restored_state_bounds_committed_readers_by_its_first_open_transaction() -> None:
    """Producers are in the order of their first batches, and open transactions in the order of their own."""
    state = PartitionState()
    send(state, C, 0, transactional=False)
    send(state, B, 0)
    send(state, A, 0)
    send(state, C, 1)
    after = restored(state)
    assert list(after.open_transactions.items()) == [(2, 1), (1, 2), (3, 3)]
    assert after.last_stable_offset == 1
    mark(after, B, Marker.COMMIT)
    after.advance(after.end_offset)
    assert after.last_stable_offset == 2


def test_a_transaction_that_began_at_the_first_offset_is_open_after_a_restart() -> None:
    state = PartitionState()
    send(state, A, 0)
    send(state, A, 1)
    after = restored(state)
    assert after.open_transactions == {1: 0}
    assert after.last_stable_offset == 0


def test_a_restored_state_knows_the_last_five_batches_and_no_earlier_one() -> None:
    state = PartitionState()
    for sequence in range(RETAINED_BATCHES):
        send(state, A, sequence)
    after = restored(state)
    assert offer(after, batch(A, 0, transactional=True)) == BatchVerdict(duplicate_of=0, duplicate_timestamp=0)
    send(after, A, RETAINED_BATCHES)
    out_of_order = BatchVerdict(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)
    assert offer(after, batch(A, 0, transactional=True)) == out_of_order
    assert offer(after, batch(A, 1, transactional=True)).duplicate_of == 1


def test_an_opened_log_may_end_above_its_last_batch() -> None:
    state = PartitionState()
    offer(state, batch(count=3))
    state.open_at(10)
    assert (state.end_offset, state.high_watermark, state.last_stable_offset) == (10, 10, 10)
    assert send(state, A, 0) == 10


def test_opening_a_log_shows_all_of_its_batches() -> None:
    state = PartitionState()
    send(state, A, 0)
    mark(state, A, Marker.COMMIT)
    state.open_at(2)
    assert (state.end_offset, state.high_watermark, state.last_stable_offset) == (2, 2, 2)
    assert not state.has_unseen_end


# --- aborted transactions


@pytest.fixture
def three_aborted() -> PartitionState:
    """The producers 1, 2 and 3 have aborted; their markers are at 2, 3 and 5."""
    state = PartitionState()
    send(state, A, 0)
    send(state, B, 0)
    mark(state, A, Marker.ABORT)
    mark(state, B, Marker.ABORT)
    send(state, C, 0)
    mark(state, C, Marker.ABORT)
    return state


@pytest.mark.parametrize(
    ("offset", "producers"), [(0, [1, 2, 3]), (2, [1, 2, 3]), (3, [2, 3]), (4, [3]), (5, [3]), (6, [])]
)
def test_aborted_transactions_are_found_by_the_offsets_of_their_markers(
    three_aborted: PartitionState, offset: int, producers: list[int]
) -> None:
    assert [ended.producer_id for ended in three_aborted.aborted_since(offset)] == producers


def test_an_aborted_transaction_has_the_last_stable_offset_after_its_end(three_aborted: PartitionState) -> None:
    """It is in the index on disk, as Kafka's; two entries are equal also where it differs."""
    assert [ended.last_stable_offset for ended in three_aborted.aborted] == [1, 4, 6]


def test_an_aborted_transaction_is_forgotten_once_the_log_has_nothing_of_it(three_aborted: PartitionState) -> None:
    three_aborted.forget_aborted(lambda ended: ended.last_offset < 3)
    assert three_aborted.aborted == [IndexedTransaction(2, 1, 3), IndexedTransaction(3, 4, 5)]
    assert list(three_aborted.aborted_between(0, 6)) == three_aborted.aborted


def test_a_restored_state_hides_the_aborted_transactions(three_aborted: PartitionState) -> None:
    after = restored(three_aborted)
    assert list(after.aborted_between(0, 6)) == three_aborted.aborted
    send(after, A, 1)
    mark(after, A_NEXT, Marker.ABORT)
    assert len(after.aborted) == 4
    assert len(three_aborted.aborted) == 3, "the two have a list each"


# --- every history

events = st.lists(
    st.tuples(
        st.sampled_from(["plain", "transactional", "commit", "abort", "bump"]),
        st.sampled_from([ZERO, A, B, NO_PRODUCER]),
    ),
    max_size=20,
)


def replay(state: PartitionState, happening: list[tuple[str, ProducerIdentity]]) -> None:
    """Offer every batch to ``state``, which refuses some, and append every marker of an epoch that is not past."""
    for kind, producer in happening:
        known = state.producers.get(producer.producer_id)
        epoch = producer.epoch if known is None else known.epoch
        if kind in ("plain", "transactional"):
            sequence = 0 if known is None else known.last_sequence + 1
            writer = producer._replace(epoch=epoch)
            offer(state, batch(writer, sequence, transactional=kind == "transactional" and bool(producer)))
        elif producer:
            later = epoch + 1 if kind == "bump" else epoch
            mark(state, producer._replace(epoch=later), Marker.COMMIT if kind == "commit" else Marker.ABORT)


@given(events, events)
def test_a_restored_state_is_the_state_before_and_goes_on_alike(
    before: list[tuple[str, ProducerIdentity]], later: list[tuple[str, ProducerIdentity]]
) -> None:
    state = PartitionState()
    replay(state, before)
    state.advance(state.end_offset)
    after = restored(state)
    assert after == state
    for each in (state, after):
        replay(each, later)
        each.advance(each.end_offset)
    assert after == state
