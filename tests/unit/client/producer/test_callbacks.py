"""Delivery callbacks of both faces of the native producer: when they run, what they may call, and when they raise."""

import contextlib
import time
from collections.abc import Callable
from typing import Any

import pytest

from dualwrite.client.engine.contract import Operation
from dualwrite.client.engine.transaction_state import TransactionResult
from dualwrite.client.terms.verbs import ProducerState
from dualwrite.errors import FencedError, InvalidTransactionStateError, PrepareFailedError
from tests.support.client.producer_rig import CALLS, Make, ProducerRig, raising, raising_this

# --- a full buffer


def test_a_buffer_that_callbacks_fill_again_loses_no_record(make: Make) -> None:
    rig, audits = make(queue_buffering_max_messages=2).begun(), iter(["audit-1", "audit-2"])

    def audit(_error: Any, _record: Any) -> None:
        rig.produce(next(audits))

    for number in range(3):
        rig.produce(f"{number}", audit if number < 2 else None)
    assert rig.call("commit_transaction") is TransactionResult.COMMITTED
    assert rig.committed == [b"0", b"1", b"audit-1", b"audit-2", b"2"]


# --- callbacks that raise


def test_a_record_produced_by_a_callback_is_acknowledged_and_reported_before_the_commit(make: Make) -> None:
    rig = make().begun()
    rig.produce("a", lambda _error, _record: rig.produce("b", raising))
    with pytest.raises(ZeroDivisionError):
        rig.call("commit_transaction")
    assert rig.state is ProducerState.ABORTABLE
    assert rig.committed == []


def test_records_that_callbacks_produce_are_committed_with_the_others(make: Make) -> None:
    rig = make().begun()
    rig.produce("a", lambda _error, _record: rig.produce("b", lambda _error, _record: rig.produce("c")))
    assert rig.call("commit_transaction") is TransactionResult.COMMITTED
    assert rig.committed == [b"a", b"b", b"c"]


def numbering(told: list[int], number: int, *, fails: bool) -> Callable[[Any, Any], None]:
    """A delivery callback that notes its number, and may raise then."""

    def told_of(error: Any, record: Any) -> None:
        told.append(number)
        if fails:
            raising(error, record)

    return told_of


def test_a_callback_that_raises_leaves_the_others_to_the_next_calls(make: Make) -> None:
    told: list[int] = []
    rig = make().begun()
    for number in range(5):
        rig.produce(f"{number}", numbering(told, number, fails=number in (0, 2)))
    for verb, wanted in (("flush", [0]), ("poll", [0, 1, 2])):
        with pytest.raises(ZeroDivisionError):
            rig.call(verb)
        assert told == wanted
    assert rig.call("poll") == 2
    assert told == [0, 1, 2, 3, 4]


def test_a_leftover_callbacks_error_is_raised_before_the_next_transaction_is_prepared(make: Make) -> None:
    rig = make().begun()
    for value in ("a", "b"):
        rig.produce(value, raising)
    with pytest.raises(ZeroDivisionError):
        rig.call("abort_transaction")
    rig.begun().produce("c")
    with pytest.raises(ZeroDivisionError):
        rig.call("prepare_transaction")
    assert rig.state is ProducerState.ABORTABLE


def test_closing_calls_every_callback_and_raises_what_the_first_one_raised(make: Make) -> None:
    told: list[int] = []
    rig = make().begun()
    for number in range(3):
        rig.produce(f"{number}", numbering(told, number, fails=number == 1))
    rig.produce("3", raising_this(KeyError("a later one's")))
    rig.produce("4", numbering(told, 4, fails=False))
    with pytest.raises(ZeroDivisionError):
        rig.call("close")
    assert told == [0, 1, 2, 4]


# --- poll


def test_polling_a_failed_producer_sends_nothing_and_calls_pending_callbacks(make: Make) -> None:
    rig, told = make().begun(), []
    rig.produce("a", lambda error, _record: told.append(type(error)))
    rig.fence()
    rig.engine.flush(now=time.monotonic())  # another task's call, which sends the record
    rig.driver.pump()
    assert rig.state is ProducerState.FAILED
    rig.driver.pump = raising
    assert rig.call("poll") == 1
    assert told == [FencedError]
    assert rig.state is ProducerState.FAILED
    with pytest.raises(FencedError, match="PRODUCER_FENCED"):
        rig.call("prepare_transaction")


def test_a_poll_that_may_wait_brings_the_records_that_were_gathered_to_their_callbacks(make: Make) -> None:
    rig, told = make().begun(), []
    for value in ("a", "b"):
        rig.produce(value, lambda error, record: told.append((error, record.value())), partition=0)
    assert rig.call("poll") == 0
    assert rig.call("poll", 60.0) == 2
    assert told == [(None, b"a"), (None, b"b")]
    assert rig.call("poll", -1) == len(rig.face) == 0


def test_a_poll_waits_for_records_without_a_callback_too(make: Make) -> None:
    rig = make().begun()
    rig.produce("a")
    assert rig.call("poll", 60.0) == len(rig.face) == 0
    assert rig.state is ProducerState.IN_TRANSACTION


def test_a_poll_that_has_called_a_callback_does_not_wait_for_another(make: Make) -> None:
    rig, told = make().begun(), []
    for value in ("a", "b"):
        rig.produce(value, lambda _error, record: told.append(record.value()), partition=0)
        if value == "a":
            rig.engine.flush(now=time.monotonic())  # another task's call, which sends the record
            rig.driver.pump()
    assert rig.call("poll", 60.0) == 1
    assert (told, len(rig.face)) == ([b"a"], 1)


def test_a_poll_while_another_task_waits_for_the_records_returns_at_once(make: Make) -> None:
    rig = make().begun()
    rig.produce("a")
    rig.engine.flush(now=time.monotonic())  # another task's call
    rig.driver.pump = lambda: None
    assert rig.call("poll", 60.0) == 0
    assert rig.state is ProducerState.IN_TRANSACTION


def test_a_poll_does_not_raise_what_the_next_verb_will(make: Make) -> None:
    rig, told = make().begun(), []
    rig.produce("a", lambda error, _record: told.append(type(error)))
    rig.fence()
    rig.driver.pump = lambda: None
    assert rig.call("poll", 60.0) == 1
    assert told == [FencedError]
    with pytest.raises(FencedError, match="PRODUCER_FENCED"):
        rig.call("prepare_transaction")


@pytest.mark.parametrize("verb", ["poll", "flush"])
def test_a_wait_that_times_out_leaves_the_transaction_open(make: Make, verb: str) -> None:
    rig = make().begun()
    rig.produce("a")
    rig.driver.pump = lambda: None
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rig.driver.simulated, "perform", lambda command: None)  # nobody answers
        patch.setattr(rig.driver.simulated, "run", run_without_answers(rig))
        assert rig.call(verb, 0.01) == (1 if verb == "flush" else 0)
    assert rig.state is ProducerState.IN_TRANSACTION
    assert len(rig.face) == 1


@pytest.mark.parametrize("timeout", [None, -1])
@pytest.mark.parametrize("verb", ["poll", "flush"])
def test_a_call_without_a_timeout_of_its_own_waits_until_the_records_are_given_up(
    make: Make, verb: str, timeout: float | None
) -> None:
    rig, reported = make().begun(), []
    rig.produce("a", lambda error, _record: reported.append(type(error)))
    rig.driver.pump, rig.driver.simulated.run = lambda: None, run_without_answers(rig)
    with contextlib.suppress(PrepareFailedError):  # flush() raises it, and poll() leaves it to the next verb
        rig.call(verb, timeout)
    assert reported == [PrepareFailedError]


def run_without_answers(rig: ProducerRig) -> Callable[[Operation], Any]:
    """What a driver does whose cluster says nothing: it passes the time until the operation is done."""

    def run(operation: Operation) -> Any:
        engine, now = rig.engine, time.monotonic()
        while not operation.is_done:
            engine.step(now)
            if not operation.is_done:
                assert engine.wake_at() is not None
                now = max(now, engine.wake_at())
        return operation.outcome()

    return run


# --- what a callback may call


@pytest.mark.parametrize("verb", ["flush", "prepare_transaction", "commit_transaction"])
def test_records_produced_by_a_callback_are_sent_by_the_call_that_ran_it(make: Make, verb: str) -> None:
    rig = make().begun()
    rig.produce("a", lambda _error, _record: rig.produce("b", lambda _error, _record: rig.produce("c")))
    rig.call(verb)
    assert len(rig.face) == 0
    if verb != "commit_transaction":
        rig.call("commit_transaction")
    assert rig.committed == [b"a", b"b", b"c"]


def test_a_callback_that_produces_ends_before_the_next_one_begins(make: Make) -> None:
    rig, told = make(batch_num_messages=1).begun(), []

    def produce_two(_error: Any, _record: Any) -> None:
        told.append("first begins")
        rig.produce("b", lambda _error, _record: told.append("second"))
        rig.produce("c")  # sends "b", which is acknowledged at once
        told.append("first ends")

    rig.produce("a", produce_two)
    assert rig.call("poll", 1.0) == 2
    assert told == ["first begins", "first ends", "second"]


@pytest.mark.parametrize("outer", ["flush", "prepare_transaction", "commit_transaction"])
@pytest.mark.parametrize(("verb", "arguments"), CALLS, ids=lambda given: given if isinstance(given, str) else "")
def test_a_callback_may_call_nothing_but_produce(make: Make, verb: str, arguments: Any, outer: str) -> None:
    rig, refusals = make().begun(), []

    def meddle(_error: Any, _record: Any) -> None:
        with pytest.raises(InvalidTransactionStateError) as refused:
            rig.call(verb, *arguments)
        refusals.append(str(refused.value))

    rig.produce("a", meddle)
    rig.call(outer)
    assert len(refusals) == 1
    assert refusals[0].startswith(f"{verb}(): another call is in progress, and this delivery callback runs in it")
    if outer != "commit_transaction":
        rig.call("commit_transaction")
    assert rig.committed == [b"a"]
