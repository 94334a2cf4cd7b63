"""LeaveGroup (13), v0-v5.

Members go, and the others are asked to join again. From v3 on several can go at once, and static ones be sent away by
their instance ids alone (KIP-345); before that, what is said about the one member is said about all. v5's reason is
passed over. ACL: none yet.
"""

from dualwrite.broker.api.context import BrokerContext
from dualwrite.broker.core.group_commands import LeaveGroup
from dualwrite.wire.apis import ApiKey, LeaveGroupResponse, Message
from dualwrite.wire.error_codes import ErrorCode

KEY = ApiKey.LEAVE_GROUP
VERSIONS = range(6)

_FIRST_WITH_SEVERAL = 3


async def handle(request: Message, version: int, broker: BrokerContext) -> Message:
    """Let the members of the request go."""
    several = version >= _FIRST_WITH_SEVERAL
    members = [(entry.member_id, entry.group_instance_id) for entry in request.members] if several else []
    leaving = tuple(members) if several else ((request.member_id, None),)
    reply = await broker.groups.leave(LeaveGroup(request.group_id, leaving))
    error = reply.error
    if not several and error is ErrorCode.NONE:
        ((_, _, error),) = reply.members
    response = LeaveGroupResponse.MemberResponse
    return LeaveGroupResponse(
        throttle_time_ms=0,
        error_code=error,
        members=[
            response(member_id=member_id, group_instance_id=instance_id, error_code=each)
            for member_id, instance_id, each in (reply.members if several else ())
        ],
    )
