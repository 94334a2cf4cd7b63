"""ListGroups (16), v0-v5.

Every group, or those in the states that are asked for (v4, KIP-518) and of the types (v5, KIP-848): all of them are
"classic" here. A group of which only offsets are known is Empty and has no protocol type. ACL: none yet.
"""

from dualwrite.broker.api.context import BrokerContext
from dualwrite.wire.apis import ApiKey, ListGroupsResponse, Message
from dualwrite.wire.error_codes import ErrorCode

KEY = ApiKey.LIST_GROUPS
VERSIONS = range(6)

_TYPE = "classic"


async def handle(request: Message, version: int, broker: BrokerContext) -> Message:
    """List the groups that pass the request's filters."""
    states = {state.strip().lower() for state in request.states_filter or ()}
    types = {kind.strip().lower() for kind in request.types_filter or ()}
    entry = ListGroupsResponse.ListedGroup
    groups = [
        entry(
            group_id=group.group_id,
            protocol_type=group.protocol_type or "",
            group_state=group.state.value,
            group_type=_TYPE,
        )
        for group in broker.groups.groups()
        if (not states or group.state.value.lower() in states) and (not types or _TYPE in types)
    ]
    await broker.flusher.barrier()
    return ListGroupsResponse(throttle_time_ms=0, error_code=ErrorCode.NONE, groups=groups)
