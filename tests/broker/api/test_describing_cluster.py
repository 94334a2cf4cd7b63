"""DescribeCluster, DescribeTopicPartitions, DescribeLogDirs and OffsetForLeaderEpoch."""

from pathlib import Path

import pytest

from dualwrite.broker.embedded import EmbeddedBroker
from dualwrite.wire.apis import (
    DescribeClusterRequest,
    DescribeLogDirsRequest,
    DescribeTopicPartitionsRequest,
    Message,
    MetadataRequest,
    OffsetForLeaderEpochRequest,
)
from dualwrite.wire.error_codes import ErrorCode
from tests.support.requests.calls import batch, metadata, new_topic, produce, topic_id, unique
from tests.support.requests.raw_client import RawClient

# --- DescribeCluster


@pytest.mark.parametrize("version", range(3))
def test_the_cluster_is_its_one_node(client: RawClient, shared_broker: EmbeddedBroker, version: int) -> None:
    request = DescribeClusterRequest(include_cluster_authorized_operations=version > 0, endpoint_type=1)
    answer = client.ask(request, version)
    (node,) = answer.brokers
    assert answer.error_code == ErrorCode.NONE
    assert (node.broker_id, f"{node.host}:{node.port}") == (answer.controller_id, shared_broker.bootstrap_servers)
    assert answer.cluster_id == metadata(client).cluster_id
    assert answer.authorized_operations == ({5, 7, 8, 9, 10, 11, 12} if version else None)


@pytest.mark.parametrize(
    ("kind", "error"), [(2, ErrorCode.MISMATCHED_ENDPOINT_TYPE), (9, ErrorCode.UNSUPPORTED_ENDPOINT_TYPE)]
)
def test_controllers_have_no_endpoints_here(client: RawClient, kind: int, error: ErrorCode) -> None:
    for version in (1, 2):
        answer = client.ask(DescribeClusterRequest(endpoint_type=kind), version)
        assert (answer.error_code, answer.brokers) == (error, [])


# --- DescribeTopicPartitions


def page(client: RawClient, *names: str, limit: int = 2000, cursor: tuple[str, int] | None = None) -> Message:
    request = DescribeTopicPartitionsRequest
    begin = request.Cursor(topic_name=cursor[0], partition_index=cursor[1]) if cursor else None
    topics = [request.TopicRequest(name=name) for name in names]
    return client.ask(request(topics=topics, response_partition_limit=limit, cursor=begin), 0)


def told(answer: Message) -> dict[str, list[int]]:
    return {topic.name: [each.partition_index for each in topic.partitions] for topic in answer.topics}


def test_partitions_are_described_with_everything_about_them(client: RawClient) -> None:
    name = new_topic(client, 2)
    (topic,) = page(client, name).topics
    assert (topic.error_code, topic.topic_id, topic.is_internal) == (ErrorCode.NONE, topic_id(client, name), False)
    assert {code for code in range(16) if topic.topic_authorized_operations >> code & 1} == {3, 4, 5, 6, 7, 8, 10, 11}
    for partition in topic.partitions:
        assert (partition.leader_id, partition.leader_epoch) == (0, 0)
        assert (partition.replica_nodes, partition.isr_nodes, partition.offline_replicas) == ([0], [0], [])
        assert (partition.eligible_leader_replicas, partition.last_known_elr) == ([], [])


def test_pages_follow_each_other_to_the_end(client: RawClient) -> None:
    names = sorted(new_topic(client, 3) for _ in range(3))
    first = page(client, *names, limit=4)
    assert told(first) == {names[0]: [0, 1, 2], names[1]: [0]}
    second = page(client, *names, limit=2, cursor=(first.next_cursor.topic_name, first.next_cursor.partition_index))
    assert told(second) == {names[1]: [1, 2]}
    third = page(client, *names, cursor=(second.next_cursor.topic_name, second.next_cursor.partition_index))
    assert told(third) == {names[2]: [0, 1, 2]}
    assert third.next_cursor is None


def test_no_topics_mean_all_of_them_in_order(client: RawClient) -> None:
    name = new_topic(client)
    answer = page(client)
    names = [topic.name for topic in answer.topics]
    assert names == sorted(names)
    assert {name, "__consumer_offsets", "__transaction_state"} <= set(names)
    assert {topic.name for topic in answer.topics if topic.is_internal} == {"__consumer_offsets", "__transaction_state"}


def test_each_page_has_one_partition_at_least(client: RawClient) -> None:
    name = new_topic(client, 2)
    assert told(page(client, name, limit=0)) == {name: [0]}


def test_missing_and_illegal_topics_have_their_errors(client: RawClient) -> None:
    missing = unique("missing")
    answer = page(client, missing, "not legal")
    assert {topic.name: topic.error_code for topic in answer.topics} == {
        missing: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        "not legal": ErrorCode.INVALID_TOPIC_EXCEPTION,
    }


@pytest.mark.parametrize("cursor", [("zzz", 0), (None, -1)])
def test_a_cursor_that_makes_no_sense_is_refused(client: RawClient, cursor: tuple[str | None, int]) -> None:
    name = new_topic(client)
    (topic,) = page(client, name, cursor=(cursor[0] or name, cursor[1])).topics
    assert (topic.error_code, topic.partitions) == (ErrorCode.INVALID_REQUEST, [])


# --- DescribeLogDirs


def log_dir(client: RawClient, version: int, wanted: dict[str, list[int]] | None) -> Message:
    topics = None
    if wanted is not None:
        entry = DescribeLogDirsRequest.DescribableLogDirTopic
        topics = [entry(topic=name, partitions=indexes) for name, indexes in wanted.items()]
    answer = client.ask(DescribeLogDirsRequest(topics=topics), version)
    (result,) = answer.results
    assert (answer.error_code, result.error_code) == (ErrorCode.NONE, ErrorCode.NONE)
    return result


@pytest.mark.parametrize("version", range(1, 6))
def test_the_data_directory_is_described_with_the_sizes_of_its_partitions(client: RawClient, version: int) -> None:
    name, content = new_topic(client, 2), batch([b"v"])
    produce(client, name, content, partition=1)
    result = log_dir(client, version, {name: [0, 1, 7], unique("missing"): [0]})
    assert Path(result.log_dir).is_absolute()
    assert (Path(result.log_dir) / f"{name}-1").is_dir()
    (topic,) = result.topics
    assert {each.partition_index: each.partition_size for each in topic.partitions} == {0: 0, 1: len(content)}
    assert {(each.offset_lag, each.is_future_key) for each in topic.partitions} == {(0, False)}
    if version >= 4:
        assert 0 < result.usable_bytes < result.total_bytes
    assert not result.is_cordoned


def test_no_topics_mean_every_partition(client: RawClient) -> None:
    name = new_topic(client)
    names = {topic.name for topic in log_dir(client, 5, None).topics}
    assert {name, "__consumer_offsets", "__transaction_state"} <= names
    assert log_dir(client, 5, {}).topics == []


# --- OffsetForLeaderEpoch


@pytest.mark.parametrize("version", range(2, 5))
def test_the_one_epoch_ends_where_the_records_end(client: RawClient, version: int) -> None:
    name = new_topic(client)
    produce(client, name, batch([b"a", b"b"]))

    def look_up(partition: int, epoch: int, current: int) -> tuple[int, int, int]:
        topic = OffsetForLeaderEpochRequest.OffsetForLeaderTopic
        entry = topic.OffsetForLeaderPartition(partition=partition, leader_epoch=epoch, current_leader_epoch=current)
        request = OffsetForLeaderEpochRequest(replica_id=-1, topics=[topic(topic=name, partitions=[entry])])
        ((found,),) = [topic.partitions for topic in client.ask(request, version).topics]
        return found.error_code, found.leader_epoch, found.end_offset

    assert look_up(0, 0, -1) == look_up(0, 0, 0) == (ErrorCode.NONE, 0, 2)
    assert look_up(0, 1, 0) == look_up(0, -1, 0) == (ErrorCode.NONE, -1, -1)
    assert look_up(0, 0, 1) == (ErrorCode.UNKNOWN_LEADER_EPOCH, -1, -1)
    assert look_up(7, 0, 0) == (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1, -1)


@pytest.mark.parametrize("version", range(8, 14))
def test_metadata_has_the_authorized_operations_on_request(client: RawClient, version: int) -> None:
    topics = [MetadataRequest.MetadataRequestTopic(topic_id=None, name=new_topic(client))]
    for asked in (False, True):
        request = MetadataRequest(
            topics=topics,
            include_topic_authorized_operations=asked,
            include_cluster_authorized_operations=asked and version <= 10,
        )
        answer = client.ask(request, version)
        assert answer.topics[0].authorized_operations == ({3, 4, 5, 6, 7, 8, 10, 11} if asked else None)
        if version <= 10:
            assert answer.authorized_operations == ({5, 7, 8, 9, 10, 11, 12} if asked else None)
