"""What must not be done twice, and what a refusal must not be taken for: on scripted brokers."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest

from dualwrite.admin.acls import (
    EVERY_ACL,
    Acl,
    AclOperation,
    PatternType,
    Permission,
    ResourceType,
    add_acls,
    list_acls,
    remove_acls,
)
from dualwrite.admin.definitions import add_partitions, await_partitions, topic_definitions
from dualwrite.admin.groups import delete_group, list_groups, reset_offsets, stable_offsets
from dualwrite.admin.records import read_records
from dualwrite.admin.topics import create_topic, delete_topic
from dualwrite.client.protocol.requests import CommittedOffset
from dualwrite.errors import AnswerLostError, InputError, KafkaRefusedError
from dualwrite.ids import TopicPartition
from dualwrite.wire.apis import APIS, ApiKey
from dualwrite.wire.error_codes import ErrorCode
from tests.support.admin.scripted_answers import groups_listed, offsets_committed, settings_of
from tests.support.client.scripted_broker import HANG_UP, ScriptedBroker, scripted

Kafka = Mapping[str, Any]
T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
READ = Acl(ResourceType.TOPIC, "orders", PatternType.PREFIXED, "User:a", "*", AclOperation.READ, Permission.ALLOW)


@pytest.fixture
def broker() -> Iterator[ScriptedBroker]:
    with scripted() as running:
        yield running


@pytest.fixture
def kafka(broker: ScriptedBroker) -> dict[str, Any]:
    return {"bootstrap.servers": broker.bootstrap_servers, "socket.timeout.ms": 5000}


def created(code: ErrorCode) -> Any:
    response = APIS[ApiKey.CREATE_TOPICS].response
    result = response.CreatableTopicResult(
        name="t", error_code=int(code), error_message=None, num_partitions=-1, replication_factor=-1, configs=None
    )
    return response(throttle_time_ms=0, topics=[result])


def deleted(code: ErrorCode) -> Any:
    response = APIS[ApiKey.DELETE_TOPICS].response
    result = response.DeletableTopicResult(name="t", error_code=int(code), error_message=None)
    return response(throttle_time_ms=0, responses=[result])


@pytest.mark.parametrize(
    ("api_key", "change"),
    [
        (ApiKey.CREATE_TOPICS, lambda kafka: create_topic(kafka, "t", timeout=20)),
        (ApiKey.DELETE_TOPICS, lambda kafka: delete_topic(kafka, "t", timeout=20)),
        (ApiKey.CREATE_PARTITIONS, lambda kafka: add_partitions(kafka, "t", 3, timeout=20)),
        (ApiKey.DELETE_GROUPS, lambda kafka: delete_group(kafka, "g", timeout=20)),
        (ApiKey.DELETE_ACLS, lambda kafka: remove_acls(kafka, EVERY_ACL, timeout=20)),
    ],
    ids=["create a topic", "delete a topic", "add partitions", "delete a group", "remove ACLs"],
)
def test_a_change_whose_answer_is_lost_is_not_sent_again(
    broker: ScriptedBroker, kafka: Kafka, api_key: ApiKey, change: Callable[[Kafka], object]
) -> None:
    """The second answer would be an error, or that there was nothing to do."""
    broker.answer(api_key, HANG_UP)
    with pytest.raises(AnswerLostError):
        change(kafka)
    assert len(broker.requests(api_key)) == 1


def test_a_topic_that_could_not_be_created_does_not_read_as_one_that_exists(
    broker: ScriptedBroker, kafka: Kafka
) -> None:
    broker.answer(ApiKey.CREATE_TOPICS, created(ErrorCode.TOPIC_AUTHORIZATION_FAILED))
    with pytest.raises(KafkaRefusedError, match="'t' was not created: TOPIC_AUTHORIZATION_FAILED"):
        create_topic(kafka, "t", if_not_exists=True)
    broker.answer(ApiKey.CREATE_TOPICS, created(ErrorCode.TOPIC_ALREADY_EXISTS))
    assert not create_topic(kafka, "t", if_not_exists=True)


def test_a_topic_that_could_not_be_deleted_does_not_read_as_a_missing_one(broker: ScriptedBroker, kafka: Kafka) -> None:
    broker.answer(ApiKey.DELETE_TOPICS, deleted(ErrorCode.TOPIC_AUTHORIZATION_FAILED))
    with pytest.raises(KafkaRefusedError, match="'t' was not deleted: TOPIC_AUTHORIZATION_FAILED"):
        delete_topic(kafka, "t", if_exists=True)
    broker.answer(ApiKey.DELETE_TOPICS, deleted(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION))
    assert not delete_topic(kafka, "t", if_exists=True)


# --- every broker, and every partition


def leads(*leaders: int) -> Any:
    """An answer to Metadata: topic ``t`` with these leaders of its partitions; without any, there is no such topic."""
    response = APIS[ApiKey.METADATA].response
    topic = response.MetadataResponseTopic
    partitions = [
        topic.MetadataResponsePartition(
            error_code=0, partition_index=index, leader_id=leader, replica_nodes=[1], isr_nodes=[1]
        )
        for index, leader in enumerate(leaders)
    ]
    code = ErrorCode.NONE if leaders else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    topics = [topic(error_code=int(code), name="t", is_internal=False, partitions=partitions)]
    return response(throttle_time_ms=0, brokers=[], cluster_id="c", controller_id=1, topics=topics)


@pytest.mark.parametrize("not_yet", [leads(), leads(1), leads(1, -1)], ids=["no topic", "too few", "no leader"])
def test_partitions_are_awaited_until_every_broker_has_their_leaders(
    broker: ScriptedBroker, kafka: Kafka, not_yet: Any
) -> None:
    with scripted() as second:
        broker.nodes[2] = second.endpoint
        second.answer(ApiKey.METADATA, not_yet, leads(1, 2))
        await_partitions(kafka, "t", 2)
        assert len(second.requests(ApiKey.METADATA)) == 2


def test_groups_are_listed_by_every_coordinator_once_it_has_loaded_them(broker: ScriptedBroker, kafka: Kafka) -> None:
    with scripted() as second:
        broker.nodes[2] = second.endpoint
        broker.answer(ApiKey.LIST_GROUPS, groups_listed(("b", "Empty", "Classic")))
        loading = groups_listed(code=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        second.answer(ApiKey.LIST_GROUPS, loading, groups_listed(("a", "Empty", "Classic")))
        assert [group.group_id for group in list_groups(kafka)] == ["a", "b"]


# --- what is refused is not taken for nothing


def test_offsets_that_are_not_told_do_not_read_as_none(broker: ScriptedBroker, kafka: Kafka) -> None:
    loading = offsets_committed({}, code=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
    broker.answer(ApiKey.OFFSET_FETCH, loading, offsets_committed({T0: (5, 0)}))
    assert stable_offsets(kafka, ["g"], [T0, T1]) == {"g": {T0: CommittedOffset("t", 0, 5)}}
    for refused in (
        offsets_committed({}, code=ErrorCode.GROUP_AUTHORIZATION_FAILED),
        offsets_committed({T0: (5, 0), T1: (-1, ErrorCode.TOPIC_AUTHORIZATION_FAILED)}),
    ):
        broker.answer(ApiKey.OFFSET_FETCH, refused)
        with pytest.raises(KafkaRefusedError, match=r"group 'g': .*_AUTHORIZATION_FAILED"):
            stable_offsets(kafka, ["g"], [T0, T1])


def test_a_topic_that_may_not_be_described_does_not_read_as_a_missing_one(broker: ScriptedBroker, kafka: Kafka) -> None:
    broker.answer(ApiKey.DESCRIBE_CONFIGS, settings_of())
    broker.topics["secret"] = 1
    assert list(topic_definitions(kafka, ["t", "gone"])) == ["t"]
    broker.topic_codes["secret"] = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    with pytest.raises(KafkaRefusedError, match="topic 'secret': TOPIC_AUTHORIZATION_FAILED"):
        topic_definitions(kafka, ["t", "secret"])


def test_the_settings_of_many_topics_are_asked_for_in_several_requests(broker: ScriptedBroker, kafka: Kafka) -> None:
    response = APIS[ApiKey.DESCRIBE_CONFIGS].response

    def settings(request: Any) -> Any:
        named = {"error_code": 0, "error_message": None, "resource_type": 2, "configs": []}
        results = [
            response.DescribeConfigsResult(resource_name=asked.resource_name, **named) for asked in request.resources
        ]
        return response(throttle_time_ms=0, results=results)

    names = [f"t{number:03}" for number in range(501)]
    broker.topics = dict.fromkeys(names, 1)
    broker.answer(ApiKey.DESCRIBE_CONFIGS, settings)
    assert list(topic_definitions(kafka, names)) == names
    assert [len(seen.message.resources) for seen in broker.requests(ApiKey.DESCRIBE_CONFIGS)] == [500, 1]


def test_a_prefixed_acl_is_not_sent_to_a_broker_that_knows_no_patterns() -> None:
    """It would read it as one for the resource of that very name."""
    keys = (ApiKey.CREATE_ACLS, ApiKey.DESCRIBE_ACLS, ApiKey.DELETE_ACLS)
    with scripted(versions=dict.fromkeys(keys, (0, 0))) as older:
        kafka = {"bootstrap.servers": older.bootstrap_servers}
        for call in (lambda: add_acls(kafka, [READ]), lambda: list_acls(kafka), lambda: remove_acls(kafka, EVERY_ACL)):
            with pytest.raises(KafkaRefusedError, match="needed is 1 to 3"):
                call()
        assert not any(older.requests(key) for key in keys)


@pytest.mark.parametrize("start", ["begin", "", None, 5.0])
def test_a_place_that_there_is_not_moves_no_offset(broker: ScriptedBroker, kafka: Kafka, start: Any) -> None:
    with pytest.raises(InputError, match=f"{start!r}: use beginning, end, an offset or a time"):
        reset_offsets(kafka, "g", "t", start)
    assert not broker.requests(ApiKey.OFFSET_COMMIT)


def test_fewer_records_than_none_are_not_asked_for(broker: ScriptedBroker, kafka: Kafka) -> None:
    with pytest.raises(InputError, match="limit -1: use 0 or more"):
        list(read_records(kafka, "t", limit=-1))
    assert not broker.seen
