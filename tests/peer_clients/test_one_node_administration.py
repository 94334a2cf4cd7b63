"""The administrative clients of librdkafka and kafka-python, about elections, replicas, features and the quorum."""

from collections.abc import Iterator

import pytest
from confluent_kafka import ElectionType, TopicPartition
from confluent_kafka.admin import AdminClient
from kafka import TopicPartition as KafkaPythonPartition
from kafka import TopicPartitionReplica
from kafka.admin import KafkaAdminClient
from kafka.errors import (
    InvalidReplicationAssignmentError,
    InvalidUpdateVersionError,
    LogDirNotFoundError,
    NoError,
    NoReassignmentInProgressError,
)

from dualwrite.broker.embedded import EmbeddedBroker
from tests.support.forked import ForkedBroker
from tests.support.peer_clients.kafka_python_sockets import leaves_sockets
from tests.support.requests.calls import new_topic
from tests.support.requests.raw_client import RawClient
from tests.support.waiting import PATIENCE_SECONDS


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedBroker]:
    with ForkedBroker(tmp_path_factory.mktemp("broker")) as running:
        yield running


@pytest.fixture
def name(broker: EmbeddedBroker) -> str:
    """A topic of one partition."""
    with RawClient(broker.bootstrap_servers) as client:
        return new_topic(client)


@pytest.fixture
def kafka_python(broker: EmbeddedBroker) -> Iterator[KafkaAdminClient]:
    admin = KafkaAdminClient(bootstrap_servers=broker.bootstrap_servers)
    yield admin
    admin.close()


@pytest.mark.parametrize("kind", [ElectionType.PREFERRED, ElectionType.UNCLEAN])
def test_librdkafka_is_told_that_no_election_is_needed(broker: EmbeddedBroker, name: str, kind: ElectionType) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    asked = {TopicPartition(name, 0): "ELECTION_NOT_NEEDED", TopicPartition(name, 7): "UNKNOWN_TOPIC_OR_PART"}
    answer = admin.elect_leaders(kind, list(asked)).result(PATIENCE_SECONDS)
    assert {place.partition: error.name() for place, error in answer.items()} == {
        place.partition: error for place, error in asked.items()
    }
    assert admin.elect_leaders(kind).result(PATIENCE_SECONDS) == {}, "every partition has its leader"


@leaves_sockets
def test_kafka_python_is_told_that_no_election_is_needed(kafka_python: KafkaAdminClient, name: str) -> None:
    answer = kafka_python.elect_leaders(0, {name: [0]})
    assert [result.partition_result[0].error_code for result in answer.replica_election_results] == [84]
    kafka_python.elect_leaders(1)  # for all partitions; it raises if one is refused


@leaves_sockets
def test_kafka_python_reassigns_partitions_to_the_one_node_only(kafka_python: KafkaAdminClient, name: str) -> None:
    place = KafkaPythonPartition(name, 0)
    for replicas, error in (
        ([0], None),
        ([1], InvalidReplicationAssignmentError),
        (None, NoReassignmentInProgressError),
    ):
        assert kafka_python.alter_partition_reassignments({place: replicas}) == {place: error}
    assert kafka_python.list_partition_reassignments() == {}
    assert kafka_python.list_partition_reassignments([place]) == {}


@leaves_sockets
def test_kafka_python_moves_partitions_to_the_one_directory_only(kafka_python: KafkaAdminClient, name: str) -> None:
    (described,) = kafka_python.describe_log_dirs()
    (own,) = described["log_dirs"]
    replica = TopicPartitionReplica(name, 0, 0)
    assert kafka_python.alter_replica_log_dirs({replica: own["log_dir"]}) == {replica: NoError}
    assert kafka_python.alter_replica_log_dirs({replica: "/no/such/directory"}) == {replica: LogDirNotFoundError}


@leaves_sockets
def test_kafka_python_describes_the_quorum_of_one_voter(kafka_python: KafkaAdminClient) -> None:
    (topic,) = kafka_python.describe_metadata_quorum()["topics"]
    (partition,) = topic["partitions"]
    assert (topic["topic_name"], partition["leader_id"], partition["error"]) == ("__cluster_metadata", 0, None)
    assert [voter["replica_id"] for voter in partition["current_voters"]] == [0]


@leaves_sockets
def test_kafka_python_updates_no_feature(kafka_python: KafkaAdminClient) -> None:
    assert kafka_python.update_features({"transaction.version": 2}) == {"transaction.version": "OK"}
    with pytest.raises(InvalidUpdateVersionError):
        kafka_python.update_features({"transaction.version": (2, 1)}, validate_only=True)
