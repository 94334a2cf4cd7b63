"""Elections, reassignments, directories, features, quotas and the quorum, where there is one node.

tests/conformance compares the error codes with Apache Kafka's. Here: what the answers say, and that they are true.
"""

from pathlib import Path
from typing import Any

import pytest

from dualwrite.wire.apis import (
    AlterClientQuotasRequest,
    AlterPartitionReassignmentsRequest,
    AlterReplicaLogDirsRequest,
    DescribeLogDirsRequest,
    DescribeQuorumRequest,
    ElectLeadersRequest,
    Message,
    UnregisterBrokerRequest,
    UpdateFeaturesRequest,
)
from dualwrite.wire.error_codes import ErrorCode
from tests.support.forked import ForkedBroker
from tests.support.requests.calls import batch, metadata, new_topic, produce, read_all, unique
from tests.support.requests.raw_client import RawClient

QUORUM = DescribeQuorumRequest.TopicData(
    topic_name="__cluster_metadata", partitions=[DescribeQuorumRequest.TopicData.PartitionData(partition_index=0)]
)


# --- the quorum


def quorum(client: RawClient, version: int = 2) -> Message:
    (topic,) = client.ask(DescribeQuorumRequest(topics=[QUORUM]), version).topics
    (partition,) = topic.partitions
    return partition


def test_the_quorums_offset_is_that_of_the_brokers_journal(client: RawClient) -> None:
    before = quorum(client).high_watermark
    new_topic(client)
    after = quorum(client)
    (voter,) = after.current_voters
    assert after.high_watermark == voter.log_end_offset == before + 1
    assert after.leader_id == voter.replica_id == metadata(client).controller_id


def test_the_quorums_offset_survives_a_restart(tmp_path: Path) -> None:
    with ForkedBroker(tmp_path / "broker") as broker, RawClient(broker.bootstrap_servers) as client:
        new_topic(client)
        before = quorum(client).high_watermark
    with ForkedBroker(tmp_path / "broker") as broker, RawClient(broker.bootstrap_servers) as client:
        assert quorum(client).high_watermark == before > 0


def test_another_partition_has_no_quorum(client: RawClient) -> None:
    kind = DescribeQuorumRequest.TopicData
    both = [QUORUM, kind(topic_name="orders", partitions=[kind.PartitionData(partition_index=0)])]
    answer = client.ask(DescribeQuorumRequest(topics=both), 2)
    assert [(entry.error_code, entry.error_message) for topic in answer.topics for entry in topic.partitions] == [
        (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "the quorum is __cluster_metadata-0")
    ] * 2


# --- elections and reassignments


def test_an_election_names_what_is_missing(client: RawClient) -> None:
    missing = unique("topic")
    kind = ElectLeadersRequest.TopicPartitions
    request = ElectLeadersRequest(
        election_type=0, topic_partitions=[kind(topic=missing, partitions=[4])], timeout_ms=1000
    )
    (topic,) = client.ask(request, 2).replica_election_results
    assert topic.partition_result[0].error_message == f"there is no partition 4 of a topic '{missing}'"


def test_an_election_for_all_answers_every_topic_without_partitions(client: RawClient) -> None:
    name = new_topic(client)
    answer = client.ask(ElectLeadersRequest(election_type=1, topic_partitions=None, timeout_ms=1000), 2)
    topics = {topic.topic: topic.partition_result for topic in answer.replica_election_results}
    assert topics.keys() >= {name, "__consumer_offsets", "__transaction_state"}
    assert not any(topics.values())


def reassign(client: RawClient, name: str, replicas: list[int] | None, version: int = 1) -> tuple[int, str | None]:
    kind = AlterPartitionReassignmentsRequest.ReassignableTopic
    topics = [kind(name=name, partitions=[kind.ReassignablePartition(partition_index=0, replicas=replicas)])]
    answer = client.ask(AlterPartitionReassignmentsRequest(timeout_ms=1000, topics=topics), version)
    ((partition,),) = [topic.partitions for topic in answer.responses]
    return partition.error_code, partition.error_message


@pytest.mark.parametrize(
    ("replicas", "error", "words"),
    [
        ([0], ErrorCode.NONE, None),
        ([1], ErrorCode.INVALID_REPLICA_ASSIGNMENT, "the replicas of each partition can only be [0], the one node"),
        (None, ErrorCode.NO_REASSIGNMENT_IN_PROGRESS, "No partition reassignment is in progress."),
    ],
)
def test_a_reassignment_changes_nothing(
    client: RawClient, replicas: list[int] | None, error: ErrorCode, words: str | None
) -> None:
    name = new_topic(client)
    produce(client, name, batch([b"kept"]))
    assert reassign(client, name, replicas) == (error, words)
    assert read_all(client, name) == [b"kept"]
    (topic,) = metadata(client, name).topics
    assert [(entry.replica_nodes, entry.isr_nodes) for entry in topic.partitions] == [([0], [0])]


@pytest.mark.parametrize("allowed", [True, False])
def test_the_answer_repeats_whether_the_replication_factor_may_change(client: RawClient, allowed: bool) -> None:
    request = AlterPartitionReassignmentsRequest(timeout_ms=1000, topics=[], allow_replication_factor_change=allowed)
    assert client.ask(request, 1).allow_replication_factor_change is allowed


# --- directories


def move(client: RawClient, path: str, *names: str) -> list[int]:
    kind = AlterReplicaLogDirsRequest.AlterReplicaLogDir
    topics = [kind.AlterReplicaLogDirTopic(name=name, partitions=[0]) for name in names]
    answer = client.ask(AlterReplicaLogDirsRequest(dirs=[kind(path=path, topics=topics)]), 2)
    return [partition.error_code for topic in answer.results for partition in topic.partitions]


def test_the_one_directory_is_the_one_that_is_described(client: RawClient, tmp_path: Path) -> None:
    name, missing = new_topic(client), unique("topic")
    (described,) = client.ask(DescribeLogDirsRequest(topics=[]), 4).results
    assert move(client, described.log_dir, name, missing) == [ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    assert move(client, str(tmp_path), name) == [ErrorCode.LOG_DIR_NOT_FOUND]
    assert list(tmp_path.iterdir()) == []


# --- features


def update(client: RawClient, *updates: dict[str, Any], version: int = 2, validate_only: bool = False) -> Message:
    kind = UpdateFeaturesRequest.FeatureUpdateKey
    request = UpdateFeaturesRequest(
        timeout_ms=1000, feature_updates=[kind(**fields) for fields in updates], validate_only=validate_only
    )
    return client.ask(request, version)


SAME = {"feature": "transaction.version", "max_version_level": 2, "upgrade_type": 1}
METADATA_VERSION = {"feature": "metadata.version", "max_version_level": 25, "upgrade_type": 1}


@pytest.mark.parametrize("validate_only", [False, True])
def test_one_refused_feature_refuses_them_all(client: RawClient, validate_only: bool) -> None:
    answer = update(client, SAME, METADATA_VERSION, validate_only=validate_only)
    assert answer.error_code == ErrorCode.INVALID_UPDATE_VERSION
    assert "feature metadata.version. This broker does not support this feature" in answer.error_message
    assert update(client, SAME, validate_only=validate_only).error_code == ErrorCode.NONE


def test_version_0_of_the_request_is_understood(client: RawClient) -> None:
    same = {"feature": "transaction.version", "max_version_level": 2, "allow_downgrade": False}
    answer = update(client, same, version=0)
    assert answer.error_code == ErrorCode.NONE
    assert [(result.feature, result.error_code) for result in answer.results] == [("transaction.version", 0)]


def test_a_downgrade_says_that_the_level_stays(client: RawClient) -> None:
    answer = update(client, {"feature": "transaction.version", "max_version_level": 1, "upgrade_type": 2})
    assert "This broker is always at level 2" in answer.error_message


# --- quotas and brokers


def test_a_quota_is_refused_by_its_name_and_its_removal_is_done(client: RawClient) -> None:
    kind = AlterClientQuotasRequest.EntryData
    entity = [kind.EntityData(entity_type="user", entity_name=None)]
    removal = kind.OpData(key="request_percentage", value=0.0, remove=True)
    quota = kind.OpData(key="consumer_byte_rate", value=5.0, remove=False)
    entries = [kind(entity=entity, ops=[removal]), kind(entity=entity, ops=[removal, quota])]
    answer = client.ask(AlterClientQuotasRequest(entries=entries, validate_only=False), 1)
    assert [(entry.error_code, entry.error_message) for entry in answer.entries] == [
        (ErrorCode.NONE, None),
        (ErrorCode.INVALID_REQUEST, "this broker enforces no quotas: consumer_byte_rate"),
    ]
    assert [(part.entity_type, part.entity_name) for part in answer.entries[1].entity] == [("user", None)]


def test_the_one_node_does_not_leave_its_cluster(client: RawClient) -> None:
    answer = client.ask(UnregisterBrokerRequest(broker_id=0), 0)
    assert answer.error_code == ErrorCode.INVALID_REQUEST
    assert answer.error_message == "broker 0 is the one node of this cluster: stop it instead"
    assert [node.node_id for node in metadata(client).brokers] == [0]
