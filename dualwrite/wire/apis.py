"""The table of Kafka APIs of this project, as broker or as client: key, request message, response message.

The message classes are kafka-python's, generated from Apache Kafka's own schema files, except those in ``newer``. One
class serves every version; a field that a version lacks has the schema's default. All other modules import them from
here.
"""

from enum import IntEnum
from typing import Any, NamedTuple

from kafka.protocol.admin import (
    AlterClientQuotasRequest,
    AlterClientQuotasResponse,
    AlterConfigsRequest,
    AlterConfigsResponse,
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirsResponse,
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    CreateAclsRequest,
    CreateAclsResponse,
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeleteAclsRequest,
    DeleteAclsResponse,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DescribeAclsRequest,
    DescribeAclsResponse,
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
    DescribeClusterRequest,
    DescribeClusterResponse,
    DescribeConfigsRequest,
    DescribeConfigsResponse,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    DescribeProducersRequest,
    DescribeProducersResponse,
    DescribeQuorumRequest,
    DescribeQuorumResponse,
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
    ElectLeadersRequest,
    ElectLeadersResponse,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
    ListConfigResourcesRequest,
    ListConfigResourcesResponse,
    ListGroupsRequest,
    ListGroupsResponse,
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
    ListTransactionsRequest,
    ListTransactionsResponse,
    UpdateFeaturesRequest,
    UpdateFeaturesResponse,
)
from kafka.protocol.consumer import (
    FetchRequest,
    FetchResponse,
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetFetchRequest,
    OffsetFetchResponse,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    SyncGroupRequest,
    SyncGroupResponse,
)
from kafka.protocol.metadata import (
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    MetadataRequest,
    MetadataResponse,
)
from kafka.protocol.producer import (
    AddOffsetsToTxnRequest,
    AddOffsetsToTxnResponse,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    EndTxnRequest,
    EndTxnResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
    ProduceRequest,
    ProduceResponse,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from kafka.protocol.sasl import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)

from dualwrite.wire.newer import (
    ApiVersionsRequest,
    ApiVersionsResponse,
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    DeleteGroupsRequest,
    DeleteGroupsResponse,
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
    UnregisterBrokerRequest,
    UnregisterBrokerResponse,
)

__all__ = [
    "APIS",
    "AddOffsetsToTxnRequest",
    "AddOffsetsToTxnResponse",
    "AddPartitionsToTxnRequest",
    "AddPartitionsToTxnResponse",
    "AlterClientQuotasRequest",
    "AlterClientQuotasResponse",
    "AlterConfigsRequest",
    "AlterConfigsResponse",
    "AlterPartitionReassignmentsRequest",
    "AlterPartitionReassignmentsResponse",
    "AlterReplicaLogDirsRequest",
    "AlterReplicaLogDirsResponse",
    "AlterUserScramCredentialsRequest",
    "AlterUserScramCredentialsResponse",
    "Api",
    "ApiKey",
    "ApiVersionsRequest",
    "ApiVersionsResponse",
    "ConsumerGroupDescribeRequest",
    "ConsumerGroupDescribeResponse",
    "ConsumerGroupHeartbeatRequest",
    "ConsumerGroupHeartbeatResponse",
    "CreateAclsRequest",
    "CreateAclsResponse",
    "CreatePartitionsRequest",
    "CreatePartitionsResponse",
    "CreateTopicsRequest",
    "CreateTopicsResponse",
    "DeleteAclsRequest",
    "DeleteAclsResponse",
    "DeleteGroupsRequest",
    "DeleteGroupsResponse",
    "DeleteRecordsRequest",
    "DeleteRecordsResponse",
    "DeleteTopicsRequest",
    "DeleteTopicsResponse",
    "DescribeAclsRequest",
    "DescribeAclsResponse",
    "DescribeClientQuotasRequest",
    "DescribeClientQuotasResponse",
    "DescribeClusterRequest",
    "DescribeClusterResponse",
    "DescribeConfigsRequest",
    "DescribeConfigsResponse",
    "DescribeGroupsRequest",
    "DescribeGroupsResponse",
    "DescribeLogDirsRequest",
    "DescribeLogDirsResponse",
    "DescribeProducersRequest",
    "DescribeProducersResponse",
    "DescribeQuorumRequest",
    "DescribeQuorumResponse",
    "DescribeTopicPartitionsRequest",
    "DescribeTopicPartitionsResponse",
    "DescribeTransactionsRequest",
    "DescribeTransactionsResponse",
    "DescribeUserScramCredentialsRequest",
    "DescribeUserScramCredentialsResponse",
    "ElectLeadersRequest",
    "ElectLeadersResponse",
    "EndTxnRequest",
    "EndTxnResponse",
    "FetchRequest",
    "FetchResponse",
    "FindCoordinatorRequest",
    "FindCoordinatorResponse",
    "HeartbeatRequest",
    "HeartbeatResponse",
    "IncrementalAlterConfigsRequest",
    "IncrementalAlterConfigsResponse",
    "InitProducerIdRequest",
    "InitProducerIdResponse",
    "JoinGroupRequest",
    "JoinGroupResponse",
    "LeaveGroupRequest",
    "LeaveGroupResponse",
    "ListConfigResourcesRequest",
    "ListConfigResourcesResponse",
    "ListGroupsRequest",
    "ListGroupsResponse",
    "ListOffsetsRequest",
    "ListOffsetsResponse",
    "ListPartitionReassignmentsRequest",
    "ListPartitionReassignmentsResponse",
    "ListTransactionsRequest",
    "ListTransactionsResponse",
    "Message",
    "MetadataRequest",
    "MetadataResponse",
    "OffsetCommitRequest",
    "OffsetCommitResponse",
    "OffsetDeleteRequest",
    "OffsetDeleteResponse",
    "OffsetFetchRequest",
    "OffsetFetchResponse",
    "OffsetForLeaderEpochRequest",
    "OffsetForLeaderEpochResponse",
    "ProduceRequest",
    "ProduceResponse",
    "SaslAuthenticateRequest",
    "SaslAuthenticateResponse",
    "SaslHandshakeRequest",
    "SaslHandshakeResponse",
    "SyncGroupRequest",
    "SyncGroupResponse",
    "TxnOffsetCommitRequest",
    "TxnOffsetCommitResponse",
    "UnregisterBrokerRequest",
    "UnregisterBrokerResponse",
    "UpdateFeaturesRequest",
    "UpdateFeaturesResponse",
    "WriteTxnMarkersRequest",
    "WriteTxnMarkersResponse",
]

Message = Any
"""An instance of a message class. kafka-python has no types; the codec checks the values that it can."""


class ApiKey(IntEnum):
    """Kafka's API keys (ApiKeys.java)."""

    __hash__ = int.__hash__  # an enum's own is Python code, and every request looks its key up

    PRODUCE = 0
    FETCH = 1
    LIST_OFFSETS = 2
    METADATA = 3
    OFFSET_COMMIT = 8
    OFFSET_FETCH = 9
    FIND_COORDINATOR = 10
    JOIN_GROUP = 11
    HEARTBEAT = 12
    LEAVE_GROUP = 13
    SYNC_GROUP = 14
    DESCRIBE_GROUPS = 15
    LIST_GROUPS = 16
    SASL_HANDSHAKE = 17
    API_VERSIONS = 18
    CREATE_TOPICS = 19
    DELETE_TOPICS = 20
    DELETE_RECORDS = 21
    INIT_PRODUCER_ID = 22
    OFFSET_FOR_LEADER_EPOCH = 23
    ADD_PARTITIONS_TO_TXN = 24
    ADD_OFFSETS_TO_TXN = 25
    END_TXN = 26
    WRITE_TXN_MARKERS = 27
    TXN_OFFSET_COMMIT = 28
    DESCRIBE_ACLS = 29
    CREATE_ACLS = 30
    DELETE_ACLS = 31
    DESCRIBE_CONFIGS = 32
    ALTER_CONFIGS = 33
    ALTER_REPLICA_LOG_DIRS = 34
    DESCRIBE_LOG_DIRS = 35
    SASL_AUTHENTICATE = 36
    CREATE_PARTITIONS = 37
    DELETE_GROUPS = 42
    ELECT_LEADERS = 43
    INCREMENTAL_ALTER_CONFIGS = 44
    ALTER_PARTITION_REASSIGNMENTS = 45
    LIST_PARTITION_REASSIGNMENTS = 46
    OFFSET_DELETE = 47
    DESCRIBE_CLIENT_QUOTAS = 48
    ALTER_CLIENT_QUOTAS = 49
    DESCRIBE_USER_SCRAM_CREDENTIALS = 50
    ALTER_USER_SCRAM_CREDENTIALS = 51
    DESCRIBE_QUORUM = 55
    UPDATE_FEATURES = 57
    DESCRIBE_CLUSTER = 60
    DESCRIBE_PRODUCERS = 61
    UNREGISTER_BROKER = 64
    DESCRIBE_TRANSACTIONS = 65
    LIST_TRANSACTIONS = 66
    CONSUMER_GROUP_HEARTBEAT = 68
    CONSUMER_GROUP_DESCRIBE = 69
    LIST_CONFIG_RESOURCES = 74
    DESCRIBE_TOPIC_PARTITIONS = 75


class Api(NamedTuple):
    """The two messages of one API."""

    request: Any
    response: Any


APIS: dict[ApiKey, Api] = {
    ApiKey.PRODUCE: Api(ProduceRequest, ProduceResponse),
    ApiKey.FETCH: Api(FetchRequest, FetchResponse),
    ApiKey.LIST_OFFSETS: Api(ListOffsetsRequest, ListOffsetsResponse),
    ApiKey.METADATA: Api(MetadataRequest, MetadataResponse),
    ApiKey.OFFSET_COMMIT: Api(OffsetCommitRequest, OffsetCommitResponse),
    ApiKey.OFFSET_FETCH: Api(OffsetFetchRequest, OffsetFetchResponse),
    ApiKey.FIND_COORDINATOR: Api(FindCoordinatorRequest, FindCoordinatorResponse),
    ApiKey.JOIN_GROUP: Api(JoinGroupRequest, JoinGroupResponse),
    ApiKey.HEARTBEAT: Api(HeartbeatRequest, HeartbeatResponse),
    ApiKey.LEAVE_GROUP: Api(LeaveGroupRequest, LeaveGroupResponse),
    ApiKey.SYNC_GROUP: Api(SyncGroupRequest, SyncGroupResponse),
    ApiKey.DESCRIBE_GROUPS: Api(DescribeGroupsRequest, DescribeGroupsResponse),
    ApiKey.LIST_GROUPS: Api(ListGroupsRequest, ListGroupsResponse),
    ApiKey.SASL_HANDSHAKE: Api(SaslHandshakeRequest, SaslHandshakeResponse),
    ApiKey.API_VERSIONS: Api(ApiVersionsRequest, ApiVersionsResponse),
    ApiKey.CREATE_TOPICS: Api(CreateTopicsRequest, CreateTopicsResponse),
    ApiKey.DELETE_TOPICS: Api(DeleteTopicsRequest, DeleteTopicsResponse),
    ApiKey.DELETE_RECORDS: Api(DeleteRecordsRequest, DeleteRecordsResponse),
    ApiKey.INIT_PRODUCER_ID: Api(InitProducerIdRequest, InitProducerIdResponse),
    ApiKey.OFFSET_FOR_LEADER_EPOCH: Api(OffsetForLeaderEpochRequest, OffsetForLeaderEpochResponse),
    ApiKey.ADD_PARTITIONS_TO_TXN: Api(AddPartitionsToTxnRequest, AddPartitionsToTxnResponse),
    ApiKey.ADD_OFFSETS_TO_TXN: Api(AddOffsetsToTxnRequest, AddOffsetsToTxnResponse),
    ApiKey.END_TXN: Api(EndTxnRequest, EndTxnResponse),
    ApiKey.WRITE_TXN_MARKERS: Api(WriteTxnMarkersRequest, WriteTxnMarkersResponse),
    ApiKey.TXN_OFFSET_COMMIT: Api(TxnOffsetCommitRequest, TxnOffsetCommitResponse),
    ApiKey.DESCRIBE_ACLS: Api(DescribeAclsRequest, DescribeAclsResponse),
    ApiKey.CREATE_ACLS: Api(CreateAclsRequest, CreateAclsResponse),
    ApiKey.DELETE_ACLS: Api(DeleteAclsRequest, DeleteAclsResponse),
    ApiKey.DESCRIBE_CONFIGS: Api(DescribeConfigsRequest, DescribeConfigsResponse),
    ApiKey.ALTER_CONFIGS: Api(AlterConfigsRequest, AlterConfigsResponse),
    ApiKey.ALTER_REPLICA_LOG_DIRS: Api(AlterReplicaLogDirsRequest, AlterReplicaLogDirsResponse),
    ApiKey.DESCRIBE_LOG_DIRS: Api(DescribeLogDirsRequest, DescribeLogDirsResponse),
    ApiKey.SASL_AUTHENTICATE: Api(SaslAuthenticateRequest, SaslAuthenticateResponse),
    ApiKey.CREATE_PARTITIONS: Api(CreatePartitionsRequest, CreatePartitionsResponse),
    ApiKey.DELETE_GROUPS: Api(DeleteGroupsRequest, DeleteGroupsResponse),
    ApiKey.ELECT_LEADERS: Api(ElectLeadersRequest, ElectLeadersResponse),
    ApiKey.INCREMENTAL_ALTER_CONFIGS: Api(IncrementalAlterConfigsRequest, IncrementalAlterConfigsResponse),
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: Api(AlterPartitionReassignmentsRequest, AlterPartitionReassignmentsResponse),
    ApiKey.LIST_PARTITION_REASSIGNMENTS: Api(ListPartitionReassignmentsRequest, ListPartitionReassignmentsResponse),
    ApiKey.OFFSET_DELETE: Api(OffsetDeleteRequest, OffsetDeleteResponse),
    ApiKey.DESCRIBE_CLIENT_QUOTAS: Api(DescribeClientQuotasRequest, DescribeClientQuotasResponse),
    ApiKey.ALTER_CLIENT_QUOTAS: Api(AlterClientQuotasRequest, AlterClientQuotasResponse),
    ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: Api(
        DescribeUserScramCredentialsRequest, DescribeUserScramCredentialsResponse
    ),
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS: Api(AlterUserScramCredentialsRequest, AlterUserScramCredentialsResponse),
    ApiKey.DESCRIBE_QUORUM: Api(DescribeQuorumRequest, DescribeQuorumResponse),
    ApiKey.UPDATE_FEATURES: Api(UpdateFeaturesRequest, UpdateFeaturesResponse),
    ApiKey.DESCRIBE_CLUSTER: Api(DescribeClusterRequest, DescribeClusterResponse),
    ApiKey.DESCRIBE_PRODUCERS: Api(DescribeProducersRequest, DescribeProducersResponse),
    ApiKey.UNREGISTER_BROKER: Api(UnregisterBrokerRequest, UnregisterBrokerResponse),
    ApiKey.DESCRIBE_TRANSACTIONS: Api(DescribeTransactionsRequest, DescribeTransactionsResponse),
    ApiKey.LIST_TRANSACTIONS: Api(ListTransactionsRequest, ListTransactionsResponse),
    ApiKey.CONSUMER_GROUP_HEARTBEAT: Api(ConsumerGroupHeartbeatRequest, ConsumerGroupHeartbeatResponse),
    ApiKey.CONSUMER_GROUP_DESCRIBE: Api(ConsumerGroupDescribeRequest, ConsumerGroupDescribeResponse),
    ApiKey.LIST_CONFIG_RESOURCES: Api(ListConfigResourcesRequest, ListConfigResourcesResponse),
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: Api(DescribeTopicPartitionsRequest, DescribeTopicPartitionsResponse),
}
