"""DescribeGroups (15), v0-v6.

The state of groups and who is in them; what the members say and what they were assigned is told of a stable group
only. A group that occurs again is described once; an unknown one is Dead: from v6 on with
GROUP_ID_NOT_FOUND, before that with no error. ACL: none yet (no operations are told as authorized).
"""

from dualwrite.broker.api.context import BrokerContext
from dualwrite.broker.api.turns import in_turns
from dualwrite.broker.core.groups import Group, GroupState, Member
from dualwrite.wire.apis import ApiKey, DescribeGroupsResponse, Message
from dualwrite.wire.error_codes import ErrorCode

KEY = ApiKey.DESCRIBE_GROUPS
VERSIONS = range(7)

_FIRST_WITH_MISSING_GROUPS = 6


async def handle(request: Message, version: int, broker: BrokerContext) -> Message:
    """Describe every group of the request."""
    names = dict.fromkeys(request.groups)
    groups = [_describe(name, broker.groups.group(name), version) async for name in in_turns(names)]
    await broker.flusher.barrier()
    return DescribeGroupsResponse(throttle_time_ms=0, groups=groups)


def _describe(name: str, group: Group | None, version: int) -> Message:
    response = DescribeGroupsResponse.DescribedGroup
    if group is None:
        error, message = ErrorCode.NONE, None
        if not name:
            error = ErrorCode.INVALID_GROUP_ID
        elif version >= _FIRST_WITH_MISSING_GROUPS:
            error, message = ErrorCode.GROUP_ID_NOT_FOUND, f"Group {name} not found."
        return response(
            error_code=error,
            error_message=message,
            group_id=name,
            group_state=GroupState.DEAD.value if name else "",
            protocol_type="",
            protocol_data="",
            members=[],
        )
    protocol = group.protocol if group.state is GroupState.STABLE else None
    return response(
        error_code=ErrorCode.NONE,
        error_message=None,
        group_id=name,
        group_state=group.state.value,
        protocol_type=group.protocol_type or "",
        protocol_data=protocol or "",
        members=[_describe_member(member, protocol) for member in group.members.values()],
    )


def _describe_member(member: Member, protocol: str | None) -> Message:
    return DescribeGroupsResponse.DescribedGroup.DescribedGroupMember(
        member_id=member.member_id,
        group_instance_id=member.instance_id,
        client_id=member.client_id,
        client_host=member.client_host,
        member_metadata=(member.metadata(protocol) or b"") if protocol else b"",
        member_assignment=member.assignment if protocol else b"",
    )
