"""Heartbeat (12), v0-v4.

Restarts a member's session timeout. REBALANCE_IN_PROGRESS asks the member to join again. From v3 on a static member
sends its instance id, and gets FENCED_INSTANCE_ID if another client has taken that id. A member of a consumer group
(KIP-848) joins again when it has partitions to give up or to get.
"""

from dualwrite.broker.access.acls import AclOperation
from dualwrite.broker.access.needs import on_group
from dualwrite.broker.api.context import BrokerContext
from dualwrite.broker.core.group_commands import Heartbeat
from dualwrite.wire.apis import ApiKey, HeartbeatResponse, Message

KEY = ApiKey.HEARTBEAT
VERSIONS = range(5)
_READ = on_group(AclOperation.READ)
NEEDS = (_READ,)


async def handle(request: Message, version: int, broker: BrokerContext) -> Message:
    """Restart the member's session timeout."""
    if not broker.may(_READ, request.group_id):
        return HeartbeatResponse(throttle_time_ms=0, error_code=_READ.error)
    command = Heartbeat(request.group_id, request.member_id, request.group_instance_id, request.generation_id)
    reply = await broker.groups.heartbeat(command)
    return HeartbeatResponse(throttle_time_ms=0, error_code=reply.error)
