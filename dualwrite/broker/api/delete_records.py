"""DeleteRecords (21), v0-v2 (KIP-107).

The log of each partition begins at the offset of the request from then on, -1 for the high watermark; what lies before
it is never read again, and whole segments of it are removed at once. It is durable when it is answered, with the new
first offset as the low watermark. A log never begins earlier than it did. Beyond the high watermark there is nothing to
delete: OFFSET_OUT_OF_RANGE. A topic whose cleanup.policy is compact alone refuses, as does an internal one. ACL: none
yet.
"""

from dualwrite.broker.api.context import BrokerContext
from dualwrite.broker.core.cluster import INTERNAL_TOPICS
from dualwrite.broker.runtime.partition import Partition
from dualwrite.ids import TopicPartition
from dualwrite.wire.apis import ApiKey, DeleteRecordsResponse, Message
from dualwrite.wire.error_codes import ErrorCode

KEY = ApiKey.DELETE_RECORDS
VERSIONS = range(3)

_HIGH_WATERMARK = -1
_NO_WATERMARK = -1


async def handle(request: Message, version: int, broker: BrokerContext) -> Message:
    """Move the beginning of every partition of the request."""
    response = DeleteRecordsResponse.DeleteRecordsTopicResult
    topics = [
        response(name=topic.name, partitions=[_delete(topic.name, entry, broker) for entry in topic.partitions])
        for topic in request.topics
    ]
    await broker.flusher.barrier()
    return DeleteRecordsResponse(throttle_time_ms=0, topics=topics)


def _delete(topic: str, wanted: Message, broker: BrokerContext) -> Message:
    partition = broker.cluster.partition(TopicPartition(topic, wanted.partition_index))
    error, watermark = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, _NO_WATERMARK
    if partition is not None:
        error = _error(partition, wanted.offset, broker)
    if partition is not None and error is ErrorCode.NONE:
        high_watermark = partition.state.high_watermark
        partition.truncate_before(high_watermark if wanted.offset == _HIGH_WATERMARK else wanted.offset)
        watermark = partition.log.start_offset
    return DeleteRecordsResponse.DeleteRecordsTopicResult.DeleteRecordsPartitionResult(
        partition_index=wanted.partition_index, low_watermark=watermark, error_code=error
    )


def _error(partition: Partition, offset: int, broker: BrokerContext) -> ErrorCode:
    topic = partition.name.topic
    if topic in INTERNAL_TOPICS:
        return ErrorCode.INVALID_TOPIC_EXCEPTION
    config = broker.cluster.config(topic)
    if config.compacts and not config.deletes:
        return ErrorCode.POLICY_VIOLATION
    if offset != _HIGH_WATERMARK and not 0 <= offset <= partition.state.high_watermark:
        return ErrorCode.OFFSET_OUT_OF_RANGE
    return ErrorCode.NONE
