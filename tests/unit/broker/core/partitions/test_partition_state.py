"""What a partition lets in: sequences, epochs, duplicates (KIP-98; Kafka: ProducerAppendInfo)."""

import pytest

from dualwrite.broker.core.partitions import RETAINED_BATCHES, BatchVerdict, PartitionState
from dualwrite.ids import ProducerIdentity
from dualwrite.records.control import Marker, build_marker
from dualwrite.records.header import MAX_SEQUENCE, peek_header
from dualwrite.records.rewriting import empty_batch
from dualwrite.wire.error_codes import ErrorCode
from tests.support.broker.partitions import A_NEXT, A, B, batch, mark, offer, send

OUT_OF_ORDER = BatchVerdict(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)
FENCED = BatchVerdict(ErrorCode.INVALID_PRODUCER_EPOCH)


def duplicate(offset: int) -> BatchVerdict:
    """The batch has ``offset`` already; batches of these tests have the timestamp 0."""
    return BatchVerdict(duplicate_of=offset, duplicate_timestamp=0)


@pytest.fixture
def state() -> PartitionState:
    return PartitionState()


def test_a_producer_without_an_id_appends_with_any_sequence(state: PartitionState) -> None:
    for _ in range(3):
        assert offer(state, batch(count=2)).appends
    assert state.end_offset == 6
    assert not state.producers


def test_sequences_go_up_by_the_number_of_records(state: PartitionState) -> None:
    send(state, A, 0, count=3)
    send(state, A, 3, count=2)
    send(state, A, 5)


@pytest.mark.parametrize("sequence", [0, 1, 2, 4, MAX_SEQUENCE])
def test_a_gap_or_an_overlap_is_out_of_order(state: PartitionState, sequence: int) -> None:
    send(state, A, 0, count=3)
    assert offer(state, batch(A, sequence)) == OUT_OF_ORDER
    assert state.end_offset == 3


def test_an_unknown_producer_begins_anywhere(state: PartitionState) -> None:
    """As after its expiry; the broker cannot know what it wrote before."""
    send(state, A, 17)
    assert offer(state, batch(A, 17)) == duplicate(0)
    send(state, A, 18)


def test_producers_are_independent(state: PartitionState) -> None:
    send(state, A, 0)
    send(state, B, 0)
    send(state, A, 1)
    assert offer(state, batch(B, 2)) == OUT_OF_ORDER


def test_sequences_wrap_to_zero(state: PartitionState) -> None:
    send(state, A, MAX_SEQUENCE)
    send(state, A, 0)
    send(state, A, 1)


def test_sequences_wrap_within_a_batch(state: PartitionState) -> None:
    send(state, A, MAX_SEQUENCE - 1, count=4)
    assert state.producers[1].last_sequence == 1
    assert offer(state, batch(A, MAX_SEQUENCE - 1, count=4)) == duplicate(0)
    assert offer(state, batch(A, 1)) == OUT_OF_ORDER
    send(state, A, 2)


def test_a_duplicate_gets_its_offset(state: PartitionState) -> None:
    offer(state, batch(count=7))
    first = send(state, A, 0, count=3)
    send(state, B, 0)
    assert (first, offer(state, batch(A, 0, count=3))) == (7, duplicate(7))
    assert state.end_offset == 11


def test_the_last_five_batches_are_known_again_and_no_earlier_one(state: PartitionState) -> None:
    for sequence in range(RETAINED_BATCHES + 1):
        send(state, A, sequence)
    assert offer(state, batch(A, 0)) == OUT_OF_ORDER
    for sequence in range(1, RETAINED_BATCHES + 1):
        assert offer(state, batch(A, sequence)) == duplicate(sequence)


def test_only_the_same_batch_is_a_duplicate(state: PartitionState) -> None:
    send(state, A, 0, count=3)
    for count in (1, 2, 4):
        assert offer(state, batch(A, 0, count)) == OUT_OF_ORDER


def test_a_new_epoch_begins_at_sequence_zero(state: PartitionState) -> None:
    send(state, A, 0, count=3, transactional=False)
    assert offer(state, batch(A_NEXT, 3)) == OUT_OF_ORDER
    send(state, A_NEXT, 0)
    send(state, A_NEXT, 1)


def test_an_old_epoch_is_fenced_even_for_a_duplicate(state: PartitionState) -> None:
    send(state, A, 0, transactional=False)
    send(state, A_NEXT, 0)
    for sequence in (0, 1):
        assert offer(state, batch(A, sequence)) == FENCED


def test_a_batch_of_a_new_epoch_is_not_a_duplicate_of_the_old_epochs_batch(state: PartitionState) -> None:
    send(state, A, 0, transactional=False)
    assert send(state, A_NEXT, 0) == 1


@pytest.mark.parametrize("transactional", [False, True])
def test_no_later_epoch_writes_while_a_transaction_is_open(state: PartitionState, transactional: bool) -> None:
    send(state, A, 0)
    assert offer(state, batch(A_NEXT, 0, transactional=transactional)) == FENCED
    mark(state, A, Marker.COMMIT)
    send(state, A_NEXT, 0, transactional=transactional)


def test_the_first_batch_of_a_transaction_is_no_duplicate_of_a_batch_outside_it(state: PartitionState) -> None:
    """Its client would take the earlier batch for its own, and commit a transaction without its record."""
    send(state, A, 0, transactional=False)
    assert offer(state, batch(A, 0, transactional=True)) == OUT_OF_ORDER


def test_a_batch_of_the_open_transaction_is_recognised_after_one_of_an_earlier_transaction(
    state: PartitionState,
) -> None:
    send(state, A, 0)
    mark(state, A, Marker.COMMIT)
    send(state, A, 1)
    assert offer(state, batch(A, 0, transactional=True)) == OUT_OF_ORDER
    assert offer(state, batch(A, 1, transactional=True)) == duplicate(2)


def test_a_batch_outside_transactions_is_recognised_while_a_transaction_is_open(state: PartitionState) -> None:
    """Only a transactional batch must be of the open transaction."""
    send(state, A, 0, transactional=False)
    send(state, A, 1)
    assert offer(state, batch(A, 0)) == duplicate(0)


def test_a_transaction_that_begins_at_the_first_offset_is_like_others(state: PartitionState) -> None:
    send(state, A, 0)
    assert offer(state, batch(A, 0, transactional=True)) == duplicate(0)
    send(state, A, 1)
    assert (state.producers[1].transaction_start, state.open_transactions) == (0, {1: 0})


def test_the_producer_id_zero_is_a_producers(state: PartitionState) -> None:
    """It is the first id that a new cluster hands out."""
    zero = ProducerIdentity(0, 0)
    send(state, zero, 0)
    assert list(state.producers) == [0]
    assert offer(state, batch(zero, 0, transactional=True)) == duplicate(0)
    assert offer(state, batch(zero, 2, transactional=True)) == OUT_OF_ORDER


def test_a_marker_fences_the_epoch_before_it(state: PartitionState) -> None:
    send(state, A, 0)
    mark(state, A_NEXT, Marker.ABORT)
    assert offer(state, batch(A, 1, transactional=True)) == FENCED
    assert offer(state, batch(A_NEXT, 1, transactional=True)) == OUT_OF_ORDER
    send(state, A_NEXT, 0)


def test_a_marker_fences_where_the_producer_never_wrote(state: PartitionState) -> None:
    mark(state, A_NEXT, Marker.ABORT)
    assert offer(state, batch(A, 0, transactional=True)) == FENCED


def test_a_marker_of_the_same_epoch_leaves_the_sequence_alone(state: PartitionState) -> None:
    """A client of the older protocol keeps its epoch, and its sequences go on."""
    send(state, A, 0)
    mark(state, A, Marker.COMMIT)
    assert offer(state, batch(A, 0, transactional=True)) == OUT_OF_ORDER
    send(state, A, 1)


def test_within_a_transaction_every_batch_is_transactional(state: PartitionState) -> None:
    send(state, A, 0)
    assert offer(state, batch(A, 1)) == BatchVerdict(ErrorCode.INVALID_TXN_STATE)
    mark(state, A, Marker.COMMIT)
    send(state, A, 1, transactional=False)


def test_a_decision_changes_nothing_by_itself(state: PartitionState) -> None:
    send(state, A, 0)
    for header in (batch(A, 1), batch(A, 0), batch(A, 9), batch(B, 0), batch(A_NEXT, 0), batch()):
        state.decide(header)
    assert state.end_offset == 1
    assert list(state.producers) == [1]
    assert len(state.producers[1].batches) == 1


def test_an_offset_is_never_given_twice(state: PartitionState) -> None:
    send(state, A, 0)
    with pytest.raises(AssertionError, match="batch at 0 after 1"):
        state.apply(batch(B, 0), None)


def test_the_state_that_describe_producers_reports_follows_batches_and_markers(state: PartitionState) -> None:
    send(state, B, 0)
    first = send(state, A, 0, count=2)
    send(state, A, 2)
    entry = state.producers[1]
    assert (entry.producer_id, entry.epoch, entry.last_sequence, entry.transaction_start) == (1, 5, 2, first)
    mark(state, A_NEXT, Marker.COMMIT)
    assert (entry.epoch, entry.last_sequence, entry.transaction_start) == (6, -1, -1)


@pytest.mark.parametrize("producer", [A, ProducerIdentity(1, 32767)])
def test_the_last_timestamp_of_a_producer_is_kept(state: PartitionState, producer: ProducerIdentity) -> None:
    state.apply(batch(producer, 0)._replace(max_timestamp=99), None)
    assert state.producers[1].last_timestamp == 99


def test_a_duplicate_gets_the_timestamp_of_its_append(state: PartitionState) -> None:
    state.apply(batch(A, 0)._replace(max_timestamp=77), None)
    assert offer(state, batch(A, 0)) == BatchVerdict(duplicate_of=0, duplicate_timestamp=77)


def test_an_unknown_producer_of_the_newer_protocol_begins_at_zero(state: PartitionState) -> None:
    """Its transaction has an epoch of its own, so that a later sequence means that a batch got lost."""
    assert state.decide(batch(A, 3, transactional=True), begins_at_zero=True) == OUT_OF_ORDER
    assert state.decide(batch(A, 0, transactional=True), begins_at_zero=True).appends
    send(state, A, 0)
    assert state.decide(batch(A, 1, transactional=True), begins_at_zero=True).appends


# --- expiry


def written_at(state: PartitionState, producer: ProducerIdentity, moment_ms: int, transactional: bool = False) -> None:
    header = batch(producer, 0, transactional=transactional)
    state.apply(header._replace(base_offset=state.end_offset, max_timestamp=moment_ms), None)


def test_a_producer_that_was_idle_long_enough_is_forgotten(state: PartitionState) -> None:
    for producer, moment_ms in ((A, 100), (B, 101)):
        written_at(state, producer, moment_ms)
    assert state.expire_producers(99) == 0
    assert state.expire_producers(100) == 1
    assert list(state.producers) == [B.producer_id]
    assert offer(state, batch(A, 7)).appends, "and begins anew, with any sequence"


def test_a_producer_is_as_old_as_its_last_batch_also_if_an_earlier_one_says_a_later_time(state: PartitionState) -> None:
    for sequence, moment_ms in enumerate((200, 100)):
        header = batch(A, sequence)
        state.apply(header._replace(base_offset=state.end_offset, max_timestamp=moment_ms), None)
    assert state.expire_producers(100) == 1


def test_a_producer_with_an_open_transaction_is_never_forgotten(state: PartitionState) -> None:
    written_at(state, A, 100, transactional=True)
    assert state.expire_producers(10**9) == 0
    mark(state, A_NEXT, Marker.COMMIT)
    assert state.expire_producers(10**9) == 1
    assert (state.open_transactions, state.producers) == ({}, {})


# --- markers of an operator


@pytest.mark.parametrize(
    ("marker_epoch", "is_tv2", "is_open", "error"),
    [
        (4, False, True, ErrorCode.INVALID_PRODUCER_EPOCH),
        (4, False, False, ErrorCode.INVALID_PRODUCER_EPOCH),
        (5, False, True, ErrorCode.NONE),
        (5, False, False, ErrorCode.NONE),
        (6, False, True, ErrorCode.NONE),
        (4, True, True, ErrorCode.INVALID_PRODUCER_EPOCH),
        (5, True, True, ErrorCode.INVALID_PRODUCER_EPOCH),  # a TV2 marker has the epoch after that of its records
        (5, True, False, ErrorCode.NONE),  # one that comes again changes nothing
        (6, True, True, ErrorCode.NONE),
    ],
)
def test_a_marker_must_not_have_an_epoch_that_is_past(
    state: PartitionState, marker_epoch: int, is_tv2: bool, is_open: bool, error: ErrorCode
) -> None:
    send(state, A, 0, transactional=is_open)
    assert state.decide_marker(ProducerIdentity(1, marker_epoch), 0, is_tv2) is error


def test_a_marker_of_an_older_coordinator_is_fenced(state: PartitionState) -> None:
    send(state, A, 0)
    assert state.producers[1].coordinator_epoch == -1
    assert state.decide_marker(A, 0, is_tv2=False) is ErrorCode.NONE
    mark(state, A, Marker.COMMIT)
    assert state.producers[1].coordinator_epoch == 0
    state.apply(batch(A, -1)._replace(base_offset=2), Marker.ABORT, coordinator_epoch=3)
    assert state.producers[1].coordinator_epoch == 3
    assert state.decide_marker(A, 2, is_tv2=False) is ErrorCode.TRANSACTION_COORDINATOR_FENCED
    assert state.decide_marker(A, 3, is_tv2=False) is ErrorCode.NONE


def test_a_marker_of_an_unknown_producer_may_be_written(state: PartitionState) -> None:
    assert state.decide_marker(B, 0, is_tv2=True) is ErrorCode.NONE
    assert not state.has_fenced(B)


def test_a_later_epoch_has_fenced_the_earlier_one(state: PartitionState) -> None:
    send(state, A_NEXT, 0)
    assert [state.has_fenced(producer) for producer in (A, A_NEXT)] == [True, False]


def test_a_later_epoch_waits_for_the_end_of_an_open_transaction(state: PartitionState) -> None:
    """Its first batch would fence the markers of the earlier one."""
    assert not state.refuses_epoch(A_NEXT), "unknown"
    send(state, A, 0, transactional=True)
    assert [state.refuses_epoch(producer) for producer in (A, A_NEXT)] == [False, True]
    mark(state, A, Marker.COMMIT)
    assert not state.refuses_epoch(A_NEXT)
    send(state, A_NEXT, 0)
    assert [state.refuses_epoch(producer) for producer in (A, A_NEXT)] == [True, False]


def test_a_marker_that_compaction_has_emptied_keeps_the_epoch_and_opens_no_transaction() -> None:
    state = PartitionState()
    marker = build_marker(Marker.ABORT, ProducerIdentity(7, 3), coordinator_epoch=0, timestamp=1000)
    state.apply(peek_header(empty_batch(peek_header(marker))), None)
    assert state.end_offset == 1
    assert not state.open_transactions
    assert (state.producers[7].epoch, state.producers[7].last_sequence) == (3, -1)
