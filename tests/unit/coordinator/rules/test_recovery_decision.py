"""The verdict: commit the stored transaction and no other."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dualwrite.coordinator.rules.recovery_decision import (
    DETAILS,
    Outcome,
    RecoveryDecision,
    end_of,
    identity_after,
    outcome_in_log,
    verdict,
)
from dualwrite.ids import (
    Anchor,
    EndedTransaction,
    Ending,
    OngoingTransaction,
    PreparedTxnState,
    ProducerIdentity,
    TopicPartition,
)

PARTITION = TopicPartition("orders", 2)
PRODUCER = ProducerIdentity(42, 7)


def anchored(offset: int, producer: ProducerIdentity = PRODUCER) -> PreparedTxnState:
    return PreparedTxnState(producer, Anchor.of(PARTITION, offset))


def ongoing(offset: int, producer: ProducerIdentity = PRODUCER) -> OngoingTransaction:
    return OngoingTransaction(producer, {PARTITION: offset})


@pytest.mark.parametrize(
    ("stored", "found", "expected"),
    [
        (anchored(10), None, RecoveryDecision.NOTHING),
        (PreparedTxnState(), None, RecoveryDecision.NOTHING),
        (PreparedTxnState(), ongoing(10), RecoveryDecision.ABORT),
        (anchored(10), ongoing(10), RecoveryDecision.COMMIT),
        (anchored(10), ongoing(15), RecoveryDecision.ABORT),
        (anchored(10), ongoing(10, ProducerIdentity(42, 8)), RecoveryDecision.ABORT),
        (anchored(10), ongoing(10, ProducerIdentity(43, 7)), RecoveryDecision.ABORT),
        (anchored(10), OngoingTransaction(PRODUCER), RecoveryDecision.ABORT),
        (anchored(10), OngoingTransaction(PRODUCER, {TopicPartition("orders", 3): 10}), RecoveryDecision.ABORT),
        (PreparedTxnState(PRODUCER), ongoing(10), RecoveryDecision.COMMIT),
        (PreparedTxnState(PRODUCER), ongoing(10, ProducerIdentity(42, 8)), RecoveryDecision.ABORT),
    ],
)
def test_only_the_stored_transaction_is_committed(
    stored: PreparedTxnState, found: OngoingTransaction | None, expected: RecoveryDecision
) -> None:
    assert verdict(stored, found) is expected


@pytest.mark.parametrize(
    ("decided", "outcome"),
    [
        (RecoveryDecision.COMMIT, Outcome.COMMITTED),
        (RecoveryDecision.ABORT, Outcome.ABORTED),
        (RecoveryDecision.NOTHING, Outcome.NOTHING),
    ],
)
def test_an_open_transaction_ends_as_decided(decided: RecoveryDecision, outcome: Outcome) -> None:
    assert end_of(decided) is outcome


def test_the_next_identity_has_the_next_epoch() -> None:
    assert identity_after(PRODUCER) == ProducerIdentity(42, 8)


@given(st.integers(0, 50), st.integers(0, 50), st.integers(0, 3), st.integers(0, 3))
def test_exactly_the_stored_transaction_is_committed_of_all_transactions(
    stored_at: int, found_at: int, stored_epoch: int, found_epoch: int
) -> None:
    stored = anchored(stored_at, ProducerIdentity(42, stored_epoch))
    found = ongoing(found_at, ProducerIdentity(42, found_epoch))
    same = (stored_at, stored_epoch) == (found_at, found_epoch)
    assert verdict(stored, found) is (RecoveryDecision.COMMIT if same else RecoveryDecision.ABORT)


@given(st.integers(0, 2**62), st.integers(0, 32767), st.integers(0, 2**62))
def test_the_verdict_survives_the_way_through_the_database(producer_id: int, epoch: int, offset: int) -> None:
    producer = ProducerIdentity(producer_id, epoch)
    stored = PreparedTxnState.parse(str(anchored(offset, producer)))
    assert verdict(stored, ongoing(offset, producer)) is RecoveryDecision.COMMIT
    assert verdict(stored, ongoing(offset + 1, producer)) is RecoveryDecision.ABORT


LATER = ProducerIdentity(42, 8)


@pytest.mark.parametrize(
    ("ending", "expected"),
    [
        (Ending.UNKNOWN, Outcome.HEURISTIC_HAZARD),
        (Ending.COMMITTED, Outcome.ABORTED),
        (Ending.ABORTED, Outcome.HEURISTIC_ABORT),
        (Ending.LOST, Outcome.HEURISTIC_HAZARD),
    ],
)
def test_an_aborted_transaction_that_may_be_the_stored_one_is_a_hazard(ending: Ending, expected: Outcome) -> None:
    unknown = OngoingTransaction(PRODUCER, partitions=frozenset({PARTITION}), started_ms=5)
    found = EndedTransaction(ending)
    assert outcome_in_log(anchored(10), Outcome.ABORTED, LATER, found, unknown) is expected
    other = OngoingTransaction(PRODUCER, {PARTITION: 12}, frozenset({PARTITION}), 5)
    without_doubt = Outcome.ABORTED if ending is Ending.UNKNOWN else expected
    assert outcome_in_log(anchored(10), Outcome.ABORTED, LATER, found, other) is without_doubt


@pytest.mark.parametrize("overtaken", [False, True])
@pytest.mark.parametrize(
    ("done", "ending", "expected"),
    [
        (Outcome.COMMITTED, Ending.COMMITTED, Outcome.COMMITTED),
        (Outcome.COMMITTED, Ending.UNKNOWN, Outcome.COMMITTED),
        (Outcome.COMMITTED, Ending.OPEN, Outcome.COMMITTED),
        (Outcome.COMMITTED, Ending.ABORTED, Outcome.HEURISTIC_MIXED),
        (Outcome.NOTHING, Ending.ABORTED, Outcome.HEURISTIC_ABORT),
        (Outcome.NOTHING, Ending.LOST, Outcome.HEURISTIC_HAZARD),
        (Outcome.ABORTED, Ending.ABORTED, Outcome.HEURISTIC_ABORT),
        (Outcome.ABORTED, Ending.LOST, Outcome.HEURISTIC_HAZARD),
        (Outcome.NOTHING, Ending.OPEN, Outcome.HEURISTIC_HAZARD),
        (Outcome.ABORTED, Ending.OPEN, Outcome.HEURISTIC_HAZARD),
    ],
)
def test_the_stored_transactions_ending_determines_the_outcome(
    done: Outcome, ending: Ending, expected: Outcome, overtaken: bool
) -> None:
    assert outcome_in_log(PreparedTxnState(PRODUCER), done, LATER, EndedTransaction(ending, overtaken)) is expected


@pytest.mark.parametrize("ending", [Ending.COMMITTED, Ending.UNKNOWN])
@pytest.mark.parametrize("done", [Outcome.NOTHING, Outcome.ABORTED])
def test_no_heuristic_outcome_is_reported_without_proof(done: Outcome, ending: Ending) -> None:
    assert outcome_in_log(PreparedTxnState(PRODUCER), done, LATER, EndedTransaction(ending)) is done


@pytest.mark.parametrize("done", [Outcome.NOTHING, Outcome.ABORTED])
def test_a_commit_that_the_database_does_not_know_is_heuristic(done: Outcome) -> None:
    ended = EndedTransaction(Ending.COMMITTED, was_overtaken=True)
    assert outcome_in_log(PreparedTxnState(PRODUCER), done, LATER, ended) is Outcome.HEURISTIC_COMMIT


@pytest.mark.parametrize(
    ("now", "is_behind"),
    [(ProducerIdentity(42, 7), True), (ProducerIdentity(42, 6), True), (LATER, False), (ProducerIdentity(9, 0), False)],
)
def test_a_cluster_behind_the_state_has_lost_its_transaction(now: ProducerIdentity, is_behind: bool) -> None:
    found = outcome_in_log(PreparedTxnState(PRODUCER), Outcome.NOTHING, now, EndedTransaction(Ending.UNKNOWN))
    assert found is (Outcome.HEURISTIC_HAZARD if is_behind else Outcome.NOTHING)


def test_exactly_the_heuristic_outcomes_have_an_explanation() -> None:
    named = {outcome for outcome in Outcome if outcome.value.startswith("heuristic ")}
    assert set(DETAILS) == named == {outcome for outcome in Outcome if outcome.is_heuristic}
