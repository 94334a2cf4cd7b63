"""The order of KIP-939's verbs: the whole table, every pair of state and verb."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dualwrite.client.terms.verbs import AFTER, AFTER_FAILURE, ProducerState, Verb, VerbOrder, init_verb
from dualwrite.errors import InvalidTransactionStateError

ENDINGS = {Verb.COMPLETE, Verb.COMMIT, Verb.ABORT}
ALLOWED = {
    ProducerState.UNINITIALIZED: {Verb.INIT, Verb.INIT_KEEPING},
    ProducerState.READY: {Verb.BEGIN},
    ProducerState.IN_TRANSACTION: {Verb.PRODUCE, Verb.SEND_OFFSETS, Verb.PREPARE, Verb.COMMIT, Verb.ABORT},
    ProducerState.PREPARED: ENDINGS,
    ProducerState.KEPT: ENDINGS,
    ProducerState.ABORTABLE: {Verb.ABORT},
    ProducerState.FAILED: set(),
    ProducerState.CLOSED: set(),
}
EVERY_PAIR = [(state, verb) for state in ProducerState for verb in Verb]


def at(state: ProducerState) -> VerbOrder:
    order = VerbOrder()
    order.state = state
    return order


def attempt(order: VerbOrder, verb: Verb, *, fails: bool = False) -> None:
    """Call ``verb`` on ``order``; the call itself fails if ``fails``."""
    with order.calling(verb):
        if fails:
            raise ConnectionError("lost")


@pytest.mark.parametrize("given", [30, 30.0, 0, 1, None, "false"])
def test_a_timeout_does_not_keep_a_predecessors_transaction(given: Any) -> None:
    assert [init_verb(False), init_verb(True)] == [Verb.INIT, Verb.INIT_KEEPING]
    with pytest.raises(TypeError, match=r"init_transactions\(\): keep_prepared_txn .* of type \w+: give True or False"):
        init_verb(given)


@pytest.mark.parametrize(("state", "verb"), EVERY_PAIR)
def test_a_verb_is_allowed_exactly_where_kip_939_allows_it(state: ProducerState, verb: Verb) -> None:
    if verb in ALLOWED[state] | {Verb.CLOSE}:
        assert at(state).require(verb) is AFTER[state, verb]
    else:
        with pytest.raises(InvalidTransactionStateError):
            at(state).require(verb)


@pytest.mark.parametrize(("state", "verb"), [pair for pair in EVERY_PAIR if pair not in AFTER])
def test_a_forbidden_verb_leaves_the_state_and_says_what_is_allowed(state: ProducerState, verb: Verb) -> None:
    order = at(state)
    with pytest.raises(InvalidTransactionStateError) as caught:
        attempt(order, verb)
    assert order.state is state
    message = str(caught.value)
    assert message.startswith(f"{verb.value}: the producer is {state.value}; allowed now: ")
    assert all(allowed.value in message for allowed in ALLOWED[state])


@pytest.mark.parametrize(("state", "verb"), list(AFTER))
def test_a_call_that_succeeds_moves_the_state_and_one_that_fails_moves_it_elsewhere(
    state: ProducerState, verb: Verb
) -> None:
    succeeding, failing = at(state), at(state)
    attempt(succeeding, verb)
    assert succeeding.state is AFTER[state, verb]
    with pytest.raises(ConnectionError):
        attempt(failing, verb, fails=True)
    assert failing.state is AFTER_FAILURE[verb]


def test_the_state_before_is_given_to_the_call() -> None:
    order = at(ProducerState.KEPT)
    with order.calling(Verb.COMPLETE) as before:
        assert before is ProducerState.KEPT
    assert order.state is ProducerState.UNINITIALIZED


def test_while_a_call_runs_the_state_is_already_that_of_its_failure() -> None:
    order = at(ProducerState.PREPARED)
    with order.calling(Verb.COMMIT), pytest.raises(InvalidTransactionStateError):
        attempt(order, Verb.ABORT)  # as a delivery callback might
    assert order.state is ProducerState.READY


def test_every_state_is_reached_and_every_verb_has_an_outcome_of_failure() -> None:
    reached = {ProducerState.UNINITIALIZED, *AFTER.values(), *AFTER_FAILURE.values()}
    assert reached == set(ProducerState)
    assert set(AFTER_FAILURE) == set(Verb)


@given(st.lists(st.tuples(st.sampled_from(Verb), st.booleans()), max_size=30))
def test_nothing_is_produced_outside_a_transaction_that_was_begun(calls: list[tuple[Verb, bool]]) -> None:
    order = VerbOrder()
    begun = prepared = False
    for verb, fails in calls:
        try:
            attempt(order, verb, fails=fails)
        except InvalidTransactionStateError:
            continue
        except ConnectionError:
            assert verb not in ENDINGS | {Verb.INIT, Verb.INIT_KEEPING} or order.state is ProducerState.FAILED
            begun = begun and verb in (Verb.PRODUCE, Verb.PREPARE)
            prepared = prepared or begun
            continue
        assert not (verb is Verb.PRODUCE and (prepared or not begun))
        if verb in (Verb.BEGIN, *ENDINGS, Verb.CLOSE):
            begun, prepared = verb is Verb.BEGIN, False
        prepared = prepared or verb is Verb.PREPARE
