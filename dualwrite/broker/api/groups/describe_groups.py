"""DescribeGroups (15), v0-v6.

Answers the state and the members of groups. Only for a stable group does the answer have the members' metadata. In a
rebalance it has the assignments of the last complete generation. A group that occurs twice is described once. An
unknown group is Dead: with GROUP_ID_NOT_FOUND from v6 on, without an error before that. So is a consumer group
(KIP-848), which ConsumerGroupDescribe describes. From v3 on the answer has, on request, the operations that the client
may perform (KIP-430).
"""

from dualwrite.broker.access.acls import AclOperation, ResourceType
from dualwrite.broker.access.needs import on_group
from dualwrite.broker.api.context import BrokerContext
from dualwrite.broker.api.turns import in_turns
from dualwrite.broker.core.groups import Group, GroupState, Member
from dualwrite.wire.apis import ApiKey, DescribeGroupsResponse, Message
from dualwrite.wire.error_codes import ErrorCode

KEY = ApiKey.DESCRIBE_GROUPS
VERSIONS = range(7)
_DESCRIBE = on_group(AclOperation.DESCRIBE)
NEEDS = (_DESCRIBE,)

_FIRST_WITH_MISSING_GROUPS = 6


async def handle(request: Message, version: int, broker: BrokerContext) -> Message:
    """Describe every group of the request."""
    names = dict.fromkeys(request.groups)
    groups = []
    async for name in in_turns(names):
        if not broker.may(_DESCRIBE, name):
            groups.append(_refused(name))
            continue
        missing = "is not a classic group." if broker.consumer_groups.group(name) else "not found."
        group = _describe(name, broker.groups.group(name), version, missing)
        if request.include_authorized_operations and group.error_code is ErrorCode.NONE:
            group.authorized_operations = broker.operations(ResourceType.GROUP, name)
        groups.append(group)
    await broker.flusher.barrier()
    return DescribeGroupsResponse(throttle_time_ms=0, groups=groups)


def _refused(name: str) -> Message:
    return DescribeGroupsResponse.DescribedGroup(
        error_code=_DESCRIBE.error, group_id=name, group_state="", protocol_type="", protocol_data="", members=[]
    )


def _describe(name: str, group: Group | None, version: int, missing: str) -> Message:
    response = DescribeGroupsResponse.DescribedGroup
    if group is None:
        error, message = ErrorCode.NONE, None
        if not name:
            error = ErrorCode.INVALID_GROUP_ID
        elif version >= _FIRST_WITH_MISSING_GROUPS:
            error, message = ErrorCode.GROUP_ID_NOT_FOUND, f"Group {name} {missing}"
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
        member_assignment=member.assignment,
    )
