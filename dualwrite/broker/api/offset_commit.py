"""OffsetCommit (8), v2-v10.

Remembers where a group is in its partitions, durably, before it answers. A member commits in its generation, which
counts as a heartbeat: ILLEGAL_GENERATION, UNKNOWN_MEMBER_ID or FENCED_INSTANCE_ID (v7, KIP-345) if it is not in the
present one, REBALANCE_IN_PROGRESS while that is not complete. Whoever is outside of any generation may commit while the
group is empty. A generation of a group that nobody has heard of is GROUP_ID_NOT_FOUND (ILLEGAL_GENERATION before v9,
which does not know that). RetentionTimeMs of v2-v4 is ignored in favour of offsets.retention.minutes. From v10 on
topics are named by id. ACL: none yet.
"""

from dualwrite.broker.api.context import BrokerContext
from dualwrite.broker.core.offsets import CommitOffsets, Position
from dualwrite.ids import TopicPartition
from dualwrite.wire.apis import ApiKey, Message, OffsetCommitResponse
from dualwrite.wire.error_codes import ErrorCode

KEY = ApiKey.OFFSET_COMMIT
VERSIONS = range(2, 11)

_FIRST_WITH_UNKNOWN_GROUPS = 9
_FIRST_WITH_TOPIC_IDS = 10


async def handle(request: Message, version: int, broker: BrokerContext) -> Message:
    """Commit the offsets of the request; each partition is answered by itself."""
    by_id = version >= _FIRST_WITH_TOPIC_IDS
    names = [broker.cluster.topic_name(topic.topic_id) if by_id else topic.name for topic in request.topics]
    positions = {
        TopicPartition(name, entry.partition_index): _position(entry)
        for name, topic in zip(names, request.topics, strict=True)
        if name is not None
        for entry in topic.partitions
    }
    generation, member_id = request.generation_id_or_member_epoch, request.member_id
    command = CommitOffsets(request.group_id, positions, generation, member_id, request.group_instance_id)
    errors = await broker.offsets.commit(command)
    if any(error is ErrorCode.NONE for error in errors.values()):
        broker.groups.keep_alive(request.group_id, member_id)
    response = OffsetCommitResponse.OffsetCommitResponseTopic
    partition_response = response.OffsetCommitResponsePartition
    topics = []
    for name, topic in zip(names, request.topics, strict=True):
        results = []
        for entry in topic.partitions:
            error = ErrorCode.UNKNOWN_TOPIC_ID if name is None else errors[TopicPartition(name, entry.partition_index)]
            code = _as_known_to(version, error)
            results.append(partition_response(partition_index=entry.partition_index, error_code=code))
        topics.append(response(name=topic.name, topic_id=topic.topic_id, partitions=results))
    return OffsetCommitResponse(throttle_time_ms=0, topics=topics)


def _position(entry: Message) -> Position:
    return Position(entry.committed_offset, entry.committed_leader_epoch, entry.committed_metadata or "")


def _as_known_to(version: int, error: ErrorCode) -> ErrorCode:
    if error is ErrorCode.GROUP_ID_NOT_FOUND and version < _FIRST_WITH_UNKNOWN_GROUPS:
        return ErrorCode.ILLEGAL_GENERATION
    return error
