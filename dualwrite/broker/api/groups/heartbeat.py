"""Heartbeat (12), v0-v4.

A member lives, and its session begins anew. REBALANCE_IN_PROGRESS tells it to join again. From v3 on a static member
names itself, and is told FENCED_INSTANCE_ID if another has taken its place. ACL: none yet.
"""

from dualwrite.broker.api.context import BrokerContext
from dualwrite.broker.core.group_commands import Heartbeat
from dualwrite.wire.apis import ApiKey, HeartbeatResponse, Message

KEY = ApiKey.HEARTBEAT
VERSIONS = range(5)


async def handle(request: Message, version: int, broker: BrokerContext) -> Message:
    """Take the sign of life."""
    command = Heartbeat(request.group_id, request.member_id, request.group_instance_id, request.generation_id)
    reply = await broker.groups.heartbeat(command)
    return HeartbeatResponse(throttle_time_ms=0, error_code=reply.error)
