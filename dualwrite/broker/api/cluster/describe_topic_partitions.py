"""DescribeTopicPartitions (75), v0 (KIP-966).

Answers one page of partitions, from the request's cursor on, with the topics in the order of their names. A page has as
many partitions as the request allows, and at most 2000 (Kafka's default; this broker has no setting for it). The next
cursor names the first partition after the page. A request without topics asks for all topics. An invalid cursor gets
INVALID_REQUEST for every topic.
"""

from collections.abc import Sequence

from dualwrite.broker.access.acls import AclOperation, ResourceType
from dualwrite.broker.access.needs import on_topic
from dualwrite.broker.api.cluster.leading import leading
from dualwrite.broker.api.context import BrokerContext
from dualwrite.broker.api.operations import as_bits
from dualwrite.broker.core.cluster import INTERNAL_TOPICS
from dualwrite.broker.facts.cluster import TopicCreated
from dualwrite.ids import is_legal_topic
from dualwrite.wire.apis import ApiKey, DescribeTopicPartitionsResponse, Message
from dualwrite.wire.error_codes import ErrorCode

KEY = ApiKey.DESCRIBE_TOPIC_PARTITIONS
VERSIONS = range(1)
_DESCRIBE = on_topic(AclOperation.DESCRIBE, "left out if the client asks for all topics")
NEEDS = (_DESCRIBE,)
_SEE = _DESCRIBE._replace(is_refused=False)  # a list of all topics leaves out the others

_LIMIT = 2000
"""Kafka's default of max.request.partition.size.limit."""

_Topic = DescribeTopicPartitionsResponse.DescribeTopicPartitionsResponseTopic


async def handle(request: Message, version: int, broker: BrokerContext) -> Message:
    """Describe a page of partitions."""
    cursor = request.cursor
    requested = {topic.name for topic in request.topics}
    if cursor is not None and (cursor.partition_index < 0 or (requested and cursor.topic_name not in requested)):
        topics = [_without_partitions(name, ErrorCode.INVALID_REQUEST, broker) for name in sorted(requested)]
        return DescribeTopicPartitionsResponse(throttle_time_ms=0, topics=topics, next_cursor=None)
    begin = cursor.topic_name if cursor is not None else ""
    names = [name for name in sorted(requested or broker.cluster.topics()) if name >= begin]
    room = max(min(_LIMIT, request.response_partition_limit), 1)
    topics, next_page = [], None
    for name in names:
        if not room:
            next_page = _cursor(name, 0)
            break
        if not broker.may(_DESCRIBE if requested else _SEE, name):
            if requested:
                topics.append(_Topic(error_code=_DESCRIBE.error, name=name, is_internal=False, partitions=[]))
            continue
        topic = broker.cluster.topic(name)
        if topic is None:
            error = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if is_legal_topic(name) else ErrorCode.INVALID_TOPIC_EXCEPTION
            topics.append(_without_partitions(name, error, broker))
            continue
        first = cursor.partition_index if cursor is not None and name == begin else 0
        indexes = range(first, min(first + room, topic.partitions))
        topics.append(_describe(topic, indexes, broker))
        room -= len(indexes)
        if indexes.stop < topic.partitions:
            next_page = _cursor(name, indexes.stop)
            break
    await broker.flusher.barrier()
    return DescribeTopicPartitionsResponse(throttle_time_ms=0, topics=topics, next_cursor=next_page)


def _cursor(topic: str, partition: int) -> Message:
    return DescribeTopicPartitionsResponse.Cursor(topic_name=topic, partition_index=partition)


def _allowed(name: str, broker: BrokerContext) -> int:
    return as_bits(broker.operations(ResourceType.TOPIC, name))


def _describe(topic: TopicCreated, indexes: Sequence[int], broker: BrokerContext) -> Message:
    return _Topic(
        error_code=ErrorCode.NONE,
        name=topic.name,
        topic_id=topic.topic_id,
        is_internal=topic.name in INTERNAL_TOPICS,
        topic_authorized_operations=_allowed(topic.name, broker),
        partitions=[
            _Topic.DescribeTopicPartitionsResponsePartition(
                **leading(index, broker.node_id), eligible_leader_replicas=[], last_known_elr=[]
            )
            for index in indexes
        ],
    )


def _without_partitions(name: str, error: ErrorCode, broker: BrokerContext) -> Message:
    allowed = _allowed(name, broker)
    return _Topic(error_code=error, name=name, is_internal=False, partitions=[], topic_authorized_operations=allowed)
