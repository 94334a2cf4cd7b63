"""ListOffsets (2), v1-v11.

Finds an offset by timestamp. Special timestamps: -1 is the latest visible offset (from v2 on the last stable offset
under read_committed); -2 and -4 (v8, KIP-405) are the earliest offset; -3 is the offset of the highest timestamp (v7,
KIP-734). -5 (v9) and -6 (v11) ask for tiered storage, which this broker does not have: offset -1. A partition that
occurs twice gets INVALID_REQUEST.
"""

from collections import Counter

from dualwrite.broker.access.acls import AclOperation
from dualwrite.broker.access.needs import on_topic
from dualwrite.broker.api.context import BrokerContext
from dualwrite.broker.api.records.reading_errors import reading_error
from dualwrite.broker.api.records.settled import settled_partition
from dualwrite.broker.api.turns import in_turns
from dualwrite.broker.runtime.partition import LEADER_EPOCH, Partition
from dualwrite.ids import TopicPartition
from dualwrite.records.header import MalformedBatchError
from dualwrite.wire.apis import ApiKey, ListOffsetsResponse, Message
from dualwrite.wire.error_codes import ErrorCode

KEY = ApiKey.LIST_OFFSETS
VERSIONS = range(1, 12)
_DESCRIBE = on_topic(AclOperation.DESCRIBE)
NEEDS = (_DESCRIBE,)

_LATEST, _EARLIEST, _MAX_TIMESTAMP, _EARLIEST_LOCAL, _LATEST_TIERED, _EARLIEST_PENDING_UPLOAD = range(-1, -7, -1)
_EARLIEST_SPECIAL = {
    11: _EARLIEST_PENDING_UPLOAD,
    10: _LATEST_TIERED,
    9: _LATEST_TIERED,
    8: _EARLIEST_LOCAL,
    7: _MAX_TIMESTAMP,
}
"""Version -> the lowest special timestamp. Below v7 it is the earliest offset's, -2."""
_READ_COMMITTED = 1
_UNKNOWN = (-1, -1)


async def handle(request: Message, version: int, broker: BrokerContext) -> Message:
    """Look up every partition of the request."""
    committed_only = version > VERSIONS[0] and request.isolation_level == _READ_COMMITTED
    earliest_special = _EARLIEST_SPECIAL.get(version, _EARLIEST)
    topics = []
    async for topic in in_turns(request.topics):
        if not broker.may(_DESCRIBE, topic.name):
            refused = [_refuse(entry.partition_index, _DESCRIBE.error) for entry in topic.partitions]
            topics.append(ListOffsetsResponse.ListOffsetsTopicResponse(name=topic.name, partitions=refused))
            continue
        times = Counter(entry.partition_index for entry in topic.partitions)
        once = [entry for entry in topic.partitions if times[entry.partition_index] == 1]
        partitions = [
            await _look_up(topic.name, entry, committed_only, earliest_special, broker)
            async for entry in in_turns(once)
        ]
        partitions += [_refuse(index, ErrorCode.INVALID_REQUEST) for index, number in times.items() if number > 1]
        topics.append(ListOffsetsResponse.ListOffsetsTopicResponse(name=topic.name, partitions=partitions))
    return ListOffsetsResponse(throttle_time_ms=0, topics=topics)


def _refuse(index: int, error: ErrorCode) -> Message:
    response = ListOffsetsResponse.ListOffsetsTopicResponse.ListOffsetsPartitionResponse
    return response(partition_index=index, error_code=error, timestamp=-1, offset=-1, leader_epoch=-1)


async def _look_up(
    topic: str, entry: Message, committed_only: bool, earliest_special: int, broker: BrokerContext
) -> Message:
    partition = await settled_partition(TopicPartition(topic, entry.partition_index), broker)
    error = ErrorCode.NONE
    if partition is None:
        error = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    elif entry.current_leader_epoch > LEADER_EPOCH:
        error = ErrorCode.UNKNOWN_LEADER_EPOCH
    elif entry.timestamp < earliest_special:
        error = ErrorCode.UNSUPPORTED_VERSION
    if partition is None or error is not ErrorCode.NONE:
        return _refuse(entry.partition_index, error)
    try:
        timestamp, offset = _find(partition, entry.timestamp, committed_only)
    except (OSError, MalformedBatchError) as failure:
        return _refuse(entry.partition_index, reading_error(partition, failure))
    return ListOffsetsResponse.ListOffsetsTopicResponse.ListOffsetsPartitionResponse(
        partition_index=entry.partition_index,
        error_code=ErrorCode.NONE,
        timestamp=timestamp,
        offset=offset,
        leader_epoch=LEADER_EPOCH if offset >= 0 else -1,
    )


def _find(partition: Partition, timestamp: int, committed_only: bool) -> tuple[int, int]:
    before = partition.visible_before(committed_only)
    if timestamp == _LATEST:
        return -1, before
    if timestamp in (_EARLIEST, _EARLIEST_LOCAL):
        return -1, partition.log.start_offset
    if timestamp in (_LATEST_TIERED, _EARLIEST_PENDING_UPLOAD):
        return _UNKNOWN
    if timestamp == _MAX_TIMESTAMP:
        return partition.log.max_timestamp(before) or _UNKNOWN
    return partition.log.offset_for_timestamp(timestamp, before) or _UNKNOWN
