"""Positions that may be committed for a consumer: no record is lost or used twice, even if the application forgets
it."""

import gc
import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from dualwrite.coordinator.rules import positions
from dualwrite.coordinator.rules.positions import Consumer, Move, Positions
from dualwrite.errors import InvalidTransactionStateError, RebalancedError
from dualwrite.ids import TopicPartition

ONE, OTHER = Consumer(1, "one"), Consumer(2, "other")
P, Q = TopicPartition("in", 0), TopicPartition("in", 1)


class Thread:
    """What runs units of work."""


HERE, THERE = Thread(), Thread()


def put(*consumers: Consumer, offset: int = 5) -> Positions:
    known = Positions()
    for consumer in consumers:
        known.sought(consumer, {P: offset, Q: offset}, HERE)
    return known


def claim(
    known: Positions, offsets: dict[TopicPartition, int], consumer: Consumer = ONE, worker: object = HERE
) -> None:
    known.claim(consumer, offsets, worker, "seek_to_stored")


def test_only_partitions_that_have_moved_are_written() -> None:
    assert put(ONE).moves(ONE, {P: 8, Q: 5}, {}) == [Move(P, 5, 8)]


def test_moves_are_in_one_order_so_that_two_units_do_not_wait_for_each_other() -> None:
    assert put(ONE).moves(ONE, {Q: 6, P: 7}, {}) == [Move(P, 5, 7), Move(Q, 5, 6)]


def test_a_unit_moves_on_from_what_was_committed() -> None:
    known = put(ONE)
    claim(known, {P: 8})
    known.committed(ONE, {P: 8})
    assert known.moves(ONE, {P: 9}, {}) == [Move(P, 8, 9)]


def test_a_unit_that_stores_twice_moves_on_from_itself() -> None:
    assert put(ONE).moves(ONE, {P: 9}, {P: 8}) == [Move(P, 8, 9)]


def test_a_consumer_that_was_never_positioned_stores_no_offset() -> None:
    with pytest.raises(InvalidTransactionStateError, match=r"in-0: .* on_assign"):
        Positions().moves(ONE, {P: 8}, {})
    with pytest.raises(InvalidTransactionStateError, match="on_assign"):
        put(OTHER).moves(ONE, {P: 8}, {})


def test_records_that_were_used_before_are_not_used_again() -> None:
    with pytest.raises(InvalidTransactionStateError, match="in-0: the consumer is at 4, and the database at 5"):
        put(ONE).moves(ONE, {P: 4}, {})


def test_another_member_of_the_same_consumer_has_lost_its_partitions() -> None:
    with pytest.raises(RebalancedError, match=r"membership.*call seek_to_stored\(consumer\)"):
        put(ONE).moves(ONE._replace(member=None), {P: 8}, {})
    known = put(ONE)
    known.sought(ONE._replace(member="new"), {P: 7}, HERE)
    assert known.moves(ONE._replace(member="new"), {P: 8}, {}) == [Move(P, 7, 8)]


@pytest.mark.parametrize("is_static", [False, True])
def test_a_consumer_that_was_positioned_from_kafka_stores_no_offset(is_static: bool) -> None:
    known, consumer = Positions(), ONE._replace(is_static=is_static)
    known.sought(consumer, {P: 5}, HERE, is_stored=False)
    with pytest.raises(InvalidTransactionStateError, match=r"in-0: .* on_assign=dw.seek_to_stored.*dw.on_assign\(\)"):
        known.moves(consumer, {P: 8}, {})
    known.sought(consumer, {P: 5}, HERE)
    assert known.moves(consumer, {P: 8}, {}) == [Move(P, 5, 8)]


# Offsets that others have committed.

MEMBER = ONE._replace(generation=3)


def from_kafka(consumer: Consumer = MEMBER) -> Positions:
    known = Positions()
    known.sought(consumer, {P: 5}, HERE, is_stored=False)
    return known


def test_an_offset_that_no_unit_has_committed_in_the_same_generation_is_warned_of() -> None:
    known = from_kafka()
    claim(known, {P: 7}, MEMBER)
    known.failed(HERE)
    warning = known.commits_past_units(MEMBER, {P: 7})
    assert re.match(r"in-0: .* offset is 7, .* committed 5: .* enable.auto.commit=false", warning), warning
    assert known.commits_past_units(MEMBER, {P: 5, Q: 9}) == "", "it never had Q"


def test_the_offsets_of_units_that_were_committed_or_are_in_doubt_are_the_consumers_own() -> None:
    known = from_kafka()
    known.committed(MEMBER, {P: 7})
    assert known.commits_past_units(MEMBER, {P: 7}) == ""
    known.may_be_committed(MEMBER, {P: 9})
    known.sought(MEMBER, {P: 7}, HERE, is_stored=False)
    assert known.commits_past_units(MEMBER, {P: 9}) == ""
    assert known.commits_past_units(MEMBER, {P: 10})
    known.committed(MEMBER, {P: 12})
    assert known.commits_past_units(MEMBER, {P: 12}) == ""


@pytest.mark.parametrize(
    "later",
    [
        MEMBER._replace(generation=4),  # a rebalance and back: another member may have had the partition
        MEMBER._replace(member="new"),
        OTHER._replace(generation=3),
    ],
)
def test_another_member_may_have_committed_in_another_generation(later: Consumer) -> None:
    assert from_kafka().commits_past_units(later, {P: 7}) == ""


def test_a_group_begins_at_generation_zero() -> None:
    first = ONE._replace(generation=0)
    assert from_kafka(first).commits_past_units(first, {P: 7})


def test_without_a_group_any_program_may_commit() -> None:
    alone = ONE._replace(member=None)
    assert from_kafka(alone).commits_past_units(alone, {P: 7}) == ""


# Which cluster's records an offset counts.


def test_a_consumer_reads_from_the_cluster_that_it_was_positioned_in() -> None:
    known = Positions()
    assert known.cluster_of(ONE) is None
    assert known.reads_from(ONE, "here") == {}
    known.sought(ONE, {P: 5, Q: 5}, HERE, cluster_id="here", row_clusters={P: "there", Q: "here"})
    assert (known.cluster_of(ONE), known.cluster_of(OTHER)) == ("here", None)
    assert known.reads_from(ONE, "here") == {P: "there"}
    assert known.reads_from(ONE, "there") == {Q: "here"}
    assert known.cluster_of(ONE) == "there"
    known.sought(ONE, {}, HERE, is_whole=False)
    assert known.cluster_of(ONE) == "there", "an empty assignment says nothing of the cluster"


def test_a_partition_that_was_taken_away_says_nothing_of_the_cluster() -> None:
    known = Positions()
    known.sought(ONE, {P: 5, Q: 5}, HERE, row_clusters={P: "there", Q: "here"})
    known.sought(ONE, {Q: 5}, HERE, row_clusters={Q: "here"})
    assert known.reads_from(ONE, "here") == {}


def test_a_partition_that_was_taken_away_must_be_positioned_again() -> None:
    """Another member may have used its records meanwhile."""
    known = put(ONE)
    known.sought(ONE, {Q: 5}, HERE)
    with pytest.raises(InvalidTransactionStateError, match=r"in-0: this consumer was not set to the offset"):
        known.moves(ONE, {P: 6}, {})


def test_a_consumer_that_was_forgotten_must_be_positioned_again() -> None:
    known = put(ONE, OTHER)
    known.forget(ONE.identity)
    known.forget(ONE.identity)
    assert known.moves(OTHER, {P: 6}, {}) == [Move(P, 5, 6)]
    with pytest.raises(InvalidTransactionStateError, match="on_assign"):
        known.moves(ONE, {P: 6}, {})


# After a failure.


def test_after_a_failure_the_same_records_may_be_claimed_again_and_no_later_ones() -> None:
    known = put(ONE)
    claim(known, {P: 8})
    known.failed(HERE)
    claim(known, {P: 8})
    claim(known, {P: 6})
    with pytest.raises(InvalidTransactionStateError, match=r"call seek_to_stored\(consumer\)"):
        claim(known, {P: 9})
    with pytest.raises(InvalidTransactionStateError, match="has failed since"):
        claim(known, {P: 8, Q: 6})


def test_a_failure_before_anything_was_claimed_leaves_nothing_to_claim() -> None:
    known = put(ONE)
    known.failed(HERE)
    with pytest.raises(InvalidTransactionStateError, match="has failed since"):
        claim(known, {P: 8})
    claim(known, {P: 5, Q: 5})


def test_a_consumer_that_was_positioned_again_after_a_failure_reads_on() -> None:
    known = put(ONE)
    claim(known, {P: 8})
    known.failed(HERE)
    known.sought(ONE, {P: 5, Q: 5}, HERE)
    claim(known, {P: 9})
    assert known.moves(ONE, {P: 9}, {}) == [Move(P, 5, 9)]


def test_a_partition_that_is_added_puts_no_other_back() -> None:
    known = put(ONE)
    claim(known, {P: 8})
    known.failed(HERE)
    known.sought(ONE, {Q: 7}, HERE, is_whole=False)
    with pytest.raises(InvalidTransactionStateError, match="has failed since"):
        claim(known, {P: 9})
    assert known.moves(ONE, {P: 8, Q: 8}, {}) == [Move(P, 5, 8), Move(Q, 7, 8)]


def test_records_in_hand_that_are_used_one_by_one_end_a_failure() -> None:
    known = put(ONE)
    claim(known, {P: 8})
    known.failed(HERE)
    for offset in (6, 7, 8):
        claim(known, {P: offset})
        known.committed(ONE, {P: offset})
        if offset < 8:
            with pytest.raises(InvalidTransactionStateError, match="has failed since"):
                claim(known, {P: 9})
    claim(known, {P: 9})


def test_one_partition_that_was_stored_after_all_does_not_end_the_failure_of_another() -> None:
    known = put(ONE)
    claim(known, {P: 8, Q: 6})
    known.failed(HERE)
    claim(known, {P: 8})
    known.committed(ONE, {P: 8})
    with pytest.raises(InvalidTransactionStateError, match="has failed since"):
        claim(known, {Q: 7})


def test_a_partition_that_was_taken_away_does_not_keep_a_failure() -> None:
    known = put(ONE)
    claim(known, {P: 8})
    known.sought(ONE, {Q: 5}, HERE)
    claim(known, {Q: 6})
    known.failed(HERE)
    claim(known, {Q: 6})
    known.committed(ONE, {Q: 6})
    claim(known, {Q: 7})


def test_a_failure_of_another_thread_does_not_end_that_of_the_consumers_own() -> None:
    known = put(ONE)
    claim(known, {P: 8})
    known.failed(HERE)
    known.failed(THERE)
    with pytest.raises(InvalidTransactionStateError, match="has failed since"):
        claim(known, {P: 9})


def test_a_failure_is_of_the_consumers_of_its_thread() -> None:
    known = put(ONE, OTHER)
    claim(known, {P: 6}, OTHER, THERE)
    known.failed(HERE)
    claim(known, {P: 9}, OTHER, THERE)
    with pytest.raises(InvalidTransactionStateError, match="has failed since"):
        claim(known, {P: 9})


def test_a_consumer_that_is_new_to_a_thread_with_a_failure_must_be_put_back_first() -> None:
    known = Positions()
    known.failed(HERE)
    with pytest.raises(InvalidTransactionStateError, match="has failed since"):
        claim(known, {P: 8})
    claim(known, {P: 8}, OTHER, THERE)
    known.sought(ONE, {}, HERE)
    claim(known, {P: 8})


@pytest.mark.parametrize("fails_before_it_joins", [True, False])
def test_a_member_that_has_joined_again_is_put_back_after_a_failure_too(fails_before_it_joins: bool) -> None:
    """Its group has put it back when it joined; but who knows whether the failure was before that?"""
    known, again = Positions(), ONE._replace(member="again")
    claim(known, {P: 8})
    if fails_before_it_joins:
        known.failed(HERE)
    else:
        claim(known, {P: 8}, again)
        known.failed(HERE)
    with pytest.raises(InvalidTransactionStateError, match="has failed since"):
        claim(known, {P: 9}, again)
    known.sought(again, {P: 8}, HERE)
    claim(known, {P: 9}, again)


def test_a_failure_under_a_membership_of_which_nothing_was_claimed_counts() -> None:
    known, again = Positions(), ONE._replace(member="again")
    claim(known, {P: 8})
    known.committed(ONE, {P: 8})
    # It joins again, and reads 8 and 9. The unit with these fails before it comes to claim them. Then it reads 10.
    known.failed(HERE)
    with pytest.raises(InvalidTransactionStateError, match="has failed since"):
        claim(known, {P: 11}, again)


def test_a_member_that_joins_again_goes_on() -> None:
    known, again = Positions(), ONE._replace(member="again")
    claim(known, {P: 8})
    claim(known, {P: 9}, again)
    known.committed(again, {P: 9})
    assert known.done(again) == {P: 9}


def test_a_static_member_that_is_taken_in_again_goes_on_after_it_was_put_back() -> None:
    known, static = Positions(), ONE._replace(is_static=True)
    claim(known, {P: 8}, static)
    claim(known, {P: 9}, static)
    again = static._replace(member="again")
    with pytest.raises(RebalancedError, match=r"group membership has changed .* call seek_to_stored\(consumer\)"):
        claim(known, {P: 10}, again)
    known.sought(again, {P: 9}, HERE)
    claim(known, {P: 10}, again)


def test_a_static_member_that_is_taken_in_again_has_partitions_that_it_was_not_put_in() -> None:
    """librdkafka keeps them, and its callback is called for those that are new."""
    known, again = Positions(), ONE._replace(is_static=True, member="again")
    known.sought(again._replace(member="before"), {P: 5}, HERE)
    known.sought(again, {Q: 5}, None, is_whole=False)
    assert known.moves(again, {Q: 6}, {}) == [Move(Q, 5, 6)]
    with pytest.raises(RebalancedError, match=r"group membership has changed .* seek_to_stored\(consumer\)"):
        known.moves(again, {P: 6, Q: 6}, {})
    known.sought(again, {P: 5, Q: 5}, HERE)
    assert known.moves(again, {P: 6}, {}) == [Move(P, 5, 6)]


@pytest.mark.slow_cases
@pytest.mark.parametrize("is_known", [True, False])
def test_a_consumer_without_a_known_worker_takes_on_the_claimants_failures(is_known: bool) -> None:
    known, gone = Positions(), Thread()
    known.sought(ONE, {P: 5}, gone if is_known else None)
    del gone
    gc.collect()
    known.failed(HERE)
    with pytest.raises(InvalidTransactionStateError, match="has failed since"):
        claim(known, {P: 6})
    claim(known, {P: 6}, worker=THERE)
    claim(known, {P: 7})  # it is known to be worked by THERE: HERE's failure was another's
    known.sought(ONE, {P: 5}, None)
    claim(known, {P: 6})


def test_after_an_assignment_any_worker_may_have_read_what_its_failed_unit_did_not_use() -> None:
    """HERE had the consumer before, and is alive: that does not make the failure of THERE another consumer's."""
    known = put(ONE)
    known.sought(ONE, {P: 5}, None)
    known.failed(THERE)
    with pytest.raises(InvalidTransactionStateError, match="has failed since"):
        claim(known, {P: 6}, worker=THERE)


def test_a_failure_is_of_the_worker_that_has_positioned_a_partition_last() -> None:
    known = put(ONE)
    known.sought(ONE, {P: 5}, THERE, is_whole=False)
    known.failed(THERE)
    with pytest.raises(InvalidTransactionStateError, match="has failed since"):
        claim(known, {P: 6})


def test_a_failure_of_a_worker_that_did_not_have_the_consumer_does_not_count() -> None:
    known = put(ONE)
    known.failed(THERE)
    claim(known, {P: 8}, worker=THERE)
    assert known.moves(ONE, {P: 8}, {}) == [Move(P, 5, 8)]


def test_after_a_failure_only_offsets_that_were_claimed_before_may_be_claimed() -> None:
    known = Positions()
    claim(known, {P: 0})
    known.failed(HERE)
    claim(known, {P: 0})
    for offsets in ({P: 1}, {Q: 0}, {Q: 1}):
        with pytest.raises(InvalidTransactionStateError, match="has failed since"):
            claim(known, offsets)


def test_a_failure_that_was_mended_does_not_count_when_its_worker_is_gone() -> None:
    known = Positions()
    known.sought(ONE, {P: 5}, HERE)
    claim(known, {P: 6})
    known.failed(HERE)
    claim(known, {P: 6})
    known.committed(ONE, {P: 6})
    known.sought(ONE, {Q: 5}, None, is_whole=False)
    claim(known, {P: 7, Q: 6})
    assert known.moves(ONE, {P: 7, Q: 6}, {}) == [Move(P, 6, 7), Move(Q, 5, 6)]


def test_the_least_recently_used_consumers_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(positions, "MOST_CONSUMERS", 2)
    known = put(ONE, OTHER)
    claim(known, {P: 6}, ONE)
    known.sought(Consumer(3, "third"), {P: 1}, HERE)
    assert known.done(ONE)
    assert not known.done(OTHER)


# Every order.


class PositionsMachine(RuleBasedStateMachine):
    """An application that splits its batches as it likes, and that reads on after failures, with its consumer put back
    or not."""

    def __init__(self) -> None:
        super().__init__()
        self.known = Positions()
        self.known.sought(ONE, {P: 0}, HERE)
        self.position = 0
        self.hand = (0, 0)
        """The records that the application has in hand, of those that it has read."""
        self.used: list[int] = []
        self.stored = 0
        self.last_failed = False

    @precondition(lambda self: self.last_failed or self.hand[0] == self.hand[1])
    @rule(count=st.integers(1, 3))
    def poll(self, count: int) -> None:
        self.hand = (self.position, self.position + count)
        self.position += count

    @rule(part=st.integers(1, 3), outcome=st.sampled_from(["commits", "fails", "fails before"]))
    @precondition(lambda self: self.hand[0] < self.hand[1])
    def unit(self, part: int, outcome: str) -> None:
        begin, end = self.hand[0], min(self.hand[0] + part, self.hand[1])
        try:
            if outcome == "fails before":
                raise KeyError
            moves = self.known.moves(ONE, {P: end}, {})
            self.known.claim(ONE, {P: end}, HERE, "seek_to_stored")
            if outcome == "fails":
                raise KeyError
        except (KeyError, InvalidTransactionStateError):
            self.known.failed(HERE)
            self.last_failed = True
            return
        self.last_failed = False
        (move,) = moves
        assert move.stored == self.stored
        self.known.committed(ONE, {P: end})
        self.stored = move.offset
        self.used += range(begin, end)
        self.hand = (end, self.hand[1])

    @rule()
    def seek(self) -> None:
        self.position = self.stored
        self.hand = (self.stored, self.stored)
        self.last_failed = False
        self.known.sought(ONE, {P: self.stored}, HERE)

    @invariant()
    def every_record_is_used_once_and_in_order(self) -> None:
        assert self.used == list(range(self.stored))


TestWorker: Any = PositionsMachine.TestCase
TestWorker.settings = settings(max_examples=300, stateful_step_count=30, deadline=None)


@given(st.lists(st.integers(0, 20), max_size=5))
def test_the_next_unit_begins_at_the_committed_position(offsets: list[int]) -> None:
    known = put(ONE, offset=0)
    done = 0
    for offset in sorted(offsets):
        claim(known, {P: offset})
        assert known.moves(ONE, {P: offset}, {}) == ([Move(P, done, offset)] if offset > done else [])
        known.committed(ONE, {P: offset})
        done = offset
