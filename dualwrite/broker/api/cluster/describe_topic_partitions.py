"""DescribeTopicPartitions (75), v0 (KIP-966).

The partitions of topics in the order of their names, a page at a time: as many as the request allows,
and 2000 at most (what Kafka has unless it is set; here it cannot be), from the cursor on; what did not fit is told as
the next cursor. No topics in the request means all of them. A cursor that makes no sense is refused for every topic:
INVALID_REQUEST. ACL: none yet.
"""

from collections.abc import Sequence

from dualwrite.broker.api.context import NODE_ID, BrokerContext
from dualwrite.broker.api.operations import ON_TOPIC, as_bits
from dualwrite.broker.core.cluster import INTERNAL_TOPICS
from dualwrite.broker.facts.cluster import TopicCreated
from dualwrite.broker.runtime.partition import LEADER_EPOCH
from dualwrite.ids import is_legal_topic
from dualwrite.wire.apis import ApiKey, DescribeTopicPartitionsResponse, Message
from dualwrite.wire.error_codes import ErrorCode

KEY = ApiKey.DESCRIBE_TOPIC_PARTITIONS
VERSIONS = range(1)

_LIMIT = 2000
"""Kafka's default of max.request.partition.size.limit."""

_ALLOWED = as_bits(ON_TOPIC)

_Topic = DescribeTopicPartitionsResponse.DescribeTopicPartitionsResponseTopic


async def handle(request: Message, version: int, broker: BrokerContext) -> Message:
    """Describe a page of partitions."""
    cursor = request.cursor
    asked = {topic.name for topic in request.topics}
    if cursor is not None and (cursor.partition_index < 0 or (asked and cursor.topic_name not in asked)):
        topics = [_without_partitions(name, ErrorCode.INVALID_REQUEST) for name in sorted(asked)]
        return DescribeTopicPartitionsResponse(throttle_time_ms=0, topics=topics, next_cursor=None)
    begin = cursor.topic_name if cursor is not None else ""
    names = [name for name in sorted(asked or broker.cluster.topics()) if name >= begin]
    room = max(min(_LIMIT, request.response_partition_limit), 1)
    topics, following = [], None
    for name in names:
        if not room:
            following = _cursor(name, 0)
            break
        topic = broker.cluster.topic(name)
        if topic is None:
            error = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if is_legal_topic(name) else ErrorCode.INVALID_TOPIC_EXCEPTION
            topics.append(_without_partitions(name, error))
            continue
        first = cursor.partition_index if cursor is not None and name == begin else 0
        indexes = range(first, min(first + room, topic.partitions))
        topics.append(_describe(topic, indexes))
        room -= len(indexes)
        if indexes.stop < topic.partitions:
            following = _cursor(name, indexes.stop)
            break
    await broker.flusher.barrier()
    return DescribeTopicPartitionsResponse(throttle_time_ms=0, topics=topics, next_cursor=following)


def _cursor(topic: str, partition: int) -> Message:
    return DescribeTopicPartitionsResponse.Cursor(topic_name=topic, partition_index=partition)


def _describe(topic: TopicCreated, indexes: Sequence[int]) -> Message:
    return _Topic(
        error_code=ErrorCode.NONE,
        name=topic.name,
        topic_id=topic.topic_id,
        is_internal=topic.name in INTERNAL_TOPICS,
        topic_authorized_operations=_ALLOWED,
        partitions=[
            _Topic.DescribeTopicPartitionsResponsePartition(
                error_code=ErrorCode.NONE,
                partition_index=index,
                leader_id=NODE_ID,
                leader_epoch=LEADER_EPOCH,
                replica_nodes=[NODE_ID],
                isr_nodes=[NODE_ID],
                eligible_leader_replicas=[],
                last_known_elr=[],
                offline_replicas=[],
            )
            for index in indexes
        ],
    )


def _without_partitions(name: str, error: ErrorCode) -> Message:
    return _Topic(error_code=error, name=name, is_internal=False, partitions=[], topic_authorized_operations=_ALLOWED)
