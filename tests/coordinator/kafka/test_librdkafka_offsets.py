"""Offsets in transactions of the librdkafka participant."""

import logging

import pytest
from confluent_kafka import KafkaError

from dualwrite.client.terms.verbs import ProducerState
from dualwrite.coordinator.rules.recovery_decision import Outcome
from dualwrite.errors import InvalidTransactionStateError, KafkaRefusedError, KafkaUnavailableError, PrepareFailedError
from dualwrite.ids import Anchor, PreparedTxnState
from tests.support.coordinator.librdkafka.fake_control_plane import SESSION, T0
from tests.support.coordinator.librdkafka.librdkafka_rig import MEMBER, OFFSETS, POSITIONS, LibrdkafkaRig, kafka_error


def test_offsets_are_part_of_what_is_prepared() -> None:
    rig = LibrdkafkaRig().begun(T0)
    rig.control.partitions = frozenset({T0, OFFSETS})
    rig.participant.send_offsets_to_transaction(POSITIONS, MEMBER)
    assert rig.producer.sent == [(POSITIONS, MEMBER)]
    assert rig.participant.prepare_transaction() == PreparedTxnState(SESSION, Anchor.of(T0, 10))


def test_a_transaction_of_offsets_alone_begins_where_they_were_written() -> None:
    rig = LibrdkafkaRig().begun()
    rig.control.partitions = frozenset({OFFSETS})
    rig.control.starts = {OFFSETS: 44}
    rig.participant.send_offsets_to_transaction(POSITIONS, MEMBER)
    state = rig.participant.prepare_transaction()
    assert state == PreparedTxnState(SESSION, Anchor.of(OFFSETS, 44))
    assert rig.participant.complete_transaction(state) is Outcome.COMMITTED


def test_offsets_that_the_coordinator_does_not_know_of_are_not_prepared() -> None:
    rig = LibrdkafkaRig().begun(T0)
    rig.participant.send_offsets_to_transaction(POSITIONS, MEMBER)
    with pytest.raises(PrepareFailedError, match="without __consumer_offsets"):
        rig.participant.prepare_transaction()


def test_offsets_that_this_client_may_not_see_are_refused_with_the_right_to_grant() -> None:
    """It is not known that they are missing, and no other attempt shows more."""
    rig = LibrdkafkaRig().begun(T0)
    rig.control.hidden = {OFFSETS.topic}
    rig.participant.send_offsets_to_transaction(POSITIONS, MEMBER)
    with pytest.raises(KafkaRefusedError, match="grant DESCRIBE on the topic __consumer_offsets") as raised:
        rig.participant.prepare_transaction()
    assert not raised.value.retriable
    rig.participant.abort_transaction()
    assert rig.state is ProducerState.READY


def test_offsets_of_a_transaction_that_has_ended_are_missing_even_if_this_client_may_not_see_them() -> None:
    rig = LibrdkafkaRig().begun(T0)
    rig.control.hidden = {OFFSETS.topic}
    rig.participant.send_offsets_to_transaction(POSITIONS, MEMBER)
    rig.control.state = "CompleteCommit"
    with pytest.raises(PrepareFailedError, match="CompleteCommit without __consumer_offsets"):
        rig.participant.prepare_transaction()


def test_offsets_are_of_one_transaction() -> None:
    rig = LibrdkafkaRig().begun()
    rig.participant.send_offsets_to_transaction(POSITIONS, MEMBER)
    rig.participant.abort_transaction()
    rig.participant.begin_transaction()
    assert rig.participant.prepare_transaction() == PreparedTxnState()


@pytest.mark.parametrize("code", [KafkaError.ILLEGAL_GENERATION, KafkaError.UNKNOWN_MEMBER_ID])
def test_offsets_that_the_group_refuses_can_only_be_aborted(code: int) -> None:
    rig = LibrdkafkaRig().begun(T0)
    rig.producer.fail("send_offsets_to_transaction", kafka_error(code, txn_requires_abort=True))
    with pytest.raises(KafkaRefusedError) as raised:
        rig.participant.send_offsets_to_transaction(POSITIONS, MEMBER)
    assert raised.value.code == code
    with pytest.raises(InvalidTransactionStateError, match="can only be aborted"):
        rig.participant.prepare_transaction()
    rig.participant.abort_transaction()
    assert rig.state is ProducerState.READY


@pytest.mark.parametrize(
    ("code", "is_reusable"),
    [
        (KafkaError._TIMED_OUT, False),
        (KafkaError._TRANSPORT, False),
        (KafkaError._STATE, False),
        (KafkaError.ILLEGAL_GENERATION, True),
        (KafkaError.GROUP_AUTHORIZATION_FAILED, True),
    ],
)
def test_unanswered_offsets_make_the_producer_unusable_after_the_abort(code: int, is_reusable: bool) -> None:
    rig = LibrdkafkaRig().begun(T0)
    rig.producer.fail("send_offsets_to_transaction", kafka_error(code))
    with pytest.raises(KafkaRefusedError if is_reusable else KafkaUnavailableError):
        rig.participant.send_offsets_to_transaction(POSITIONS, MEMBER)
    rig.participant.abort_transaction()
    assert rig.participant.is_reusable is is_reusable


def test_a_transaction_of_offsets_that_were_not_acknowledged_is_not_empty() -> None:
    """The broker may have them."""
    rig = LibrdkafkaRig().begun()
    assert not rig.participant.open_transaction
    rig.producer.fail("send_offsets_to_transaction", kafka_error(KafkaError._TIMED_OUT))
    with pytest.raises(KafkaUnavailableError):
        rig.participant.send_offsets_to_transaction(POSITIONS, MEMBER)
    assert rig.participant.open_transaction


def test_offsets_of_one_group_are_not_sent_again_after_a_lost_connection() -> None:
    rig = LibrdkafkaRig().begun(T0)
    rig.participant.send_offsets_to_transaction(POSITIONS, MEMBER)
    rig.participant.send_offsets_to_transaction(POSITIONS, MEMBER)
    lost = "127.0.0.1:9092/0: Disconnected: connection closed by peer (after 66ms in state UP)"
    rig.producer.config["logger"].log(logging.DEBUG, "%s [%s] %s", "FAIL", "rdkafka#producer-1", lost)
    rig.participant.send_offsets_to_transaction(POSITIONS, MEMBER._replace(group_id="other"))
    with pytest.raises(PrepareFailedError, match="offsets of group group: a connection was lost"):
        rig.participant.send_offsets_to_transaction(POSITIONS, MEMBER)
    assert len(rig.producer.sent) == 3
    assert rig.state is ProducerState.ABORTABLE
