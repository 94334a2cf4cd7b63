"""LeaveGroup (13), v0-v5.

Removes members; the remaining members must join again. From v3 on a request may remove several members, and static
members by their instance ids alone (KIP-345). Before v3 the error of the one member is the error of the request. The
broker ignores v5's reason. Members of a consumer group leave by a heartbeat; LeaveGroup removes them as well, which is
how an administrator does it.
"""

from dualwrite.broker.access.acls import AclOperation
from dualwrite.broker.access.needs import on_group
from dualwrite.broker.api.context import BrokerContext
from dualwrite.broker.core.consumer_groups.commands import RemoveMembers
from dualwrite.broker.core.group_commands import LeaveGroup, LeaveReply
from dualwrite.wire.apis import ApiKey, LeaveGroupResponse, Message
from dualwrite.wire.error_codes import ErrorCode

KEY = ApiKey.LEAVE_GROUP
VERSIONS = range(6)
_READ = on_group(AclOperation.READ)
NEEDS = (_READ,)

_FIRST_WITH_SEVERAL = 3


async def handle(request: Message, version: int, broker: BrokerContext) -> Message:
    """Remove the members of the request."""
    if not broker.may(_READ, request.group_id):
        return LeaveGroupResponse(throttle_time_ms=0, error_code=_READ.error, members=[])
    several = version >= _FIRST_WITH_SEVERAL
    members = [(entry.member_id, entry.group_instance_id) for entry in request.members] if several else []
    leaving = tuple(members) if several else ((request.member_id, None),)
    if broker.consumer_groups.group(request.group_id) is None:
        reply = await broker.groups.leave(LeaveGroup(request.group_id, leaving))
    else:
        errors = await broker.consumer_groups.remove(RemoveMembers(request.group_id, leaving))
        reply = LeaveReply(members=tuple((*member, error) for member, error in zip(leaving, errors, strict=True)))
    error = reply.error
    if not several and error is ErrorCode.NONE:
        ((_, _, error),) = reply.members
    response = LeaveGroupResponse.MemberResponse
    return LeaveGroupResponse(
        throttle_time_ms=0,
        error_code=error,
        members=[
            response(member_id=member_id, group_instance_id=instance_id, error_code=member_error)
            for member_id, instance_id, member_error in (reply.members if several else ())
        ],
    )
