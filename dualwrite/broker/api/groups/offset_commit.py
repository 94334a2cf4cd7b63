"""OffsetCommit (8), v2-v10.

Stores a group's positions; they are durable before the answer. A member commits in its generation, which counts as a
heartbeat. A client outside any generation may commit while the group is empty. From v10 on topics are named by id.
The broker ignores RetentionTimeMs (v2-v4); offsets.retention.minutes applies.
A member of a consumer group commits in its epoch, from v9 on (KIP-848): else STALE_MEMBER_EPOCH, or UNSUPPORTED_VERSION
before v9. It may commit in an older epoch for partitions that it has held since then (KIP-1251). If it speaks the
classic protocol, its generation is its epoch, in every version.

Errors: ILLEGAL_GENERATION, UNKNOWN_MEMBER_ID or FENCED_INSTANCE_ID (v7, KIP-345) if the client is not in the current
generation; REBALANCE_IN_PROGRESS while that generation is not complete; GROUP_ID_NOT_FOUND for a generation of an
unknown group (ILLEGAL_GENERATION before v9).
"""

from dualwrite.broker.access.acls import AclOperation
from dualwrite.broker.access.needs import on_group, on_topic
from dualwrite.broker.api.context import BrokerContext
from dualwrite.broker.api.groups.committing import Commit, CommittingVersions
from dualwrite.broker.core.offsets import CommitOffsets
from dualwrite.wire.apis import ApiKey, Message, OffsetCommitResponse
from dualwrite.wire.error_codes import ErrorCode

KEY = ApiKey.OFFSET_COMMIT
VERSIONS = range(2, 11)
_READ_GROUP = on_group(AclOperation.READ)
_READ = on_topic(AclOperation.READ)
NEEDS = (_READ_GROUP, _READ)

_FIRST_WITH_EPOCHS = 9
_VERSIONS = CommittingVersions(topic_ids=10, unknown_groups=9, stale_epochs=9)


async def handle(request: Message, version: int, broker: BrokerContext) -> Message:
    """Commit the offsets of the request, with an error code for each partition."""
    commit = Commit(request, version, _VERSIONS, broker)
    commit.refuse(None if broker.may(_READ_GROUP, request.group_id) else _READ_GROUP, _READ)
    positions = commit.positions()
    generation, member_id = request.generation_id_or_member_epoch, request.member_id
    command = CommitOffsets(
        request.group_id,
        positions,
        generation,
        member_id,
        request.group_instance_id,
        knows_epochs=version >= _FIRST_WITH_EPOCHS,
    )
    errors = await broker.offsets.commit(command) if positions else {}
    if any(error is ErrorCode.NONE for error in errors.values()):
        broker.groups.keep_alive(request.group_id, member_id)
    response = OffsetCommitResponse.OffsetCommitResponseTopic
    topics = commit.answer(response, response.OffsetCommitResponsePartition, errors)
    return OffsetCommitResponse(throttle_time_ms=0, topics=topics)
