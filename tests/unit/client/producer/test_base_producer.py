"""Both faces of the native producer over a simulated cluster: what callbacks and interrupts in a call's middle cost."""

import asyncio
import contextlib
import os
import time
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from dualwrite.client.engine.accumulator import RecordAccumulator
from dualwrite.client.engine.contract import Command, Operation, Send
from dualwrite.client.engine.transaction_state import TransactionResult
from dualwrite.client.producer import base_producer
from dualwrite.client.producer.async_two_phase_producer import AsyncTwoPhaseProducer
from dualwrite.client.producer.base_producer import BaseProducer
from dualwrite.client.producer.two_phase_producer import TwoPhaseProducer
from dualwrite.client.terms.verbs import ProducerState
from dualwrite.errors import (
    FencedError,
    InvalidTransactionStateError,
    KafkaRefusedError,
    KafkaUnavailableError,
    PrepareFailedError,
)
from dualwrite.ids import Anchor, PreparedTxnState, ProducerIdentity, TopicPartition
from dualwrite.records.outgoing import OutgoingRecord
from dualwrite.wire.apis import ApiKey
from dualwrite.wire.error_codes import ErrorCode
from tests.support.client.simulated_cluster import SimulatedCluster, SimulatedDriver


class FaceDriver:
    """A simulated cluster as the driver of a face. Nothing takes time."""

    def __init__(self, engine: Any, client: Any) -> None:
        self.cluster = SimulatedCluster()
        self.engine = engine
        self.simulated = SimulatedDriver(self.cluster)
        self.simulated.engine = engine

    def wait(self, operation: Operation) -> Any:
        self.simulated.now = max(self.simulated.now, time.monotonic())
        return self.simulated.run(operation)

    def pump(self) -> None:
        self.simulated.now = max(self.simulated.now, time.monotonic())
        while (commands := self.simulated.engine.step(self.simulated.now)) or self.simulated.events:
            for command in commands:
                self.simulated.perform(command)
            while self.simulated.events:
                self.simulated.events.popleft()()

    def close(self) -> None:
        """There is nothing to close."""


class AsyncFaceDriver(FaceDriver):
    """The same, awaited."""

    async def wait(self, operation: Operation) -> Any:
        return super().wait(operation)

    async def close(self) -> None:  # type: ignore[override]
        """There is nothing to close."""


def done(result: Any) -> Any:
    """What a face's method gives: the asynchronous one's never has to wait here."""
    if not isinstance(result, Coroutine):
        return result
    with pytest.raises(StopIteration) as ended:
        result.send(None)
    return ended.value.value


class ProducerRig:
    """A face with its cluster in sight, and its methods of either kind called alike."""

    def __init__(self, kind: type[BaseProducer], **config: Any) -> None:
        self._kind = kind
        basis = {"bootstrap.servers": "one:1", "transactional.id": "app-0"}
        settings = basis | {key.replace("_", "."): value for key, value in config.items()}
        make: Any = kind
        self.face: Any = make(settings, make_driver=self._make_driver)
        self.call("init_transactions")

    def _make_driver(self, engine: Any, client: Any) -> FaceDriver:
        self.engine = engine
        self.driver: Any = (FaceDriver if self._kind is TwoPhaseProducer else AsyncFaceDriver)(engine, client)
        return self.driver

    def begun(self) -> "ProducerRig":
        self.call("begin_transaction")
        return self

    def call(self, name: str, *arguments: Any, **options: Any) -> Any:
        return done(getattr(self.face, name)(*arguments, **options))

    def produce(self, value: str, on_delivery: Callable[[Any, Any], None] | None = None, **options: Any) -> None:
        self.call("produce", "t", value, on_delivery=on_delivery, **options)

    def fence(self) -> None:
        """Let another producer have taken over, as the broker answers to the next records."""
        self.driver.cluster.refusals[ApiKey.PRODUCE] = deque([ErrorCode.PRODUCER_FENCED] * 3)

    @property
    def state(self) -> ProducerState:
        state: ProducerState = self.face.state
        return state

    @property
    def committed(self) -> list[bytes | None]:
        log = self.driver.cluster.logs.get(TopicPartition("t", 0))
        return log.committed() if log else []


Make = Callable[..., ProducerRig]


@pytest.fixture(params=[TwoPhaseProducer, AsyncTwoPhaseProducer], ids=["blocking", "asyncio"])
def make(request: pytest.FixtureRequest) -> Make:
    return lambda **config: ProducerRig(request.param, **config)


def raising(_error: Any, _record: Any) -> None:
    """A delivery callback of a user's that fails."""
    raise ZeroDivisionError("a callback's")


def raising_this(error: BaseException) -> Callable[[Any, Any], None]:
    """One that raises ``error``."""

    def on_delivery(_error: Any, _record: Any) -> None:
        raise error

    return on_delivery


ERRORS = [kind("a callback's") for kind in (ZeroDivisionError, asyncio.CancelledError, InvalidTransactionStateError)]
"""What callbacks may raise: the last two are also what a call raises that has done nothing."""


# --- a full buffer


def test_a_buffer_that_callbacks_fill_again_loses_no_record(make: Make) -> None:
    rig, audits = make(queue_buffering_max_messages=2).begun(), iter(["audit-1", "audit-2"])

    def audit(_error: Any, _record: Any) -> None:
        rig.produce(next(audits))

    for number in range(3):
        rig.produce(f"{number}", audit if number < 2 else None)
    assert rig.call("commit_transaction") is TransactionResult.COMMITTED
    assert rig.committed == [b"0", b"1", b"audit-1", b"audit-2", b"2"]


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


OF_CALLBACKS = [
    ("init_transactions", ()),
    ("begin_transaction", ()),
    ("send_offsets_to_transaction", ([], "group")),
    ("poll", ()),
    ("flush", ()),
    ("prepare_transaction", ()),
    ("complete_transaction", (PreparedTxnState(),)),
    ("commit_transaction", ()),
    ("abort_transaction", ()),
    ("close", ()),
]


@pytest.mark.parametrize("outer", ["flush", "prepare_transaction", "commit_transaction"])
@pytest.mark.parametrize(("verb", "arguments"), OF_CALLBACKS, ids=lambda given: given if isinstance(given, str) else "")
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


# --- what errors say


@pytest.mark.parametrize(
    ("verb", "arguments"),
    [*OF_CALLBACKS[:-1], ("produce", ("t", "b"))],
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


@pytest.mark.parametrize(("verb", "arguments"), [("flush", ()), ("produce", ("t", "b"))])
def test_a_call_that_comes_too_late_leaves_the_transaction_prepared(make: Make, verb: str, arguments: Any) -> None:
    rig = make().begun()
    rig.produce("a")
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
    [*OF_CALLBACKS[:-1], ("produce", ("t", "b"))],
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
