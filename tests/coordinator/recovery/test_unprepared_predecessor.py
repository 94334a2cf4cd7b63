"""What a predecessor left where nothing keeps it: each order of what it, its timeout and its successor do."""

from dataclasses import replace
from typing import Any, NoReturn

import pytest

from dualwrite.client.admin.control_plane import TransactionDescription
from dualwrite.client.encoding.transaction_end import LogSlice
from dualwrite.coordinator.recovery.prepared_predecessor import EndingNotCheckedError
from dualwrite.coordinator.recovery.unprepared_predecessor import PATIENCE, UnpreparedPredecessor
from dualwrite.coordinator.rules.recovery_decision import Outcome, RecoveryDecision
from dualwrite.errors import FencedError, KafkaRefusedError, KafkaUnavailableError
from dualwrite.ids import Anchor, PreparedTxnState, ProducerIdentity, TopicPartition
from dualwrite.records.batch import Record, build_batch
from dualwrite.records.control import Marker, build_marker
from dualwrite.records.header import BatchFields, place_batch
from dualwrite.wire.error_codes import ErrorCode
from tests.support.coordinator.librdkafka.fake_control_plane import CONFIG, T0, FakeControl

SESSION, NEXT = ProducerIdentity(7, 0), ProducerIdentity(7, 1)
NATIVE = PreparedTxnState(SESSION, first_record=Anchor.of(T0, 5))
"""Of the native producer: its identity is its transaction's alone."""
ANCHORED = PreparedTxnState(SESSION, Anchor.of(T0, 5))
DATED = replace(ANCHORED, started_ms=1000)
"""Of librdkafka."""
COMMITS, ABORTS = (SESSION, True, True), (SESSION, False, True)

Step = tuple[str, ProducerIdentity]


class Coordinator(FakeControl):
    """Says of the transaction what is next in ``says``; the last for ever."""

    def __init__(self, *says: Step | None, refuses: Exception | None = None, version: int = 2) -> None:
        super().__init__(dict(CONFIG), 1)
        self.says = list(says)
        self.refuses = refuses
        self.version = version
        self.end_txns: list[tuple[ProducerIdentity, bool, bool]] = []
        self.starts = {T0: 5}
        self.now = 0.0

    def describe_transaction(self, _id: str) -> TransactionDescription | None:
        said = self.says.pop(0) if len(self.says) > 1 else self.says[0]
        return None if said is None else TransactionDescription(said[0], said[1], 0, self.started_ms, frozenset({T0}))

    def init_producer_id(self, *_: Any, **__: Any) -> NoReturn:
        raise AssertionError("an InitProducerId would abort what is to be judged")

    def transaction_version(self) -> int:
        return self.version

    def end_txn(  # type: ignore[override]
        self, _id: str, producer: ProducerIdentity, committed: bool, *, bumps_epoch: bool, repeatable: bool
    ) -> ProducerIdentity:
        assert repeatable, "a lost answer must be asked for again"
        self.end_txns.append((producer, committed, bumps_epoch))
        if self.refuses is not None:
            raise self.refuses
        return NEXT

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def left(self) -> UnpreparedPredecessor:
        return UnpreparedPredecessor(self, "app-0", runtime=self)  # type: ignore[arg-type]


def in_log(marker: Marker, producer: ProducerIdentity = SESSION) -> LogSlice:
    """The transaction that began at offset 5, and its end."""
    batch = bytearray(build_batch([Record(None, b"x")], BatchFields(producer, transactional=True)))
    place_batch(batch, 5, 0)
    end = bytearray(build_marker(marker, SESSION, 0, 0))
    place_batch(end, 6, 0)
    aborted = ((SESSION.producer_id, 5),) if marker is Marker.ABORT else ()
    return LogSlice(7, 7, aborted, bytes(batch + end))


@pytest.mark.parametrize("state", [NATIVE, ANCHORED], ids=["native", "librdkafka"])
def test_a_decided_transaction_is_committed_under_its_own_identity(state: PreparedTxnState) -> None:
    coordinator = Coordinator(("Ongoing", SESSION))
    assert coordinator.left().complete(state) is Outcome.COMMITTED
    assert coordinator.end_txns == [COMMITS]


@pytest.mark.parametrize(
    ("state", "starts"),
    [
        (PreparedTxnState(), {T0: 5}),
        (PreparedTxnState(ProducerIdentity(6, 9)), {T0: 5}),
        (ANCHORED, {T0: 8}),
        (DATED, {}),
        (PreparedTxnState(SESSION, Anchor.of(TopicPartition("t", 3), 5)), {T0: 5}),
    ],
    ids=["nothing decided", "another identity", "a later one of the session", "at another time", "another partition"],
)
def test_an_undecided_transaction_is_aborted(state: PreparedTxnState, starts: dict[TopicPartition, int]) -> None:
    coordinator = Coordinator(("Ongoing", SESSION))
    coordinator.starts, coordinator.started_ms = starts, 2000
    assert coordinator.left().complete(state) is Outcome.ABORTED
    assert coordinator.end_txns == [ABORTS]


def test_a_decided_transaction_is_recognised_by_its_start_if_the_anchors_topic_is_gone() -> None:
    coordinator = Coordinator(("Ongoing", SESSION))
    coordinator.starts, coordinator.started_ms = {}, DATED.started_ms
    assert coordinator.left().complete(DATED) is Outcome.COMMITTED
    assert coordinator.end_txns == [COMMITS]


def test_a_transaction_that_may_be_the_decided_one_is_aborted_and_put_on_record() -> None:
    """A state of the former release has no start time, and nothing else is left to know the transaction by."""
    coordinator = Coordinator(("Ongoing", SESSION))
    coordinator.starts, coordinator.started_ms = {}, 2000
    assert coordinator.left().complete(ANCHORED) is Outcome.HEURISTIC_HAZARD
    assert coordinator.end_txns == [ABORTS]


@pytest.mark.parametrize(("version", "fences"), [(2, True), (1, False), (0, False)])
def test_recovery_fences_the_writer_where_end_txn_supports_it(version: int, fences: bool) -> None:
    """EndTxn v5 raises the epoch, also of a transaction that librdkafka began; it needs transaction version 2."""
    coordinator = Coordinator(("Ongoing", SESSION), version=version)
    coordinator.left().complete(NATIVE)
    assert coordinator.end_txns == [(SESSION, True, fences)]


@pytest.mark.parametrize("state", ["Empty", "CompleteCommit", "CompleteAbort", "Dead"])
def test_no_end_txn_is_sent_if_no_transaction_is_open(state: str) -> None:
    coordinator = Coordinator((state, NEXT))
    assert coordinator.left().complete(PreparedTxnState()) is Outcome.NOTHING
    assert coordinator.end_txns == []


def test_a_transactional_id_that_is_not_known_has_nothing_open() -> None:
    assert Coordinator(None).left().complete(NATIVE) is Outcome.NOTHING


@pytest.mark.parametrize("state", ["PrepareCommit", "PrepareAbort", "PrepareEpochFence"])
def test_recovery_waits_for_an_end_that_is_under_way(state: str) -> None:
    coordinator = Coordinator((state, SESSION), (state, SESSION), ("CompleteCommit", NEXT))
    assert coordinator.left().complete(NATIVE) is Outcome.NOTHING
    assert coordinator.now > 0
    assert coordinator.end_txns == []


def test_recovery_stops_waiting_for_an_end_at_its_deadline() -> None:
    coordinator = Coordinator(("PrepareCommit", SESSION))
    with pytest.raises(KafkaUnavailableError, match=r"app-0: still PrepareCommit"):
        coordinator.left().complete(NATIVE)
    assert coordinator.now <= PATIENCE


REFUSALS = [
    KafkaRefusedError("EndTxn", ErrorCode.INVALID_TXN_STATE, "INVALID_TXN_STATE"),
    FencedError("EndTxn: PRODUCER_FENCED"),
    KafkaRefusedError("EndTxn", ErrorCode.INVALID_PRODUCER_ID_MAPPING, "INVALID_PRODUCER_ID_MAPPING"),
]


@pytest.mark.parametrize("refusal", REFUSALS, ids=["state", "fenced", "id"])
def test_a_refused_end_txn_makes_recovery_look_again(refusal: Exception) -> None:
    """The zombie commits what it has decided, right between the look and this EndTxn."""
    coordinator = Coordinator(("Ongoing", SESSION), ("CompleteCommit", NEXT), refuses=refusal)
    assert coordinator.left().complete(NATIVE) is Outcome.NOTHING
    assert coordinator.end_txns == [COMMITS]


@pytest.mark.parametrize("refusal", REFUSALS, ids=["state", "fenced", "id"])
def test_a_timeout_between_the_look_and_the_end_is_a_heuristic_rollback(refusal: Exception) -> None:
    coordinator = Coordinator(("Ongoing", SESSION), ("CompleteAbort", NEXT), refuses=refusal)
    coordinator.log.slice = in_log(Marker.ABORT)
    assert coordinator.left().complete(NATIVE) is Outcome.HEURISTIC_ABORT


def test_any_other_refusal_of_end_txn_is_raised() -> None:
    refusal = KafkaRefusedError("EndTxn", ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, "not yours")
    with pytest.raises(KafkaRefusedError, match="not yours"):
        Coordinator(("Ongoing", SESSION), refuses=refusal).left().complete(NATIVE)


def test_a_transaction_that_a_broker_keeps_for_another_identity_is_not_tried_for_ever() -> None:
    coordinator = Coordinator(("Ongoing", SESSION), refuses=FencedError("PRODUCER_FENCED"))
    with pytest.raises(KafkaUnavailableError, match="let one of that kind recover it"):
        coordinator.left().complete(NATIVE)


@pytest.mark.parametrize("state", [NATIVE, ANCHORED], ids=["native", "librdkafka"])
@pytest.mark.parametrize("is_last", [True, False])
@pytest.mark.parametrize("said", ["CompleteAbort", "Empty"])
def test_a_decided_transaction_found_aborted_in_the_log_is_a_heuristic_abort(
    said: str, is_last: bool, state: PreparedTxnState
) -> None:
    coordinator = Coordinator((said, NEXT))
    coordinator.log.slice = in_log(Marker.ABORT)
    assert coordinator.left().complete(state, is_last=is_last) is Outcome.HEURISTIC_ABORT


@pytest.mark.parametrize("now", [SESSION, NEXT, ProducerIdentity(8, 0)], ids=["the same", "the next", "another id"])
def test_a_decided_transaction_found_committed_in_the_log_needs_nothing(now: ProducerIdentity) -> None:
    coordinator = Coordinator(("Empty", now))
    coordinator.log.slice = in_log(Marker.COMMIT)
    assert coordinator.left().complete(NATIVE) is Outcome.NOTHING


@pytest.mark.parametrize("state", [NATIVE, ANCHORED], ids=["native", "librdkafka"])
@pytest.mark.parametrize("now", [SESSION, NEXT])
def test_a_commit_under_the_same_identity_does_not_prove_the_decided_transaction(
    now: ProducerIdentity, state: PreparedTxnState
) -> None:
    """librdkafka keeps its identity for a session, and the native producer's is what its last commit has left behind: a
    cluster that has lost the last transaction still says that it has committed."""
    coordinator = Coordinator(("CompleteCommit", now))
    coordinator.log.slice = in_log(Marker.COMMIT, ProducerIdentity(9, 0))
    assert coordinator.left().complete(state) is Outcome.HEURISTIC_HAZARD


def test_a_commit_under_a_later_identity_does_not_hide_an_aborted_decision() -> None:
    coordinator = Coordinator(("CompleteCommit", ProducerIdentity(7, 2)))
    coordinator.log.slice = in_log(Marker.ABORT)
    assert coordinator.left().complete(NATIVE) is Outcome.HEURISTIC_ABORT


def test_a_log_that_does_not_answer_is_asked_again() -> None:
    coordinator = Coordinator(("Empty", NEXT))
    coordinator.log.fails = KafkaUnavailableError("no answer")
    with pytest.raises(KafkaUnavailableError):
        coordinator.left().complete(NATIVE)
    with pytest.raises(EndingNotCheckedError):
        coordinator.left().complete(NATIVE, is_last=False)


@pytest.mark.parametrize(("decided", "ended"), [(RecoveryDecision.COMMIT, COMMITS), (RecoveryDecision.ABORT, ABORTS)])
def test_a_predecessors_transaction_is_ended_as_decided(decided: RecoveryDecision, ended: Any) -> None:
    coordinator = Coordinator(("Ongoing", SESSION))
    coordinator.left().end(decided)
    assert coordinator.end_txns == [ended]
