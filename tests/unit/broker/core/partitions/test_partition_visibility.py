"""What readers of a partition may see: high watermark, last stable offset, aborted transactions (KIP-98).

The oracle is a reader as naive as a consumer is: it takes everything below the last stable offset, drops what the list
of aborted transactions tells it to, and must have exactly the committed records, in order, after every single event.
"""

from dataclasses import dataclass, field
from typing import cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dualwrite.broker.core.partitions import PartitionState
from dualwrite.broker.facts.transaction_index import IndexedTransaction
from dualwrite.ids import NO_PRODUCER, ProducerIdentity
from dualwrite.records.control import Marker
from tests.support.broker.partitions import A_NEXT, A, B, C, batch, mark, offer, send


@pytest.fixture
def state() -> PartitionState:
    return PartitionState()


def show_all(state: PartitionState) -> None:
    state.advance(state.end_offset)


def test_readers_see_records_below_the_high_watermark(state: PartitionState) -> None:
    offer(state, batch(count=3))
    assert (state.high_watermark, state.last_stable_offset) == (0, 0)
    state.advance(2)
    assert (state.high_watermark, state.last_stable_offset) == (2, 2)


def test_the_high_watermark_never_goes_back_nor_past_the_end(state: PartitionState) -> None:
    offer(state, batch(count=3))
    state.advance(3)
    state.advance(1)
    assert state.high_watermark == 3
    with pytest.raises(AssertionError, match="high watermark 4 past 3"):
        state.advance(4)


def test_committed_readers_stop_at_the_first_open_transaction(state: PartitionState) -> None:
    offer(state, batch())
    send(state, A, 0)
    send(state, B, 0)
    offer(state, batch())
    show_all(state)
    assert state.last_stable_offset == 1
    mark(state, B, Marker.COMMIT)
    show_all(state)
    assert state.last_stable_offset == 1, "a later transaction that ends earlier changes nothing"
    mark(state, A, Marker.COMMIT)
    show_all(state)
    assert state.last_stable_offset == state.end_offset


def test_a_marker_lets_readers_on_only_once_it_is_durable_itself(state: PartitionState) -> None:
    first = send(state, A, 0)
    marker = mark(state, A, Marker.COMMIT)
    state.advance(marker)
    assert state.last_stable_offset == first
    state.advance(marker + 1)
    assert state.last_stable_offset == marker + 1


def test_the_earliest_transaction_without_a_durable_marker_bounds_committed_readers(state: PartitionState) -> None:
    first_of_a, first_of_b = send(state, A, 0), send(state, B, 0)
    marker_of_b, marker_of_a = mark(state, B, Marker.COMMIT), mark(state, A, Marker.ABORT)
    state.advance(marker_of_b + 1)
    assert state.last_stable_offset == first_of_a
    state.advance(marker_of_a + 1)
    assert state.last_stable_offset == state.end_offset > first_of_b


def test_a_transaction_begins_with_its_first_record_here(state: PartitionState) -> None:
    send(state, A, 0)
    mark(state, A, Marker.COMMIT)
    second = send(state, A, 1)
    send(state, A, 2)
    show_all(state)
    assert state.open_transactions == {1: second}
    assert state.last_stable_offset == second


def test_a_marker_without_an_open_transaction_ends_nothing(state: PartitionState) -> None:
    """A restart writes the markers of a decision again."""
    send(state, A, 0)
    first = send(state, B, 0)
    mark(state, A_NEXT, Marker.ABORT)
    mark(state, A_NEXT, Marker.ABORT)
    show_all(state)
    assert state.last_stable_offset == first
    assert state.aborted == [IndexedTransaction(1, 0, 2)]


def test_readers_get_aborted_transactions_that_overlap_their_records(state: PartitionState) -> None:
    first_of_a = send(state, A, 0)  # 0
    first_of_b = send(state, B, 0)  # 1
    marker_of_b = mark(state, B, Marker.ABORT)  # 2
    marker_of_a = mark(state, A, Marker.ABORT)  # 3
    first_of_c = send(state, C, 0)  # 4
    marker_of_c = mark(state, C, Marker.ABORT)  # 5
    a = IndexedTransaction(1, first_of_a, marker_of_a)
    b = IndexedTransaction(2, first_of_b, marker_of_b)
    c = IndexedTransaction(3, first_of_c, marker_of_c)

    assert list(state.aborted_between(0, 6)) == [b, a, c]
    assert list(state.aborted_between(0, 1)) == [a]
    assert list(state.aborted_between(3, 4)) == [a]
    assert list(state.aborted_between(3, 5)) == [a, c]
    assert list(state.aborted_between(6, 9)) == []


def test_the_search_for_aborted_transactions_ends_behind_the_records(state: PartitionState) -> None:
    """A partition may have hundreds of thousands of them, and each Fetch searches."""
    send(state, A, 0)  # 0
    send(state, B, 0)  # 1
    mark(state, A, Marker.ABORT)  # 2
    mark(state, B, Marker.ABORT)  # 3
    a, b = state.aborted
    state.aborted.append(cast(IndexedTransaction, "not to be looked at"))
    assert list(state.aborted_between(0, 2)) == [a, b], "b was open when a ended"
    assert list(state.aborted_between(0, 4)) == [a, b]
    with pytest.raises(AttributeError):
        list(state.aborted_between(0, 5))


def test_committed_transactions_are_not_in_the_list(state: PartitionState) -> None:
    send(state, A, 0)
    mark(state, A, Marker.COMMIT)
    assert state.aborted == []


# --- the model


@dataclass
class VisibilityOracle:
    """What was written, and what a partition must therefore show: kept apart from the state under test."""

    entries: list[tuple[int, ProducerIdentity, Marker | None]] = field(default_factory=list)
    """(offset, producer, marker) in order; a data batch has no marker."""

    def fate(self, position: int, durable_before: int) -> Marker | None:
        """How the record at ``position`` of the log ended, as far as the disk knows."""
        producer = self.entries[position][1]
        if not producer:
            return Marker.COMMIT
        later = self.entries[position + 1 :]
        marker = next((entry for entry in later if entry[1] == producer and entry[2] is not None), None)
        return marker[2] if marker is not None and marker[0] < durable_before else None

    def stable_before(self, durable_before: int) -> int:
        undecided = (
            offset
            for position, (offset, _, marker) in enumerate(self.entries)
            if marker is None and self.fate(position, durable_before) is None
        )
        return min(next(undecided, durable_before), durable_before)

    def committed(self, first: int, before: int, durable_before: int) -> list[int]:
        return [
            offset
            for position, (offset, _, marker) in enumerate(self.entries)
            if first <= offset < before and marker is None and self.fate(position, durable_before) is Marker.COMMIT
        ]


def naive_reader(told: VisibilityOracle, state: PartitionState, first: int, before: int) -> list[int]:
    """A read_committed consumer (Kafka's CompletedFetch): an abort list sorted by first offset, and markers end it."""
    aborted = sorted(state.aborted_between(first, before), key=lambda ended: ended.first_offset)
    skipping: set[int] = set()
    seen = []
    for offset, producer, marker in told.entries:
        if not first <= offset < before:
            continue
        while aborted and aborted[0].first_offset <= offset:
            skipping.add(aborted.pop(0).producer_id)
        if marker is None and producer.producer_id not in skipping:
            seen.append(offset)
        if marker is Marker.ABORT:
            skipping.discard(producer.producer_id)
    return seen


events = st.lists(
    st.tuples(st.sampled_from(["send", "commit", "abort", "show"]), st.sampled_from([A, B, NO_PRODUCER])),
    min_size=12,
    max_size=30,
)


@pytest.mark.slow
@settings(max_examples=200)
@given(events, st.data())
def test_a_committed_reader_sees_exactly_the_committed_records_at_every_moment(
    happening: list[tuple[str, ProducerIdentity]], data: st.DataObject
) -> None:
    state, told = PartitionState(), VisibilityOracle()
    for kind, producer in happening:
        offset = state.end_offset
        if kind == "show":
            state.advance(data.draw(st.integers(state.high_watermark, state.end_offset)))
        elif kind == "send":
            known = state.producers.get(producer.producer_id)
            sequence = known.last_sequence + 1 if known and producer else 0
            send(state, producer, sequence, transactional=bool(producer))
            told.entries.append((offset, producer, None))
        elif producer:
            marker = Marker[kind.upper()]
            mark(state, producer, marker)
            told.entries.append((offset, producer, marker))
        stable = state.last_stable_offset
        assert stable == told.stable_before(state.high_watermark)
        for first in range(stable + 1):
            for before in {first, (first + stable) // 2, stable}:
                expected = told.committed(first, before, state.high_watermark)
                assert naive_reader(told, state, first, before) == expected


@given(events)
def test_the_state_is_the_replay_of_its_batches(happening: list[tuple[str, ProducerIdentity]]) -> None:
    """Applied one by one as clients send them, or all at once as a restart finds them."""
    state, log = PartitionState(), []
    for kind, producer in happening:
        if kind in ("commit", "abort") and producer:
            marker = Marker[kind.upper()]
            log.append((batch(producer)._replace(base_offset=state.end_offset), marker))
            state.apply(*log[-1])
        elif kind == "send":
            known = state.producers.get(producer.producer_id)
            header = batch(producer, known.last_sequence + 1 if known and producer else 0, transactional=bool(producer))
            log.append((header._replace(base_offset=state.end_offset), None))
            state.apply(*log[-1])
    show_all(state)

    replayed = PartitionState()
    for header, marker_or_none in log:
        replayed.apply(header, marker_or_none)
    show_all(replayed)

    assert replayed == state
