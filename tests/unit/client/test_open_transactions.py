"""What the coordinator and the leaders tell of an open transaction, and what it means for a stored state."""

from collections.abc import Iterable
from typing import Any

import pytest

from dualwrite.client.admin.control_plane import TransactionDescription
from dualwrite.client.fate.transaction_fate import ongoing_transaction, open_transaction
from dualwrite.errors import KafkaRefusedError, KafkaUnavailableError
from dualwrite.ids import UNKNOWN_START, Anchor, Match, PreparedTxnState, ProducerIdentity, TopicPartition
from dualwrite.wire.error_codes import ErrorCode

PRODUCER = ProducerIdentity(1, 1)
HERE, ELSEWHERE = TopicPartition("here", 0), TopicPartition("elsewhere", 0)


class OpenTransactionCluster:
    """A control plane. Its transaction is open in ``partitions`` since ``began_ms``, and begins there at ``starts``.

    :param partitions: None if the coordinator does not know the transactional id.
    :param error: raised instead of an answer of the leaders.
    """

    def __init__(
        self,
        partitions: Iterable[TopicPartition] | None,
        starts: dict[TopicPartition, int],
        began_ms: int = 100,
        error: Exception | None = None,
    ) -> None:
        self._partitions = partitions
        self._starts = starts
        self._began_ms = began_ms
        self._error = error
        self.questions = 0

    def describe_transaction(self, transactional_id: str) -> TransactionDescription | None:
        self.questions += 1
        if self._partitions is None:
            return None
        return TransactionDescription("Ongoing", PRODUCER, 1000, self._began_ms, frozenset(self._partitions))

    def current_transaction_start_offsets(
        self, partitions: Iterable[TopicPartition], producer: ProducerIdentity, *, deleted_too: bool
    ) -> dict[TopicPartition, int]:
        if self._error is not None:
            raise self._error
        assert deleted_too, "a transaction may have records in a topic that was deleted"
        return {partition: self._starts[partition] for partition in partitions if partition in self._starts}

    def match(self, state: PreparedTxnState) -> Match:
        control: Any = self
        return state.match(ongoing_transaction(control, "app", PRODUCER, state))

    def named(self) -> PreparedTxnState:
        control: Any = self
        return open_transaction(control, "app", PRODUCER)


@pytest.mark.parametrize(
    ("starts", "began_ms", "match"),
    [
        ({HERE: 5}, 100, Match.SAME),
        ({HERE: 5}, UNKNOWN_START, Match.SAME),
        ({HERE: 7}, 100, Match.OTHER),
        ({HERE: 5}, 200, Match.OTHER),
        ({}, 100, Match.SAME),
        ({}, 200, Match.OTHER),
        ({}, UNKNOWN_START, Match.UNKNOWN),
    ],
    ids=[
        "begins at the anchor",
        "a coordinator that tells no time",
        "begins elsewhere",
        "began at another time: the topic was made anew",
        "the topic was deleted",
        "the topic was deleted, and another transaction is open",
        "the topic was deleted, and no time is told",
    ],
)
def test_a_transaction_of_the_anchors_partition_is_known_by_its_start(
    starts: dict[TopicPartition, int], began_ms: int, match: Match
) -> None:
    state = PreparedTxnState(PRODUCER, Anchor.of(HERE, 5), started_ms=100)
    assert OpenTransactionCluster([HERE, ELSEWHERE], starts | {ELSEWHERE: 1}, began_ms).match(state) is match


def test_a_transaction_that_the_coordinator_does_not_know_is_none_of_a_state() -> None:
    assert OpenTransactionCluster(None, {}).match(PreparedTxnState(PRODUCER, Anchor.of(HERE, 5))) is Match.OTHER


def test_a_state_without_an_anchor_is_judged_by_the_identity_and_asks_nothing() -> None:
    cluster = OpenTransactionCluster([HERE], {HERE: 5})
    assert cluster.match(PreparedTxnState(PRODUCER)) is Match.SAME
    assert cluster.match(PreparedTxnState(ProducerIdentity(1, 0))) is Match.OTHER
    assert cluster.questions == 0


@pytest.mark.parametrize("start_ms", [0, -1])
def test_a_time_that_the_coordinator_does_not_tell_decides_nothing(start_ms: int) -> None:
    state = PreparedTxnState(PRODUCER, Anchor.of(HERE, 5), started_ms=100)
    assert OpenTransactionCluster([HERE], {}, start_ms).match(state) is Match.UNKNOWN


def test_a_transaction_that_no_state_names_is_named_by_its_first_partition_that_has_records() -> None:
    named = OpenTransactionCluster([HERE, ELSEWHERE], {HERE: 5, ELSEWHERE: 9}).named()
    assert (named, named.first_record) == (PreparedTxnState(PRODUCER), Anchor.of(ELSEWHERE, 9))


@pytest.mark.parametrize(
    "cluster",
    [
        OpenTransactionCluster(None, {}),
        OpenTransactionCluster([], {}),
        OpenTransactionCluster([HERE], {}),
        OpenTransactionCluster([HERE], {}, error=KafkaUnavailableError("no answer")),
        OpenTransactionCluster(
            [HERE],
            {},
            error=KafkaRefusedError(
                "DescribeProducers", ErrorCode.TOPIC_AUTHORIZATION_FAILED, "TOPIC_AUTHORIZATION_FAILED"
            ),
        ),
    ],
    ids=["unknown", "without records", "in a deleted topic", "no answer", "refused"],
)
def test_a_transaction_whose_first_record_is_not_told_is_named_by_its_identity_alone(
    cluster: OpenTransactionCluster,
) -> None:
    assert (cluster.named(), cluster.named().first_record) == (PreparedTxnState(PRODUCER), None)
