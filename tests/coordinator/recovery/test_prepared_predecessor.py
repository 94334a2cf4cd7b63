"""Recovery of a dead predecessor's prepared transaction. The control plane is a fake with the answers of the test."""

import logging
from typing import Any

import pytest

from dualwrite.client.admin.log_reader import LogExtent
from dualwrite.client.encoding.transaction_end import LogSlice
from dualwrite.client.protocol.requests import InitializedProducer
from dualwrite.coordinator.recovery.prepared_predecessor import EndingNotCheckedError, PreparedPredecessor
from dualwrite.coordinator.rules.recovery_decision import Outcome
from dualwrite.errors import KafkaRefusedError, KafkaUnavailableError
from dualwrite.ids import NO_PRODUCER, Anchor, PreparedTxnState, ProducerIdentity, TopicPartition
from dualwrite.records.batch import Record, build_batch
from dualwrite.records.header import BatchFields
from tests.support.coordinator.librdkafka.fake_control_plane import CONFIG, SESSION, T0, FakeControl

FIRST = Anchor.of(T0, 0)
NATIVE = PreparedTxnState(SESSION, first_record=FIRST)
LIBRDKAFKAS = PreparedTxnState(SESSION, FIRST)
NOW = ProducerIdentity(SESSION.producer_id, SESSION.epoch + 1)
KEPT, NOTHING_KEPT = InitializedProducer(NOW, SESSION), InitializedProducer(NOW, None)


def kept(initialized: InitializedProducer = NOTHING_KEPT) -> tuple[PreparedPredecessor, FakeControl]:
    control = FakeControl(CONFIG, 1)
    control.initialized = initialized
    return PreparedPredecessor(control, "app-0"), control  # type: ignore[arg-type]


def records(producer: ProducerIdentity = SESSION) -> bytes:
    return build_batch([Record(None, b"a", 0)], BatchFields(producer, base_sequence=0, transactional=True))


def log(*aborted: tuple[int, int], content: bytes = b"") -> LogSlice:
    """A log of ten offsets, in which nothing is open; it begins with a record of the session's."""
    return LogSlice(10, 10, aborted, content or records())


ABORTED = log((SESSION.producer_id, 0))


@pytest.mark.parametrize("state", [NATIVE, LIBRDKAFKAS], ids=["native", "librdkafka"])
@pytest.mark.parametrize(
    ("found", "outcome"),
    [
        (log(), Outcome.NOTHING),
        (log((SESSION.producer_id + 1, 0)), Outcome.NOTHING),
        (log((SESSION.producer_id, 5)), Outcome.NOTHING),
        (ABORTED, Outcome.HEURISTIC_ABORT),
        (log(content=records(NOW)), Outcome.HEURISTIC_HAZARD),
        (None, Outcome.NOTHING),
    ],
    ids=["committed", "another's was aborted", "a later one was aborted", "aborted", "not there", "no topic"],
)
def test_a_transaction_that_is_not_open_is_looked_up_in_the_log(
    state: PreparedTxnState, found: LogSlice | None, outcome: Outcome
) -> None:
    transaction, control = kept()
    control.log.slice = found
    assert transaction.complete(state) is outcome
    assert control.ended == []


@pytest.mark.parametrize("state", [NATIVE, LIBRDKAFKAS], ids=["native", "librdkafka"])
@pytest.mark.parametrize(
    ("found", "is_committed"),
    [(log(), True), (ABORTED, False), (log(content=records(NOW)), False), (None, False)],
    ids=["committed", "aborted", "not there", "no topic"],
)
def test_the_log_tells_whether_an_earlier_transaction_was_committed(
    state: PreparedTxnState, found: LogSlice | None, is_committed: bool
) -> None:
    transaction, control = kept()
    control.log.slice = found
    assert transaction.has_committed(state) is is_committed


def test_an_open_transaction_was_not_committed_and_no_log_is_read_for_it() -> None:
    transaction, control = kept(KEPT)
    control.log.slice = log()
    assert not transaction.has_committed(NATIVE)
    assert control.log.timeouts == []
    later, control = kept(InitializedProducer(ProducerIdentity(7, 9), ProducerIdentity(7, 8)))
    control.log.slice = log()
    assert later.has_committed(NATIVE)


def test_the_stored_transaction_is_looked_up_after_another_one_was_aborted() -> None:
    transaction, control = kept(InitializedProducer(ProducerIdentity(7, 9), ProducerIdentity(7, 8)))
    control.log.slice = ABORTED
    assert transaction.complete(NATIVE) is Outcome.HEURISTIC_ABORT
    assert control.ended == [(ProducerIdentity(7, 9), False, True)]


@pytest.mark.parametrize(("found", "outcome"), [(log(), Outcome.COMMITTED), (ABORTED, Outcome.HEURISTIC_MIXED)])
def test_committing_a_transaction_aborted_by_hand_in_a_partition_is_heuristic_mixed(
    found: LogSlice, outcome: Outcome
) -> None:
    transaction, control = kept(KEPT)
    control.log.slice = found
    assert transaction.complete(NATIVE) is outcome
    assert control.ended == [(NOW, True, True)]


def test_a_commit_is_not_checked_in_the_log_if_another_look_follows() -> None:
    transaction, control = kept(KEPT)
    control.log.slice = ABORTED
    assert transaction.complete(NATIVE, is_last=False) is Outcome.COMMITTED
    assert control.log.timeouts == []


@pytest.mark.parametrize(
    ("stored", "now", "outcome"),
    [
        (ProducerIdentity(7, 4), ProducerIdentity(7, 5), Outcome.NOTHING),
        (ProducerIdentity(7, 5), ProducerIdentity(7, 5), Outcome.HEURISTIC_HAZARD),
        (ProducerIdentity(7, 6), ProducerIdentity(7, 5), Outcome.HEURISTIC_HAZARD),
        (ProducerIdentity(6, 32766), ProducerIdentity(7, 0), Outcome.NOTHING),
        (NO_PRODUCER, ProducerIdentity(7, 0), Outcome.NOTHING),
    ],
)
def test_a_state_ahead_of_the_cluster_belongs_to_another_cluster(
    stored: ProducerIdentity, now: ProducerIdentity, outcome: Outcome
) -> None:
    transaction, _ = kept(InitializedProducer(now, None))
    assert transaction.complete(PreparedTxnState(stored)) is outcome


@pytest.mark.parametrize(("end", "outcome"), [(1, Outcome.HEURISTIC_HAZARD), (2, Outcome.NOTHING)])
def test_a_transaction_that_its_coordinator_ended_without_a_marker_hangs(
    monkeypatch: pytest.MonkeyPatch, end: int, outcome: Outcome
) -> None:
    """Unless the leader, which may be new, does not show all that it has."""
    transaction, control = kept()
    hanging = LogSlice(1, 0, (), records())
    after = hanging._replace(records=b"")
    control.log.slice = hanging
    monkeypatch.setattr(control.log, "read", lambda _, offset, **__: after if offset else hanging)
    monkeypatch.setattr(control.log, "extent", lambda _: LogExtent(0, end), raising=False)
    assert transaction.complete(NATIVE) is outcome


def test_an_unreadable_log_leaves_the_outcome_unknown_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    transaction, control = kept()
    control.log.fails = KafkaRefusedError("Fetch of t-0", 29, "TOPIC_AUTHORIZATION_FAILED")
    with caplog.at_level(logging.WARNING, "dualwrite"):
        assert transaction.complete(NATIVE) is Outcome.NOTHING
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "the outcome of 7:0 is unknown: Fetch of t-0" in caplog.text
    assert "grant READ" in caplog.text


def test_a_deleted_topic_leaves_the_outcome_unknown_without_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    transaction, control = kept()
    control.log.fails = KafkaRefusedError("Fetch of t-0", 3, "UNKNOWN_TOPIC_OR_PARTITION")
    with caplog.at_level(logging.WARNING, "dualwrite"):
        assert transaction.complete(NATIVE) is Outcome.NOTHING
    assert caplog.records == []


def test_a_log_that_cannot_be_read_now_keeps_the_state_from_being_overwritten() -> None:
    transaction, control = kept()
    control.log.fails = KafkaUnavailableError("partition t-0: LEADER_NOT_AVAILABLE")
    with pytest.raises(KafkaUnavailableError):
        transaction.complete(NATIVE)
    assert control.log.timeouts == [None], "as patiently as for everything else"


def test_a_sweep_ends_open_transactions_without_waiting_for_the_log() -> None:
    transaction, control = kept(InitializedProducer(ProducerIdentity(7, 9), ProducerIdentity(7, 8)))
    control.log.fails = KafkaUnavailableError("partition t-0: LEADER_NOT_AVAILABLE")
    with pytest.raises(
        EndingNotCheckedError, match=r"app-0: the outcome of 7:0 cannot be read yet: .*LEADER_NOT_AVAILABLE"
    ):
        transaction.complete(NATIVE, is_last=False)
    assert control.ended == [(ProducerIdentity(7, 9), False, True)]
    assert control.log.timeouts == [2.0]


def test_an_empty_state_is_not_looked_up_in_the_log() -> None:
    transaction, control = kept()
    assert transaction.complete(PreparedTxnState()) is Outcome.NOTHING
    assert control.log.timeouts == []


def test_the_log_is_read_in_the_partition_of_the_first_record(monkeypatch: pytest.MonkeyPatch) -> None:
    transaction, control = kept()
    asked: list[Any] = []
    monkeypatch.setattr(control.log, "read", lambda *place, **_: asked.append(place) or log())
    control.log.slice = log()
    transaction.complete(PreparedTxnState(SESSION, first_record=Anchor.of(TopicPartition("t", 1), 4)))
    assert asked == [(TopicPartition("t", 1), 4)]
