"""The native participant over a stand-in for the control plane, and a producer whose cluster is simulated."""

import os
from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import KafkaError

from dualwrite.client.engine.delivery_reports import DeliveredRecord
from dualwrite.client.engine.transaction_state import TransactionResult
from dualwrite.client.protocol.requests import InitializedProducer
from dualwrite.client.terms.verbs import ProducerState, Verb, VerbOrder
from dualwrite.coordinator.kafka import native
from dualwrite.coordinator.kafka.native import NativeProducer
from dualwrite.coordinator.kafka.timeout_watch import TimeoutWatch
from dualwrite.coordinator.rules.recovery_decision import Outcome
from dualwrite.errors import (
    ConfigurationError,
    FencedError,
    InvalidTransactionStateError,
    KafkaRefusedError,
    KafkaUnavailableError,
    PrepareFailedError,
)
from dualwrite.ids import Anchor, PreparedTxnState, ProducerIdentity, TopicPartition
from dualwrite.records.outgoing import OutgoingRecord
from tests.support.coordinator.librdkafka.fake_control_plane import CONFIG, SESSION, T0, T1, FakeControl

HEIR = ProducerIdentity(7, 1)


class FakeTwoPhaseProducer:
    """TwoPhaseProducer: it has the real order of verbs, and does what a test wants in each."""

    def __init__(self, config: dict[str, Any]) -> None:
        self.config = config
        self.calls: list[str] = []
        self.refuses_open: list[bool] = []
        self.failures: dict[str, BaseException] = {}
        self.identity = ProducerIdentity(9, 0)
        self.sent: list[Any] = []
        self.reports: list[Callable[[Any, Any], None]] = []
        self._order = VerbOrder()

    @property
    def state(self) -> ProducerState:
        return self._order.state

    def init_transactions(self, keep_prepared_txn: bool = False, *, refuse_open: bool = False) -> None:
        self.refuses_open.append(refuse_open)
        self._do(Verb.INIT_KEEPING if keep_prepared_txn else Verb.INIT)

    def collect_commit(self, *, wait: bool) -> bool:
        assert wait, "only a slot's owner looks without waiting"
        return True

    def begin_transaction(self) -> None:
        self._do(Verb.BEGIN)

    def produce_record(self, record: OutgoingRecord) -> None:
        self._order.require(Verb.PRODUCE)
        self.calls.append("produce()")
        self.reports.append(record.on_delivery or self.config.get("on_delivery"))

    def send_offsets_to_transaction(self, positions: Any, group_metadata: Any) -> None:
        self._do(Verb.SEND_OFFSETS)
        self.sent.append((positions, group_metadata))

    def prepare_transaction(self) -> PreparedTxnState:
        self._do(Verb.PREPARE)
        return PreparedTxnState(self.identity)

    def complete_transaction(self, state: PreparedTxnState) -> TransactionResult:
        self._do(Verb.COMPLETE)
        return TransactionResult.COMMITTED if state == PreparedTxnState(self.identity) else TransactionResult.ABORTED

    def commit_transaction(self) -> TransactionResult:
        self._do(Verb.COMMIT)
        return TransactionResult.COMMITTED

    def abort_transaction(self) -> TransactionResult:
        self._do(Verb.ABORT)
        return TransactionResult.ABORTED

    def close(self) -> None:
        self._do(Verb.CLOSE)

    def _do(self, verb: Verb) -> None:
        with self._order.calling(verb):
            self.calls.append(verb.value)
            if verb.value in self.failures:
                raise self.failures[verb.value]


class NativeRig:
    """A participant with its two stand-ins in sight."""

    producer: FakeTwoPhaseProducer
    control: FakeControl

    def __init__(self, timeout: float | None = 3, **config: Any) -> None:
        self.participant = NativeProducer(
            CONFIG | config,
            timeout=timeout,
            make_producer=self._make_producer,  # type: ignore[arg-type]
            make_control=self._make_control,  # type: ignore[arg-type]
        )

    def _make_producer(self, config: dict[str, Any]) -> FakeTwoPhaseProducer:
        self.producer = FakeTwoPhaseProducer(config)
        return self.producer

    def _make_control(self, config: dict[str, Any], timeout: float) -> FakeControl:
        self.control = FakeControl(config, timeout)
        return self.control

    def begun(self) -> "NativeRig":
        self.participant.init_transactions()
        self.participant.begin_transaction()
        return self

    def keeping(self, ongoing: ProducerIdentity | None, starts: dict[TopicPartition, int] | None = None) -> "NativeRig":
        self.control.initialized = InitializedProducer(HEIR, ongoing)
        self.control.starts = starts or {}
        self.participant.init_transactions(keep_prepared_txn=True)
        return self


def test_the_native_participant_can_be_used_again_after_every_transaction() -> None:
    participant = NativeRig().begun().participant
    assert participant.is_reusable
    participant.abort_transaction()
    assert participant.is_reusable
    participant.begin_transaction()
    participant.complete_transaction(participant.prepare_transaction())
    assert participant.is_reusable


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"transaction.two.phase.commit.enable": "perhaps"}, "transaction.two.phase.commit.enable 'perhaps'"),
        ({"stats_cb": print}, "stats_cb: refused"),
    ],
)
def test_a_setting_that_contradicts_it_is_refused(settings: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ConfigurationError, match=complaint):
        NativeRig(**settings)


@pytest.mark.parametrize("wrong", ["7:1", None])
def test_only_a_state_completes_a_predecessors_transaction(wrong: Any) -> None:
    rig = NativeRig().keeping(SESSION)
    with pytest.raises(TypeError, match="give a PreparedTxnState"):
        rig.participant.complete_transaction(wrong)
    assert rig.participant.complete_transaction(PreparedTxnState(str(SESSION))) is Outcome.COMMITTED


def test_a_timeout_is_not_taken_for_keeping_a_predecessors_transaction() -> None:
    with pytest.raises(TypeError, match="keep_prepared_txn 30 of type int"):
        NativeRig().participant.init_transactions(30)  # type: ignore[arg-type]


@pytest.mark.parametrize("wrong", [5, "print"])
def test_an_invalid_callback_is_refused_and_the_transaction_continues(wrong: Any) -> None:
    rig = NativeRig().begun()
    with pytest.raises(TypeError, match="on_delivery"):
        rig.participant.produce(OutgoingRecord("t", "a", on_delivery=wrong))
    rig.participant.produce(OutgoingRecord("t", "b"))
    assert rig.producer.calls.count("produce()") == 1
    rig.participant.prepare_transaction()


# What a predecessor left.


@pytest.mark.parametrize(
    ("stored", "starts", "commits"),
    [
        (PreparedTxnState(SESSION), {}, True),
        (PreparedTxnState(SESSION, Anchor.of(T0, 10)), {T0: 10}, True),
        (PreparedTxnState(SESSION, Anchor.of(T0, 10)), {T0: 12}, False),
        (PreparedTxnState(SESSION, Anchor.of(T0, 10), started_ms=999), {T1: 10}, False),
        (PreparedTxnState(SESSION, Anchor.of(T0, 10), started_ms=999), {}, False),
        (PreparedTxnState(SESSION, Anchor.of(T0, 10), started_ms=1000), {}, True),
        (PreparedTxnState(ProducerIdentity(6, 1)), {}, False),
        (PreparedTxnState(), {}, False),
    ],
)
def test_only_the_decided_transaction_is_committed_whichever_producer_wrote_its_state(
    stored: PreparedTxnState, starts: dict[TopicPartition, int], commits: bool
) -> None:
    rig = NativeRig().keeping(SESSION, starts)
    rig.control.started_ms = 1000
    assert rig.participant.complete_transaction(stored) is (Outcome.COMMITTED if commits else Outcome.ABORTED)
    assert rig.control.ended == [(HEIR, commits, True)]
    assert rig.producer.calls == [], "the producer begins after that"
    rig.begun()
    assert rig.producer.calls == ["init_transactions()", "begin_transaction()"]


@pytest.mark.parametrize("ongoing", [None, SESSION])
@pytest.mark.parametrize("verb", ["complete", "abort"])
def test_once_the_predecessors_transaction_has_ended_another_open_one_is_refused_and_not_aborted(
    ongoing: ProducerIdentity | None, verb: str
) -> None:
    rig = NativeRig().keeping(ongoing)
    if verb == "complete":
        rig.participant.complete_transaction(PreparedTxnState())
    else:
        rig.participant.abort_transaction()
    rig.participant.init_transactions()
    assert rig.producer.refuses_open == [True]


def test_without_recovery_a_predecessors_transaction_is_aborted() -> None:
    assert NativeRig().begun().producer.refuses_open == [False]


def test_nothing_kept_is_success_and_ends_nothing() -> None:
    rig = NativeRig().keeping(None)
    assert rig.participant.complete_transaction(PreparedTxnState(SESSION)) is Outcome.NOTHING
    assert rig.control.ended == []


@pytest.mark.parametrize("committed", [True, False])
def test_commit_and_abort_end_a_kept_transaction_whatever_it_is(committed: bool) -> None:
    rig = NativeRig().keeping(SESSION)
    (rig.participant.commit_transaction if committed else rig.participant.abort_transaction)()
    assert rig.control.ended == [(HEIR, committed, True)]


def test_while_a_transaction_is_kept_only_its_end_is_allowed() -> None:
    rig = NativeRig().keeping(SESSION)
    calls = (rig.participant.init_transactions, rig.participant.begin_transaction, rig.participant.prepare_transaction)
    for call in calls:
        with pytest.raises(InvalidTransactionStateError, match=r"keeping a predecessor.*complete_transaction\(\)"):
            call()
    with pytest.raises(InvalidTransactionStateError, match="keeping a predecessor"):
        rig.participant.produce(OutgoingRecord("t", b"v"))
    assert rig.producer.calls == []


def test_a_transaction_is_kept_before_a_session_begins_or_not_at_all() -> None:
    rig = NativeRig().begun()
    with pytest.raises(InvalidTransactionStateError, match="keep_prepared_txn=True"):
        rig.participant.init_transactions(keep_prepared_txn=True)
    assert rig.control.ended == []


@pytest.mark.parametrize("failing", ["describe_transaction", "current_transaction_start_offsets", "end_txn"])
def test_an_unreachable_cluster_never_makes_recovery_guess_its_decision(failing: str) -> None:
    rig = NativeRig().keeping(SESSION, {T0: 10})
    rig.control.failures[failing] = KafkaUnavailableError("broker b:1: timed out")
    with pytest.raises(KafkaUnavailableError, match="b:1"):
        rig.participant.complete_transaction(PreparedTxnState(SESSION, Anchor.of(T0, 10)))
    assert rig.control.ended == []
    for call in (rig.participant.init_transactions, rig.participant.abort_transaction):
        with pytest.raises(InvalidTransactionStateError, match=r"failed; allowed now: close\(\)"):
            call()


# Its own transactions.


def test_a_unit_of_work_is_the_producers() -> None:
    rig = NativeRig().begun()
    rig.participant.produce(OutgoingRecord("t", b"v", b"k", 1, 5, {"h": b"x"}))
    assert rig.participant.prepare_transaction() == PreparedTxnState(rig.producer.identity)
    rig.participant.commit_transaction()
    assert rig.producer.calls[2:] == ["produce()", "prepare_transaction()", "commit_transaction()"]
    assert rig.control.asked == [], "two round trips, and none of them is the control plane's"


def test_without_time_for_its_commit_a_transaction_is_not_prepared(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(
        "dualwrite.coordinator.kafka.native.TimeoutWatch", lambda ms, _: TimeoutWatch(ms, lambda: now[0])
    )
    rig = NativeRig(**{"transaction.two.phase.commit.enable": False, "transaction.timeout.ms": 1000}).begun()
    now[0] = 0.95
    with pytest.raises(PrepareFailedError, match="make the unit of work shorter"):
        rig.participant.prepare_transaction()


@pytest.mark.parametrize(
    ("call", "name", "arguments"),
    [
        ("produce", "produce_record", [OutgoingRecord("t", b"v")]),
        ("produce_many", "produce_many", [[OutgoingRecord("t", b"v")]]),
        ("produce_at_once", "produce_at_once", [OutgoingRecord("t", b"v")]),
        ("send_records", "send_records", []),
        ("send_offsets_to_transaction", "send_offsets_to_transaction", [[7], "group"]),
        ("prepare_transaction", "prepare_transaction", []),
    ],
    ids=["produce", "produce_many", "produce_at_once", "send_records", "send_offsets", "prepare"],
)
@pytest.mark.parametrize("lasted", [0.5, 1.5])
def test_a_transaction_that_has_timed_out_is_not_said_to_be_another_producers(
    monkeypatch: pytest.MonkeyPatch, call: str, name: str, arguments: list[Any], lasted: float
) -> None:
    """Kafka's answer is the same."""
    now = [0.0]
    monkeypatch.setattr(
        "dualwrite.coordinator.kafka.native.TimeoutWatch", lambda ms, _: TimeoutWatch(ms, lambda: now[0])
    )
    rig = NativeRig(**{"transaction.two.phase.commit.enable": False, "transaction.timeout.ms": 1000}).begun()
    now[0] = lasted

    def fenced(*_: Any) -> None:
        raise FencedError("INVALID_PRODUCER_EPOCH")

    monkeypatch.setattr(rig.producer, name, fenced, raising=False)
    with pytest.raises(FencedError) as caught:
        getattr(rig.participant, call)(*arguments)
    assert ("it has lasted 1.5 s, and the broker aborts it after" in str(caught.value)) is (lasted > 1)
    assert "INVALID_PRODUCER_EPOCH" in str(caught.value)


@pytest.mark.parametrize("anchored", [False, True])
def test_a_prepared_transaction_is_completed_by_its_own_state_alone(anchored: bool) -> None:
    rig = NativeRig().begun()
    state = rig.participant.prepare_transaction()
    if anchored:
        state = PreparedTxnState(state.producer, Anchor.of(T0, 1))
    expected = Outcome.ABORTED if anchored else Outcome.COMMITTED
    assert rig.participant.complete_transaction(state) is expected


@pytest.mark.parametrize("default", [False, True])
@pytest.mark.parametrize(
    ("error", "code"),
    [
        (KafkaRefusedError("record for t", KafkaError.TOPIC_EXCEPTION, "INVALID_TOPIC_EXCEPTION"), 17),
        (FencedError("record for t: PRODUCER_FENCED"), KafkaError._FENCED),
        (KafkaUnavailableError("producer of app-0: closed"), KafkaError._MSG_TIMED_OUT),
        (PrepareFailedError("the transaction was aborted"), KafkaError._PURGE_QUEUE),
    ],
)
def test_delivery_callbacks_get_errors_in_confluent_kafkas_form(default: bool, error: Exception, code: int) -> None:
    heard: list[tuple[Any, Any]] = []

    def hear(reason: Any, message: Any) -> None:
        heard.append((reason, message))

    rig = NativeRig(**({"dr_cb": hear} if default else {})).begun()
    rig.participant.produce(OutgoingRecord("t", b"v", on_delivery=None if default else hear))
    (report,) = rig.producer.reports
    sent = OutgoingRecord("t", b"v", b"k")
    record = DeliveredRecord(sent, 0, 5, 1000, None)
    report(None, record)
    report(error, DeliveredRecord(sent, 0, -1, 1000, error))
    assert heard[0] == (None, record)
    reason, message = heard[1]
    assert isinstance(reason, KafkaError)
    assert (reason.code(), reason.str()) == (code, str(error))
    assert message.error() is reason
    assert (message.topic(), message.partition(), message.key(), message.value()) == ("t", 0, b"k", b"v")


# Its end.


def test_close_neither_aborts_nor_raises_and_may_be_called_twice() -> None:
    rig = NativeRig().begun()
    rig.participant.prepare_transaction()
    rig.producer.failures["close()"] = ZeroDivisionError("a user's callback")
    rig.participant.close()
    rig.participant.close()
    assert rig.control.closed == 1
    assert "abort_transaction()" not in rig.producer.calls
    with pytest.raises(InvalidTransactionStateError, match="closed"):
        rig.participant.commit_transaction()


def test_after_a_fork_a_predecessors_transaction_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = NativeRig().keeping(SESSION)
    child = os.getpid() + 1
    monkeypatch.setattr(native.os, "getpid", lambda: child)
    for call in (rig.participant.commit_transaction, rig.participant.abort_transaction):
        with pytest.raises(InvalidTransactionStateError, match="make a new one after a fork"):
            call()
    assert rig.control.ended == []


def test_offsets_go_to_the_producer_in_its_transaction_only() -> None:
    rig = NativeRig()
    with pytest.raises(InvalidTransactionStateError):
        rig.participant.send_offsets_to_transaction([], "group")
    rig.begun()
    rig.participant.send_offsets_to_transaction([7], "group")
    assert rig.producer.sent == [([7], "group")]
    assert rig.participant.prepare_transaction()


@pytest.mark.parametrize(("setting", "seconds"), [("1500", 1.5), ("90000", 30.0)])
def test_no_step_of_recovery_may_take_longer_than_a_record(setting: str, seconds: float) -> None:
    assert NativeRig(timeout=None, **{"delivery.timeout.ms": setting}).control.timeout == seconds


def test_a_state_says_in_which_topic_its_first_record_is(monkeypatch: pytest.MonkeyPatch) -> None:
    first = PreparedTxnState(ProducerIdentity(9, 0), first_record=Anchor.of(T0, 3))
    monkeypatch.setattr(FakeTwoPhaseProducer, "prepare_transaction", lambda _: first)
    rig = NativeRig()
    rig.control.log.topic_ids = {"t": "A" * 22}
    assert rig.participant.prepare_transaction().topic_id == "A" * 22
