"""Requests with very many names: others are served meanwhile, and a name that occurs again is answered once."""

from collections.abc import Callable
from uuid import UUID

import pytest

from dualwrite.broker.embedded import EmbeddedBroker
from dualwrite.wire.apis import (
    AddPartitionsToTxnRequest,
    AlterClientQuotasRequest,
    AlterPartitionReassignmentsRequest,
    AlterReplicaLogDirsRequest,
    CreatePartitionsRequest,
    DeleteTopicsRequest,
    DescribeConfigsRequest,
    DescribeGroupsRequest,
    DescribeProducersRequest,
    DescribeQuorumRequest,
    DescribeTransactionsRequest,
    ElectLeadersRequest,
    FindCoordinatorRequest,
    IncrementalAlterConfigsRequest,
    ListOffsetsRequest,
    Message,
    MetadataRequest,
    OffsetFetchRequest,
)
from tests.support.requests.calls import metadata, new_topic
from tests.support.requests.raw_client import RawClient, key_of
from tests.support.waiting import PATIENCE_SECONDS

MANY = 40_000
NAMES = [f"n{number:05}" for number in range(MANY)]


def resources(kind: type, names: list[str], **fields: object) -> list[Message]:
    return [kind(resource_type=2, resource_name=name, **fields) for name in names]


def list_offsets() -> Message:
    entry = ListOffsetsRequest.ListOffsetsTopic.ListOffsetsPartition
    partitions = [entry(partition_index=index, current_leader_epoch=-1, timestamp=-1) for index in range(MANY)]
    topic = ListOffsetsRequest.ListOffsetsTopic(name="none", partitions=partitions)
    return ListOffsetsRequest(replica_id=-1, isolation_level=0, topics=[topic])


def add_partitions() -> Message:
    topic = AddPartitionsToTxnRequest.AddPartitionsToTxnTransaction.AddPartitionsToTxnTopic
    return AddPartitionsToTxnRequest(
        v3_and_below_transactional_id="t",
        v3_and_below_producer_id=1,
        v3_and_below_producer_epoch=0,
        v3_and_below_topics=[topic(name="none", partitions=list(range(MANY)))],
    )


def create_partitions() -> Message:
    topics = [CreatePartitionsRequest.CreatePartitionsTopic(name=name, count=2, assignments=None) for name in NAMES]
    return CreatePartitionsRequest(topics=topics, timeout_ms=1000, validate_only=False)


def alter_configs() -> Message:
    entries = resources(IncrementalAlterConfigsRequest.AlterConfigsResource, NAMES, configs=[])
    return IncrementalAlterConfigsRequest(resources=entries, validate_only=False)


def describe_configs(names: list[str]) -> Message:
    entries = resources(DescribeConfigsRequest.DescribeConfigsResource, names, configuration_keys=None)
    return DescribeConfigsRequest(resources=entries, include_synonyms=True, include_documentation=True)


def offset_fetch() -> Message:
    group = OffsetFetchRequest.OffsetFetchRequestGroup
    topics = [group.OffsetFetchRequestTopics(name="none", partition_indexes=list(range(MANY)))]
    groups = [group(group_id="g", member_id=None, member_epoch=-1, topics=topics)]
    return OffsetFetchRequest(groups=groups, require_stable=False)


def describe_producers(indexes: list[int], topic: str = "none") -> Message:
    entry = DescribeProducersRequest.TopicRequest(name=topic, partition_indexes=indexes)
    return DescribeProducersRequest(topics=[entry])


def elect_leaders() -> Message:
    topic = ElectLeadersRequest.TopicPartitions(topic="none", partitions=list(range(MANY)))
    return ElectLeadersRequest(election_type=0, topic_partitions=[topic], timeout_ms=1000)


def reassign() -> Message:
    kind = AlterPartitionReassignmentsRequest.ReassignableTopic
    partitions = [kind.ReassignablePartition(partition_index=index, replicas=[0]) for index in range(MANY)]
    return AlterPartitionReassignmentsRequest(timeout_ms=1000, topics=[kind(name="none", partitions=partitions)])


def move() -> Message:
    kind = AlterReplicaLogDirsRequest.AlterReplicaLogDir
    topic = kind.AlterReplicaLogDirTopic(name="none", partitions=list(range(MANY)))
    return AlterReplicaLogDirsRequest(dirs=[kind(path="/nowhere", topics=[topic])])


def describe_quorum() -> Message:
    kind = DescribeQuorumRequest.TopicData
    partitions = [kind.PartitionData(partition_index=index) for index in range(MANY)]
    return DescribeQuorumRequest(topics=[kind(topic_name="none", partitions=partitions)])


def alter_quotas() -> Message:
    kind = AlterClientQuotasRequest.EntryData
    operation = kind.OpData(key="producer_byte_rate", value=1.0, remove=False)
    entries = [
        kind(entity=[kind.EntityData(entity_type="user", entity_name=n)], ops=[operation]) for n in NAMES[:20_000]
    ]
    return AlterClientQuotasRequest(entries=entries, validate_only=True)


REQUESTS: dict[str, tuple[int, Callable[[], Message]]] = {
    "AddPartitionsToTxn": (3, add_partitions),
    "AlterClientQuotas": (1, alter_quotas),
    "AlterPartitionReassignments": (1, reassign),
    "AlterReplicaLogDirs": (2, move),
    "CreatePartitions": (3, create_partitions),
    "DeleteTopics": (5, lambda: DeleteTopicsRequest(topic_names=NAMES, timeout_ms=1000)),
    "DescribeConfigs": (4, lambda: describe_configs(NAMES)),
    "DescribeGroups": (5, lambda: DescribeGroupsRequest(groups=NAMES, include_authorized_operations=False)),
    "DescribeProducers": (0, lambda: describe_producers(list(range(MANY)))),
    "DescribeQuorum": (2, describe_quorum),
    "ElectLeaders": (2, elect_leaders),
    "DescribeTransactions": (0, lambda: DescribeTransactionsRequest(transactional_ids=NAMES)),
    "FindCoordinator": (6, lambda: FindCoordinatorRequest(key_type=0, coordinator_keys=NAMES)),
    "IncrementalAlterConfigs": (1, alter_configs),
    "ListOffsets": (11, list_offsets),
    "OffsetFetch": (9, offset_fetch),
}


ALWAYS_TRIED = {"CreatePartitions", "DeleteTopics", "OffsetFetch"}


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [pytest.param(each, marks=[] if each in ALWAYS_TRIED else [pytest.mark.slow]) for each in REQUESTS]
)
def test_other_clients_are_served_during_a_request_of_many_names(shared_broker: EmbeddedBroker, name: str) -> None:
    version, build = REQUESTS[name]
    request = build()
    with RawClient(shared_broker.bootstrap_servers) as client, RawClient(shared_broker.bootstrap_servers) as bystander:
        metadata(bystander)
        correlation = client.send(request, version)
        for _ in range(5):
            metadata(bystander)
        client.give_up_after(0.0)
        with pytest.raises(BlockingIOError):
            client.receive_frame()
        client.give_up_after(PATIENCE_SECONDS)
        client.receive(key_of(request), version, correlation)


def test_a_name_that_occurs_again_is_answered_once(client: RawClient) -> None:
    topic, kind = new_topic(client), DescribeConfigsRequest.DescribeConfigsResource
    topics = [MetadataRequest.MetadataRequestTopic(name=topic, topic_id=UUID(int=0))] * 3
    request = MetadataRequest(topics=topics, allow_auto_topic_creation=False, include_topic_authorized_operations=False)
    assert [entry.name for entry in client.ask(request, 13).topics] == [topic]
    assert [entry.resource_name for entry in client.ask(describe_configs([topic] * 3), 4).results] == [topic]
    several = [
        *resources(kind, [topic], configuration_keys=["retention.ms"]),
        *resources(kind, [topic], configuration_keys=["segment.bytes"]),
    ]
    asked = DescribeConfigsRequest(resources=several, include_synonyms=False, include_documentation=False)
    told = [[config.name for config in result.configs] for result in client.ask(asked, 4).results]
    assert told == [["retention.ms"], ["segment.bytes"]], "other settings of it are another question"
    groups = client.ask(DescribeGroupsRequest(groups=["g"] * 3, include_authorized_operations=False), 5).groups
    assert [group.group_id for group in groups] == ["g"]
    transactions = client.ask(DescribeTransactionsRequest(transactional_ids=["t"] * 3), 0).transaction_states
    assert [state.transactional_id for state in transactions] == ["t"]
    (producers,) = client.ask(describe_producers([0, 0, 0], topic), 0).topics
    assert [entry.partition_index for entry in producers.partitions] == [0]
