"""The librdkafka participant against stand-ins for librdkafka and the control plane, which can fail at every call."""

import os
import subprocess
import sys
import textwrap
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from dualwrite.client.librdkafka import record_queue
from dualwrite.client.protocol.requests import InitializedProducer
from dualwrite.client.terms.verbs import ProducerState
from dualwrite.coordinator.kafka import librdkafka
from dualwrite.coordinator.kafka.librdkafka import LibrdkafkaProducer
from dualwrite.coordinator.kafka.timeout_watch import TimeoutWatch
from dualwrite.coordinator.recovery.previous_transaction import PreviousTransaction
from dualwrite.coordinator.rules.recovery_decision import Outcome
from dualwrite.errors import (
    ConfigurationError,
    DualWriteError,
    FencedError,
    InvalidTransactionStateError,
    KafkaRefusedError,
    KafkaUnavailableError,
    PrepareFailedError,
    TwoPhaseCommitUnavailableError,
)
from dualwrite.ids import Anchor, PreparedTxnState, ProducerIdentity
from dualwrite.records.outgoing import OutgoingRecord
from tests.support.coordinator.librdkafka.fake_control_plane import CONFIG, SESSION, T0, T1, FakeControl
from tests.support.coordinator.librdkafka.librdkafka_rig import FakeMessage, LibrdkafkaRig, kafka_error


def test_a_configuration_that_librdkafka_refuses_is_a_configuration_error() -> None:
    def refuse(config: dict[str, Any]) -> None:
        raise KafkaException(KafkaError(KafkaError._INVALID_ARG, 'No such configuration property: "lingr"'))

    with pytest.raises(ConfigurationError, match="lingr"):
        LibrdkafkaProducer(CONFIG | {"lingr": 1}, make_producer=refuse, make_control=FakeControl)  # type: ignore[arg-type]


def test_the_first_init_aborts_what_a_predecessor_left_open_before_librdkafkas_own() -> None:
    """The bundled broker lets librdkafka's own init abort nothing."""
    rig = LibrdkafkaRig()
    rig.control.initialized = InitializedProducer(ProducerIdentity(7, 1), SESSION)
    rig.participant.init_transactions()
    assert rig.control.ended == [(ProducerIdentity(7, 1), False, True)]


def test_an_init_after_recovery_ends_nothing_more() -> None:
    rig = LibrdkafkaRig().keeping(SESSION)
    rig.participant.abort_transaction()
    rig.control.initialized = InitializedProducer(ProducerIdentity(7, 3), ProducerIdentity(7, 2))
    rig.participant.init_transactions()
    assert rig.control.ended == [(ProducerIdentity(7, 1), False, True)]


def test_prepare_gives_the_sessions_identity_and_where_the_transaction_began() -> None:
    rig = LibrdkafkaRig().begun(T1, T1, T0)
    assert rig.participant.prepare_transaction() == PreparedTxnState(SESSION, Anchor.of(T1, 20))


def test_a_transaction_without_records_is_the_empty_state_and_sends_no_request() -> None:
    rig = LibrdkafkaRig().begun()
    rig.control.failures["describe_transaction"] = AssertionError("asked")
    assert rig.participant.prepare_transaction() == PreparedTxnState()
    assert rig.participant.complete_transaction(PreparedTxnState()) is Outcome.NOTHING


@pytest.mark.parametrize(
    ("code", "expected"),
    [(KafkaError._MSG_TIMED_OUT, PrepareFailedError), (KafkaError._FENCED, FencedError)],
)
def test_one_failed_record_fails_the_prepare(code: int, expected: type[DualWriteError]) -> None:
    rig = LibrdkafkaRig().begun(T0, T0, T0)
    rig.producer.report_errors[1] = KafkaError(code)
    with pytest.raises(expected, match="1 of 3 records of app-0"):
        rig.participant.prepare_transaction()
    assert rig.state is ProducerState.ABORTABLE
    rig.participant.abort_transaction()
    assert rig.state is ProducerState.READY


@pytest.mark.parametrize(
    ("cause", "expected"),
    [([kafka_error(KafkaError._FENCED, fatal=True)], FencedError), ([], KafkaRefusedError)],
)
def test_a_dead_producers_error_is_the_original_cause(cause: list[Exception], expected: type[DualWriteError]) -> None:
    rig = LibrdkafkaRig().begun(T0)
    rig.producer.fail("produce", kafka_error(KafkaError._FATAL))
    rig.producer.fail("poll", *cause)
    with pytest.raises(expected) as caught:
        rig.participant.produce(OutgoingRecord("t", b"v"))
    assert type(caught.value) is expected
    assert rig.state is ProducerState.ABORTABLE


def test_a_record_that_was_refused_for_good_is_not_to_be_tried_again() -> None:
    rig = LibrdkafkaRig().begun(T0)
    rig.producer.report_errors[0] = KafkaError(KafkaError.TOPIC_EXCEPTION)
    with pytest.raises(KafkaRefusedError, match=r"1 of 1 records of app-0 .*: topic '.+': ") as caught:
        rig.participant.prepare_transaction()
    assert not caught.value.retriable


@pytest.mark.parametrize("code", [KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT])
def test_a_purged_queue_means_fencing_if_the_coordinator_has_a_newer_epoch(code: int) -> None:
    rig = LibrdkafkaRig().begun(T0)
    rig.producer.report_errors[0] = KafkaError(code)
    rig.control.producer = ProducerIdentity(SESSION.producer_id, SESSION.epoch + 1)
    with pytest.raises(FencedError, match=r"app-0: it belongs to producer .* another producer has taken over"):
        rig.participant.prepare_transaction()
    rig = LibrdkafkaRig().begun(T0)
    rig.producer.report_errors[0] = KafkaError(code)
    with pytest.raises(PrepareFailedError, match="1 of 1 records"):
        rig.participant.prepare_transaction()


def test_a_flush_that_breaks_off_is_judged_by_the_delivery_reports() -> None:
    rig = LibrdkafkaRig().begun(T0)
    rig.producer.fail("flush", SystemError("flush returned NULL without setting an exception"))
    with pytest.raises(PrepareFailedError, match="1 of 1 records of app-0 were not acknowledged in time"):
        rig.participant.prepare_transaction()


def test_an_empty_queue_does_not_stand_for_a_missing_report() -> None:
    rig = LibrdkafkaRig().begun(T0, T0)
    rig.producer.unreported = 1
    with pytest.raises(PrepareFailedError, match=r"1 of 2 records .* in time"):
        rig.participant.prepare_transaction()


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        ({"producer": ProducerIdentity(7, 1)}, FencedError),
        ({"producer": ProducerIdentity(8, 0)}, FencedError),
        ({"state": "CompleteAbort"}, PrepareFailedError),
        ({"state": "PrepareAbort"}, PrepareFailedError),
        ({"partitions": frozenset({T1})}, PrepareFailedError),
        ({"unknown": True}, PrepareFailedError),
    ],
)
def test_the_coordinator_must_agree_that_it_is_prepared(facts: dict[str, Any], expected: type[DualWriteError]) -> None:
    rig = LibrdkafkaRig().begun(T0)
    for name, value in facts.items():
        setattr(rig.control, name, value)
    with pytest.raises(expected, match="app-0"):
        rig.participant.prepare_transaction()
    assert rig.state is ProducerState.ABORTABLE


def test_without_a_known_first_offset_the_leaders_are_asked_for_the_anchor() -> None:
    rig = LibrdkafkaRig().begun(T0, T1)
    rig.producer.offset_of = lambda _: -1001
    rig.control.starts = {T0: 10, T1: 20}
    assert rig.participant.prepare_transaction() == PreparedTxnState(SESSION, Anchor.of(T0, 10))
    assert rig.control.asked == [(frozenset({T0, T1}), SESSION)]


def test_without_any_anchor_nothing_is_prepared() -> None:
    rig = LibrdkafkaRig().begun(T0)
    rig.producer.offset_of = lambda _: -1001
    with pytest.raises(PrepareFailedError, match="where it began"):
        rig.participant.prepare_transaction()


def test_without_time_for_its_commit_a_transaction_is_not_prepared(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(
        "dualwrite.coordinator.kafka.librdkafka.TimeoutWatch", lambda ms, _: TimeoutWatch(ms, lambda: now[0])
    )
    rig = LibrdkafkaRig(**{"transaction.two.phase.commit.enable": False, "transaction.timeout.ms": 1000}).begun(T1)
    now[0] = 0.95
    with pytest.raises(PrepareFailedError, match="make the unit of work shorter"):
        rig.participant.prepare_transaction()
    assert rig.state is ProducerState.ABORTABLE


@pytest.mark.parametrize(
    ("call", "arguments"),
    [
        ("produce", [OutgoingRecord("t", b"v")]),
        ("send_offsets_to_transaction", [[T1], "group"]),
        ("prepare_transaction", []),
    ],
    ids=["produce", "send_offsets", "prepare"],
)
@pytest.mark.parametrize("lasted", [0.5, 1.5])
def test_a_transaction_that_has_timed_out_is_not_said_to_be_another_producers(
    monkeypatch: pytest.MonkeyPatch, call: str, arguments: list[Any], lasted: float
) -> None:
    """The coordinator has raised the epoch to abort it, and librdkafka learns that at its next request."""
    now = [0.0]
    monkeypatch.setattr(
        "dualwrite.coordinator.kafka.librdkafka.TimeoutWatch", lambda ms, _: TimeoutWatch(ms, lambda: now[0])
    )
    rig = LibrdkafkaRig(**{"transaction.two.phase.commit.enable": False, "transaction.timeout.ms": 1000}).begun(T1)
    now[0] = lasted
    rig.control.producer = ProducerIdentity(SESSION.producer_id, SESSION.epoch + 1)
    for name in ("produce", "send_offsets_to_transaction"):
        rig.producer.fail(name, kafka_error(KafkaError._FENCED))
    with pytest.raises(FencedError) as caught:
        getattr(rig.participant, call)(*arguments)
    assert ("it has lasted 1.5 s, and the broker aborts it after" in str(caught.value)) is (lasted > 1)
    assert rig.state is ProducerState.ABORTABLE


def test_only_the_prepared_state_commits_what_was_prepared() -> None:
    rig = LibrdkafkaRig().begun(T0)
    state = rig.participant.prepare_transaction()
    assert rig.participant.complete_transaction(state) is Outcome.COMMITTED
    assert rig.producer.calls[-1] == "commit_transaction"


def test_a_states_text_is_refused_by_complete_transaction() -> None:
    rig = LibrdkafkaRig().begun(T0)
    state = str(rig.participant.prepare_transaction())
    for wrong in (state, None):
        with pytest.raises(TypeError, match="give a PreparedTxnState"):
            rig.participant.complete_transaction(wrong)  # type: ignore[arg-type]
    assert rig.participant.complete_transaction(PreparedTxnState(state)) is Outcome.COMMITTED


def test_an_invalid_callback_is_refused_and_the_transaction_continues() -> None:
    rig = LibrdkafkaRig().begun(T0)
    with pytest.raises(TypeError, match="on_delivery"):
        rig.participant.produce(OutgoingRecord("t", "a", on_delivery=5))  # type: ignore[arg-type]
    assert rig.participant.prepare_transaction()


def test_a_timeout_is_not_taken_for_keeping_a_predecessors_transaction() -> None:
    with pytest.raises(TypeError, match="keep_prepared_txn 30 of type int"):
        LibrdkafkaRig().participant.init_transactions(30)  # type: ignore[arg-type]


@pytest.mark.parametrize("other", [PreparedTxnState(), PreparedTxnState(SESSION, Anchor.of(T0, 9))])
def test_any_other_state_aborts_what_was_prepared(other: PreparedTxnState) -> None:
    rig = LibrdkafkaRig().begun(T0)
    rig.participant.prepare_transaction()
    assert rig.participant.complete_transaction(other) is Outcome.ABORTED
    assert rig.producer.calls[-1] == "abort_transaction"


def test_a_state_of_the_transaction_before_does_not_commit_this_one() -> None:
    rig = LibrdkafkaRig().begun(T0)
    first = rig.participant.prepare_transaction()
    rig.participant.commit_transaction()
    rig.participant.begin_transaction()
    rig.participant.produce(OutgoingRecord("t", b"v", partition=0))
    second = rig.participant.prepare_transaction()
    assert first.producer == second.producer
    assert rig.participant.complete_transaction(first) is Outcome.ABORTED


def test_a_cluster_without_two_phase_commit_is_refused() -> None:
    rig = LibrdkafkaRig()
    rig.producer.fail("init_transactions", kafka_error(KafkaError.INVALID_TRANSACTION_TIMEOUT, fatal=True))
    with pytest.raises(TwoPhaseCommitUnavailableError, match=r"init_transactions\(\) of app-0"):
        rig.participant.init_transactions()


@pytest.mark.parametrize("call", ["commit_transaction", "abort_transaction"])
@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (kafka_error(KafkaError._TIMED_OUT, retriable=True), KafkaUnavailableError),
        (kafka_error(KafkaError._FENCED, fatal=True), FencedError),
        (kafka_error(KafkaError.INVALID_TXN_STATE), KafkaRefusedError),
    ],
)
def test_after_an_error_of_commit_or_abort_only_close_is_left(
    call: str, error: KafkaException, expected: type[DualWriteError]
) -> None:
    rig = LibrdkafkaRig().begun(T0)
    rig.participant.prepare_transaction()
    rig.producer.fail(call, error)
    with pytest.raises(expected):
        getattr(rig.participant, call)()
    for again in (rig.participant.abort_transaction, rig.participant.init_transactions):
        with pytest.raises(InvalidTransactionStateError, match=r"failed; allowed now: close\(\)"):
            again()


def test_an_epoch_that_an_abort_bumped_is_the_sessions_from_then_on() -> None:
    rig = LibrdkafkaRig().begun(T0)
    rig.control.producer = ProducerIdentity(7, 1)
    rig.participant.abort_transaction()
    rig.participant.begin_transaction()
    rig.participant.produce(OutgoingRecord("t", b"v", partition=0))
    assert rig.participant.prepare_transaction().producer == ProducerIdentity(7, 1)


def test_an_abort_that_leaves_the_transaction_open_raises_although_librdkafka_reports_success() -> None:
    """librdkafka sends no EndTxn if the answer to the first AddPartitionsToTxn comes after the abort has begun."""
    rig = LibrdkafkaRig().begun(T0)
    rig.producer.meanwhile = lambda: setattr(rig.control, "state", "Ongoing")
    with pytest.raises(KafkaUnavailableError, match=r"abort_transaction\(\) of app-0: librdkafka has left the .* open"):
        rig.participant.abort_transaction()
    assert rig.state is ProducerState.FAILED


@pytest.mark.parametrize("state", ["CompleteAbort", "Empty"])
def test_an_abort_that_leaves_nothing_open_keeps_the_producer(state: str) -> None:
    rig = LibrdkafkaRig().begun(T0)
    rig.producer.meanwhile = lambda: setattr(rig.control, "state", state)
    rig.participant.abort_transaction()
    assert rig.participant.is_reusable


def test_records_are_produced_as_confluent_kafka_produces_them() -> None:
    rig = LibrdkafkaRig().begun()
    rig.participant.produce(OutgoingRecord("t", b"v", b"k", partition=1, timestamp=5, headers={"h": b"x"}))
    rig.participant.produce(OutgoingRecord("t", headers=(("h", b"1"), ("h", None))))
    first, second = (
        {name: record.get(name) for name in record if name != "on_delivery"} for record in rig.producer.produced
    )
    assert first == {"value": b"v", "key": b"k", "partition": 1, "timestamp": 5, "headers": [("h", b"x")]}
    assert second == {
        "value": None,
        "key": None,
        "partition": -1,
        "timestamp": 0,
        "headers": [("h", b"1"), ("h", None)],
    }


def test_delivery_callbacks_are_the_records_own_or_the_configurations() -> None:
    seen: list[tuple[str, int]] = []
    rig = LibrdkafkaRig(on_delivery=lambda _, message: seen.append(("default", message.offset()))).begun()
    rig.participant.produce(OutgoingRecord("t", b"v", partition=0))
    rig.participant.produce(
        OutgoingRecord("t", b"v", partition=0, on_delivery=lambda _, message: seen.append(("own", message.offset())))
    )
    rig.participant.prepare_transaction()
    assert seen == [("default", 10), ("own", 11)]


def test_a_state_says_when_its_transaction_began_and_in_which_topic() -> None:
    rig = LibrdkafkaRig()
    rig.control.started_ms, rig.control.log.topic_ids = 1000, {"t": "A" * 22}
    state = rig.begun(T0).participant.prepare_transaction()
    assert (state.anchor, state.started_ms, state.topic_id) == (Anchor.of(T0, 10), 1000, "A" * 22)


@pytest.mark.parametrize("request_seconds", [0.0, 0.001, 0.002, 0.5])
def test_two_transactions_of_a_session_never_begin_in_one_millisecond(
    monkeypatch: pytest.MonkeyPatch, request_seconds: float
) -> None:
    """The broker's clock moves as this one does; the two differ by any amount. The transaction has begun before its
    first record is acknowledged, so the time of the coordinator's answer counts."""
    now = [1000.0]

    def pass_time(seconds: float) -> None:
        now[0] += seconds

    runtime: Any = SimpleNamespace(monotonic=lambda: now[0], sleep=pass_time)

    def before(control: Any, timeout: float, *_: object) -> PreviousTransaction:
        return PreviousTransaction(control, timeout, runtime)

    monkeypatch.setattr(librdkafka, "PreviousTransaction", before)
    rig = LibrdkafkaRig().begun(T0)
    describe = rig.control.describe_transaction
    monkeypatch.setattr(
        rig.control, "describe_transaction", lambda name: (pass_time(request_seconds), describe(name))[1]
    )
    rig.participant.prepare_transaction()
    rig.participant.commit_transaction()
    rig.participant.begin_transaction()
    assert now[0] == pytest.approx(1000.0 + max(0.002, request_seconds))


def test_an_out_of_order_sequence_is_a_retriable_prepare_failure() -> None:
    """In a topic that was made anew librdkafka's sequence does not begin at 0."""
    rig = LibrdkafkaRig().begun(T0)
    rig.producer.failures["flush"] = [kafka_error(KafkaError.OUT_OF_ORDER_SEQUENCE_NUMBER, fatal=True)]
    with pytest.raises(PrepareFailedError) as caught:
        rig.participant.prepare_transaction()
    assert caught.value.retriable


def test_a_late_report_of_one_transaction_does_not_count_for_the_next() -> None:
    rig = LibrdkafkaRig().begun(T0)
    (_, late) = rig.producer.queue[0]
    rig.participant.abort_transaction()
    rig.participant.begin_transaction()
    late(KafkaError(KafkaError._PURGE_QUEUE), FakeMessage(T0, -1001))
    rig.participant.produce(OutgoingRecord("t", b"v", partition=1))
    assert rig.participant.prepare_transaction().anchor == Anchor.of(T1, 20)


def test_a_full_queue_is_waited_for_and_the_record_is_not_lost() -> None:
    rig = LibrdkafkaRig().begun()
    rig.producer.fail("produce", BufferError("full"), BufferError("full"))
    rig.participant.produce(OutgoingRecord("t", b"v", partition=0))
    assert (len(rig.producer.produced), rig.producer.calls.count("produce")) == (1, 3)
    assert rig.participant.prepare_transaction()


def test_a_queue_that_stays_full_is_an_error_and_the_transaction_can_only_be_aborted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rig = LibrdkafkaRig().begun()
    times = iter([0.0, 29.0, 30.0])
    monkeypatch.setattr(record_queue.time, "monotonic", lambda: next(times))
    rig.producer.fail("produce", *(BufferError("full") for _ in range(3)))
    with pytest.raises(KafkaUnavailableError, match="queue stayed full"):
        rig.participant.produce(OutgoingRecord("t", b"v"))
    with pytest.raises(InvalidTransactionStateError, match="can only be aborted"):
        rig.participant.prepare_transaction()


def test_a_record_that_librdkafka_refuses_is_an_error() -> None:
    rig = LibrdkafkaRig().begun()
    rig.producer.fail("produce", kafka_error(KafkaError.MSG_SIZE_TOO_LARGE))
    with pytest.raises(KafkaRefusedError, match=r"produce\(\) of app-0"):
        rig.participant.produce(OutgoingRecord("t", b"v"))


def test_after_an_error_of_a_delivery_callback_the_transaction_can_only_be_aborted() -> None:
    rig = LibrdkafkaRig().begun()
    rig.producer.fail("poll", ZeroDivisionError("a user's callback"))
    for _ in range(record_queue.RECORDS_PER_POLL - 1):
        rig.participant.produce(OutgoingRecord("t", b"v", partition=0))
    with pytest.raises(ZeroDivisionError):
        rig.participant.produce(OutgoingRecord("t", b"v", partition=0))
    assert len(rig.producer.produced) == record_queue.RECORDS_PER_POLL
    for call in (lambda: rig.participant.produce(OutgoingRecord("t", b"v")), rig.participant.prepare_transaction):
        with pytest.raises(InvalidTransactionStateError, match="can only be aborted"):
            call()
    rig.participant.abort_transaction()


def test_close_neither_aborts_nor_raises_and_may_be_called_twice() -> None:
    rig = LibrdkafkaRig().begun(T0)
    rig.participant.prepare_transaction()
    rig.producer.fail("poll", ZeroDivisionError("a user's callback"))
    rig.producer.fail("purge", kafka_error(KafkaError._STATE))
    rig.participant.close()
    rig.participant.close()
    assert rig.control.closed == 1
    assert not {"abort_transaction", "close"} & set(rig.producer.calls)
    with pytest.raises(InvalidTransactionStateError, match="closed"):
        rig.participant.commit_transaction()


def test_after_a_fork_every_call_is_refused_and_close_leaves_the_parents_producer_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rig = LibrdkafkaRig().begun(T0)
    before = list(rig.producer.calls)
    child = os.getpid() + 1
    monkeypatch.setattr(librdkafka.os, "getpid", lambda: child)
    for call in (rig.participant.prepare_transaction, rig.participant.abort_transaction):
        with pytest.raises(InvalidTransactionStateError, match="make a new one after a fork"):
            call()
    rig.participant.close()
    assert rig.producer.calls == before


FORKING = """
    import gc, os, sys
    import confluent_kafka
    from dualwrite.coordinator.kafka.librdkafka import LibrdkafkaProducer

    class Destroyed(confluent_kafka.Producer):
        def __del__(self):
            print("destroyed in", "child" if os.getpid() != parent else "parent", flush=True)

    parent = os.getpid()
    config = {"bootstrap.servers": "127.0.0.1:1", "transactional.id": "app-0"}
    closed, kept = (LibrdkafkaProducer(config, make_producer=Destroyed) for _ in range(2))
    child = os.fork()
    if child == 0:
        closed.close()
        del closed
        gc.collect()
        sys.exit(7)  # the interpreter ends: every object that is left goes
    print("child", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    closed.close()
    kept.close()
"""


def test_a_forked_process_never_destroys_its_parents_producers() -> None:
    """librdkafka's destructor would wait for ever, for locks that a thread of the parent held at the fork."""
    command = [sys.executable, "-c", textwrap.dedent(FORKING)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.split("\n") == ["child 7", "destroyed in parent", "destroyed in parent", ""]
