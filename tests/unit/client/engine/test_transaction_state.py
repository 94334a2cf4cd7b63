"""The native producer's transaction: what state, identity and verbs follow from what."""

import re

import pytest

from dualwrite.client.engine.transaction_state import TransactionManager, require_unanchored
from dualwrite.client.terms.error_classes import ErrorClass
from dualwrite.client.terms.verbs import AFTER, AFTER_FAILURE, ProducerState, Verb
from dualwrite.errors import (
    FencedError,
    InvalidTransactionStateError,
    KafkaRefusedError,
    KafkaUnavailableError,
    PrepareFailedError,
)
from dualwrite.ids import NO_PRODUCER, Anchor, PreparedTxnState, ProducerIdentity
from dualwrite.wire.apis import ApiKey

ME, NEXT, OTHER = ProducerIdentity(7, 3), ProducerIdentity(7, 4), ProducerIdentity(9, 0)
CALLS = (ApiKey.INIT_PRODUCER_ID, ApiKey.END_TXN, ApiKey.TXN_OFFSET_COMMIT)


def at(state: ProducerState, content: bool = True) -> TransactionManager:
    """A machine in ``state``, reached by its verbs."""
    machine = TransactionManager()
    if state is ProducerState.UNINITIALIZED:
        return machine
    machine.start(Verb.INIT_KEEPING if state is ProducerState.KEPT else Verb.INIT)
    machine.initialized(ME, OTHER if state is ProducerState.KEPT else NO_PRODUCER)
    machine.finish()
    if state in (ProducerState.KEPT, ProducerState.READY):
        return machine
    machine.start(Verb.BEGIN)
    machine.begun()
    machine.finish()
    machine.has_content = machine.may_be_open = content
    if state is ProducerState.PREPARED:
        machine.start(Verb.PREPARE)
        machine.finish()
    return machine


@pytest.mark.parametrize("verb", Verb)
@pytest.mark.parametrize(
    "state",
    [
        ProducerState.UNINITIALIZED,
        ProducerState.READY,
        ProducerState.IN_TRANSACTION,
        ProducerState.PREPARED,
        ProducerState.KEPT,
    ],
)
def test_verbs_are_allowed_as_the_shared_table_has_them(state: ProducerState, verb: Verb) -> None:
    machine = at(state)
    assert machine.state is state
    if (state, verb) not in AFTER:
        with pytest.raises(InvalidTransactionStateError, match=f"^{re.escape(verb.value)}: the producer is"):
            machine.start(verb)
        assert machine.state is state
        return
    assert machine.start(verb) is state
    assert machine.state is AFTER_FAILURE[verb]
    machine.finish()
    assert machine.state is AFTER[state, verb]


def test_a_new_producer_has_no_identity_and_no_transaction() -> None:
    machine = TransactionManager()
    assert (machine.identity, machine.ongoing) == (NO_PRODUCER, NO_PRODUCER)
    assert machine.has_content is False
    assert machine.may_be_open is False
    assert machine.first_record is None
    assert machine.prepared == PreparedTxnState()


def test_a_transaction_begins_at_the_first_record_whose_offset_a_broker_told() -> None:
    machine = at(ProducerState.IN_TRANSACTION)
    machine.acknowledged("t", 2, -1)
    assert machine.first_record is None
    machine.acknowledged("t", 1, 0)
    machine.acknowledged("other", 0, 9)
    assert machine.first_record == Anchor("t", 1, 0)
    assert machine.prepared.first_record == Anchor("t", 1, 0)
    machine.begun()
    assert machine.first_record is None, "it was another transaction's"


def test_a_kept_transaction_that_has_ended_is_kept_no_longer() -> None:
    machine = at(ProducerState.KEPT)
    assert machine.ongoing == OTHER
    machine.start(Verb.COMMIT)
    machine.ended(NEXT)
    assert (machine.identity, machine.ongoing) == (NEXT, NO_PRODUCER)


def test_a_prepared_transaction_is_named_by_its_identity_and_an_empty_one_by_nothing() -> None:
    assert str(at(ProducerState.PREPARED).prepared) == "7:3"
    assert not at(ProducerState.PREPARED, content=False).prepared


def test_a_transaction_that_has_ended_leaves_the_next_identity() -> None:
    machine = at(ProducerState.PREPARED)
    machine.start(Verb.COMMIT)
    machine.ended(NEXT)
    machine.finish()
    assert (machine.identity, machine.state, machine.has_content) == (NEXT, ProducerState.READY, False)


def test_a_transaction_that_sent_nothing_keeps_its_identity() -> None:
    machine = at(ProducerState.IN_TRANSACTION)
    machine.start(Verb.ABORT)
    machine.ended(NO_PRODUCER)
    assert machine.identity == ME


@pytest.mark.parametrize(
    ("before", "state", "commits"),
    [
        (ProducerState.PREPARED, PreparedTxnState(ME), True),
        (ProducerState.PREPARED, PreparedTxnState(NEXT), False),
        (ProducerState.PREPARED, PreparedTxnState(), False),
        (ProducerState.KEPT, PreparedTxnState(OTHER), True),
        (ProducerState.KEPT, PreparedTxnState(ME), False),
        (ProducerState.KEPT, PreparedTxnState(), False),
    ],
)
def test_only_the_very_transaction_that_was_prepared_is_committed(
    before: ProducerState, state: PreparedTxnState, commits: bool
) -> None:
    assert at(before).commits(before, state) is commits


def test_nothing_is_committed_if_no_transaction_was_kept() -> None:
    machine = TransactionManager()
    machine.initialized(ME, NO_PRODUCER)
    assert not machine.commits(ProducerState.KEPT, PreparedTxnState())
    assert not machine.commits(ProducerState.KEPT, PreparedTxnState(ME))


def test_an_empty_transaction_is_completed_by_the_empty_state() -> None:
    assert at(ProducerState.PREPARED, content=False).commits(ProducerState.PREPARED, PreparedTxnState())


def test_an_abortable_error_is_raised_by_every_verb_until_the_abort() -> None:
    machine, error = at(ProducerState.IN_TRANSACTION), PrepareFailedError("lost")
    machine.fail(error, ErrorClass.ABORTABLE)
    assert machine.state is ProducerState.ABORTABLE
    for verb in (Verb.PRODUCE, Verb.SEND_OFFSETS, Verb.PREPARE, Verb.COMMIT):
        with pytest.raises(PrepareFailedError, match="lost"):
            machine.start(verb)
    with pytest.raises(InvalidTransactionStateError):
        machine.start(Verb.BEGIN)
    machine.start(Verb.ABORT)
    machine.ended(NEXT)
    machine.finish()
    assert machine.state is ProducerState.READY
    assert machine.failure is None


def test_a_transaction_that_can_only_be_aborted_names_the_abort_if_init_is_called() -> None:
    machine = at(ProducerState.IN_TRANSACTION)
    machine.fail(PrepareFailedError("lost"), ErrorClass.ABORTABLE)
    with pytest.raises(InvalidTransactionStateError, match=r"can only be aborted; allowed now: abort_transaction\(\)"):
        machine.start(Verb.INIT)
    with pytest.raises(PrepareFailedError, match="lost"):
        machine.start(Verb.INIT_KEEPING)


def test_an_error_that_is_raised_by_many_verbs_does_not_keep_the_frames_of_each() -> None:
    machine = at(ProducerState.IN_TRANSACTION)
    machine.fail(PrepareFailedError("lost"), ErrorClass.ABORTABLE)
    sizes = set()
    for _ in range(3):
        with pytest.raises(PrepareFailedError) as raised:
            machine.start(Verb.PREPARE)
        sizes.add(len(raised.traceback))
    assert len(sizes) == 1


@pytest.mark.parametrize("error_class", [ErrorClass.FATAL, ErrorClass.FENCED])
def test_a_fatal_error_is_raised_by_every_later_verb(error_class: ErrorClass) -> None:
    machine = at(ProducerState.READY)
    machine.fail(FencedError("taken over"), error_class)
    assert machine.state is ProducerState.FAILED
    for verb in (Verb.BEGIN, Verb.ABORT, Verb.PRODUCE):
        with pytest.raises(FencedError, match="taken over"):
            machine.start(verb)


@pytest.mark.parametrize("verb", [Verb.INIT, Verb.INIT_KEEPING])
def test_a_producer_that_has_failed_is_not_initialised_again(verb: Verb) -> None:
    machine = at(ProducerState.UNINITIALIZED)
    machine.start(verb)
    machine.fail(KafkaUnavailableError("nobody answered"), ErrorClass.FATAL)
    with pytest.raises(InvalidTransactionStateError, match=r"close it and make a new one \(nobody answered\)"):
        machine.start(verb)


def test_a_commit_can_be_aborted_until_its_end_is_asked_for() -> None:
    machine = at(ProducerState.IN_TRANSACTION)
    machine.start(Verb.COMMIT)
    machine.undecided()
    assert machine.state is ProducerState.ABORTABLE
    machine.deciding()
    assert machine.state is ProducerState.FAILED
    machine.fail(KafkaUnavailableError("no answer"), ErrorClass.ABORTABLE)
    assert machine.state is ProducerState.FAILED


def test_a_commit_that_the_coordinator_refuses_can_be_aborted() -> None:
    machine = at(ProducerState.PREPARED)
    machine.start(Verb.COMMIT)
    machine.deciding()
    machine.undecided()
    machine.fail(KafkaRefusedError("EndTxn", 120, "TRANSACTION_ABORTABLE"), ErrorClass.ABORTABLE)
    assert machine.state is ProducerState.ABORTABLE


def test_a_closed_machine_stays_closed() -> None:
    machine = at(ProducerState.IN_TRANSACTION)
    machine.close()
    machine.fail(FencedError("too late"), ErrorClass.FENCED)
    assert machine.state is ProducerState.CLOSED
    assert machine.failure is None


def test_a_state_with_an_anchor_is_for_the_caller_to_look_up() -> None:
    require_unanchored(PreparedTxnState(ME))
    with pytest.raises(InvalidTransactionStateError, match=r"'7:3:t:0:5'.*looked up first"):
        require_unanchored(PreparedTxnState(ME, Anchor("t", 0, 5)))
