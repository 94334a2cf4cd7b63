"""TwoPhaseProducer.produce_at_once: when it adds nothing, and what an interrupt costs."""

import time

import pytest

from dualwrite.client.engine.accumulator import RecordAccumulator
from dualwrite.client.producer.two_phase_producer import TwoPhaseProducer
from dualwrite.client.terms.verbs import ProducerState
from dualwrite.errors import PrepareFailedError
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
