"""Answers of a scripted broker to the requests of ``dualwrite.admin``."""

import uuid
from collections.abc import Callable, Mapping
from typing import Any

from dualwrite.ids import TopicPartition
from dualwrite.wire.apis import APIS, ApiKey


def offsets(
    known: Mapping[TopicPartition, int], codes: Mapping[TopicPartition, int] | None = None
) -> Callable[[Any], Any]:
    """An answer to ListOffsets: these offsets, whatever the timestamp. Other partitions are left out."""
    response = APIS[ApiKey.LIST_OFFSETS].response
    topic_class = response.ListOffsetsTopicResponse
    answered = {**known, **dict.fromkeys(codes or {}, -1)}

    def part(partition: TopicPartition) -> Any:
        return topic_class.ListOffsetsPartitionResponse(
            partition_index=partition.partition,
            error_code=int((codes or {}).get(partition, 0)),
            timestamp=-1,
            offset=answered[partition],
            leader_epoch=0,
        )

    def answer(request: Any) -> Any:
        asked = [
            (topic.name, [TopicPartition(topic.name, entry.partition_index) for entry in topic.partitions])
            for topic in request.topics
        ]
        topics = [
            topic_class(name=name, partitions=[part(each) for each in partitions if each in answered])
            for name, partitions in asked
        ]
        return response(throttle_time_ms=0, topics=topics)

    return answer


def log_directories(sizes: Mapping[int, int], *, topic: str = "t", code: int = 0, in_directory: int = 0) -> Any:
    """An answer to DescribeLogDirs: one directory with these partitions of ``topic``."""
    response = APIS[ApiKey.DESCRIBE_LOG_DIRS].response
    directory = response.DescribeLogDirsResult
    topic_class = directory.DescribeLogDirsTopic
    partitions = [
        topic_class.DescribeLogDirsPartition(
            partition_index=index, partition_size=size, offset_lag=0, is_future_key=False
        )
        for index, size in sizes.items()
    ]
    topics = [topic_class(name=topic, partitions=partitions)]
    results = [directory(error_code=in_directory, log_dir="/data", topics=topics)]
    return response(throttle_time_ms=0, error_code=code, results=[] if code else results)


def settings_of(*entries: tuple[str, str, int], code: int = 0) -> Any:
    """An answer to DescribeConfigs: names, values and Kafka's numbers of their sources."""
    response = APIS[ApiKey.DESCRIBE_CONFIGS].response
    result = response.DescribeConfigsResult
    configs = [
        result.DescribeConfigsResourceResult(
            name=name, value=value, read_only=False, config_source=source, is_sensitive=False, synonyms=[]
        )
        for name, value, source in entries
    ]
    return response(
        throttle_time_ms=0,
        results=[result(error_code=code, error_message=None, resource_type=2, resource_name="t", configs=configs)],
    )


def groups_listed(*groups: tuple[str, str, str], code: int = 0) -> Any:
    """An answer to ListGroups: ids, states and types."""
    response = APIS[ApiKey.LIST_GROUPS].response
    entries = [
        response.ListedGroup(group_id=name, protocol_type="consumer", group_state=state, group_type=kind)
        for name, state, kind in groups
    ]
    return response(throttle_time_ms=0, error_code=code, groups=entries)


def group_described(*assignments: bytes, code: int = 0, state: str = "Stable") -> Any:
    """An answer to DescribeGroups: a group whose members have these assignments."""
    response = APIS[ApiKey.DESCRIBE_GROUPS].response
    group = response.DescribedGroup
    members = [
        group.DescribedGroupMember(
            member_id=f"m{number}",
            group_instance_id=None,
            client_id="c",
            client_host="/10.0.0.1",
            member_metadata=b"",
            member_assignment=assignment,
        )
        for number, assignment in enumerate(assignments)
    ]
    described = group(
        error_code=code,
        group_id="g",
        group_state=state,
        protocol_type="consumer",
        protocol_data="range",
        members=members,
    )
    return response(throttle_time_ms=0, groups=[described])


def consumer_group_described(*assignments: Mapping[str, list[int]], code: int = 0) -> Any:
    """An answer to ConsumerGroupDescribe: a stable group whose members have these partitions by topic."""
    response = APIS[ApiKey.CONSUMER_GROUP_DESCRIBE].response
    group = response.DescribedGroup
    assignment_class = group.Member.Assignment

    def assigned(partitions: Mapping[str, list[int]]) -> Any:
        topic = assignment_class.TopicPartitions
        topics = [
            topic(topic_id=uuid.UUID(int=1), topic_name=name, partitions=list(numbers))
            for name, numbers in partitions.items()
        ]
        return assignment_class(topic_partitions=topics)

    members = [
        group.Member(
            member_id=f"m{number}",
            instance_id=None,
            rack_id=None,
            member_epoch=2,
            client_id="c",
            client_host="/10.0.0.1",
            subscribed_topic_names=[],
            subscribed_topic_regex="",
            assignment=assigned(partitions),
            target_assignment=assigned({}),
            member_type=1,
        )
        for number, partitions in enumerate(assignments)
    ]
    described = group(
        error_code=code,
        error_message=None,
        group_id="g",
        group_state="" if code else "Stable",
        group_epoch=2,
        assignment_epoch=2,
        assignor_name="" if code else "uniform",
        members=members,
    )
    return response(throttle_time_ms=0, groups=[described])


def offsets_committed(known: Mapping[TopicPartition, tuple[int, int]], *, code: int = 0) -> Any:
    """An answer to OffsetFetch: an offset and an error code for each partition."""
    response = APIS[ApiKey.OFFSET_FETCH].response
    topic_class = response.OffsetFetchResponseTopic
    topics = [
        topic_class(
            name=partition.topic,
            partitions=[
                topic_class.OffsetFetchResponsePartition(
                    partition_index=partition.partition,
                    committed_offset=offset,
                    committed_leader_epoch=-1,
                    metadata="",
                    error_code=error,
                )
            ],
        )
        for partition, (offset, error) in known.items()
    ]
    return response(throttle_time_ms=0, topics=topics, error_code=code)
