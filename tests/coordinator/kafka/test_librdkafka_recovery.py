"""The librdkafka participant ends what a predecessor left, as the state says, and looks at the transaction before."""

from typing import Any

import pytest

from dualwrite.client.terms.verbs import ProducerState
from dualwrite.coordinator.recovery import previous_transaction
from dualwrite.coordinator.rules.recovery_decision import Outcome
from dualwrite.errors import InvalidTransactionStateError, KafkaUnavailableError, PrepareFailedError
from dualwrite.ids import Anchor, EndedTransaction, Ending, PreparedTxnState, ProducerIdentity, TopicPartition
from dualwrite.records.outgoing import OutgoingRecord
from tests.support.coordinator.librdkafka.fake_control_plane import SESSION, T0, T1
from tests.support.coordinator.librdkafka.librdkafka_rig import LibrdkafkaRig


def test_a_kept_transaction_that_began_at_the_anchor_is_committed_under_the_new_identity() -> None:
    rig = LibrdkafkaRig().keeping(SESSION, {T0: 10})
    assert rig.participant.complete_transaction(PreparedTxnState(SESSION, Anchor.of(T0, 10))) is Outcome.COMMITTED
    assert rig.control.ended == [(ProducerIdentity(7, 1), True, True)]
    assert rig.control.asked == [(frozenset({T0}), SESSION)]


def test_a_kept_transaction_is_found_by_a_very_long_topic_name_too() -> None:
    partition = TopicPartition("x" * 249, 3)
    rig = LibrdkafkaRig()
    rig.control.partitions = frozenset({T0, partition})
    rig.keeping(SESSION, {partition: 5})
    assert rig.participant.complete_transaction(PreparedTxnState(SESSION, Anchor.of(partition, 5))) is Outcome.COMMITTED


@pytest.mark.parametrize(
    ("state", "starts"),
    [
        (PreparedTxnState(SESSION, Anchor.of(T0, 10)), {T0: 12}),
        (PreparedTxnState(SESSION, Anchor.of(T0, 10), started_ms=999), {T1: 10}),
        (PreparedTxnState(SESSION, Anchor.of(T0, 10), started_ms=999), {T0: 10}),
        (PreparedTxnState(SESSION, Anchor.of(TopicPartition("gone", 0), 10)), {T0: 10}),
        (PreparedTxnState(ProducerIdentity(6, 5), Anchor.of(T0, 10)), {T0: 10}),
        (PreparedTxnState(), {T0: 10}),
    ],
)
def test_any_other_kept_transaction_is_aborted(state: PreparedTxnState, starts: dict[TopicPartition, int]) -> None:
    rig = LibrdkafkaRig().keeping(SESSION, starts)
    rig.control.started_ms = 1000
    assert rig.participant.complete_transaction(state) is Outcome.ABORTED
    assert rig.control.ended == [(ProducerIdentity(7, 1), False, True)]


def test_a_state_without_an_anchor_is_compared_as_kip_939_has_it() -> None:
    rig = LibrdkafkaRig().keeping(SESSION)
    assert rig.participant.complete_transaction(PreparedTxnState(SESSION)) is Outcome.COMMITTED
    assert rig.control.asked == []


def test_nothing_kept_is_success_and_ends_nothing() -> None:
    rig = LibrdkafkaRig().keeping(None)
    assert rig.participant.complete_transaction(PreparedTxnState(SESSION, Anchor.of(T0, 1))) is Outcome.NOTHING
    assert rig.control.ended == []


@pytest.mark.parametrize("committed", [True, False])
def test_commit_and_abort_end_a_kept_transaction_whatever_it_is(committed: bool) -> None:
    rig = LibrdkafkaRig().keeping(SESSION)
    (rig.participant.commit_transaction if committed else rig.participant.abort_transaction)()
    assert rig.control.ended == [(ProducerIdentity(7, 1), committed, True)]
    assert not {"commit_transaction", "abort_transaction"} & set(rig.producer.calls)


@pytest.mark.parametrize("failing", ["describe_transaction", "current_transaction_start_offsets", "end_txn"])
def test_an_unreachable_cluster_never_makes_recovery_guess_its_decision(failing: str) -> None:
    rig = LibrdkafkaRig().keeping(SESSION, {T0: 10})
    rig.control.failures[failing] = KafkaUnavailableError("broker b:1: timed out")
    with pytest.raises(KafkaUnavailableError, match="b:1"):
        rig.participant.complete_transaction(PreparedTxnState(SESSION, Anchor.of(T0, 10)))
    assert rig.control.ended == []
    assert rig.state is ProducerState.FAILED


def test_after_recovery_the_participant_is_initialised_and_begins() -> None:
    rig = LibrdkafkaRig().keeping(SESSION)
    with pytest.raises(InvalidTransactionStateError, match=r"begin_transaction\(\): .*keeping a predecessor"):
        rig.participant.begin_transaction()
    rig.participant.abort_transaction()
    with pytest.raises(InvalidTransactionStateError, match="uninitialized"):
        rig.participant.begin_transaction()
    assert rig.begun(T0).participant.prepare_transaction().producer == SESSION


def ended(monkeypatch: pytest.MonkeyPatch, ending: Ending) -> list[PreparedTxnState]:
    """How every transaction has ended; of which it was asked."""
    asked: list[PreparedTxnState] = []

    def look(_control: Any, state: PreparedTxnState, _timeout: float) -> EndedTransaction:
        asked.append(state)
        return EndedTransaction(ending)

    monkeypatch.setattr(previous_transaction, "ended_transaction", look)
    return asked


def test_a_cluster_that_has_lost_the_transaction_before_gets_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = ended(monkeypatch, Ending.LOST)
    rig = LibrdkafkaRig().begun(T0)
    first = rig.participant.prepare_transaction()
    rig.participant.commit_transaction()
    rig.participant.begin_transaction()
    rig.participant.produce(OutgoingRecord("t", b"v", partition=1))
    rig.control.lost_connections = 1
    with pytest.raises(PrepareFailedError, match=r"app-0: the cluster has lost the one before, 7:0:t:0:10: it was set"):
        rig.participant.prepare_transaction()
    assert asked == [first]
    rig.participant.abort_transaction()
    assert not rig.participant.is_reusable, "recovery puts it on record before anything else is stored"


@pytest.mark.parametrize("ending", [Ending.COMMITTED, Ending.UNKNOWN, Ending.OPEN])
def test_the_transaction_before_is_looked_at_once_after_a_lost_connection(
    monkeypatch: pytest.MonkeyPatch, ending: Ending
) -> None:
    asked = ended(monkeypatch, ending)
    rig = LibrdkafkaRig().begun(T0)
    for lost in (0, 1, 1):
        rig.control.lost_connections = lost
        rig.participant.prepare_transaction()
        rig.participant.commit_transaction()
        rig.participant.begin_transaction()
        rig.participant.produce(OutgoingRecord("t", b"v", partition=1))
    assert len(asked) == 1
    assert rig.participant.is_reusable
