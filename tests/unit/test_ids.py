"""Identities: the equality of transactions, and the strings that stand in the database."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dualwrite.errors import ConfigurationError
from dualwrite.ids import (
    NO_PRODUCER,
    Anchor,
    Match,
    OngoingTransaction,
    PreparedTxnState,
    ProducerIdentity,
    TopicPartition,
    is_legal_topic,
    require_prepared_state,
    validated_transactional_id,
)
from tests.support.strategies import attempt, producers

ORDERS = TopicPartition("orders", 3)
OURS = ProducerIdentity(4000, 7)

topics = st.text(alphabet="abcXYZ019._-", min_size=1, max_size=249)
partitions = st.builds(TopicPartition, topics, st.integers(0, 2**31 - 1))
offsets = st.integers(0, 2**63 - 1)
states = st.builds(PreparedTxnState, producers, st.none() | st.builds(Anchor.of, partitions, offsets))


@given(states)
def test_a_state_survives_its_string(state: PreparedTxnState) -> None:
    assert PreparedTxnState.parse(str(state)) == PreparedTxnState(str(state)) == state


@given(states)
def test_a_state_fits_the_column_whatever_the_topic(state: PreparedTxnState) -> None:
    assert len(str(state)) <= 255


@given(states)
def test_a_state_begins_with_the_pair_of_the_kip(state: PreparedTxnState) -> None:
    assert str(state).split(":")[:2] == [str(state.producer.producer_id), str(state.producer.epoch)]


def test_the_empty_state_is_the_empty_string() -> None:
    assert str(PreparedTxnState()) == ""
    assert PreparedTxnState.parse("") == PreparedTxnState("") == PreparedTxnState()
    assert not PreparedTxnState()


@pytest.mark.parametrize(
    "text",
    [
        "x",
        "1",
        "1:2:3",
        "1:2:t:0",
        "a:b",
        "1:x",
        "-1:0",
        "1:-1",
        "1:32768",
        "1:2:t:x:0",
        "1:2:t:0:x",
        "1:2:t:0:5:6",
        ":",
    ],
)
def test_an_invalid_state_string_is_refused_by_name(text: str) -> None:
    for read in (PreparedTxnState.parse, PreparedTxnState):
        with pytest.raises(ConfigurationError, match="prepared transaction state"):
            read(text)


@pytest.mark.parametrize("given", [None, 7, b"4:3", (4, 3), PreparedTxnState(OURS)])
def test_a_state_is_made_of_text_or_an_identity_and_of_nothing_else(given: Any) -> None:
    for read in (PreparedTxnState.parse, PreparedTxnState):
        with pytest.raises(TypeError, match=f"of type {type(given).__name__}: give the text"):
            read(given)


def test_a_state_from_text_takes_no_separate_anchor() -> None:
    with pytest.raises(TypeError, match="of type str"):
        PreparedTxnState("4:3", Anchor("t", 0, 1))


@pytest.mark.parametrize("given", [None, "4:3", OURS])
def test_only_a_state_can_complete_a_transaction(given: Any) -> None:
    assert require_prepared_state(PreparedTxnState("4:3")) == PreparedTxnState(ProducerIdentity(4, 3))
    with pytest.raises(
        TypeError, match=rf"complete_transaction\(\): state of type {type(given).__name__}: give a Prepared"
    ):
        require_prepared_state(given)


@given(st.text(max_size=30))
def test_parsing_anything_gives_a_state_or_a_configuration_error(text: str) -> None:
    outcome = attempt(lambda: PreparedTxnState.parse(text), ConfigurationError)
    if isinstance(outcome, ConfigurationError):
        assert repr(text) in str(outcome)
    else:
        assert PreparedTxnState.parse(str(outcome)) == outcome


@pytest.mark.parametrize(
    ("state", "ongoing", "same"),
    [
        pytest.param(PreparedTxnState(OURS), OngoingTransaction(OURS), True, id="the pair alone, equal"),
        pytest.param(PreparedTxnState(OURS), OngoingTransaction(ProducerIdentity(4000, 8)), False, id="a later epoch"),
        pytest.param(PreparedTxnState(OURS), OngoingTransaction(ProducerIdentity(4001, 7)), False, id="another id"),
        pytest.param(PreparedTxnState(), OngoingTransaction(NO_PRODUCER), False, id="nothing identifies nothing"),
        pytest.param(
            PreparedTxnState(OURS, Anchor("orders", 3, 10)),
            OngoingTransaction(OURS, {ORDERS: 10, TopicPartition("other", 0): 5}),
            True,
            id="began at the anchor",
        ),
        pytest.param(
            PreparedTxnState(OURS, Anchor("orders", 3, 10)),
            OngoingTransaction(OURS, {ORDERS: 14}),
            False,
            id="the next transaction of the same session",
        ),
        pytest.param(
            PreparedTxnState(OURS, Anchor("orders", 3, 10)),
            OngoingTransaction(OURS, {TopicPartition("orders", 2): 10}),
            False,
            id="the same offset in another partition",
        ),
        pytest.param(
            PreparedTxnState(OURS, Anchor("orders", 3, 10)),
            OngoingTransaction(OURS),
            False,
            id="nothing known of where it began",
        ),
    ],
)
def test_a_state_identifies_only_its_own_ongoing_transaction(
    state: PreparedTxnState, ongoing: OngoingTransaction, same: bool
) -> None:
    assert state.identifies(ongoing) is same


AT_10 = PreparedTxnState(OURS, Anchor("orders", 3, 10), started_ms=1000)
UNDATED = PreparedTxnState(OURS, Anchor("orders", 3, 10))
IN_IT = frozenset({ORDERS, TopicPartition("other", 0)})


@pytest.mark.parametrize(
    ("state", "ongoing", "expected"),
    [
        (AT_10, OngoingTransaction(OURS, {ORDERS: 10}, IN_IT, 1000), Match.SAME),
        (AT_10, OngoingTransaction(OURS, {ORDERS: 10}, IN_IT), Match.SAME),
        (AT_10, OngoingTransaction(OURS, {ORDERS: 10}, IN_IT, 1001), Match.OTHER),
        (AT_10, OngoingTransaction(OURS, {}, IN_IT, 1000), Match.SAME),
        (AT_10, OngoingTransaction(OURS, {}, IN_IT, 1001), Match.OTHER),
        (AT_10, OngoingTransaction(OURS, {}, IN_IT), Match.UNKNOWN),
        (AT_10, OngoingTransaction(OURS, {ORDERS: 11}, IN_IT, 1000), Match.OTHER),
        (AT_10, OngoingTransaction(OURS, {}, frozenset({TopicPartition("other", 0)}), 1000), Match.OTHER),
        (UNDATED, OngoingTransaction(OURS, {}, IN_IT, 1000), Match.UNKNOWN),
        (UNDATED, OngoingTransaction(OURS, {ORDERS: 10}, IN_IT, 1000), Match.SAME),
        (UNDATED, OngoingTransaction(ProducerIdentity(4000, 8), {}, IN_IT, 1000), Match.OTHER),
    ],
)
def test_a_transaction_whose_anchor_is_gone_is_known_by_its_start(
    state: PreparedTxnState, ongoing: OngoingTransaction, expected: Match
) -> None:
    assert state.match(ongoing) is expected


@given(producers, partitions, offsets, offsets)
def test_two_transactions_of_one_epoch_are_never_taken_for_each_other(
    producer: ProducerIdentity, partition: TopicPartition, first: int, second: int
) -> None:
    state = PreparedTxnState.parse(str(PreparedTxnState(producer, Anchor.of(partition, first))))
    assert state.identifies(OngoingTransaction(producer, {partition: second})) is (first == second)


def test_long_topics_that_share_their_beginning_have_different_anchors() -> None:
    one, other = (TopicPartition("t" * 240 + end, 0) for end in ("a", "b"))
    anchor = Anchor.of(one, 5)
    assert anchor.is_in(one)
    assert not anchor.is_in(other)


def test_a_shortened_topic_name_contains_a_tilde_that_no_topic_name_may_have() -> None:
    assert "~" in Anchor.of(TopicPartition("t" * 249, 0), 0).topic
    assert Anchor.of(TopicPartition("t" * 198, 0), 0).topic == "t" * 198


@pytest.mark.parametrize("value", ["a", "orders-0", "é", "x" * 255, "with space", "a:b"])
def test_a_legal_transactional_id_is_returned_as_it_is(value: str) -> None:
    assert validated_transactional_id(value) == value


@pytest.mark.parametrize("value", ["", "x" * 256, "a\nb", "\x00", "tab\t", "\x7f", "caf\udce9"])
def test_an_illegal_transactional_id_is_refused(value: str) -> None:
    with pytest.raises(ConfigurationError, match="use 1 to 255 characters"):
        validated_transactional_id(value)


def test_a_producer_identity_is_true_only_if_there_is_one() -> None:
    assert not NO_PRODUCER
    assert ProducerIdentity(0, 0)
    assert str(OURS) == "4000:7"
    assert str(ORDERS) == "orders-3"


@pytest.mark.parametrize("name", ["orders", "a", "A.b_c-9", "...", "x" * 249])
def test_a_legal_topic_name_is_recognised(name: str) -> None:
    assert is_legal_topic(name)


@pytest.mark.parametrize("name", ["", ".", "..", "x" * 250, "a b", "a:b", "a~b", "é", "a\n"])
def test_an_illegal_topic_name_is_recognised(name: str) -> None:
    assert not is_legal_topic(name)
