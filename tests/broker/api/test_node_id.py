"""A node whose id is not 0: every answer has its id, clients work, and its settings outlive another id."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, ConfigResource, NewPartitions, NewTopic

from dualwrite.broker.core.topic_changes import ConfigOperation
from dualwrite.broker.embedded import EmbeddedBroker
from dualwrite.wire import apis
from dualwrite.wire.apis import Message
from dualwrite.wire.error_codes import ErrorCode
from tests.support.forked import ForkedBroker
from tests.support.peer_clients.kafka_helpers import PATIENCE
from tests.support.requests.admin_calls import BROKER, change, config, grow
from tests.support.requests.calls import ask_for_topics, metadata, new_topic, unique, wanted_topic
from tests.support.requests.raw_client import RawClient

NODE = 7
FROM_NODE = 2
SET = ConfigOperation.SET


@pytest.fixture(scope="module")
def shared_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedBroker]:
    with ForkedBroker(tmp_path_factory.mktemp("broker"), config={"node.id": str(NODE)}) as running:
        yield running


def ids_in(value: object, name: str = "") -> set[int]:
    """The ids of nodes in an answer, by the names of its fields."""
    if hasattr(value, "to_dict"):  # a message, or a part of one
        return ids_in(value.to_dict())
    if isinstance(value, dict):
        return {found for field, part in value.items() for found in ids_in(part, field)}
    if isinstance(value, list):
        return {found for entry in value for found in ids_in(entry, name)}
    named = ("node_id", "broker_id", "leader_id", "controller_id", "replica_id", "replica_nodes", "isr_nodes")
    return {value} if name in named and isinstance(value, int) else set()


def answers(client: RawClient) -> Iterator[tuple[str, Message]]:
    """The answers that name nodes, each with the name of its API."""
    topic = new_topic(client, partitions=2)
    yield "Metadata", metadata(client, topic)
    yield "DescribeCluster", client.ask(apis.DescribeClusterRequest(endpoint_type=1), 2)
    kind = apis.DescribeTopicPartitionsRequest
    asked = kind(topics=[kind.TopicRequest(name=topic)], response_partition_limit=9, cursor=None)
    yield "DescribeTopicPartitions", client.ask(asked, 0)
    for key_type in (0, 1):
        asked = apis.FindCoordinatorRequest(key_type=key_type, coordinator_keys=["k"])
        yield "FindCoordinator", client.ask(asked, 6).coordinators[0]
        yield "FindCoordinator v3", client.ask(apis.FindCoordinatorRequest(key_type=key_type, key="k"), 3)
    quorum = apis.DescribeQuorumRequest.TopicData
    own = quorum(topic_name="__cluster_metadata", partitions=[quorum.PartitionData(partition_index=0)])
    yield "DescribeQuorum", client.ask(apis.DescribeQuorumRequest(topics=[own]), 2)


def test_every_answer_names_the_node_by_its_id(client: RawClient) -> None:
    for api, answer in answers(client):
        assert ids_in(answer) == {NODE}, api
    resources = client.ask(apis.ListConfigResourcesRequest(resource_types=[BROKER]), 1).config_resources
    assert [entry.resource_name for entry in resources] == [str(NODE)]
    cluster_id = metadata(client).cluster_id
    for node, error in ((NODE, ErrorCode.NONE), (0, ErrorCode.REBOOTSTRAP_REQUIRED)):
        asked = apis.ApiVersionsRequest(
            client_software_name="t", client_software_version="1", cluster_id=cluster_id, node_id=node
        )
        assert client.ask(asked, 5).error_code == error


@pytest.mark.parametrize(("node", "error"), [(NODE, ErrorCode.NONE), (0, ErrorCode.INVALID_REPLICA_ASSIGNMENT)])
def test_replicas_are_assigned_to_the_node(client: RawClient, node: int, error: ErrorCode) -> None:
    name = unique("topic")
    wanted = wanted_topic(name, partitions=-1, replication=-1)
    wanted.assignments = [
        apis.CreateTopicsRequest.CreatableTopic.CreatableReplicaAssignment(partition_index=0, broker_ids=[node])
    ]
    (created,) = ask_for_topics(client, wanted)
    assert created.error_code == error
    topic = new_topic(client)
    assert grow(client, topic, 2, [[node]]).error == error
    kind = apis.AlterPartitionReassignmentsRequest.ReassignableTopic
    topics = [kind(name=topic, partitions=[kind.ReassignablePartition(partition_index=0, replicas=[node])])]
    answer = client.ask(apis.AlterPartitionReassignmentsRequest(timeout_ms=1000, topics=topics), 1)
    assert answer.responses[0].partitions[0].error_code == error


def test_another_node_is_refused_by_its_id(client: RawClient) -> None:
    refused = change(client, BROKER, "0", ("log.retention.ms", SET, "1"))
    assert refused == (ErrorCode.INVALID_REQUEST, f"Unexpected broker id, expected {NODE}, but received 0")
    for node, error in ((NODE, ErrorCode.INVALID_REQUEST), (0, ErrorCode.BROKER_ID_NOT_REGISTERED)):
        assert client.ask(apis.UnregisterBrokerRequest(broker_id=node), 0).error_code == error


@pytest.mark.slow
def test_clients_work_with_it(shared_broker: EmbeddedBroker) -> None:
    servers, topic = {"bootstrap.servers": shared_broker.bootstrap_servers}, unique("topic")
    admin = AdminClient(servers)
    admin.create_topics([NewTopic(topic, 1, replica_assignment=[[NODE]])])[topic].result(PATIENCE)
    admin.create_partitions([NewPartitions(topic, 2, replica_assignment=[[NODE]])])[topic].result(PATIENCE)
    (described,) = admin.describe_configs([ConfigResource(ConfigResource.Type.BROKER, str(NODE))]).values()
    assert {described.result(PATIENCE)[name].value for name in ("node.id", "broker.id")} == {str(NODE)}
    producer = Producer({**servers, "transactional.id": unique("tx")})
    producer.init_transactions(PATIENCE)
    producer.begin_transaction()
    producer.produce(topic, b"v", partition=1)
    producer.commit_transaction(PATIENCE)
    consumer = Consumer({**servers, "group.id": unique("group"), "auto.offset.reset": "earliest"})
    consumer.subscribe([topic])
    (message,) = consumer.consume(1, PATIENCE)
    assert (message.error(), message.value()) == (None, b"v")
    consumer.commit(asynchronous=False)
    consumer.close()


def test_the_nodes_settings_and_topics_stay_when_its_id_changes(tmp_path: Path) -> None:
    with ForkedBroker(tmp_path, config={"node.id": "7"}) as broker, RawClient(broker.bootstrap_servers) as client:
        topic = new_topic(client, partitions=2)
        assert change(client, BROKER, "7", ("log.retention.ms", SET, "12345")).error == ErrorCode.NONE
    with ForkedBroker(tmp_path, config={"broker.id": "9"}) as broker, RawClient(broker.bootstrap_servers) as client:
        assert config(client, BROKER, "9", "log.retention.ms") == ("12345", FROM_NODE)
        assert ids_in(metadata(client, topic)) == {9}
