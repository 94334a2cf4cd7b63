"""Metadata and CreateTopics: what exists, what may be made, and how every refusal is worded."""

import uuid
from pathlib import Path

import pytest

from dualwrite.broker.embedded import EmbeddedBroker
from dualwrite.wire.apis import ApiKey, CreateTopicsRequest, MetadataRequest
from dualwrite.wire.error_codes import ErrorCode
from tests.support.forked import ForkedBroker
from tests.support.requests.calls import (
    ask_for_topics,
    batch,
    configs,
    metadata,
    new_topic,
    produce,
    read_all,
    topic_id,
    unique,
    wanted_topic,
)
from tests.support.requests.raw_client import RawClient
from tests.support.waiting import PATIENCE_SECONDS

# --- Metadata


@pytest.mark.parametrize("version", range(14))
def test_metadata_describes_a_topic_in_every_version(
    client: RawClient, shared_broker: EmbeddedBroker, version: int
) -> None:
    name = new_topic(client, partitions=3)
    answer = metadata(client, name, version=version)
    (node,) = answer.brokers
    assert f"{node.host}:{node.port}" == shared_broker.bootstrap_servers
    (topic,) = answer.topics
    assert (topic.name, topic.error_code, topic.is_internal) == (name, ErrorCode.NONE, False)
    assert sorted(entry.partition_index for entry in topic.partitions) == [0, 1, 2]
    for entry in topic.partitions:
        assert (entry.error_code, entry.leader_id) == (ErrorCode.NONE, 0)
        assert entry.replica_nodes == entry.isr_nodes == [0]
    if version >= 1:
        assert answer.controller_id == 0
    if version >= 2:
        assert len(answer.cluster_id) == 32
    if version >= 10:
        assert topic.topic_id is not None


@pytest.mark.parametrize(("version", "everything"), [(0, []), (1, None), (9, None), (13, None)])
def test_no_list_of_topics_means_all_of_them(client: RawClient, version: int, everything: list[str] | None) -> None:
    names = {new_topic(client) for _ in range(2)}
    answer = client.ask(MetadataRequest(topics=everything, allow_auto_topic_creation=False), version)
    assert names <= {topic.name for topic in answer.topics}


@pytest.mark.parametrize("version", [1, 13])
def test_an_empty_list_of_topics_means_none(client: RawClient, version: int) -> None:
    new_topic(client)
    assert metadata(client, version=version).topics == []


@pytest.mark.parametrize("version", [10, 12, 13])
def test_a_topic_is_found_by_its_id(client: RawClient, version: int) -> None:
    name = new_topic(client)
    wanted = MetadataRequest.MetadataRequestTopic(topic_id=topic_id(client, name), name=None)
    (topic,) = client.ask(MetadataRequest(topics=[wanted]), version).topics
    assert (topic.name, topic.error_code) == (name, ErrorCode.NONE)


def test_an_unknown_id_is_refused(client: RawClient) -> None:
    wanted = MetadataRequest.MetadataRequestTopic(topic_id=uuid.UUID(int=7), name=None)
    (topic,) = client.ask(MetadataRequest(topics=[wanted]), 12).topics
    assert topic.error_code == ErrorCode.UNKNOWN_TOPIC_ID


@pytest.mark.parametrize("version", [4, 8, 13])
def test_a_missing_topic_is_made_only_if_the_request_allows_it(client: RawClient, version: int) -> None:
    name = unique("missing")
    (refused,) = metadata(client, name, version=version).topics
    assert refused.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    (made,) = metadata(client, name, version=version, create=True).topics
    assert (made.error_code, len(made.partitions)) == (ErrorCode.NONE, 1)
    assert produce(client, name, batch([b"v"])).error_code == ErrorCode.NONE


@pytest.mark.parametrize("version", [0, 3])
def test_old_clients_have_no_choice_about_creation(client: RawClient, version: int) -> None:
    (made,) = metadata(client, unique("old"), version=version).topics
    assert made.error_code == ErrorCode.NONE


@pytest.mark.parametrize("name", ["", ".", "..", "with space", "ü", "x" * 250, "__cluster_metadata"])
def test_a_topic_with_an_illegal_name_is_not_made_on_demand(client: RawClient, name: str) -> None:
    (refused,) = metadata(client, name, create=True).topics
    assert refused.error_code == ErrorCode.INVALID_TOPIC_EXCEPTION


def test_no_topic_is_created_on_demand_if_the_broker_forbids_it(tmp_path: Path) -> None:
    settings = {"auto.create.topics.enable": "false", "num.partitions": "4"}
    with ForkedBroker(tmp_path, config=settings) as broker, RawClient(broker.bootstrap_servers) as client:
        for version in (3, 12):
            (refused,) = metadata(client, "t", version=version, create=True).topics
            assert refused.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        (made,) = ask_for_topics(client, wanted_topic("t", partitions=-1))
        assert (made.error_code, made.num_partitions) == (ErrorCode.NONE, 4)


# --- CreateTopics


@pytest.mark.parametrize("version", range(2, 8))
def test_a_topic_is_made_in_every_version(client: RawClient, version: int) -> None:
    name = unique("made")
    (result,) = ask_for_topics(client, wanted_topic(name, 2), version=version)
    assert (result.name, result.error_code, result.error_message) == (name, ErrorCode.NONE, None)
    (topic,) = metadata(client, name).topics
    assert len(topic.partitions) == 2
    if version >= 5:
        assert (result.num_partitions, result.replication_factor) == (2, 1)
    if version >= 7:
        assert result.topic_id == topic.topic_id


REFUSALS = {
    "no name": (wanted_topic(""), ErrorCode.INVALID_TOPIC_EXCEPTION, "1 to 249"),
    "a dot": (wanted_topic("."), ErrorCode.INVALID_TOPIC_EXCEPTION, "1 to 249"),
    "a slash": (wanted_topic("a/b"), ErrorCode.INVALID_TOPIC_EXCEPTION, "1 to 249"),
    "250 characters": (wanted_topic("x" * 250), ErrorCode.INVALID_TOPIC_EXCEPTION, "1 to 249"),
    "a trailing newline": (wanted_topic("topic\n"), ErrorCode.INVALID_TOPIC_EXCEPTION, "1 to 249"),
    "the journal's": (wanted_topic("__cluster_metadata"), ErrorCode.INVALID_REQUEST, "prohibited"),
    "Kafka's": (wanted_topic("__transaction_state"), ErrorCode.TOPIC_ALREADY_EXISTS, "exists"),
    "the offsets'": (wanted_topic("__consumer_offsets"), ErrorCode.TOPIC_ALREADY_EXISTS, "exists"),
    "no partitions": (wanted_topic("r", 0), ErrorCode.INVALID_PARTITIONS, "1 to 10000"),
    "negative partitions": (wanted_topic("r", -2), ErrorCode.INVALID_PARTITIONS, "1 to 10000"),
    "too many partitions": (wanted_topic("r", 10001), ErrorCode.INVALID_PARTITIONS, "1 to 10000"),
    "two replicas": (wanted_topic("r", 1, 2), ErrorCode.INVALID_REPLICATION_FACTOR, "replication factor 1"),
    "no replica": (wanted_topic("r", 1, 0), ErrorCode.INVALID_REPLICATION_FACTOR, "replication factor 1"),
    "assignments": (
        wanted_topic(
            "r",
            -1,
            -1,
            assignments=[
                CreateTopicsRequest.CreatableTopic.CreatableReplicaAssignment(partition_index=0, broker_ids=[1])
            ],
        ),
        ErrorCode.INVALID_REPLICA_ASSIGNMENT,
        "the one node",
    ),
}


@pytest.mark.parametrize(("topic", "error", "words"), REFUSALS.values(), ids=REFUSALS.keys())
def test_a_topic_is_refused_with_a_reason(client: RawClient, topic: object, error: ErrorCode, words: str) -> None:
    (result,) = ask_for_topics(client, topic)
    assert result.error_code == error
    assert words in result.error_message


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("cleanup.policy", "squeeze"),
        ("compression.type", "brotli"),
        ("min.insync.replicas", "2"),
        ("max.message.bytes", "-1"),
        ("max.message.bytes", "many"),
        ("max.message.bytes", "99999999999"),
        ("max.message.bytes", "9" * 5000),
        ("max.message.bytes", None),
        ("segment.bytes", "1024"),
        ("no.such.setting", "1"),
    ],
)
def test_a_setting_that_would_not_be_honoured_is_refused(client: RawClient, key: str, value: str | None) -> None:
    name = unique("setting")
    (result,) = ask_for_topics(client, wanted_topic(name, configs=configs({key: value})))
    assert (result.error_code, key in result.error_message) == (ErrorCode.INVALID_CONFIG, True)
    assert metadata(client, name).topics[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


@pytest.mark.parametrize("version", [5, 7])
def test_the_answer_has_the_effective_settings_of_a_topic(client: RawClient, version: int) -> None:
    wanted = {"max.message.bytes": "5000", "cleanup.policy": "delete", "segment.bytes": "1048576"}
    (result,) = ask_for_topics(client, wanted_topic(unique("set"), configs=configs(dict(wanted))), version=version)
    answered = {entry.name: entry for entry in result.configs}
    assert {name: entry.value for name, entry in answered.items() if entry.config_source == 1} == wanted
    assert (answered["retention.ms"].value, answered["retention.ms"].config_source) == ("604800000", 5)


def test_a_topic_can_be_assigned_to_the_one_node(client: RawClient) -> None:
    assignment = CreateTopicsRequest.CreatableTopic.CreatableReplicaAssignment
    assignments = [assignment(partition_index=index, broker_ids=[0]) for index in (1, 0)]
    (result,) = ask_for_topics(client, wanted_topic(unique("assigned"), -1, -1, assignments=assignments))
    assert (result.error_code, result.num_partitions) == (ErrorCode.NONE, 2)


def test_a_topic_is_not_made_twice(client: RawClient) -> None:
    name = new_topic(client)
    (result,) = ask_for_topics(client, wanted_topic(name, 5))
    assert result.error_code == ErrorCode.TOPIC_ALREADY_EXISTS
    assert len(metadata(client, name).topics[0].partitions) == 1


def test_a_topic_that_occurs_twice_in_a_request_is_refused_and_the_others_are_made(client: RawClient) -> None:
    twice, once = unique("twice"), unique("once")
    results = ask_for_topics(client, wanted_topic(twice), wanted_topic(once), wanted_topic(twice, 3))
    assert {result.name: result.error_code for result in results} == {
        twice: ErrorCode.INVALID_REQUEST,
        once: ErrorCode.NONE,
    }
    assert metadata(client, twice).topics[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_validation_alone_makes_nothing(client: RawClient) -> None:
    good, bad = unique("valid"), unique("invalid")
    results = ask_for_topics(client, wanted_topic(good, 3), wanted_topic(bad, 0), validate_only=True)
    assert [result.error_code for result in results] == [ErrorCode.NONE, ErrorCode.INVALID_PARTITIONS]
    assert results[0].num_partitions == 3
    assert metadata(client, good).topics[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert ask_for_topics(client, wanted_topic(good, 3))[0].error_code == ErrorCode.NONE


def test_topics_and_their_ids_survive_a_kill(broker: EmbeddedBroker) -> None:
    with RawClient(broker.bootstrap_servers) as client:
        name = new_topic(client, partitions=2, max_message_bytes="200")
        before = topic_id(client, name)
        produce(client, name, batch([b"v"]), partition=1)
        cluster = metadata(client).cluster_id
    broker.kill()
    broker.start()
    with RawClient(broker.bootstrap_servers) as client:
        assert (metadata(client).cluster_id, topic_id(client, name)) == (cluster, before)
        assert read_all(client, name, partition=1) == [b"v"]
        assert produce(client, name, batch([b"x" * 200])).error_code == ErrorCode.MESSAGE_TOO_LARGE
        assert ask_for_topics(client, wanted_topic(name))[0].error_code == ErrorCode.TOPIC_ALREADY_EXISTS


@pytest.mark.slow
def test_other_clients_are_served_during_a_request_of_many_topics(broker: EmbeddedBroker) -> None:
    with RawClient(broker.bootstrap_servers) as client, RawClient(broker.bootstrap_servers) as bystander:
        metadata(bystander)
        topics = [wanted_topic(f"many-{number}") for number in range(3000)]
        correlation = client.send(CreateTopicsRequest(topics=topics, timeout_ms=1000, validate_only=True), 7)
        metadata(bystander)
        metadata(bystander)
        client.give_up_after(0.0)
        with pytest.raises(BlockingIOError):
            client.receive_frame()
        client.give_up_after(PATIENCE_SECONDS)
        results = client.receive(ApiKey.CREATE_TOPICS, 7, correlation).topics
        assert [(result.name, result.error_code) for result in results] == [(topic.name, 0) for topic in topics]
