"""What an open transaction is compared with if the coordinator leaves the anchor's topic out of its description."""

from collections.abc import Iterable
from typing import Any

import pytest

from dualwrite.client.admin.control_plane import TransactionDescription
from dualwrite.client.encoding.transaction_end import LogSlice
from dualwrite.client.fate.transaction_fate import ended_transaction, ongoing_transaction
from dualwrite.errors import KafkaRefusedError
from dualwrite.ids import UNKNOWN_START, Anchor, Ending, Match, PreparedTxnState, ProducerIdentity, TopicPartition
from dualwrite.records.control import Marker
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
