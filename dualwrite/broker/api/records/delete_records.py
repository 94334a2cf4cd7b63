"""DeleteRecords (21), v0-v2 (KIP-107).

Raises the log start offset of each partition to the offset of the request; -1 stands for the high watermark. Readers
never see earlier records again, and the broker removes whole segments of them at once. The change is durable before the
answer, which has the new log start offset as the low watermark. The log start offset never goes back. Open
transactions keep no records: as in Apache Kafka, the records of a transaction that waits may be removed, here and by
retention, and a later commit does not bring them back. If a partition occurs twice, the last offset counts and the
answer has it once, as in Apache Kafka.

Errors: OFFSET_OUT_OF_RANGE for an offset above the high watermark; POLICY_VIOLATION if cleanup.policy is compact alone;
INVALID_TOPIC_EXCEPTION for an internal topic.
"""

import asyncio

from dualwrite.broker.access.acls import AclOperation
from dualwrite.broker.access.needs import on_topic
from dualwrite.broker.api.context import BrokerContext
from dualwrite.broker.api.records.settled import settled_partition
from dualwrite.broker.core.cluster import INTERNAL_TOPICS
from dualwrite.broker.runtime.partition import Partition
from dualwrite.ids import TopicPartition
from dualwrite.wire.apis import ApiKey, DeleteRecordsResponse, Message
from dualwrite.wire.error_codes import ErrorCode

KEY = ApiKey.DELETE_RECORDS
VERSIONS = range(3)
_DELETE = on_topic(AclOperation.DELETE)
NEEDS = (_DELETE,)

_HIGH_WATERMARK = -1
_NO_WATERMARK = -1


async def handle(request: Message, version: int, broker: BrokerContext) -> Message:
    """Raise the log start offset of every partition of the request."""
    requested: dict[str, dict[int, int]] = {}
    for topic in request.topics:
        offsets = requested.setdefault(topic.name, {})
        offsets.update((entry.partition_index, entry.offset) for entry in topic.partitions)
    response = DeleteRecordsResponse.DeleteRecordsTopicResult
    topics = []
    for name, offsets in requested.items():
        results = []
        for index, offset in offsets.items():
            results.append(await _delete(TopicPartition(name, index), offset, broker))
            await asyncio.sleep(0)  # each deletion takes a few fsyncs: serve other requests between two
        topics.append(response(name=name, partitions=results))
    await broker.flusher.barrier()
    return DeleteRecordsResponse(throttle_time_ms=0, topics=topics)


async def _delete(name: TopicPartition, offset: int, broker: BrokerContext) -> Message:
    error, watermark, partition = _DELETE.error, _NO_WATERMARK, None
    if broker.may(_DELETE, name.topic):
        partition, error = await settled_partition(name, broker), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
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
