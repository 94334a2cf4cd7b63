"""One request of each API that asks for rights, about the resources of one :class:`Place`."""

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

_TOPIC, _BROKER = 2, 4
_SET = 0
_RETENTION = ("retention.ms", _SET, "1000000")


class Place(NamedTuple):
    """The resources of one round."""

    admin: RawClient
    topic: str
    topic_id: UUID
    new_topic: str
    """Does not exist, and begins with the topic's name."""
    group: str
    transactional_id: str
    producer: ProducerIdentity


class Asked(NamedTuple):
    """A request and its version."""

    request: Message
    version: int


def _produce(place: Place) -> Asked:
    return Asked(calls.produce_request({(place.topic, 0): calls.batch([b"v"])}), 9)


def _produce_by_id(place: Place) -> Asked:
    records: dict[tuple[str, int], bytes | None] = {(place.topic, 0): calls.batch([b"v"])}
    return Asked(calls.produce_request(records, ids={place.topic: place.topic_id}), 13)


def _produce_in_transaction(place: Place) -> Asked:
    records: dict[tuple[str, int], bytes | None] = {(place.topic, 0): calls.tx_batch([b"v"], place.producer)}
    return Asked(calls.produce_request(records, place.transactional_id), 12)


def _list_offsets(place: Place) -> Asked:
    kind = apis.ListOffsetsRequest.ListOffsetsTopic
    partition = kind.ListOffsetsPartition(partition_index=0, current_leader_epoch=-1, timestamp=-1)
    topic = kind(name=place.topic, partitions=[partition])
    return Asked(apis.ListOffsetsRequest(replica_id=-1, isolation_level=0, topics=[topic]), 7)


def _metadata(place: Place, name: str | None, create: bool = False, topic_id: UUID | None = None) -> Asked:
    topic = apis.MetadataRequest.MetadataRequestTopic(name=name, topic_id=topic_id or UUID(int=0))
    request = apis.MetadataRequest(
        topics=[topic], allow_auto_topic_creation=create, include_topic_authorized_operations=True
    )
    return Asked(request, 12)


def _offset_commit(place: Place) -> Asked:
    return Asked(offset_calls.commit_request(place.admin, place.group, {(place.topic, 0): 1}), 9)


def _offset_fetch(place: Place, partitions: list[tuple[str, int]] | None, version: int) -> Asked:
    return Asked(offset_calls.fetch_request(place.admin, {place.group: partitions}, version), version)


def _txn_offset_commit(place: Place) -> Asked:
    kind = apis.TxnOffsetCommitRequest.TxnOffsetCommitRequestTopic
    partition = kind.TxnOffsetCommitRequestPartition(
        partition_index=0, committed_offset=1, committed_leader_epoch=-1, committed_metadata=""
    )
    request = apis.TxnOffsetCommitRequest(
        transactional_id=place.transactional_id,
        group_id=place.group,
        producer_id=place.producer.producer_id,
        producer_epoch=place.producer.epoch,
        generation_id=-1,
        member_id="",
        topics=[kind(name=place.topic, partitions=[partition])],
    )
    return Asked(request, 5)


def _epoch(place: Place) -> Asked:
    kind = apis.OffsetForLeaderEpochRequest.OffsetForLeaderTopic
    partition = kind.OffsetForLeaderPartition(partition=0, current_leader_epoch=-1, leader_epoch=0)
    request = apis.OffsetForLeaderEpochRequest(replica_id=-1, topics=[kind(topic=place.topic, partitions=[partition])])
    return Asked(request, 4)


def _delete_records(place: Place) -> Asked:
    kind = apis.DeleteRecordsRequest.DeleteRecordsTopic
    topic = kind(name=place.topic, partitions=[kind.DeleteRecordsPartition(partition_index=0, offset=0)])
    return Asked(apis.DeleteRecordsRequest(topics=[topic], timeout_ms=1000), 2)


def _init(place: Place, **more: object) -> Asked:
    fields = {"transactional_id": place.transactional_id, "transaction_timeout_ms": 60_000, **more}
    return Asked(apis.InitProducerIdRequest(producer_id=-1, producer_epoch=-1, **fields), 6)


def _add_partitions(place: Place, several: bool) -> Asked:
    topics = calls.added_topics([(place.topic, 0)])
    identity = place.producer
    if not several:
        request = apis.AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=place.transactional_id,
            v3_and_below_producer_id=identity.producer_id,
            v3_and_below_producer_epoch=identity.epoch,
            v3_and_below_topics=topics,
        )
        return Asked(request, 3)
    transaction = apis.AddPartitionsToTxnRequest.AddPartitionsToTxnTransaction(
        transactional_id=place.transactional_id,
        producer_id=identity.producer_id,
        producer_epoch=identity.epoch,
        verify_only=True,
        topics=topics,
    )
    return Asked(apis.AddPartitionsToTxnRequest(transactions=[transaction]), 4)


def _add_offsets(place: Place) -> Asked:
    request = apis.AddOffsetsToTxnRequest(
        transactional_id=place.transactional_id,
        producer_id=place.producer.producer_id,
        producer_epoch=place.producer.epoch,
        group_id=place.group,
    )
    return Asked(request, 4)


def _end(place: Place) -> Asked:
    request = apis.EndTxnRequest(
        transactional_id=place.transactional_id,
        producer_id=place.producer.producer_id,
        producer_epoch=place.producer.epoch,
        committed=False,
    )
    return Asked(request, 4)


def _markers(place: Place) -> Asked:
    marker = marker_calls.marker(ProducerIdentity(2**40, 0), (place.topic, 0))
    return Asked(apis.WriteTxnMarkersRequest(markers=[marker]), 1)


def _coordinator(kind: int, key: str) -> Asked:
    return Asked(apis.FindCoordinatorRequest(key_type=kind, coordinator_keys=[key]), 4)


def _create_topic(place: Place) -> Asked:
    topics = [calls.wanted_topic(place.new_topic)]
    return Asked(apis.CreateTopicsRequest(topics=topics, timeout_ms=5000, validate_only=True), 7)


def _create_partitions(place: Place) -> Asked:
    topic = apis.CreatePartitionsRequest.CreatePartitionsTopic(name=place.topic, count=2, assignments=None)
    return Asked(apis.CreatePartitionsRequest(topics=[topic], timeout_ms=5000, validate_only=True), 3)


def _delete_topic(place: Place, by_id: bool) -> Asked:
    kind = apis.DeleteTopicsRequest.DeleteTopicState
    named = {"name": None, "topic_id": place.topic_id} if by_id else {"name": place.new_topic, "topic_id": UUID(int=0)}
    return Asked(apis.DeleteTopicsRequest(topics=[kind(**named)], timeout_ms=5000), 6)


def _describe_configs(kind: int, name: str) -> Asked:
    resource = apis.DescribeConfigsRequest.DescribeConfigsResource(
        resource_type=kind, resource_name=name, configuration_keys=["retention.ms"]
    )
    return Asked(apis.DescribeConfigsRequest(resources=[resource]), 4)


def _alter_configs(place: Place) -> Asked:
    kind = apis.AlterConfigsRequest.AlterConfigsResource
    entry = kind.AlterableConfig(name="retention.ms", value="1000000")
    resource = kind(resource_type=_TOPIC, resource_name=place.topic, configs=[entry])
    return Asked(apis.AlterConfigsRequest(resources=[resource], validate_only=True), 2)


def _offset_delete(place: Place) -> Asked:
    kind = apis.OffsetDeleteRequest.OffsetDeleteRequestTopic
    topic = kind(name=place.topic, partitions=[kind.OffsetDeleteRequestPartition(partition_index=0)])
    return Asked(apis.OffsetDeleteRequest(group_id=place.group, topics=[topic]), 0)


def _describe_producers(place: Place) -> Asked:
    topic = apis.DescribeProducersRequest.TopicRequest(name=place.topic, partition_indexes=[0])
    return Asked(apis.DescribeProducersRequest(topics=[topic]), 0)


def _describe_partitions(place: Place, *names: str) -> Asked:
    topics = [apis.DescribeTopicPartitionsRequest.TopicRequest(name=name) for name in names]
    return Asked(apis.DescribeTopicPartitionsRequest(topics=topics, response_partition_limit=2000, cursor=None), 0)


REQUESTS: dict[str, Callable[[Place], Asked]] = {
    "Produce": _produce,
    "Produce by id": _produce_by_id,
    "Fetch": lambda place: Asked(calls.fetch_request(place.topic), 12),
    "Fetch by id": lambda place: Asked(calls.fetch_request(place.topic, by_id=place.topic_id), 13),
    "ListOffsets": _list_offsets,
    "Metadata": lambda place: _metadata(place, place.topic),
    "Metadata by id": lambda place: _metadata(place, None, topic_id=place.topic_id),
    "Metadata of a missing topic": lambda place: _metadata(place, place.new_topic),
    "Metadata that creates a topic": lambda place: _metadata(place, f"{place.topic}-created", create=True),
    "OffsetCommit": lambda place: Asked(
        offset_calls.commit_request(place.admin, place.group, {(place.topic, 0): 1}), 9
    ),
    "OffsetFetch": lambda place: Asked(
        offset_calls.fetch_request(place.admin, {place.group: [(place.topic, 0)]}, 9), 9
    ),
    "OffsetFetch of one group": lambda place: Asked(
        offset_calls.fetch_request(place.admin, {place.group: [(place.topic, 0)]}, 7), 7
    ),
    "OffsetFetch of all topics": lambda place: Asked(
        offset_calls.fetch_request(place.admin, {place.group: None}, 9), 9
    ),
    "FindCoordinator of a group": lambda place: _coordinator(0, place.group),
    "FindCoordinator of a transaction": lambda place: _coordinator(1, place.transactional_id),
    "JoinGroup": lambda place: Asked(group_calls.join_request(f"{place.group}-other", "unknown"), 9),
    "JoinGroup in the group": lambda place: Asked(group_calls.join_request(place.group, "unknown"), 9),
    "SyncGroup": lambda place: Asked(group_calls.sync_request(place.group, 1, "unknown"), 5),
    "Heartbeat": lambda place: Asked(
        apis.HeartbeatRequest(group_id=place.group, generation_id=1, member_id="unknown"), 4
    ),
    "LeaveGroup": lambda place: Asked(
        apis.LeaveGroupRequest(
            group_id=place.group, members=[apis.LeaveGroupRequest.MemberIdentity(member_id="unknown")]
        ),
        4,
    ),
    "DescribeGroups": lambda place: Asked(
        apis.DescribeGroupsRequest(groups=[place.group], include_authorized_operations=True), 5
    ),
    "ListGroups": lambda place: Asked(apis.ListGroupsRequest(), 4),
    "AddPartitionsToTxn": lambda place: _add_partitions(place, several=False),
    "AddPartitionsToTxn of a broker": lambda place: _add_partitions(place, several=True),
    "AddOffsetsToTxn": _add_offsets,
    "Produce in a transaction": _produce_in_transaction,
    "TxnOffsetCommit": _txn_offset_commit,
    "EndTxn": _end,
    "InitProducerId": _init,
    "InitProducerId with Enable2Pc": lambda place: _init(place, enable2_pc=True),
    "InitProducerId without an id": lambda place: _init(place, transactional_id=None),
    "WriteTxnMarkers": _markers,
    "DescribeTransactions": lambda place: Asked(
        apis.DescribeTransactionsRequest(transactional_ids=[place.transactional_id]), 0
    ),
    "ListTransactions": lambda place: Asked(apis.ListTransactionsRequest(), 0),
    "DescribeProducers": _describe_producers,
    "OffsetForLeaderEpoch": _epoch,
    "DeleteRecords": _delete_records,
    "CreateTopics": _create_topic,
    "CreatePartitions": _create_partitions,
    "DescribeConfigs of the topic": lambda place: _describe_configs(_TOPIC, place.topic),
    "DescribeConfigs of the broker": lambda place: _describe_configs(_BROKER, ""),
    "AlterConfigs": _alter_configs,
    "IncrementalAlterConfigs of the topic": lambda place: Asked(
        admin_calls.alter_request({(_TOPIC, place.topic): [_RETENTION]}, validate_only=True), 1
    ),
    "IncrementalAlterConfigs of the broker": lambda place: Asked(
        admin_calls.alter_request({(_BROKER, ""): [("log.retention.ms", _SET, "1000000")]}, validate_only=True), 1
    ),
    "DescribeLogDirs": lambda place: Asked(apis.DescribeLogDirsRequest(topics=[]), 4),
    "DescribeCluster": lambda place: Asked(
        apis.DescribeClusterRequest(include_cluster_authorized_operations=True, endpoint_type=1), 1
    ),
    "DescribeTopicPartitions": lambda place: _describe_partitions(place, place.topic),
    "DescribeTopicPartitions of all": _describe_partitions,
    "ListConfigResources": lambda place: Asked(apis.ListConfigResourcesRequest(resource_types=[_TOPIC]), 1),
    "DescribeAcls": lambda _: Asked(acl_calls.describe_request(acl_calls.EVERY_ACL), 3),
    "CreateAcls": lambda place: Asked(
        apis.CreateAclsRequest(
            creations=[
                acl_calls.creation(
                    acl_calls.acl(AclOperation.READ, ResourceType.TOPIC, place.new_topic, host="203.0.113.1")
                )
            ]
        ),
        3,
    ),
    "DeleteAcls": lambda _: Asked(acl_calls.delete_request(replace(acl_calls.EVERY_ACL, host="203.0.113.2")), 3),
    "OffsetDelete": _offset_delete,
    "DeleteGroups": lambda place: Asked(apis.DeleteGroupsRequest(groups_names=[f"{place.group}-missing"]), 2),
    "DeleteTopics": lambda place: _delete_topic(place, by_id=False),
    "DeleteTopics by id": lambda place: _delete_topic(place, by_id=True),
}
"""In the order in which they are sent: those that end or delete something come last."""
