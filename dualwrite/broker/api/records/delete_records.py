"""DeleteRecords (21), v0-v2 (KIP-107).

The log of each partition begins at the offset of the request from then on, -1 for the high watermark; what lies before
it is never read again, and whole segments of it are removed at once. It is durable when it is answered, with the new
first offset as the low watermark. A log never begins earlier than it did. Beyond the high watermark there is nothing to
delete: OFFSET_OUT_OF_RANGE. A topic whose cleanup.policy is compact alone refuses, as does an internal one. Of a
partition that occurs again the last offset counts, and it is answered once, as in Apache Kafka. ACL: none yet.
"""

import asyncio

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
    wanted: dict[str, dict[int, int]] = {}
    for topic in request.topics:
        offsets = wanted.setdefault(topic.name, {})
        offsets.update((entry.partition_index, entry.offset) for entry in topic.partitions)
    response = DeleteRecordsResponse.DeleteRecordsTopicResult
    topics = []
    for name, offsets in wanted.items():
        results = []
        for index, offset in offsets.items():
            results.append(_delete(TopicPartition(name, index), offset, broker))
            await asyncio.sleep(0)  # each takes a few fsyncs: let others be served between them
        topics.append(response(name=name, partitions=results))
    await broker.flusher.barrier()
    return DeleteRecordsResponse(throttle_time_ms=0, topics=topics)


def _delete(name: TopicPartition, offset: int, broker: BrokerContext) -> Message:
    partition = broker.cluster.partition(name)
    error, watermark = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, _NO_WATERMARK
    if partition is not None:
        error = _error(partition, offset, broker)
    if partition is not None and error is ErrorCode.NONE:
        partition.truncate_before(partition.state.high_watermark if offset == _HIGH_WATERMARK else offset)
        watermark = partition.log.start_offset
    return DeleteRecordsResponse.DeleteRecordsTopicResult.DeleteRecordsPartitionResult(
        partition_index=name.partition, low_watermark=watermark, error_code=error
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
