"""Calls of librdkafka that do not come back, and callbacks that it makes meanwhile."""

import threading
from collections.abc import Iterator
from threading import get_ident
from typing import Any

import pytest
from confluent_kafka import KafkaError

from dualwrite.client.librdkafka.record_queue import RECORDS_PER_POLL
from dualwrite.client.terms.verbs import ProducerState
from dualwrite.errors import InvalidTransactionStateError, KafkaUnavailableError
from dualwrite.records.outgoing import OutgoingRecord
from tests.support.coordinator.librdkafka.fake_control_plane import T0
from tests.support.coordinator.librdkafka.librdkafka_rig import MEMBER, POSITIONS, FakeMessage, LibrdkafkaRig


@pytest.fixture
def released() -> Iterator[threading.Event]:
    event = threading.Event()
    yield event
    event.set()


def hanging(released: threading.Event) -> LibrdkafkaRig:
    rig = LibrdkafkaRig(timeout=0.05, grace=0.05)
    rig.producer.meanwhile = lambda: released.wait(30)
    return rig.begun(T0)


def test_a_hanging_offsets_call_fails_the_producer(released: threading.Event) -> None:
    rig = hanging(released)
    with pytest.raises(
        KafkaUnavailableError, match=r"send_offsets_to_transaction\(\) of app-0: .*did not return"
    ) as told:
        rig.participant.send_offsets_to_transaction(POSITIONS, MEMBER)
    assert told.value.retriable
    assert not rig.participant.is_reusable
    with pytest.raises(KafkaUnavailableError, match="has not returned"):
        rig.participant.abort_transaction()
    assert rig.state is ProducerState.FAILED
    before = list(rig.producer.calls)
    rig.participant.close()
    assert rig.producer.calls == before, "it is in a call, and makes no other"
    assert rig.control.closed == 1


def test_a_hanging_abort_fails_the_producer(released: threading.Event) -> None:
    rig = hanging(released)
    with pytest.raises(KafkaUnavailableError, match=r"abort_transaction\(\) of app-0"):
        rig.participant.abort_transaction()
    assert rig.state is ProducerState.FAILED
    rig.participant.close()


def test_no_record_is_added_at_once_where_callbacks_are_due() -> None:
    rig = LibrdkafkaRig().begun()
    record = OutgoingRecord("t", b"v", partition=0)
    answers = [rig.participant.produce_at_once(record) for _ in range(RECORDS_PER_POLL + 1)]
    assert answers == [True] * (RECORDS_PER_POLL - 1) + [False] * 2
    rig.participant.produce(record)
    assert rig.participant.produce_at_once(record)
    assert len(rig.producer.queue) == RECORDS_PER_POLL + 1


def test_callbacks_are_called_in_the_thread_that_calls_the_producer() -> None:
    told: list[tuple[int, KafkaError | None]] = []
    rig = LibrdkafkaRig().begun()
    rig.participant.produce(
        OutgoingRecord("t", b"v", partition=0, on_delivery=lambda error, _: told.append((get_ident(), error)))
    )
    ((_, report),) = rig.producer.queue
    rig.producer.meanwhile = lambda: (
        report(KafkaError(KafkaError._PURGE_QUEUE), FakeMessage(T0, -1001)),
        told.append((0, None)),
    )
    rig.participant.abort_transaction()
    assert [thread for thread, _ in told] == [0, get_ident()]


def test_callbacks_of_a_call_that_never_came_back_are_not_called(released: threading.Event) -> None:
    told: list[Any] = []
    rig = hanging(released)
    rig.participant.produce(OutgoingRecord("t", b"v", partition=0, on_delivery=lambda error, _: told.append(error)))
    report = rig.producer.queue[-1][1]
    ended = threading.Event()

    def late() -> None:
        released.wait(30)
        report(KafkaError(KafkaError._PURGE_QUEUE), FakeMessage(T0, -1001))
        ended.set()

    rig.producer.meanwhile = late
    with pytest.raises(KafkaUnavailableError):
        rig.participant.send_offsets_to_transaction(POSITIONS, MEMBER)
    rig.participant.close()
    released.set()
    assert ended.wait(30)
    assert not told


def test_a_callback_that_raises_in_a_call_leaves_only_abort() -> None:
    def refuse(error: Any, _: Any) -> None:
        raise KeyError("of the callback")

    rig = LibrdkafkaRig().begun()
    rig.participant.produce(OutgoingRecord("t", b"v", partition=0, on_delivery=refuse))
    ((_, report),) = rig.producer.queue
    rig.producer.meanwhile = lambda: report(KafkaError(KafkaError._PURGE_QUEUE), FakeMessage(T0, -1001))
    with pytest.raises(KeyError, match="of the callback"):
        rig.participant.send_offsets_to_transaction(POSITIONS, MEMBER)
    with pytest.raises(InvalidTransactionStateError, match="can only be aborted"):
        rig.participant.prepare_transaction()


@pytest.mark.parametrize(("setting", "seconds"), [("1500", 1.5), ("90000", 30.0)])
def test_no_step_may_take_longer_than_a_record(setting: str, seconds: float) -> None:
    rig = LibrdkafkaRig(timeout=None, **{"delivery.timeout.ms": setting}).begun()
    assert rig.control.timeout == seconds
    rig.participant.abort_transaction()
    assert rig.producer.timeouts == {"init_transactions": seconds, "abort_transaction": seconds}
