"""ListGroups (16), v0-v5.

Lists every group, or the groups in the states (v4, KIP-518) and of the types (v5, KIP-848) of the request. A group is
of the type "classic" or "consumer". A group with offsets but no members is Empty; without a generation it has no
protocol type.
"""

from itertools import chain

from dualwrite.broker.access.acls import AclOperation
from dualwrite.broker.access.needs import on_cluster, on_group
from dualwrite.broker.api.context import BrokerContext
from dualwrite.broker.core.groups import CONSUMER_PROTOCOL
from dualwrite.wire.apis import ApiKey, ListGroupsResponse, Message
from dualwrite.wire.error_codes import ErrorCode

KEY = ApiKey.LIST_GROUPS
VERSIONS = range(6)
_DESCRIBE_ALL = on_cluster(AclOperation.DESCRIBE, "instead of DESCRIBE on each group", is_refused=False)
_DESCRIBE = on_group(AclOperation.DESCRIBE, "other groups are left out", is_refused=False)
NEEDS = (_DESCRIBE, _DESCRIBE_ALL)


async def handle(request: Message, version: int, broker: BrokerContext) -> Message:
    """List the groups that pass the request's filters."""
    states = {state.strip().lower() for state in request.states_filter or ()}
    types = {kind.strip().lower() for kind in request.types_filter or ()}
    sees_all = broker.may(_DESCRIBE_ALL)
    classic = (
        (group.group_id, group.protocol_type or "", group.state.value, "classic") for group in broker.groups.groups()
    )
    consumers = (
        (group.group_id, CONSUMER_PROTOCOL, group.state.value, "consumer") for group in broker.consumer_groups.groups()
    )
    entry = ListGroupsResponse.ListedGroup
    groups = [
        entry(group_id=name, protocol_type=protocol_type, group_state=state, group_type=kind)
        for name, protocol_type, state, kind in chain(classic, consumers)
        if (sees_all or broker.may(_DESCRIBE, name))
        and (not states or state.lower() in states)
        and (not types or kind in types)
    ]
    await broker.flusher.barrier()
    return ListGroupsResponse(throttle_time_ms=0, error_code=ErrorCode.NONE, groups=groups)
