"""Requests for diagnosis: what is asked of which broker, and what each answer means."""

from collections.abc import Iterator
from typing import Any

import pytest

from dualwrite.client.admin.inspector import Inspector, LogDirectory, PartitionEnds
from dualwrite.errors import KafkaRefusedError
from dualwrite.ids import TopicPartition
from dualwrite.wire.apis import ApiKey
from dualwrite.wire.error_codes import ErrorCode
from tests.support.admin.scripted_answers import log_directories, offsets, settings_of
from tests.support.client.scripted_broker import ScriptedBroker, scripted
from tests.support.client.scripted_control import ScriptedControl

T0, T1, GONE = TopicPartition("t", 0), TopicPartition("t", 1), TopicPartition("gone", 0)


class ScriptedInspector(ScriptedControl, Inspector):
    """An inspector on a clock that only sleeping moves."""


@pytest.fixture
def broker() -> Iterator[ScriptedBroker]:
    with scripted() as running:
        yield running


@pytest.fixture
def inspector(broker: ScriptedBroker) -> Iterator[ScriptedInspector]:
    with ScriptedInspector(broker) as made:
        yield made


def test_every_broker_is_asked_for_its_settings_and_only_those_that_were_asked_for_are_given(
    broker: ScriptedBroker, inspector: ScriptedInspector
) -> None:
    broker.nodes = {1: broker.endpoint, 2: broker.endpoint}
    broker.answer(ApiKey.DESCRIBE_CONFIGS, settings_of(("a", "1", 5), ("b", "2", 5)))
    assert inspector.broker_settings(["a", "c"]) == {1: {"a": "1"}, 2: {"a": "1"}}
    asked = [seen.message.resources[0] for seen in broker.requests(ApiKey.DESCRIBE_CONFIGS)]
    assert [(each.resource_name, each.configuration_keys) for each in asked] == [("1", ["a", "c"]), ("2", ["a", "c"])]


def test_every_broker_is_asked_for_its_log_directories(broker: ScriptedBroker, inspector: ScriptedInspector) -> None:
    broker.nodes = {1: broker.endpoint, 2: broker.endpoint}
    broker.answer(ApiKey.DESCRIBE_LOG_DIRS, log_directories({}))
    assert inspector.log_directories() == [LogDirectory(broker.endpoint.host, "/data")] * 2


REFUSED = ErrorCode.CLUSTER_AUTHORIZATION_FAILED


@pytest.mark.parametrize(
    "answer",
    [log_directories({}, code=REFUSED), log_directories({}, in_directory=REFUSED)],
    ids=["v3 and later", "before v3"],
)
def test_refused_log_directories_do_not_read_as_none(
    broker: ScriptedBroker, inspector: ScriptedInspector, answer: Any
) -> None:
    broker.answer(ApiKey.DESCRIBE_LOG_DIRS, answer)
    with pytest.raises(KafkaRefusedError, match="DescribeLogDirs of broker 1: CLUSTER_AUTHORIZATION_FAILED"):
        inspector.log_directories()


def test_refused_settings_do_not_read_as_none(broker: ScriptedBroker, inspector: ScriptedInspector) -> None:
    broker.answer(ApiKey.DESCRIBE_CONFIGS, settings_of(code=REFUSED))
    with pytest.raises(KafkaRefusedError, match="DescribeConfigs of broker 1: CLUSTER_AUTHORIZATION_FAILED"):
        inspector.broker_settings(["a"])


def test_both_kinds_of_readers_have_an_end_of_their_own(broker: ScriptedBroker, inspector: ScriptedInspector) -> None:
    broker.answer(ApiKey.LIST_OFFSETS, offsets({T0: 5, T1: 7}), offsets({T0: 8, T1: 9}))
    assert inspector.partition_ends([T1, T0, T0, GONE]) == {T0: PartitionEnds(5, 8), T1: PartitionEnds(7, 9)}
    assert [seen.message.isolation_level for seen in broker.requests(ApiKey.LIST_OFFSETS)] == [1, 0]


def test_a_topic_that_is_deleted_between_the_two_questions_has_no_ends(
    broker: ScriptedBroker, inspector: ScriptedInspector
) -> None:
    def then_gone(request: Any) -> Any:
        broker.topics = {"other": 1}
        return offsets({T0: 5})(request)

    broker.answer(ApiKey.LIST_OFFSETS, then_gone)
    assert inspector.partition_ends([T0]) == {}
