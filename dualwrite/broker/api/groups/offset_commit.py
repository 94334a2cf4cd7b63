"""OffsetCommit (8), v2-v10.

Remembers where a group is in its partitions, durably, before it answers. A member commits in its generation, which
counts as a heartbeat: ILLEGAL_GENERATION, UNKNOWN_MEMBER_ID or FENCED_INSTANCE_ID (v7, KIP-345) if it is not in the
present one, REBALANCE_IN_PROGRESS while that is not complete. A client outside of any generation may commit while the
group is empty. A generation of an unknown group is GROUP_ID_NOT_FOUND (ILLEGAL_GENERATION before v9,
which does not know that). RetentionTimeMs of v2-v4 is ignored in favour of offsets.retention.minutes. From v10 on
topics are named by id. ACL: none yet.
"""

from dualwrite.broker.api.context import BrokerContext
from dualwrite.broker.api.groups.committing import Commit, CommittingVersions
from dualwrite.broker.core.offsets import CommitOffsets
from dualwrite.wire.apis import ApiKey, Message, OffsetCommitResponse
from dualwrite.wire.error_codes import ErrorCode

KEY = ApiKey.OFFSET_COMMIT
VERSIONS = range(2, 11)

_VERSIONS = CommittingVersions(topic_ids=10, unknown_groups=9)


async def handle(request: Message, version: int, broker: BrokerContext) -> Message:
    """Commit the offsets of the request; each partition is answered by itself."""
    commit = Commit(request, version, _VERSIONS, broker)
    generation, member_id = request.generation_id_or_member_epoch, request.member_id
    command = CommitOffsets(request.group_id, commit.positions(), generation, member_id, request.group_instance_id)
    errors = await broker.offsets.commit(command)
    if any(error is ErrorCode.NONE for error in errors.values()):
        broker.groups.keep_alive(request.group_id, member_id)
    response = OffsetCommitResponse.OffsetCommitResponseTopic
    topics = commit.answer(response, response.OffsetCommitResponsePartition, errors)
    return OffsetCommitResponse(throttle_time_ms=0, topics=topics)
