"""OffsetForLeaderEpoch (23), v2-v4 (KIP-320).

Answers the end offset of a leader epoch. A consumer asks for it after a disconnect, to notice a log that was truncated
below its position. The one node has led every partition in epoch 0 since its creation, so epoch 0 ends at the last
offset that readers can see. Other epochs are unknown (-1). So a consumer notices a log that has lost its end (a power
cut with ``--durability os``, an older copy of the data directory) only as long as the log is shorter than its position;
in Apache Kafka the epoch of a partition rises when its broker starts again.
"""

from dualwrite.broker.access.acls import AclOperation
from dualwrite.broker.access.needs import on_cluster, on_topic
from dualwrite.broker.api.context import BrokerContext
from dualwrite.broker.api.records.settled import settled_partition
from dualwrite.broker.api.turns import in_turns
from dualwrite.broker.runtime.partition import LEADER_EPOCH
from dualwrite.ids import TopicPartition
from dualwrite.wire.apis import ApiKey, Message, OffsetForLeaderEpochResponse
from dualwrite.wire.error_codes import ErrorCode

KEY = ApiKey.OFFSET_FOR_LEADER_EPOCH
VERSIONS = range(2, 5)
_CLUSTER_ACTION = on_cluster(AclOperation.CLUSTER_ACTION, "instead of DESCRIBE on the topic", is_refused=False)
_DESCRIBE = on_topic(AclOperation.DESCRIBE)
NEEDS = (_DESCRIBE, _CLUSTER_ACTION)

_UNDEFINED = -1


async def handle(request: Message, version: int, broker: BrokerContext) -> Message:
    """Look up every partition of the request."""
    response = OffsetForLeaderEpochResponse.OffsetForLeaderTopicResult
    topics = [
        response(
            topic=topic.topic,
            partitions=[await _look_up(topic.topic, entry, broker) async for entry in in_turns(topic.partitions)],
        )
        async for topic in in_turns(request.topics)
    ]
    return OffsetForLeaderEpochResponse(throttle_time_ms=0, topics=topics)


async def _look_up(topic: str, entry: Message, broker: BrokerContext) -> Message:
    response = OffsetForLeaderEpochResponse.OffsetForLeaderTopicResult.EpochEndOffset
    may_know = broker.may(_CLUSTER_ACTION) or broker.may(_DESCRIBE, topic)
    partition = await settled_partition(TopicPartition(topic, entry.partition), broker) if may_know else None
    error, epoch, end_offset = ErrorCode.NONE, _UNDEFINED, _UNDEFINED
    if not may_know:
        error = _DESCRIBE.error
    elif partition is None:
        error = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    elif entry.current_leader_epoch > LEADER_EPOCH:
        error = ErrorCode.UNKNOWN_LEADER_EPOCH
    elif 0 <= entry.leader_epoch <= LEADER_EPOCH:
        epoch, end_offset = LEADER_EPOCH, partition.visible_before(committed_only=False)
    return response(partition=entry.partition, error_code=error, leader_epoch=epoch, end_offset=end_offset)
