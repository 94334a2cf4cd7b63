"""OffsetDelete (47), v0 (KIP-496).

Forgets what a group has committed in partitions. A topic that a member of the group is subscribed to keeps its offsets:
GROUP_SUBSCRIBED_TO_TOPIC; a group with members that are no consumers, all of them: NON_EMPTY_GROUP. ACL: none yet.
"""

from dualwrite.broker.api.context import BrokerContext
from dualwrite.ids import TopicPartition
from dualwrite.wire.apis import ApiKey, Message, OffsetDeleteResponse
from dualwrite.wire.error_codes import ErrorCode

KEY = ApiKey.OFFSET_DELETE
VERSIONS = range(1)


async def handle(request: Message, version: int, broker: BrokerContext) -> Message:
    """Delete the offsets of the request."""
    wanted = [
        TopicPartition(topic.name, partition.partition_index)
        for topic in request.topics
        for partition in topic.partitions
    ]
    known = tuple(partition for partition in wanted if broker.cluster.partition(partition) is not None)
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
            code = errors.get(name, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            results.append(entry(partition_index=name.partition, error_code=code))
        topics.append(response(name=topic.name, partitions=results))
    return OffsetDeleteResponse(error_code=ErrorCode.NONE, throttle_time_ms=0, topics=topics)
