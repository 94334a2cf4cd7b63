"""OffsetDelete (47), v0 (KIP-496).

Deletes a group's committed offsets in the partitions of the request. Errors: GROUP_SUBSCRIBED_TO_TOPIC for a topic that
a member of the group is subscribed to; NON_EMPTY_GROUP for a group with members of another protocol type than
"consumer".
"""

from dualwrite.broker.access.acls import AclOperation
from dualwrite.broker.access.needs import on_group, on_topic
from dualwrite.broker.api.context import BrokerContext
from dualwrite.ids import TopicPartition
from dualwrite.wire.apis import ApiKey, Message, OffsetDeleteResponse
from dualwrite.wire.error_codes import ErrorCode

KEY = ApiKey.OFFSET_DELETE
VERSIONS = range(1)
_DELETE = on_group(AclOperation.DELETE)
_READ = on_topic(AclOperation.READ)
NEEDS = (_DELETE, _READ)


async def handle(request: Message, version: int, broker: BrokerContext) -> Message:
    """Delete the offsets of the request."""
    if not broker.may(_DELETE, request.group_id):
        return OffsetDeleteResponse(error_code=_DELETE.error, throttle_time_ms=0, topics=[])
    may_read = {topic.name: broker.may(_READ, topic.name) for topic in request.topics}
    requested = [
        TopicPartition(topic.name, partition.partition_index)
        for topic in request.topics
        for partition in topic.partitions
    ]
    known = tuple(
        partition for partition in requested if may_read[partition.topic] and broker.cluster.partition(partition)
    )
    error, errors = await broker.offsets.delete(request.group_id, known)
    if error is not ErrorCode.NONE:
        return OffsetDeleteResponse(error_code=error, throttle_time_ms=0, topics=[])
    response = OffsetDeleteResponse.OffsetDeleteResponseTopic
    entry = response.OffsetDeleteResponsePartition
    topics = []
    for topic in request.topics:
        results = []
        for partition in topic.partitions:
            name = TopicPartition(topic.name, partition.partition_index)
            missing = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if may_read[topic.name] else _READ.error
            code = errors.get(name, missing)
            results.append(entry(partition_index=name.partition, error_code=code))
        topics.append(response(name=topic.name, partitions=results))
    return OffsetDeleteResponse(error_code=ErrorCode.NONE, throttle_time_ms=0, topics=topics)
