"""The calls that only the blocking producer has: when they do nothing, and what an interrupt costs."""

import time

import pytest

from dualwrite.client.engine.accumulator import RecordAccumulator
from dualwrite.client.engine.transaction_state import TransactionResult
from dualwrite.client.producer.two_phase_producer import TwoPhaseProducer
from dualwrite.client.terms.verbs import ProducerState
from dualwrite.errors import AnswerLostError, InvalidTransactionStateError, PrepareFailedError
from dualwrite.records.outgoing import OutgoingRecord
from tests.support.client.producer_rig import ProducerRig

RECORD = OutgoingRecord("t", "at once", partition=0)


@pytest.fixture
def rig() -> ProducerRig:
    """A producer that knows its topic, in a transaction."""
    made = ProducerRig(TwoPhaseProducer, batch_num_messages=2)
    made.begun().produce("known")
    made.call("commit_transaction")
    return made.begun()


def test_no_record_is_added_at_once_while_a_batch_can_be_sent(rig: ProducerRig) -> None:
    assert [rig.face.produce_at_once(RECORD) for _ in range(4)] == [True, True, True, False]
    assert len(rig.face) == 3
    rig.face.produce_record(RECORD)
    assert rig.face.produce_at_once(RECORD)
    rig.call("commit_transaction")
    assert rig.committed == [b"known", *[b"at once"] * 5]


def test_no_record_is_added_at_once_while_a_callback_is_due(rig: ProducerRig) -> None:
    told: list[bytes] = []
    rig.produce("a", lambda _error, record: told.append(record.value()), partition=0)
    rig.engine.flush(now=time.monotonic())  # another thread's call, which sends the record
    rig.driver.pump()
    assert not rig.face.produce_at_once(RECORD)
    assert (told, len(rig.face)) == ([], 0)
    rig.call("poll")
    assert rig.face.produce_at_once(RECORD)
    assert told == [b"a"]


def test_an_interrupt_while_a_record_is_added_at_once_leaves_only_abort(
    rig: ProducerRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = RecordAccumulator.append

    def interrupted(self: RecordAccumulator, *arguments: object) -> bool:
        original(self, *arguments)  # type: ignore[arg-type]
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(RecordAccumulator, "append", interrupted)
        with pytest.raises(KeyboardInterrupt):
            rig.face.produce_at_once(RECORD)
    assert rig.state is ProducerState.ABORTABLE
    with pytest.raises(PrepareFailedError, match=r"produce\(\) raised KeyboardInterrupt"):
        rig.call("commit_transaction")
    rig.call("abort_transaction")
    assert rig.committed == [b"known"]


def test_an_interrupt_while_records_are_sent_early_leaves_only_abort(
    rig: ProducerRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig.produce("a")
    original = RecordAccumulator.send_early

    def interrupted(self: RecordAccumulator) -> None:
        original(self)
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(RecordAccumulator, "send_early", interrupted)
        with pytest.raises(KeyboardInterrupt):
            rig.face.send_records()
    assert rig.state is ProducerState.ABORTABLE
    with pytest.raises(PrepareFailedError, match=r"send_records\(\) raised KeyboardInterrupt"):
        rig.call("prepare_transaction")


def test_records_that_are_sent_early_during_another_call_harm_nothing(rig: ProducerRig) -> None:
    rig.produce("a")
    other = rig.engine.flush(now=time.monotonic())
    with pytest.raises(InvalidTransactionStateError, match=r"send_records\(\): another call"):
        rig.face.send_records()
    assert rig.state is ProducerState.IN_TRANSACTION
    rig.driver.wait(other)
    assert rig.call("commit_transaction") is TransactionResult.COMMITTED


def test_the_commit_of_a_prepared_transaction_with_delivery_callbacks_is_sent(rig: ProducerRig) -> None:
    rig.produce("a", lambda _error, _record: None)
    rig.call("prepare_transaction")
    rig.face.send_commit()
    assert rig.face.collect_commit(wait=True)
    assert rig.committed == [b"known", b"a"]


def test_an_answer_that_an_interrupt_kept_from_being_collected_is_lost(
    rig: ProducerRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig.produce("a")
    rig.call("prepare_transaction")
    monkeypatch.setattr(rig.driver.simulated, "perform", lambda command: None)  # nobody answers
    rig.face.send_commit()

    def interrupted(_operation: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(rig.driver, "wait", interrupted)
        with pytest.raises(KeyboardInterrupt):
            rig.face.collect_commit(wait=True)
    for wait in (True, False):
        with pytest.raises(AnswerLostError, match="app-0: interrupted in the middle of a call"):
            rig.face.collect_commit(wait=wait)
    assert rig.state is ProducerState.FAILED


def test_an_interrupt_while_a_commit_is_sent_leaves_its_outcome_unknown_and_no_answer_to_collect(
    rig: ProducerRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig.produce("a")
    rig.call("prepare_transaction")

    def interrupted() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(rig.driver, "pump", interrupted)
    with pytest.raises(KeyboardInterrupt):
        rig.face.send_commit()
    assert (rig.face.is_committing, rig.state) == (False, ProducerState.FAILED)
