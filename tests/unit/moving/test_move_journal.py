"""The journal of a move: what is written is read, and what it says about direction and groups."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dualwrite.errors import InputError
from dualwrite.ids import TopicPartition
from dualwrite.moving.journal import (
    Finished,
    JournalRecord,
    MovedRecords,
    MoveJournal,
    MoveState,
    SourceGroup,
    TopicPair,
    decode,
    encode,
)
from dualwrite.moving.offset_mapping import OffsetRun

PAIR = TopicPair("orders", "id-a", "id-b")
REVERSED = TopicPair("orders", "id-b", "id-a")

RUNS = st.lists(st.tuples(st.integers(0, 2**40), st.integers(0, 2**40), st.integers(1, 2**20)), min_size=1, max_size=9)
NAMES = st.text(min_size=1, max_size=20)
PAIRS = st.builds(TopicPair, NAMES, NAMES, NAMES)
PLACES = st.builds(TopicPartition, NAMES, st.integers(0, 2**31 - 1))
RECORDS: st.SearchStrategy[JournalRecord] = st.one_of(
    st.builds(
        MovedRecords,
        PAIRS,
        st.integers(0, 2**31 - 1),
        RUNS.map(lambda runs: tuple(OffsetRun(*run) for run in runs)),
    ),
    st.builds(SourceGroup, NAMES, st.dictionaries(PLACES, st.integers(0, 2**62), max_size=5)),
    st.builds(Finished, st.integers(1, 100), st.lists(PAIRS).map(tuple)),
)


@given(RECORDS)
def test_what_is_written_is_read(record: JournalRecord) -> None:
    assert decode(encode(record)) == record


def test_one_record_after_another_takes_few_bytes() -> None:
    runs = tuple(OffsetRun(2 * number, number, 1) for number in range(1_000))  # a marker after each record
    assert len(encode(MovedRecords(PAIR, 0, runs))) < 7_000


OF_A_LATER_RELEASE = encode(Finished(1, (PAIR,))).replace(b'"version":1', b'"version":2')


@pytest.mark.parametrize(
    "value",
    [None, b"", b"[]", b'{"version":2}', b'{"version":1}', b"\xff", b'{"version":1,"moved":1}', OF_A_LATER_RELEASE],
)
def test_another_value_is_named(value: bytes | None) -> None:
    with pytest.raises(InputError, match="a record that this release cannot read"):
        decode(value)


def moved(pair: TopicPair, *runs: tuple[int, int, int]) -> MovedRecords:
    return MovedRecords(pair, 0, tuple(OffsetRun(*run) for run in runs))


def test_mappings_of_both_directions_are_one() -> None:
    state = MoveState()
    state.forward.add_all([moved(PAIR, (0, 0, 4)), moved(PAIR, (5, 5, 1))])
    state.backward.add(moved(REVERSED, (9, 7, 2)))
    assert list(state.mapping(PAIR, 0)) == [OffsetRun(0, 0, 4), OffsetRun(5, 5, 1), OffsetRun(7, 9, 2)]
    assert list(state.mapping(PAIR, 1)) == []


@pytest.mark.parametrize("other", [TopicPair("orders", "new", "id-b"), TopicPair("orders", "id-a", "new")])
def test_a_topic_that_was_created_again_has_no_moved_records(other: TopicPair) -> None:
    state = MoveState()
    state.forward.add(moved(PAIR, (0, 0, 4)))
    assert state.has_moved(PAIR)
    assert not state.has_moved(other)
    assert list(state.mapping(other, 0)) == []


def pair(name: str, source: str = "here", target: str = "there") -> TopicPair:
    return TopicPair(name, source, target)


def test_the_last_finished_move_says_which_cluster_is_in_use() -> None:
    state = MoveState()
    back = MoveState(state.backward, state.forward)
    turned = pair("a", "there", "here")
    assert not state.is_finished(pair("a"))
    for here, there, (topic, other) in (
        (state, back, (pair("a"), turned)),
        (back, state, (turned, pair("a"))),
        (state, back, (pair("a"), turned)),
    ):
        here.forward.add(Finished(here.next_number, (topic,)))
        assert here.is_finished(topic)
        assert not there.is_finished(other)
    assert state.next_number == back.next_number == 4
    assert not state.is_finished(pair("c"))


def test_topics_are_finished_one_by_one() -> None:
    state = MoveState()
    state.forward.add(Finished(1, (pair("a"),)))
    assert (state.is_finished(pair("a")), state.is_finished(pair("b"))) == (True, False)
    state.forward.add(Finished(2, (pair("b"),)))
    assert (state.is_finished(pair("a")), state.is_finished(pair("b"))) == (True, True)


@pytest.mark.parametrize("other", [pair("a", source="new"), pair("a", target="new")])
def test_a_topic_that_was_created_again_is_not_finished(other: TopicPair) -> None:
    state = MoveState()
    state.forward.add(Finished(1, (pair("a"),)))
    assert not state.is_finished(other)


def test_groups_count_once_the_move_is_finished_and_replace_those_of_the_move_before() -> None:
    journal = MoveJournal()
    first, other = TopicPartition("a", 0), TopicPartition("b", 0)
    journal.add(SourceGroup("gone", {first: 1}))
    journal.add(SourceGroup("group", {first: 2, other: 3}))
    assert journal.groups_in(["a", "b"]) == {}
    journal.add(Finished(1, (pair("a"), pair("b"))))
    assert journal.groups_in(["a"]) == {"gone": {first: 1}, "group": {first: 2}}
    journal.add_all([SourceGroup("group", {first: 9}), Finished(2, (pair("a"),))])
    assert journal.groups_in(["a", "b"]) == {"group": {first: 9, other: 3}}


def test_a_journal_that_contradicts_itself_is_refused() -> None:
    journal = MoveJournal()
    journal.add(moved(PAIR, (0, 0, 4)))
    with pytest.raises(InputError, match=r"topic 'orders', partition 0: the journal of the move contradicts itself"):
        journal.add(moved(PAIR, (3, 4, 1)))


def test_journals_that_contradict_each_other_are_refused() -> None:
    state = MoveState()
    state.forward.add(moved(PAIR, (0, 0, 4)))
    state.backward.add(moved(REVERSED, (2, 4, 2)))
    with pytest.raises(InputError, match="delete the topic at the target to copy it again"):
        state.mapping(PAIR, 0)
