"""SyncGroup (14), v0-v5.

A member of a new generation asks for its assignment, and waits until the leader has sent the assignments of all. They
are durable before the broker sends any. In a complete generation the member gets its assignment at once. A
generation of more than 16 MiB (1 MiB in Apache Kafka) is discarded with UNKNOWN_SERVER_ERROR, and the members join
again. The leader's request may have 1 MiB at most, as every request without records: the connection of a larger one is
closed. From v3 on a static member sends its instance id. From v5 on a request must name the group's protocol (KIP-559).
In a consumer group (KIP-848) the broker has assigned, and answers at once.
"""

from dualwrite.broker.access.acls import AclOperation
from dualwrite.broker.access.needs import on_group
from dualwrite.broker.api.context import BrokerContext
from dualwrite.broker.core.group_commands import SyncGroup, SyncReply
from dualwrite.wire.apis import ApiKey, Message, SyncGroupResponse
from dualwrite.wire.error_codes import ErrorCode

KEY = ApiKey.SYNC_GROUP
VERSIONS = range(6)
_READ = on_group(AclOperation.READ)
NEEDS = (_READ,)

_FIRST_WITH_PROTOCOL = 5


async def handle(request: Message, version: int, broker: BrokerContext) -> Message:
    """Sync, and wait for the leader."""
    if version >= _FIRST_WITH_PROTOCOL and (request.protocol_type is None or request.protocol_name is None):
        reply = SyncReply(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
    elif not broker.may(_READ, request.group_id):
        reply = SyncReply(_READ.error)
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
            ),
            broker.polls,
        )
    return SyncGroupResponse(
        throttle_time_ms=0,
        error_code=reply.error,
        protocol_type=reply.protocol_type,
        protocol_name=reply.protocol,
        assignment=reply.assignment,
    )
