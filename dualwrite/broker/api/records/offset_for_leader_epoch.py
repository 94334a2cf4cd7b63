"""OffsetForLeaderEpoch (23), v2-v4 (KIP-320).

How far the records of a leader epoch reach: a consumer asks after it was disconnected, to see whether the log was cut
behind its position. The one node has led every partition in epoch 0 since its creation, so that epoch ends where
readers can see to; other epochs are unknown (-1). ACL: none yet.
"""

from dualwrite.broker.api.context import BrokerContext
from dualwrite.broker.api.turns import in_turns
from dualwrite.broker.runtime.partition import LEADER_EPOCH
from dualwrite.ids import TopicPartition
from dualwrite.wire.apis import ApiKey, Message, OffsetForLeaderEpochResponse
from dualwrite.wire.error_codes import ErrorCode

KEY = ApiKey.OFFSET_FOR_LEADER_EPOCH
VERSIONS = range(2, 5)

_UNDEFINED = -1


async def handle(request: Message, version: int, broker: BrokerContext) -> Message:
    """Look up every partition of the request."""
    response = OffsetForLeaderEpochResponse.OffsetForLeaderTopicResult
    topics = [
        response(
            topic=topic.topic,
            partitions=[_look_up(topic.topic, entry, broker) async for entry in in_turns(topic.partitions)],
        )
        async for topic in in_turns(request.topics)
    ]
    return OffsetForLeaderEpochResponse(throttle_time_ms=0, topics=topics)


def _look_up(topic: str, wanted: Message, broker: BrokerContext) -> Message:
    response = OffsetForLeaderEpochResponse.OffsetForLeaderTopicResult.EpochEndOffset
    partition = broker.cluster.partition(TopicPartition(topic, wanted.partition))
    error, epoch, end_offset = ErrorCode.NONE, _UNDEFINED, _UNDEFINED
    if partition is None:
        error = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    elif wanted.current_leader_epoch > LEADER_EPOCH:
        error = ErrorCode.UNKNOWN_LEADER_EPOCH
    elif 0 <= wanted.leader_epoch <= LEADER_EPOCH:
        epoch, end_offset = LEADER_EPOCH, partition.visible_before(committed_only=False)
    return response(partition=wanted.partition, error_code=error, leader_epoch=epoch, end_offset=end_offset)
