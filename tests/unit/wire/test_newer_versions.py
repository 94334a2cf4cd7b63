"""Messages of versions that kafka-python does not know: ours read and write them, and kafka-python keeps its own."""

import uuid

from kafka.protocol.admin import DeleteGroupsRequest as TheirDeletion
from kafka.protocol.admin import DeleteGroupsResponse as TheirDeleted
from kafka.protocol.api_header import RequestHeader
from kafka.protocol.metadata import ApiVersionsRequest as TheirRequest
from kafka.protocol.metadata import ApiVersionsResponse as TheirResponse
from kafka.protocol.producer import TxnOffsetCommitRequest as TheirCommit
from kafka.protocol.producer import TxnOffsetCommitResponse as TheirCommitted

from dualwrite.wire.apis import APIS, ApiKey
from dualwrite.wire.codec import read_body, refuse_nulls
from dualwrite.wire.newer import (
    ApiVersionsRequest,
    ApiVersionsResponse,
    DeleteGroupsRequest,
    DeleteGroupsResponse,
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
    UnregisterBrokerRequest,
    UnregisterBrokerResponse,
)

TOPIC_ID = uuid.UUID(int=5)
SOFTWARE = {"client_software_name": "a", "client_software_version": "1"}


def test_the_fifth_version_carries_cluster_and_node() -> None:
    request = ApiVersionsRequest(**SOFTWARE, cluster_id="x", node_id=3)
    body = bytes(request.encode(version=5))
    assert body == bytes.fromhex("0261 0231 0278 00000003 00")
    read = read_body(ApiVersionsRequest, 5, body, 0)
    assert (read.client_software_name, read.cluster_id, read.node_id) == ("a", "x", 3)


def test_absent_cluster_and_node_are_null_and_minus_one() -> None:
    body = bytes(ApiVersionsRequest(**SOFTWARE).encode(version=5))
    assert body == bytes.fromhex("0261 0231 00 ffffffff 00")
    read = read_body(ApiVersionsRequest, 5, body, 0)
    refuse_nulls(read, 5)
    assert (read.cluster_id, read.node_id) == (None, -1)


def test_older_versions_are_as_they_were() -> None:
    for version in range(5):
        ours = ApiVersionsRequest(**SOFTWARE, cluster_id="x", node_id=3).encode(version=version)
        assert ours == TheirRequest(**SOFTWARE).encode(version=version)


def test_kafka_python_keeps_its_own_classes() -> None:
    assert (TheirRequest.max_version, APIS[ApiKey.API_VERSIONS].request.max_version) == (4, 5)
    assert APIS[ApiKey.API_VERSIONS].response is ApiVersionsResponse
    for key, version, theirs in ((18, 4, TheirResponse), (28, 5, TheirCommitted), (42, 2, TheirDeleted)):
        header = RequestHeader(request_api_key=key, request_api_version=version, correlation_id=1, client_id="c")
        assert issubclass(header.get_response_class(), theirs)


def committed_in(cls: type, version: int) -> bytes:
    """A TxnOffsetCommit of ``version`` in the given classes."""
    entry = cls.TxnOffsetCommitRequestTopic  # type: ignore[attr-defined]  # kafka-python has no types
    place = entry.TxnOffsetCommitRequestPartition(partition_index=1, committed_offset=3, committed_metadata="")
    topic = entry(name="x", partitions=[place])
    if cls is TxnOffsetCommitRequest:
        topic.topic_id = TOPIC_ID
    request = cls(transactional_id="t", group_id="g", producer_id=1, producer_epoch=2, topics=[topic])
    return bytes(request.encode(version=version))  # type: ignore[attr-defined]  # as above


def test_offsets_of_transactions_name_topics_by_ids_from_the_sixth_version_on() -> None:
    body = committed_in(TxnOffsetCommitRequest, 6)
    assert body == bytes.fromhex(
        "0274 0267 0000000000000001 0002 ffffffff 01 00"
        "02 00000000000000000000000000000005 02 00000001 0000000000000003 ffffffff 01 00 00 00"
    )
    read = read_body(TxnOffsetCommitRequest, 6, body, 0)
    refuse_nulls(read, 6)
    assert read.topics[0].topic_id == TOPIC_ID
    for version in range(6):
        assert committed_in(TxnOffsetCommitRequest, version) == committed_in(TheirCommit, version)


def test_txn_offset_commit_answers_name_topics_by_ids_from_the_sixth_version_on() -> None:
    entry = TxnOffsetCommitResponse.TxnOffsetCommitResponseTopic
    place = entry.TxnOffsetCommitResponsePartition(partition_index=1, error_code=3)
    answer = TxnOffsetCommitResponse(throttle_time_ms=0, topics=[entry(topic_id=TOPIC_ID, partitions=[place])])
    body = bytes(answer.encode(version=6))
    assert body == bytes.fromhex("00000000 02 00000000000000000000000000000005 02 00000001 0003 00 00 00")
    assert read_body(TxnOffsetCommitResponse, 6, body, 0).topics[0].topic_id == TOPIC_ID


def test_a_group_that_is_not_deleted_has_a_message_from_the_third_version_on() -> None:
    assert DeleteGroupsRequest(groups_names=["g"]).encode(version=3) == TheirDeletion(groups_names=["g"]).encode(
        version=2
    )
    result = DeleteGroupsResponse.DeletableGroupResult
    answer = DeleteGroupsResponse(
        throttle_time_ms=0,
        results=[result(group_id="g", error_code=3, error_message="no"), result(group_id="h", error_code=0)],
    )
    body = bytes(answer.encode(version=3))
    assert body == bytes.fromhex("00000000 03 0267 0003 036e6f 00 0268 0000 00 00 00")
    assert [each.error_message for each in read_body(DeleteGroupsResponse, 3, body, 0).results] == ["no", None]
    plain = TheirDeleted.DeletableGroupResult
    theirs = TheirDeleted(
        throttle_time_ms=0, results=[plain(group_id="g", error_code=3), plain(group_id="h", error_code=0)]
    )
    for version in range(3):
        assert answer.encode(version=version) == theirs.encode(version=version)


def test_unregister_broker_has_its_schema_here() -> None:
    assert UnregisterBrokerRequest(broker_id=7).encode(version=0) == bytes.fromhex("00000007 00")
    answer = UnregisterBrokerResponse(throttle_time_ms=0, error_code=102, error_message="no")
    body = bytes(answer.encode(version=0))
    assert body == bytes.fromhex("00000000 0066 036e6f 00")
    read = read_body(UnregisterBrokerResponse, 0, body, 0)
    assert (read.error_code, read.error_message) == (102, "no")
    unset = bytes(UnregisterBrokerResponse(throttle_time_ms=0, error_code=0, error_message=None).encode(version=0))
    assert unset == bytes.fromhex("00000000 0000 00 00"), "the message is null"
