"""ListGroups (16), v0-v5.

Lists every group, or the groups in the states (v4, KIP-518) and of the types (v5, KIP-848) of the request. All groups
here are of the type "classic". A group with offsets but no members is Empty; without a generation it has no protocol
type.
"""

from dualwrite.broker.access.acls import AclOperation
from dualwrite.broker.access.needs import on_cluster, on_group
from dualwrite.broker.api.context import BrokerContext
from dualwrite.wire.apis import ApiKey, ListGroupsResponse, Message
from dualwrite.wire.error_codes import ErrorCode

KEY = ApiKey.LIST_GROUPS
VERSIONS = range(6)
_DESCRIBE_ALL = on_cluster(AclOperation.DESCRIBE, "instead of DESCRIBE on each group", is_refused=False)
_DESCRIBE = on_group(AclOperation.DESCRIBE, "other groups are left out", is_refused=False)
NEEDS = (_DESCRIBE, _DESCRIBE_ALL)

_TYPE = "classic"


async def handle(request: Message, version: int, broker: BrokerContext) -> Message:
    """List the groups that pass the request's filters."""
    states = {state.strip().lower() for state in request.states_filter or ()}
    types = {kind.strip().lower() for kind in request.types_filter or ()}
    sees_all = broker.may(_DESCRIBE_ALL)
    entry = ListGroupsResponse.ListedGroup
    groups = [
        entry(
            group_id=group.group_id,
            protocol_type=group.protocol_type or "",
            group_state=group.state.value,
            group_type=_TYPE,
        )
        for group in broker.groups.groups()
        if (sees_all or broker.may(_DESCRIBE, group.group_id))
        and (not states or group.state.value.lower() in states)
        and (not types or _TYPE in types)
    ]
    await broker.flusher.barrier()
    return ListGroupsResponse(throttle_time_ms=0, error_code=ErrorCode.NONE, groups=groups)
