"""SyncGroup (14), v0-v5.

A member of a new generation asks for its assignment, and waits until the leader has brought those of all: they are on
disk before any is sent. A generation of more than 16 MiB is discarded: UNKNOWN_SERVER_ERROR, and the group joins anew
(1 MiB in Apache Kafka). In a complete generation it is told at once. From v3 on a static member names itself; from
v5 on the protocol must be named, and be the group's (KIP-559). ACL: none yet.
"""

from dualwrite.broker.api.context import BrokerContext
from dualwrite.broker.core.group_commands import SyncGroup, SyncReply
from dualwrite.wire.apis import ApiKey, Message, SyncGroupResponse
from dualwrite.wire.error_codes import ErrorCode

KEY = ApiKey.SYNC_GROUP
VERSIONS = range(6)

_FIRST_WITH_PROTOCOL = 5


async def handle(request: Message, version: int, broker: BrokerContext) -> Message:
    """Sync, and wait for the leader."""
    if version >= _FIRST_WITH_PROTOCOL and (request.protocol_type is None or request.protocol_name is None):
        reply = SyncReply(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
    else:
        reply = await broker.groups.sync(
            SyncGroup(
                request.group_id,
                request.member_id,
                request.group_instance_id,
                request.generation_id,
                tuple((entry.member_id, bytes(entry.assignment)) for entry in request.assignments),
                request.protocol_type,
                request.protocol_name,
            )
        )
    return SyncGroupResponse(
        throttle_time_ms=0,
        error_code=reply.error,
        protocol_type=reply.protocol_type,
        protocol_name=reply.protocol,
        assignment=reply.assignment,
    )
