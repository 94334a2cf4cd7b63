"""One request of each API that asks for rights, about the resources of one :class:`RoundResources`."""

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple
from uuid import UUID

from dualwrite.broker.access.acls import AclOperation, ResourceType
from dualwrite.ids import ProducerIdentity
from dualwrite.wire import apis
from dualwrite.wire.apis import Message
from tests.support.requests import acl_calls, admin_calls, calls, group_calls, marker_calls, offset_calls
from tests.support.requests.raw_client import RawClient

_TOPIC, _BROKER, _GROUP = 2, 4, 32
_SET = 0
_RETENTION = ("retention.ms", _SET, "1000000")
_SESSION_TIMEOUT = ("consumer.session.timeout.ms", _SET, "50000")


class RoundResources(NamedTuple):
    """The resources of one round."""

    admin: RawClient
    topic: str
    topic_id: UUID
    new_topic: str
    """Does not exist, and begins with the topic's name."""
    group: str
    transactional_id: str
    producer: ProducerIdentity


class AskedRequest(NamedTuple):
    """A request and its version."""

    request: Message
    version: int


def _produce(resources: RoundResources) -> AskedRequest:
    return AskedRequest(calls.produce_request({(resources.topic, 0): calls.batch([b"v"])}), 9)


def _produce_by_id(resources: RoundResources) -> AskedRequest:
    records: dict[tuple[str, int], bytes | None] = {(resources.topic, 0): calls.batch([b"v"])}
    return AskedRequest(calls.produce_request(records, ids={resources.topic: resources.topic_id}), 13)


def _produce_in_transaction(resources: RoundResources) -> AskedRequest:
    records: dict[tuple[str, int], bytes | None] = {(resources.topic, 0): calls.tx_batch([b"v"], resources.producer)}
    return AskedRequest(calls.produce_request(records, resources.transactional_id), 12)


def _list_offsets(resources: RoundResources) -> AskedRequest:
    kind = apis.ListOffsetsRequest.ListOffsetsTopic
    partition = kind.ListOffsetsPartition(partition_index=0, current_leader_epoch=-1, timestamp=-1)
    topic = kind(name=resources.topic, partitions=[partition])
    return AskedRequest(apis.ListOffsetsRequest(replica_id=-1, isolation_level=0, topics=[topic]), 7)


def _metadata(
    resources: RoundResources, name: str | None, create: bool = False, topic_id: UUID | None = None
) -> AskedRequest:
    topic = apis.MetadataRequest.MetadataRequestTopic(name=name, topic_id=topic_id or UUID(int=0))
    request = apis.MetadataRequest(
        topics=[topic], allow_auto_topic_creation=create, include_topic_authorized_operations=True
    )
    return AskedRequest(request, 12)


def _offset_commit(resources: RoundResources) -> AskedRequest:
    return AskedRequest(offset_calls.commit_request(resources.admin, resources.group, {(resources.topic, 0): 1}), 9)


def _offset_fetch(resources: RoundResources, partitions: list[tuple[str, int]] | None, version: int) -> AskedRequest:
    return AskedRequest(offset_calls.fetch_request(resources.admin, {resources.group: partitions}, version), version)


def _txn_offset_commit(resources: RoundResources) -> AskedRequest:
    kind = apis.TxnOffsetCommitRequest.TxnOffsetCommitRequestTopic
    partition = kind.TxnOffsetCommitRequestPartition(
        partition_index=0, committed_offset=1, committed_leader_epoch=-1, committed_metadata=""
    )
    request = apis.TxnOffsetCommitRequest(
        transactional_id=resources.transactional_id,
        group_id=resources.group,
        producer_id=resources.producer.producer_id,
        producer_epoch=resources.producer.epoch,
        generation_id=-1,
        member_id="",
        topics=[kind(name=resources.topic, partitions=[partition])],
    )
    return AskedRequest(request, 5)


def _epoch(resources: RoundResources) -> AskedRequest:
    kind = apis.OffsetForLeaderEpochRequest.OffsetForLeaderTopic
    partition = kind.OffsetForLeaderPartition(partition=0, current_leader_epoch=-1, leader_epoch=0)
    request = apis.OffsetForLeaderEpochRequest(
        replica_id=-1, topics=[kind(topic=resources.topic, partitions=[partition])]
    )
    return AskedRequest(request, 4)


def _delete_records(resources: RoundResources) -> AskedRequest:
    kind = apis.DeleteRecordsRequest.DeleteRecordsTopic
    topic = kind(name=resources.topic, partitions=[kind.DeleteRecordsPartition(partition_index=0, offset=0)])
    return AskedRequest(apis.DeleteRecordsRequest(topics=[topic], timeout_ms=1000), 2)


def _init(resources: RoundResources, **more: object) -> AskedRequest:
    fields = {"transactional_id": resources.transactional_id, "transaction_timeout_ms": 60_000, **more}
    return AskedRequest(apis.InitProducerIdRequest(producer_id=-1, producer_epoch=-1, **fields), 6)


def _add_partitions(resources: RoundResources, several: bool) -> AskedRequest:
    topics = calls.added_topics([(resources.topic, 0)])
    identity = resources.producer
    if not several:
        request = apis.AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=resources.transactional_id,
            v3_and_below_producer_id=identity.producer_id,
            v3_and_below_producer_epoch=identity.epoch,
            v3_and_below_topics=topics,
        )
        return AskedRequest(request, 3)
    transaction = apis.AddPartitionsToTxnRequest.AddPartitionsToTxnTransaction(
        transactional_id=resources.transactional_id,
        producer_id=identity.producer_id,
        producer_epoch=identity.epoch,
        verify_only=True,
        topics=topics,
    )
    return AskedRequest(apis.AddPartitionsToTxnRequest(transactions=[transaction]), 4)


def _add_offsets(resources: RoundResources) -> AskedRequest:
    request = apis.AddOffsetsToTxnRequest(
        transactional_id=resources.transactional_id,
        producer_id=resources.producer.producer_id,
        producer_epoch=resources.producer.epoch,
        group_id=resources.group,
    )
    return AskedRequest(request, 4)


def _end(resources: RoundResources) -> AskedRequest:
    request = apis.EndTxnRequest(
        transactional_id=resources.transactional_id,
        producer_id=resources.producer.producer_id,
        producer_epoch=resources.producer.epoch,
        committed=False,
    )
    return AskedRequest(request, 4)


def _markers(resources: RoundResources) -> AskedRequest:
    marker = marker_calls.marker(ProducerIdentity(2**40, 0), (resources.topic, 0))
    return AskedRequest(apis.WriteTxnMarkersRequest(markers=[marker]), 1)


def _coordinator(kind: int, key: str) -> AskedRequest:
    return AskedRequest(apis.FindCoordinatorRequest(key_type=kind, coordinator_keys=[key]), 4)


def _create_topic(resources: RoundResources) -> AskedRequest:
    topics = [calls.wanted_topic(resources.new_topic)]
    return AskedRequest(apis.CreateTopicsRequest(topics=topics, timeout_ms=5000, validate_only=True), 7)


def _create_partitions(resources: RoundResources) -> AskedRequest:
    topic = apis.CreatePartitionsRequest.CreatePartitionsTopic(name=resources.topic, count=2, assignments=None)
    return AskedRequest(apis.CreatePartitionsRequest(topics=[topic], timeout_ms=5000, validate_only=True), 3)


def _delete_topic(resources: RoundResources, by_id: bool) -> AskedRequest:
    kind = apis.DeleteTopicsRequest.DeleteTopicState
    named = (
        {"name": None, "topic_id": resources.topic_id}
        if by_id
        else {"name": resources.new_topic, "topic_id": UUID(int=0)}
    )
    return AskedRequest(apis.DeleteTopicsRequest(topics=[kind(**named)], timeout_ms=5000), 6)


def _describe_configs(kind: int, name: str) -> AskedRequest:
    resource = apis.DescribeConfigsRequest.DescribeConfigsResource(
        resource_type=kind, resource_name=name, configuration_keys=["retention.ms"]
    )
    return AskedRequest(apis.DescribeConfigsRequest(resources=[resource]), 4)


def _alter_configs(resources: RoundResources) -> AskedRequest:
    kind = apis.AlterConfigsRequest.AlterConfigsResource
    entry = kind.AlterableConfig(name="retention.ms", value="1000000")
    resource = kind(resource_type=_TOPIC, resource_name=resources.topic, configs=[entry])
    return AskedRequest(apis.AlterConfigsRequest(resources=[resource], validate_only=True), 2)


def _offset_delete(resources: RoundResources) -> AskedRequest:
    kind = apis.OffsetDeleteRequest.OffsetDeleteRequestTopic
    topic = kind(name=resources.topic, partitions=[kind.OffsetDeleteRequestPartition(partition_index=0)])
    return AskedRequest(apis.OffsetDeleteRequest(group_id=resources.group, topics=[topic]), 0)


def _describe_producers(resources: RoundResources) -> AskedRequest:
    topic = apis.DescribeProducersRequest.TopicRequest(name=resources.topic, partition_indexes=[0])
    return AskedRequest(apis.DescribeProducersRequest(topics=[topic]), 0)


def _describe_partitions(resources: RoundResources, *names: str) -> AskedRequest:
    topics = [apis.DescribeTopicPartitionsRequest.TopicRequest(name=name) for name in names]
    return AskedRequest(
        apis.DescribeTopicPartitionsRequest(topics=topics, response_partition_limit=2000, cursor=None), 0
    )


def _elect_leaders(resources: RoundResources) -> AskedRequest:
    topic = apis.ElectLeadersRequest.TopicPartitions(topic=resources.topic, partitions=[0])
    return AskedRequest(apis.ElectLeadersRequest(election_type=0, topic_partitions=[topic], timeout_ms=9000), 2)


def _reassign(resources: RoundResources) -> AskedRequest:
    kind = apis.AlterPartitionReassignmentsRequest.ReassignableTopic
    partition = kind.ReassignablePartition(partition_index=0, replicas=None)
    topics = [kind(name=resources.topic, partitions=[partition])]
    return AskedRequest(apis.AlterPartitionReassignmentsRequest(timeout_ms=9000, topics=topics), 1)


def _move(resources: RoundResources) -> AskedRequest:
    kind = apis.AlterReplicaLogDirsRequest.AlterReplicaLogDir
    topics = [kind.AlterReplicaLogDirTopic(name=resources.topic, partitions=[0])]
    return AskedRequest(apis.AlterReplicaLogDirsRequest(dirs=[kind(path="/no/such/directory", topics=topics)]), 2)


def _describe_quorum(resources: RoundResources) -> AskedRequest:
    kind = apis.DescribeQuorumRequest.TopicData
    topics = [kind(topic_name="__cluster_metadata", partitions=[kind.PartitionData(partition_index=0)])]
    return AskedRequest(apis.DescribeQuorumRequest(topics=topics), 2)


def _update_features(resources: RoundResources) -> AskedRequest:
    update = apis.UpdateFeaturesRequest.FeatureUpdateKey(
        feature="transaction.version", max_version_level=2, upgrade_type=1
    )
    return AskedRequest(apis.UpdateFeaturesRequest(timeout_ms=9000, feature_updates=[update], validate_only=True), 2)


def _alter_quotas(resources: RoundResources) -> AskedRequest:
    kind = apis.AlterClientQuotasRequest.EntryData
    entity = kind.EntityData(entity_type="client-id", entity_name="app")
    removal = kind.OpData(key="producer_byte_rate", value=0.0, remove=True)
    return AskedRequest(apis.AlterClientQuotasRequest(entries=[kind(entity=[entity], ops=[removal])]), 1)


REQUESTS: dict[str, Callable[[RoundResources], AskedRequest]] = {
    "Produce": _produce,
    "Produce by id": _produce_by_id,
    "Fetch": lambda resources: AskedRequest(calls.fetch_request(resources.topic), 12),
    "Fetch by id": lambda resources: AskedRequest(calls.fetch_request(resources.topic, by_id=resources.topic_id), 13),
    "ListOffsets": _list_offsets,
    "Metadata": lambda resources: _metadata(resources, resources.topic),
    "Metadata by id": lambda resources: _metadata(resources, None, topic_id=resources.topic_id),
    "Metadata of a missing topic": lambda resources: _metadata(resources, resources.new_topic),
    "Metadata that creates a topic": lambda resources: _metadata(resources, f"{resources.topic}-created", create=True),
    "OffsetCommit": lambda resources: AskedRequest(
        offset_calls.commit_request(resources.admin, resources.group, {(resources.topic, 0): 1}), 9
    ),
    "OffsetFetch": lambda resources: AskedRequest(
        offset_calls.fetch_request(resources.admin, {resources.group: [(resources.topic, 0)]}, 9), 9
    ),
    "OffsetFetch of one group": lambda resources: AskedRequest(
        offset_calls.fetch_request(resources.admin, {resources.group: [(resources.topic, 0)]}, 7), 7
    ),
    "OffsetFetch of all topics": lambda resources: AskedRequest(
        offset_calls.fetch_request(resources.admin, {resources.group: None}, 9), 9
    ),
    "FindCoordinator of a group": lambda resources: _coordinator(0, resources.group),
    "FindCoordinator of a transaction": lambda resources: _coordinator(1, resources.transactional_id),
    "JoinGroup": lambda resources: AskedRequest(group_calls.join_request(f"{resources.group}-other", "unknown"), 9),
    "JoinGroup in the group": lambda resources: AskedRequest(group_calls.join_request(resources.group, "unknown"), 9),
    "SyncGroup": lambda resources: AskedRequest(group_calls.sync_request(resources.group, 1, "unknown"), 5),
    "Heartbeat": lambda resources: AskedRequest(
        apis.HeartbeatRequest(group_id=resources.group, generation_id=1, member_id="unknown"), 4
    ),
    "LeaveGroup": lambda resources: AskedRequest(
        apis.LeaveGroupRequest(
            group_id=resources.group, members=[apis.LeaveGroupRequest.MemberIdentity(member_id="unknown")]
        ),
        4,
    ),
    "DescribeGroups": lambda resources: AskedRequest(
        apis.DescribeGroupsRequest(groups=[resources.group], include_authorized_operations=True), 5
    ),
    "ConsumerGroupHeartbeat": lambda resources: AskedRequest(
        apis.ConsumerGroupHeartbeatRequest(
            group_id=f"{resources.group}-other",
            member_id="unknown",
            member_epoch=5,
            rebalance_timeout_ms=-1,
            subscribed_topic_names=[resources.topic],
        ),
        1,
    ),
    "ConsumerGroupDescribe": lambda resources: AskedRequest(
        apis.ConsumerGroupDescribeRequest(group_ids=[resources.group], include_authorized_operations=True), 1
    ),
    "ListGroups": lambda resources: AskedRequest(apis.ListGroupsRequest(), 4),
    "AddPartitionsToTxn": lambda resources: _add_partitions(resources, several=False),
    "AddPartitionsToTxn of a broker": lambda resources: _add_partitions(resources, several=True),
    "AddOffsetsToTxn": _add_offsets,
    "Produce in a transaction": _produce_in_transaction,
    "TxnOffsetCommit": _txn_offset_commit,
    "EndTxn": _end,
    "InitProducerId": _init,
    "InitProducerId with Enable2Pc": lambda resources: _init(resources, enable2_pc=True),
    "InitProducerId without an id": lambda resources: _init(resources, transactional_id=None),
    "WriteTxnMarkers": _markers,
    "DescribeTransactions": lambda resources: AskedRequest(
        apis.DescribeTransactionsRequest(transactional_ids=[resources.transactional_id]), 0
    ),
    "ListTransactions": lambda resources: AskedRequest(apis.ListTransactionsRequest(), 0),
    "DescribeProducers": _describe_producers,
    "OffsetForLeaderEpoch": _epoch,
    "DeleteRecords": _delete_records,
    "CreateTopics": _create_topic,
    "CreatePartitions": _create_partitions,
    "DescribeConfigs of the topic": lambda resources: _describe_configs(_TOPIC, resources.topic),
    "DescribeConfigs of the group": lambda resources: _describe_configs(_GROUP, resources.group),
    "DescribeConfigs of the broker": lambda resources: _describe_configs(_BROKER, ""),
    "AlterConfigs": _alter_configs,
    "IncrementalAlterConfigs of the topic": lambda resources: AskedRequest(
        admin_calls.alter_request({(_TOPIC, resources.topic): [_RETENTION]}, validate_only=True), 1
    ),
    "IncrementalAlterConfigs of the group": lambda resources: AskedRequest(
        admin_calls.alter_request({(_GROUP, resources.group): [_SESSION_TIMEOUT]}, validate_only=True), 1
    ),
    "IncrementalAlterConfigs of the broker": lambda resources: AskedRequest(
        admin_calls.alter_request({(_BROKER, ""): [("log.retention.ms", _SET, "1000000")]}, validate_only=True), 1
    ),
    "DescribeClientQuotas": lambda _: AskedRequest(apis.DescribeClientQuotasRequest(components=[], strict=False), 1),
    "AlterClientQuotas": _alter_quotas,
    "ElectLeaders": _elect_leaders,
    "ElectLeaders of all": lambda _: AskedRequest(
        apis.ElectLeadersRequest(election_type=0, topic_partitions=None, timeout_ms=9000), 2
    ),
    "AlterPartitionReassignments": _reassign,
    "ListPartitionReassignments": lambda _: AskedRequest(
        apis.ListPartitionReassignmentsRequest(timeout_ms=9000, topics=None), 0
    ),
    "AlterReplicaLogDirs": _move,
    "DescribeQuorum": _describe_quorum,
    "UpdateFeatures": _update_features,
    "UnregisterBroker": lambda _: AskedRequest(apis.UnregisterBrokerRequest(broker_id=7), 0),
    "DescribeLogDirs": lambda resources: AskedRequest(apis.DescribeLogDirsRequest(topics=[]), 4),
    "DescribeCluster": lambda resources: AskedRequest(
        apis.DescribeClusterRequest(include_cluster_authorized_operations=True, endpoint_type=1), 1
    ),
    "DescribeTopicPartitions": lambda resources: _describe_partitions(resources, resources.topic),
    "DescribeTopicPartitions of all": _describe_partitions,
    "ListConfigResources": lambda resources: AskedRequest(apis.ListConfigResourcesRequest(resource_types=[_TOPIC]), 1),
    "DescribeAcls": lambda _: AskedRequest(acl_calls.describe_request(acl_calls.EVERY_ACL), 3),
    "CreateAcls": lambda resources: AskedRequest(
        apis.CreateAclsRequest(
            creations=[
                acl_calls.creation(
                    acl_calls.acl(AclOperation.READ, ResourceType.TOPIC, resources.new_topic, host="203.0.113.1")
                )
            ]
        ),
        3,
    ),
    "DeleteAcls": lambda _: AskedRequest(acl_calls.delete_request(replace(acl_calls.EVERY_ACL, host="203.0.113.2")), 3),
    "OffsetDelete": _offset_delete,
    "DeleteGroups": lambda resources: AskedRequest(
        apis.DeleteGroupsRequest(groups_names=[f"{resources.group}-missing"]), 2
    ),
    "DeleteTopics": lambda resources: _delete_topic(resources, by_id=False),
    "DeleteTopics by id": lambda resources: _delete_topic(resources, by_id=True),
}
"""In the order in which they are sent: those that end or delete something come last."""
