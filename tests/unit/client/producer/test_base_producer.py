"""Both faces of the native producer: what is refused, what errors say, and what interrupts in a call's middle cost."""

import os
import time
from collections import deque
from collections.abc import Callable
from typing import Any

import pytest

from dualwrite.client.engine.accumulator import RecordAccumulator
from dualwrite.client.engine.contract import Command, Operation, Send
from dualwrite.client.engine.transaction_state import TransactionResult
from dualwrite.client.producer import base_producer
from dualwrite.client.producer.two_phase_producer import TwoPhaseProducer
from dualwrite.client.terms.verbs import ProducerState
from dualwrite.errors import (
    InvalidTransactionStateError,
    KafkaRefusedError,
    KafkaUnavailableError,
    PrepareFailedError,
)
from dualwrite.ids import Anchor, PreparedTxnState, ProducerIdentity
from dualwrite.records.outgoing import OutgoingRecord
from dualwrite.wire.apis import ApiKey
from dualwrite.wire.error_codes import ErrorCode
from tests.support.client.producer_rig import CALLS, ERRORS, FaceDriver, Make, ProducerRig, done, raising, raising_this

# --- a call that raises in its middle


@pytest.mark.parametrize("error", ERRORS)
def test_a_callback_that_raises_out_of_produce_leaves_only_abort(make: Make, error: BaseException) -> None:
    rig = make(linger_ms=0)
    rig.begun().produce("known")
    rig.call("commit_transaction")
    rig.begun()
    with pytest.raises(type(error)):
        rig.produce("once", raising_this(error))
    assert rig.state is ProducerState.ABORTABLE
    for again in (lambda: rig.produce("once"), lambda: rig.call("commit_transaction")):
        with pytest.raises(PrepareFailedError, match=rf"produce\(\) raised {type(error).__name__} \(a callback's\)"):
            again()
    rig.call("abort_transaction")
    rig.begun().produce("once")
    rig.call("commit_transaction")
    assert rig.committed == [b"known", b"once"]


@pytest.mark.parametrize("error", ERRORS)
@pytest.mark.parametrize("verb", ["flush", "prepare_transaction", "commit_transaction"])
def test_a_callback_that_raises_out_of_a_flush_leaves_only_abort(make: Make, verb: str, error: BaseException) -> None:
    rig = make().begun()
    rig.produce("a", raising_this(error))
    rig.produce("b", raising)
    with pytest.raises(type(error)):
        rig.call(verb)
    assert rig.state is ProducerState.ABORTABLE
    with pytest.raises(PrepareFailedError, match=rf"{verb}\(\) raised"):
        rig.call("prepare_transaction")
    with pytest.raises(ZeroDivisionError):
        rig.call("abort_transaction")  # the other one's
    assert rig.state is ProducerState.READY
    assert rig.committed == []


@pytest.mark.parametrize("place", ["append", "flush"])
def test_an_interrupt_in_the_middle_of_a_record_leaves_only_abort(
    make: Make, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    rig = make()
    rig.begun().produce("known")
    rig.call("commit_transaction")
    rig.begun()
    rig.produce("a", partition=0)
    original = getattr(RecordAccumulator, place)

    def half(self: RecordAccumulator, *arguments: Any) -> Any:
        original(self, *arguments)
        self.records -= 1  # as if the interrupt had come right before it was counted
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(RecordAccumulator, place, half)
        with pytest.raises(KeyboardInterrupt):
            rig.produce("b", partition=0) if place == "append" else rig.call("flush")
    assert rig.state is ProducerState.ABORTABLE
    with pytest.raises(PrepareFailedError, match="raised KeyboardInterrupt"):
        rig.call("prepare_transaction")
    rig.call("abort_transaction")
    rig.begun().produce("c")
    rig.call("commit_transaction")
    assert rig.committed == [b"known", b"c"]


async def a_coroutine_function(_error: Any, _record: Any) -> None:
    """Nobody awaits it."""


WRONG = [
    {"key": 7},
    {"headers": {"h": 7}},
    {"headers": {7: "h"}},
    {"headers": {"\ud800": "h"}},
    {"headers": 3},
    {"timestamp": 2**63},
    {"partition": "0"},
    {"partition": None},
    {"partition": True},
    {"partition": 0.5},
    {"partition": -2},
    {"partition": 2**31},
    {"on_delivery": 5},
    {"on_delivery": a_coroutine_function},
    {"on_delivery": print, "callback": print},
    {"value": "\ud800"},
    {"topic": None},
    {"topic": b"t"},
    {"topic": []},
]


@pytest.mark.parametrize("wrong", WRONG, ids=" and ".join)
def test_a_wrong_argument_is_refused_and_the_transaction_continues(make: Make, wrong: dict[str, Any]) -> None:
    rig = make().begun()
    rig.produce("a")
    with pytest.raises((TypeError, ValueError)):
        rig.call("produce", **{"topic": "t", "value": "b"} | wrong)
    assert rig.state is ProducerState.IN_TRANSACTION
    assert rig.call("commit_transaction") is TransactionResult.COMMITTED
    assert rig.committed == [b"a"]


def test_a_second_concurrent_call_is_refused_without_affecting_the_first(make: Make) -> None:
    rig = make().begun()
    rig.produce("a")
    other = rig.engine.flush(time.monotonic())
    with pytest.raises(InvalidTransactionStateError, match="another call"):
        rig.call("flush")
    assert rig.state is ProducerState.IN_TRANSACTION
    done(rig.driver.wait(other))
    assert rig.call("commit_transaction") is TransactionResult.COMMITTED


# --- arguments that would mean something else


def test_the_text_of_a_state_commits_what_it_names(make: Make) -> None:
    rig = make().begun()
    rig.produce("a")
    stored = str(rig.call("prepare_transaction"))
    for wrong in (stored, None):
        with pytest.raises(TypeError, match="give a PreparedTxnState"):
            rig.call("complete_transaction", wrong)
    assert rig.state is ProducerState.PREPARED
    assert rig.call("complete_transaction", PreparedTxnState(stored)) is TransactionResult.COMMITTED
    assert rig.committed == [b"a"]


def test_the_state_of_another_producers_session_aborts_what_was_prepared(make: Make) -> None:
    rig = make().begun()
    rig.produce("a")
    rig.call("prepare_transaction")
    librdkafkas = PreparedTxnState(ProducerIdentity(9, 9), Anchor("t", 0, 0))
    assert rig.call("complete_transaction", librdkafkas) is TransactionResult.ABORTED
    assert (rig.state, rig.committed) == (ProducerState.READY, [])


def test_a_timeout_given_to_init_transactions_is_refused(make: Make) -> None:
    rig = make()
    with pytest.raises(TypeError, match="keep_prepared_txn 30 of type int"):
        rig.call("init_transactions", 30)
    assert rig.state is ProducerState.READY


@pytest.mark.parametrize("error", ERRORS)
def test_a_callback_that_raises_while_another_task_waits_leaves_only_abort(make: Make, error: BaseException) -> None:
    rig = make(linger_ms=0)
    rig.begun().produce("known")
    rig.call("commit_transaction")
    rig.begun()

    def pump() -> None:
        FaceDriver.pump(rig.driver)
        rig.engine.flush(now=time.monotonic())  # the other task's call

    rig.driver.pump = pump
    with pytest.raises(type(error)):
        rig.produce("taken", raising_this(error))
    assert rig.state is ProducerState.ABORTABLE


def test_a_record_produced_in_another_event_loop_leaves_only_abort(make: Make) -> None:
    rig = make(linger_ms=0).begun()

    def pump() -> None:
        raise InvalidTransactionStateError("the producer belongs to another event loop")

    rig.driver.pump = pump
    with pytest.raises(InvalidTransactionStateError, match="another event loop"):
        rig.produce("taken")
    assert rig.state is ProducerState.ABORTABLE


# --- what errors say


@pytest.mark.parametrize(
    ("verb", "arguments"),
    [*CALLS[:-1], ("produce", ("t", "b"))],
    ids=lambda given: given if isinstance(given, str) else "",
)
def test_in_another_process_an_error_names_what_was_called(
    make: Make, monkeypatch: pytest.MonkeyPatch, verb: str, arguments: Any
) -> None:
    rig = make().begun()
    monkeypatch.setattr(os, "getpid", lambda: -1)
    with pytest.raises(InvalidTransactionStateError, match=rf"^{verb}\(\): the producer belongs to process"):
        rig.call(verb, *arguments)


@pytest.mark.parametrize(
    "call",
    [
        lambda face: face.produce_record(OutgoingRecord("t", "b")),
        lambda face: face.produce_many([OutgoingRecord("t", "b")]),
        lambda face: face.produce_at_once(OutgoingRecord("t", "b")),
        lambda face: face.send_records(),
        lambda face: face.send_commit(),
        lambda face: face.collect_commit(wait=False),
    ],
    ids=["produce_record", "produce_many", "produce_at_once", "send_records", "send_commit", "collect_commit"],
)
def test_in_another_process_the_blocking_producer_refuses_its_other_calls_too(
    monkeypatch: pytest.MonkeyPatch, call: Callable[[TwoPhaseProducer], Any]
) -> None:
    rig = ProducerRig(TwoPhaseProducer).begun()
    monkeypatch.setattr(os, "getpid", lambda: -1)
    with pytest.raises(InvalidTransactionStateError, match="the producer belongs to process"):
        call(rig.face)


def test_in_another_process_close_reports_no_record_and_ends_nothing(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig, reported = make().begun(), []
    rig.produce("a", lambda error, _record: reported.append(error))
    with monkeypatch.context() as patched:
        patched.setattr(os, "getpid", lambda: -1)
        rig.call("close")
    assert (rig.state, reported) == (ProducerState.IN_TRANSACTION, [])


@pytest.mark.parametrize(("verb", "arguments"), [("flush", ()), ("produce", ("t", "a"))])
def test_before_a_transaction_begins_an_error_names_what_was_called(make: Make, verb: str, arguments: Any) -> None:
    rig = make()
    with pytest.raises(InvalidTransactionStateError, match=rf"^{verb}\(\): the producer is ready; allowed now: begin"):
        rig.call(verb, *arguments)
    assert rig.state is ProducerState.READY


@pytest.mark.parametrize(("verb", "arguments"), [("flush", ()), ("produce", ("t", "b")), ("prepare_transaction", ())])
def test_a_call_that_comes_too_late_leaves_the_transaction_prepared(make: Make, verb: str, arguments: Any) -> None:
    rig = make().begun()
    rig.produce("a", lambda _error, _record: None)
    rig.call("prepare_transaction")
    with pytest.raises(InvalidTransactionStateError, match=rf"^{verb}\(\): the producer is prepared"):
        rig.call(verb, *arguments)
    assert rig.call("commit_transaction") is TransactionResult.COMMITTED
    assert rig.committed == [b"a"]


def test_an_empty_producer_is_truthy(make: Make) -> None:
    assert bool(make().face)


def test_confluent_kafkas_name_of_the_callback_is_taken(make: Make) -> None:
    rig, told = make().begun(), []
    rig.call("produce", "t", "a", callback=lambda error, _record: told.append(error))
    rig.call("commit_transaction")
    assert told == [None]


@pytest.mark.parametrize(
    ("verb", "arguments"),
    [*CALLS[:-1], ("produce", ("t", "b"))],
    ids=lambda given: given if isinstance(given, str) else "",
)
def test_a_closed_producer_says_that_it_is_closed(make: Make, verb: str, arguments: Any) -> None:
    rig = make().begun()
    rig.produce("a")
    rig.call("close")
    with pytest.raises(InvalidTransactionStateError, match="the producer is closed"):
        rig.call(verb, *arguments)


@pytest.mark.parametrize("on_delivery", [None, lambda _error, _record: None], ids=["untold", "told"])
def test_a_commit_whose_records_are_refused_leaves_an_abort(
    make: Make, on_delivery: Callable[[Any, Any], None] | None
) -> None:
    rig = make().begun()
    rig.produce("a", on_delivery)
    rig.driver.cluster.refusals[ApiKey.PRODUCE] = deque([ErrorCode.INVALID_RECORD])
    with pytest.raises(KafkaRefusedError):
        rig.call("commit_transaction")
    assert rig.state is ProducerState.ABORTABLE
    assert rig.call("abort_transaction") is TransactionResult.ABORTED
    rig.begun().produce("b")
    assert rig.call("commit_transaction") is TransactionResult.COMMITTED
    assert rig.committed == [b"b"]


# --- a state with an anchor


def test_the_look_up_of_an_anchor_ends_at_the_delivery_timeout_and_closes_its_connections(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[Any] = []

    class Control:
        def __init__(self, config: Any, *, timeout: float) -> None:
            seen.append((config["bootstrap.servers"], timeout))

        def close(self) -> None:
            seen.append("closed")

    def unavailable(*_: Any) -> Any:
        raise KafkaUnavailableError("no answer")

    rig = ProducerRig(TwoPhaseProducer, delivery_timeout_ms=5000, linger_ms=0)
    state = PreparedTxnState(ProducerIdentity(7, 3), Anchor("t", 0, 5))
    rig.engine.transaction.ongoing = state.producer
    monkeypatch.setattr(base_producer, "ControlPlane", Control)
    monkeypatch.setattr(base_producer, "ongoing_transaction", unavailable)
    with pytest.raises(KafkaUnavailableError):
        rig.call("complete_transaction", state)
    assert seen == [("one:1", 5.0), "closed"]


# --- interrupts


@pytest.mark.parametrize("verb", ["prepare_transaction", "flush", "commit_transaction"])
def test_an_interrupt_between_a_verbs_beginning_and_its_wait_leaves_an_abort(
    make: Make, monkeypatch: pytest.MonkeyPatch, verb: str
) -> None:
    leave_an_interrupted_verb(make().begun(), monkeypatch, verb)


def test_an_interrupt_between_the_beginning_and_the_sending_of_a_commit_leaves_an_abort(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    leave_an_interrupted_verb(ProducerRig(TwoPhaseProducer).begun(), monkeypatch, "send_commit")


def leave_an_interrupted_verb(rig: ProducerRig, monkeypatch: pytest.MonkeyPatch, verb: str) -> None:
    """Interrupt ``verb`` at its beginning, abort, and see that the next transaction is committed."""
    rig.produce("a")

    def interrupted(begin: Callable[..., Operation]) -> Callable[..., Operation]:
        def beginning(*arguments: Any, **options: Any) -> Operation:
            begin(*arguments, **options)
            raise KeyboardInterrupt

        return beginning

    with monkeypatch.context() as patch:
        for name in ("prepare_transaction", "flush", "commit_transaction"):
            patch.setattr(rig.engine, name, interrupted(getattr(rig.engine, name)))
        with pytest.raises(KeyboardInterrupt):
            rig.call(verb)
    rig.call("abort_transaction")
    rig.begun().produce("b")
    assert rig.call("commit_transaction") is TransactionResult.COMMITTED
    assert rig.committed == [b"b"]


def test_a_commit_that_is_interrupted_before_its_answer_cannot_be_aborted(make: Make) -> None:
    """It may have been carried out: an abort would report the wrong outcome."""
    rig = make().begun()
    rig.produce("a")
    perform = rig.driver.simulated.perform

    def interrupting(command: Command) -> None:
        perform(command)
        if isinstance(command, Send) and command.request.api_key is ApiKey.END_TXN:
            raise KeyboardInterrupt

    rig.driver.simulated.perform = interrupting
    with pytest.raises(KeyboardInterrupt):
        rig.call("commit_transaction")
    assert rig.state is ProducerState.FAILED
