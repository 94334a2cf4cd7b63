"""The ids of the topics in which transactions begin: asked for seldom, and asked again where they may have changed."""

from typing import Any

import pytest

from dualwrite.client.fate.transaction_fate import TopicIds
from dualwrite.errors import ConfigurationError, DualWriteError, KafkaRefusedError, KafkaUnavailableError
from dualwrite.ids import Anchor, PreparedTxnState, ProducerIdentity, TopicPartition
from dualwrite.wire.error_codes import ErrorCode

FIRST, SECOND = "A" * 22, "B" * 22


class Logs:
    """A control plane, and its logs."""

    def __init__(self) -> None:
        self.asked = 0
        self.now = 0.0
        self.current = FIRST
        self.error: Exception | None = None

    def logs(self, timeout: float) -> "Logs":
        assert timeout <= 2, "a unit of work waits for it"
        return self

    def topic_id(self, topic: str) -> str:
        self.asked += 1
        if self.error is not None:
            raise self.error
        return self.current


@pytest.fixture
def logs() -> Logs:
    return Logs()


@pytest.fixture
def ids(logs: Logs) -> TopicIds:
    control: Any = logs
    return TopicIds(control, lambda: logs.now)


def at(ids: TopicIds, offset: int, topic: str = "t") -> str:
    first = Anchor.of(TopicPartition(topic, 0), offset)
    return ids.added(PreparedTxnState(ProducerIdentity(1, 1), first_record=first)).topic_id


def test_the_id_of_a_topic_is_asked_for_once(logs: Logs, ids: TopicIds) -> None:
    assert [at(ids, offset) for offset in (3, 5, 9)] == [FIRST] * 3
    assert logs.asked == 1


def test_an_offset_that_comes_again_is_of_another_topic(logs: Logs, ids: TopicIds) -> None:
    at(ids, 3)
    logs.current = SECOND
    assert at(ids, 3) == SECOND


def test_a_topic_id_is_asked_for_again_after_a_while(logs: Logs, ids: TopicIds) -> None:
    at(ids, 3)
    logs.current, logs.now = SECOND, 60.0
    assert at(ids, 4) == SECOND


@pytest.mark.parametrize(
    "error",
    [
        KafkaUnavailableError("no answer"),
        KafkaRefusedError("topic t", ErrorCode.TOPIC_AUTHORIZATION_FAILED, "TOPIC_AUTHORIZATION_FAILED"),
        ConfigurationError("sasl.username and sasl.password: broker: refused"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_a_cluster_that_does_not_tell_yields_an_empty_topic_id_without_an_error(
    logs: Logs, ids: TopicIds, error: DualWriteError
) -> None:
    """The producer's own connections may last, though this one is made anew and finds that a password has changed."""
    logs.error = error
    assert [at(ids, 3), at(ids, 4)] == ["", ""]
    assert logs.asked == 1, "the next unit does not wait as well"


def test_no_request_is_sent_without_a_record_or_for_a_shortened_name(logs: Logs, ids: TopicIds) -> None:
    state = PreparedTxnState(ProducerIdentity(1, 1))
    assert ids.added(state) is state
    assert at(ids, 0, "t" * 249) == ""
    assert logs.asked == 0
