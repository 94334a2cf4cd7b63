"""What an open transaction is compared with if the coordinator leaves the anchor's topic out of its description."""

from collections import deque
from collections.abc import Iterable
from typing import Any

import pytest

from dualwrite.client.admin.control_plane import TransactionDescription
from dualwrite.client.admin.log_reader import LogExtent
from dualwrite.client.encoding.transaction_end import LogSlice
from dualwrite.client.fate import transaction_fate
from dualwrite.client.fate.transaction_fate import ended_transaction, ongoing_transaction
from dualwrite.errors import KafkaRefusedError
from dualwrite.ids import (
    UNKNOWN_START,
    Anchor,
    EndedTransaction,
    Ending,
    Match,
    PreparedTxnState,
    ProducerIdentity,
    TopicPartition,
)
from dualwrite.records.control import Marker
from dualwrite.wire.error_codes import ErrorCode
from tests.support.client.one_record_log import OneRecordLog

PRODUCER = ProducerIdentity(1, 1)
HERE, ELSEWHERE = TopicPartition("here", 0), TopicPartition("elsewhere", 0)
LONG = TopicPartition("l" * 249, 0)


class FateCluster:
    """A control plane of a client that may describe some topics; its transaction is open in ``partitions``."""

    def __init__(self, began_ms: int, described: Iterable[TopicPartition], starts: dict[TopicPartition, int]) -> None:
        self.began_ms = began_ms
        self.described = frozenset(described)
        self.starts = starts
        self.asked: list[set[TopicPartition]] = []

    def describe_transaction(self, transactional_id: str) -> TransactionDescription:
        return TransactionDescription("Ongoing", PRODUCER, 1000, self.began_ms, self.described)

    def current_transaction_start_offsets(
        self, partitions: Iterable[TopicPartition], producer: ProducerIdentity, *, deleted_too: bool
    ) -> dict[TopicPartition, int]:
        self.asked.append(set(partitions))
        return {partition: self.starts[partition] for partition in partitions if partition in self.starts}

    def logs(self) -> "FateCluster":
        return self

    def partition_of(self, anchor: Anchor) -> TopicPartition | None:
        return HERE if anchor.is_in(HERE) else None


def compared(cluster: FateCluster, partition: TopicPartition, began_ms: int) -> Match:
    state = PreparedTxnState(PRODUCER, Anchor.of(partition, 5), started_ms=began_ms)
    control: Any = cluster
    return state.match(ongoing_transaction(control, "t", PRODUCER, state))


@pytest.mark.parametrize("began_ms", [100, UNKNOWN_START])
def test_a_topic_that_is_left_out_is_asked_for(began_ms: int) -> None:
    cluster = FateCluster(100, [ELSEWHERE], {})
    assert compared(cluster, HERE, began_ms) is Match.OTHER
    assert cluster.asked == [{HERE}], "the leader, or Metadata, refuses a client without the right"


def test_a_transaction_that_began_at_another_time_is_another_without_a_question() -> None:
    cluster = FateCluster(200, [ELSEWHERE], {})
    assert compared(cluster, HERE, 100) is Match.OTHER
    assert cluster.asked == [set()]


def test_a_shortened_name_that_the_client_cannot_see_decides_nothing() -> None:
    with pytest.raises(KafkaRefusedError, match="TOPIC_AUTHORIZATION_FAILED"):
        compared(FateCluster(100, [ELSEWHERE], {}), LONG, 100)


def test_a_state_of_another_producer_asks_for_no_right_to_its_topic() -> None:
    cluster = FateCluster(100, [ELSEWHERE], {})
    state = PreparedTxnState(ProducerIdentity(1, 0), Anchor.of(LONG, 5), started_ms=100)
    control: Any = cluster
    assert state.match(ongoing_transaction(control, "t", PRODUCER, state)) is Match.OTHER
    assert cluster.asked == []


class CommittedLog:
    """A control plane that shows a log with one committed transaction, in a topic with ``topic_id``."""

    def __init__(self, topic_id: str) -> None:
        self._topic_id = topic_id
        self._log = OneRecordLog()
        self._log.record(PRODUCER)
        self._log.marker(Marker.COMMIT, PRODUCER)

    def logs(self, timeout: float | None) -> "CommittedLog":
        return self

    def partition_of(self, anchor: Anchor) -> TopicPartition:
        return HERE

    def topic_id(self, topic: str) -> str:
        return self._topic_id

    def read(self, partition: TopicPartition, offset: int, *, committed: bool, most: int) -> LogSlice:
        return self._log.read(offset)


@pytest.mark.parametrize(
    ("topic_id", "ending"),
    [("first", Ending.COMMITTED), ("second", Ending.UNKNOWN), ("", Ending.COMMITTED)],
    ids=["the same topic", "created again", "an id that is not told now"],
)
def test_only_another_id_makes_the_log_that_of_another_topic(topic_id: str, ending: Ending) -> None:
    state = PreparedTxnState(PRODUCER, first_record=Anchor.of(HERE, 0), topic_id="first")
    control: Any = CommittedLog(topic_id)
    assert ended_transaction(control, state).ending is ending


class ChangingLog:
    """A control plane whose leader has another answer to each Fetch, as its log changes meanwhile.

    :param answers: what the leader shows; None says that the offset is outside of the log.
    :param extent: the first and the end offset of the log.
    """

    def __init__(self, *answers: LogSlice | None, extent: tuple[int, int] = (0, 9)) -> None:
        self._answers = deque(answers)
        self._extent = LogExtent(*extent)

    def logs(self, timeout: float | None) -> "ChangingLog":
        return self

    def partition_of(self, anchor: Anchor) -> TopicPartition:
        return HERE

    def read(self, partition: TopicPartition, offset: int, *, committed: bool, most: int) -> LogSlice | None:
        return self._answers.popleft()

    def extent(self, partition: TopicPartition) -> LogExtent:
        return self._extent

    def ending(self) -> EndedTransaction:
        control: Any = self
        return ended_transaction(control, PreparedTxnState(PRODUCER, first_record=Anchor.of(HERE, 0)))


def one_record(*, ended: Marker | None) -> LogSlice:
    """A log of one record of PRODUCER, and then the marker ``ended``."""
    log = OneRecordLog()
    log.record(PRODUCER)
    if ended is not None:
        log.marker(ended, PRODUCER)
    return log.read(0)


@pytest.mark.parametrize("first", [None, LogSlice(0, 0, (), b"")], ids=["outside", "not shown yet"])
@pytest.mark.parametrize(("end", "ending"), [(0, Ending.LOST), (1, Ending.UNKNOWN)])
def test_only_a_log_that_ends_before_the_record_has_lost_it(first: LogSlice | None, end: int, ending: Ending) -> None:
    """A new leader may show less of its log than it has."""
    assert ChangingLog(first, extent=(0, end)).ending() == EndedTransaction(ending)


def test_a_record_that_was_deleted_is_not_lost_although_a_new_leader_answers_that_its_log_is_shorter() -> None:
    """The beginning and the end of a log are two questions."""
    assert ChangingLog(None, extent=(1, 0)).ending() == EndedTransaction(Ending.UNKNOWN)


def test_a_commit_stays_one_if_its_records_are_deleted_before_the_second_look() -> None:
    seen = one_record(ended=Marker.COMMIT)
    behind_it_is_another = seen._replace(high_watermark=seen.high_watermark + 1)
    assert ChangingLog(behind_it_is_another, None).ending() == EndedTransaction(Ending.COMMITTED)


def test_a_later_commit_that_was_seen_needs_no_second_look() -> None:
    log = OneRecordLog()
    for _ in range(2):
        log.record(PRODUCER)
        log.marker(Marker.COMMIT, PRODUCER)
    log.record(ProducerIdentity(2, 0))
    assert ChangingLog(log.read(0)).ending() == EndedTransaction(Ending.COMMITTED, was_overtaken=True)


NOTHING_MORE = LogSlice(1, 0, (), b"")


@pytest.mark.parametrize(
    ("then", "end", "ending"),
    [(NOTHING_MORE, 1, Ending.OPEN), (NOTHING_MORE, 2, Ending.UNKNOWN), (None, 1, Ending.UNKNOWN)],
    ids=["the end of the log", "a leader that shows less than it has", "deleted meanwhile"],
)
def test_only_a_log_that_was_read_to_its_end_shows_an_open_transaction(
    then: LogSlice | None, end: int, ending: Ending
) -> None:
    opened = one_record(ended=None)
    assert ChangingLog(opened, opened, then, extent=(0, end)).ending() == EndedTransaction(ending)


def test_another_producers_open_transaction_at_the_anchor_is_not_ours() -> None:
    log = OneRecordLog()
    log.record(ProducerIdentity(PRODUCER.producer_id, PRODUCER.epoch + 1))
    assert ChangingLog(log.read(0), log.read(0), NOTHING_MORE).ending() == EndedTransaction(Ending.LOST)


@pytest.mark.parametrize(("timeout", "ending"), [(1.0, Ending.UNKNOWN), (None, Ending.COMMITTED)])
def test_only_a_search_with_little_time_gives_up_far_behind_the_record(
    monkeypatch: pytest.MonkeyPatch, timeout: float | None, ending: Ending
) -> None:
    monkeypatch.setattr(transaction_fate, "FARTHEST", 1)
    log = OneRecordLog()
    log.record(ProducerIdentity(2, 0))  # stays open, and hides the marker from readers of committed records
    log.record(PRODUCER)
    log.marker(Marker.COMMIT, PRODUCER)
    control: Any = ChangingLog(log.read(1, 2), log.read(1, 2), log.read(2), None)
    state = PreparedTxnState(PRODUCER, first_record=Anchor.of(HERE, 1))
    assert ended_transaction(control, state, timeout).ending is ending


class NoLog:
    """A control plane that has no such topic, or whose leader refuses to read.

    :param error: the code of the refusal.
    """

    def __init__(self, partition: TopicPartition | None, error: ErrorCode) -> None:
        self._partition = partition
        self._error = error

    def logs(self, timeout: float | None) -> "NoLog":
        return self

    def partition_of(self, anchor: Anchor) -> TopicPartition | None:
        return self._partition

    def read(self, partition: TopicPartition, offset: int, *, committed: bool, most: int) -> LogSlice:
        raise KafkaRefusedError("Fetch", self._error, self._error.name)


@pytest.mark.parametrize(
    ("partition", "code", "unread", "warning"),
    [
        (None, ErrorCode.NONE, "", ""),
        (HERE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "", ""),
        (HERE, ErrorCode.TOPIC_AUTHORIZATION_FAILED, "here", "grant READ on that topic"),
        (HERE, ErrorCode.CORRUPT_MESSAGE, "", "CORRUPT_MESSAGE (2)"),
    ],
    ids=["a topic that is gone", "a topic that goes", "a topic that may not be read", "a log that is damaged"],
)
def test_a_log_that_cannot_be_read_leaves_the_ending_unknown(
    caplog: pytest.LogCaptureFixture, partition: TopicPartition | None, code: ErrorCode, unread: str, warning: str
) -> None:
    control: Any = NoLog(partition, code)
    state = PreparedTxnState(PRODUCER, first_record=Anchor.of(HERE, 0))
    assert ended_transaction(control, state) == EndedTransaction(Ending.UNKNOWN, unread=unread)
    assert [text.rpartition(": ")[2] for text in caplog.messages] == [warning] * bool(warning)
    assert all(text.startswith(f"the outcome of {PRODUCER} is unknown: Fetch: ") for text in caplog.messages)


@pytest.mark.parametrize("state", [PreparedTxnState(), PreparedTxnState(PRODUCER)], ids=["empty", "no record"])
def test_a_state_that_names_no_record_has_an_unknown_ending_and_asks_nothing(state: PreparedTxnState) -> None:
    control: Any = None
    assert ended_transaction(control, state) == EndedTransaction(Ending.UNKNOWN)


class ShownLog(ChangingLog):
    """A control plane whose leader shows readers of committed records nothing behind the last stable offset."""

    def __init__(self, log: OneRecordLog) -> None:
        super().__init__(extent=(0, log.end))
        self._log = log

    def read(self, partition: TopicPartition, offset: int, *, committed: bool, most: int) -> LogSlice | None:
        whole = self._log.read(offset)
        return self._log.read(offset, whole.last_stable_offset) if committed else whole


@pytest.mark.parametrize(("kind", "was_overtaken"), [(Marker.COMMIT, True), (Marker.ABORT, False)])
def test_a_later_commit_behind_another_producers_open_transaction_has_overtaken(
    kind: Marker, was_overtaken: bool
) -> None:
    log = OneRecordLog()
    log.record(PRODUCER)
    log.marker(Marker.COMMIT, PRODUCER)
    log.record(ProducerIdentity(2, 0))
    log.record(PRODUCER)
    log.marker(kind, PRODUCER)
    assert ShownLog(log).ending() == EndedTransaction(Ending.COMMITTED, was_overtaken)


@pytest.mark.parametrize(("kind", "ending"), [(Marker.COMMIT, Ending.COMMITTED), (Marker.ABORT, Ending.ABORTED)])
def test_an_older_open_transaction_does_not_hide_the_ending(kind: Marker, ending: Ending) -> None:
    log = OneRecordLog()
    log.record(ProducerIdentity(2, 0))
    log.record(PRODUCER)
    log.marker(kind, PRODUCER)
    control: Any = ShownLog(log)
    state = PreparedTxnState(PRODUCER, first_record=Anchor.of(HERE, 1))
    assert ended_transaction(control, state) == EndedTransaction(ending)
